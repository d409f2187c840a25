"""What the hub's client raises, as an error that says what to do, or as `ConnectionError`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.errors import SourceError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError


_BY_STATUS = {
    401: "the hub does not accept this machine's token (401); run `hf auth login`, or `hf auth logout`",
    403: "the hub forbids access (403); check the token's rights at {page}, then run `hf auth login`",
    404: "the hub has no such page (404); check the name at {page}, and HF_ENDPOINT if it is set",
    429: "the hub limits the number of requests (429); wait some minutes and try again, or run `hf auth login`, which "
    "raises the limit",
}


def client_errors() -> tuple[type[Exception], ...]:
    """Return all that the client raises for a request or a file; for an `except` clause."""
    from huggingface_hub.errors import HFValidationError

    return OSError, _http_root(), HFValidationError


def translated(error: Exception, repository: str, revision: str | None) -> SourceError | ConnectionError:
    """Return the error to raise in place of one of `client_errors`.

    Returns:
        `ConnectionError` if the hub did not answer, or may not be asked; else what it or this machine refused.
    """
    from huggingface_hub.errors import (
        FileMetadataError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    # The client wraps a failed request for a file's metadata: its cause tells a refusal from a dead line.
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, client_errors()):
        error = error.__cause__
    if isinstance(error, OfflineModeIsEnabled):
        return ConnectionError("HF_HUB_OFFLINE is set")
    if isinstance(error, HFValidationError):
        return SourceError(f"{repository}: neither a folder here nor a valid hub id: {error}")
    if isinstance(error, HfHubHTTPError):
        return _refusal(error, repository, revision)
    if isinstance(error, (_http_root(), ConnectionError, TimeoutError)):
        return ConnectionError(str(error) or type(error).__name__)
    if isinstance(error, (FileMetadataError, LocalEntryNotFoundError)):
        return SourceError(f"{repository}: what answered is no hub: {error}; check HF_ENDPOINT and the proxy")
    return SourceError(
        f"{repository}: its files can't be kept here: {error}; make room, or move the cache with HF_HOME"
    )


def _refusal(error: HfHubHTTPError, repository: str, revision: str | None) -> SourceError:
    """Put an answer of the hub that is no success into words."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    page = f"https://huggingface.co/{repository}"
    status = error.response.status_code
    if isinstance(error, GatedRepoError):
        text = f"access is restricted; accept its terms at {page}, then run `hf auth login`"
    elif isinstance(error, RepositoryNotFoundError):
        text = (
            f"no such repository on the hub, or it is private; check the name at {page}, "
            "and run `hf auth login` if it is private"
        )
    elif isinstance(error, RevisionNotFoundError):
        text = f"no revision {revision!r}; see {page}/branches"
    elif status >= 500:
        text = f"the hub has a fault ({status}); try again later, or set HF_HUB_OFFLINE=1 to take what the cache has"
    else:
        text = _BY_STATUS.get(status, "the hub refuses: {error}; check the name at {page}")
        text = text.format(page=page, error=str(error).strip())
    return SourceError(f"{repository}: {text}")


def _http_root() -> type[Exception]:
    """Return the root error of the HTTP library below the hub's client, which differs by version."""
    from huggingface_hub.errors import HfHubHTTPError

    root: type[Exception] = HfHubHTTPError.__bases__[0]
    return root
