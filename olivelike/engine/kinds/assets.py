"""`assets`: the files beside the networks, brought up to date; `tokenizer`: one of their tokenizers as a network."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.digest import canonical_json, digest_file
from olivelike.engine.keys import assets_digest, tokens_digest
from olivelike.engine.kinds.kind import Job, Kind
from olivelike.errors import SourceError
from olivelike.model import Weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olivelike.engine.kinds.kind import Assignment, Done, Upstream, Workbench, Workplace
    from olivelike.engine.plan.inputs import Inputs
    from olivelike.engine.plan.node import Node

ASSETS = "assets"
"""What the table of these files is called among what nodes make: a map from relative path to digest."""


@dataclass(frozen=True)
class AssetsJob(Job):
    """Bring tokenizers, scheduler and feature extractor up to date."""

    index: Mapping[str, Any]
    """The source's `model_index.json`."""
    files: Mapping[str, str]
    """Path of each file, by relative path."""
    tokens: Mapping[str, Mapping[str, Any]]
    """What tokenizers get, by their folder: see `Adapters.tokens`."""

    def run(self, bench: Workbench) -> Done:
        """Make the table of assets."""
        from olivelike.engine.output.assets import normalise_assets

        files = {name: Path(path) for name, path in self.files.items()}
        contents = normalise_assets(self.index, files, self.tokens)
        kept = bench.keep(contents)
        table = bench.keep({ASSETS: canonical_json(kept.outputs)}, {"files": len(contents)})
        return replace(table, parts={**kept.parts, **table.parts})


class AssetsNode(Kind):
    """The files beside the networks, of the whole pipeline."""

    job_type = AssetsJob
    libraries = ("tokenizers",)

    def facets(self, node: Node, upstream: Upstream, inputs: Inputs) -> dict[str, str]:  # noqa: ARG002
        """Return the digest of the files, of the schedulers' defaults, and of what is added to tokenizers."""
        from olivelike.engine.output.scheduler_defaults import TABLE

        source = inputs.source
        try:
            files = {relative: digest_file(path) for relative, path in source.extras.items()}
        except OSError as error:
            raise SourceError(f"{error.filename} can't be read: {error.strerror}; fetch the source again") from error
        tokens = inputs.adapters.tokens(source)
        added = {"tokens": tokens_digest(tokens)} if tokens else {}
        return {ASSETS: assets_digest(source.index, files), "scheduler defaults": digest_file(TABLE), **added}

    def options(self, node: Node) -> dict[str, Any]:  # noqa: ARG002
        """Return nothing: there is one such node."""
        return {}

    def job(self, place: Workplace, assignment: Assignment) -> Job:
        """Return what a worker is to do."""
        source = assignment.inputs.source
        files = {relative: str(path) for relative, path in source.extras.items()}
        return AssetsJob(place, dict(source.index), files, assignment.inputs.adapters.tokens(source))


@dataclass(frozen=True)
class TokenizerJob(Job):
    """Take a tokenizer's vocabulary out of the assets."""

    assets: str

    def run(self, bench: Workbench) -> Done:
        """Make `architecture`, and `weights` without a parameter."""
        from olivelike.engine.output.tokenizer_step import tokenizer_architecture

        component = self.place.component
        table = json.loads(bench.store.require_bytes(self.assets, f"{self.place.node}: its table of assets"))
        files = {
            name: bench.store.require_bytes(digest, f"{self.place.node}: its {name}")
            for name, digest in table.items()
            if name.startswith(f"{component}/")
        }
        architecture = tokenizer_architecture(component, files)
        return bench.keep({"architecture": architecture.to_bytes(), "weights": Weights({}).to_bytes()})


class TokenizerNode(Kind):
    """The beginning of a tokenizer's chain."""

    job_type = TokenizerJob
    always_reads = (ASSETS,)

    def job(self, place: Workplace, assignment: Assignment) -> Job:
        """Return what a worker is to do."""
        return TokenizerJob(place, assignment.facets[ASSETS])
