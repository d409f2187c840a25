"""Installed distributions that add to olivelike, by their metadata alone: none of their code runs.

What is read is of the Core metadata: https://packaging.python.org/en/latest/specifications/core-metadata/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike._extras import GROUP as EXTRAS
from olivelike._installed import entry_points, metadata_of
from olivelike._table import Table, markdown_text
from olivelike._text import did_you_mean
from olivelike._untrusted import Json, one_line
from olivelike.errors import UsageError
from olivelike.model.plugin_targets import GROUP as TARGETS
from olivelike.workflow.passes.registry import ENTRY_POINT_GROUP as PASSES

if TYPE_CHECKING:
    from email.message import Message


GROUPS: Final = {"passes": PASSES, "targets": TARGETS, "extras": EXTRAS}
"""What a plugin gives, and the group of entry points that names it."""
_PREFIXES: Final = {"passes": "olivelike-pass-", "targets": "olivelike-target-", "extras": "olivelike-extra-"}
_URL: Final = re.compile(r"https?://[\w./~%?=&+#:@-]+")
_OURS: Final = re.compile(r"olivelike([-_.]runtime)?\b(?!-)")


@dataclass(frozen=True)
class InstalledPlugin:
    """A distribution that gives passes, targets or extras, in the words of its metadata, each on one line."""

    name: str
    version: str
    summary: str
    license: str
    """As an SPDX expression, if it is a new one; empty if it says none."""
    author: str
    keywords: tuple[str, ...]
    urls: Mapping[str, str]
    """Addresses by their labels, such as `Source`."""
    needs: tuple[str, ...]
    """Requirements that name olivelike or its runtime."""
    gives: Mapping[str, tuple[str, ...]]
    """Names of entry points, by what they give: `passes`, `targets`, `extras`."""

    def lacks(self) -> Iterator[str]:
        """Yield what its metadata does not say, in words that tell its author what to add."""
        prefixes = [_PREFIXES[kind] for kind in self.gives]
        if not self.name.lower().replace("_", "-").startswith(tuple(prefixes)):
            yield f"a name that begins with {' or '.join(prefixes)}"
        if not self.summary:
            yield "a description"
        if not self.license:
            yield "a license"
        if "olivelike" not in map(str.lower, self.keywords):
            yield "the keyword olivelike"
        if not self.urls:
            yield "a URL"
        if not self.needs:
            yield "olivelike or olivelike-runtime among its dependencies"

    def to_json(self) -> Json:
        """Return the fields, and what is lacking, as JSON values."""
        lists = {name: list(value) for name, value in vars(self).items() if isinstance(value, tuple)}
        gives = {kind: list(names) for kind, names in self.gives.items()}
        return {**vars(self), **lists, "urls": dict(self.urls), "gives": gives, "lacks": [*self.lacks()]}


def installed_plugins() -> list[InstalledPlugin]:
    """Return the plugins of this environment, sorted by name."""
    found: dict[str, tuple[Message, dict[str, list[str]]]] = {}
    for kind, group in GROUPS.items():
        for point in entry_points(group):
            if point.dist is not None:
                known = metadata_of(point.dist)
                _, gives = found.setdefault(one_line(known["Name"] or point.value.partition(":")[0]), (known, {}))
                gives.setdefault(kind, []).append(one_line(point.name))
    return [_described(name, *one) for name, one in sorted(found.items())]


def find_plugin(name: str) -> InstalledPlugin:
    """Return an installed plugin by its distribution's name.

    Raises `UsageError` if there is none; the message has the nearest.
    """
    found = {one.name: one for one in installed_plugins()}
    if name not in found:
        raise UsageError(f"no plugin called {name!r} is installed; {did_you_mean(name, [*found], 'plugins')}")
    return found[name]


def catalogue(plugins: list[InstalledPlugin]) -> list[str]:
    """Return a table of plugins in Markdown, for a page."""
    rows = []
    for one in plugins:
        gives = [f"{kind} {', '.join(map(markdown_text, names))}" for kind, names in one.gives.items()]
        links = [f"[{markdown_text(label)}]({url})" for label, url in one.urls.items() if _URL.fullmatch(url)]
        cells = [markdown_text(cell) for cell in (f"{one.name} {one.version}", one.summary, one.license)]
        rows.append((cells[0], "; ".join(gives), cells[1], cells[2], ", ".join(links)))
    return Table(("plugin", "gives", "does", "license", "links"), rows).markdown()


def _described(name: str, known: Message, gives: Mapping[str, list[str]]) -> InstalledPlugin:
    def said(*keys: str) -> str:
        texts = (one_line(known[key] or "").strip() for key in keys if key in known)
        return next((text for text in texts if text not in {"", "UNKNOWN"}), "")

    classified = (text.rpartition(" :: ")[2] for text in known.get_all("Classifier") or () if "License ::" in text)
    pairs = (text.partition(",") for text in known.get_all("Project-URL") or ())
    urls = {one_line(label.strip()): one_line(url.strip()) for label, _, url in pairs}
    if home := said("Home-page"):
        urls.setdefault("Homepage", home)
    words = re.split(r"[,;]", text) if re.search(r"[,;]", text := said("Keywords")) else text.split()
    return InstalledPlugin(
        name=name,
        version=said("Version"),
        summary=said("Summary"),
        license=said("License-Expression") or one_line(next(classified, "")) or said("License")[:80],
        author=said("Author", "Author-email", "Maintainer", "Maintainer-email"),
        keywords=tuple(word.strip() for word in words if word.strip()),
        urls=urls,
        needs=tuple(one_line(text) for text in known.get_all("Requires-Dist") or () if _OURS.match(text)),
        gives={kind: tuple(names) for kind, names in gives.items()},
    )
