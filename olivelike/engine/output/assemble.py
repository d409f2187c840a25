"""Assembling an output: staged components, the files beside them, the record, and publication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Self

from olivelike.digest import digest_bytes
from olivelike.engine.output.admission import existing_files, other_sources, remember_pipeline
from olivelike.engine.output.asset_table import read_assets
from olivelike.engine.output.file_names import stage
from olivelike.engine.output.output_files import is_current, remember
from olivelike.engine.output.packages import Packaged, package_of
from olivelike.engine.output.pipeline_files import index
from olivelike.engine.output.publication import publish
from olivelike.engine.output.staging import discard_staging, staging_folder
from olivelike.engine.plan.node import LAYOUT, Node
from olivelike.engine.plan.planner import ancestors
from olivelike.errors import MissingError, PassError
from olivelike.families import TOKENIZER_OF
from olivelike.model.client_layouts import LAYOUTS
from olivelike.model.components import INDEX_FILE, MODEL_FILE, PIPELINE, torch_folder
from olivelike.model.records.output import LOST, ComponentRecord, FileFacts, OutputFile, OutputRecord, StepRecord
from olivelike.pass_api.pass_class import GUIDES_READ

if TYPE_CHECKING:
    from olivelike._untrusted import JsonView
    from olivelike.engine.execute.driver import Execution
    from olivelike.engine.plan.resolver import Resolver
    from olivelike.engine.prepared import Prepared
    from olivelike.model.records.origin import License
    from olivelike.workflow import Output


class Stagings:
    """The staging folders of one run; made when something is to be written."""

    def __init__(self, prepared: Prepared, outputs: Sequence[Output]) -> None:
        self._nodes = [node for node in prepared.nodes if node.output is not None]
        self._outputs = outputs
        self._target = prepared.workflow.workflow.target.name
        self.roots: dict[Path, Path] = {}
        self.folders: dict[str, Path] = {}
        """Folder that each `materialize` node writes into, by node id."""

    def renew(self) -> None:
        """Make empty staging folders, in place of those that there were."""
        self.discard()
        self.roots = {output.path: staging_folder(output.path) for output in self._outputs}
        for node in self._nodes:
            if node.output is not None and node.output.path in self.roots:
                root = self.roots[node.output.path]
                self.folders[node.id] = root / node.folder(self._target)
                self.folders[node.id].mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Remove the staging folders that were not published."""
        for root in self.roots.values():
            discard_staging(root)


def assets_are_current(prepared: Prepared, assets: str, output: Output) -> bool:
    """Tell whether the files beside the networks are as they should be, and the record's target with them.

    `assets` is the digest of the table that the node `pipeline.assets` made.
    """
    record = OutputRecord.read(output.path)
    if record is None or record.target != prepared.workflow.workflow.target.choice():
        return False
    if other_sources(prepared, output, record) is not None or _licenses(prepared) != _licenses(record):
        return False
    made = {path: output.path / path for path in record.files}
    wanted = _assets(prepared, assets, record.components, record.files, output, made)
    recorded = {path: file.sha256 for path, file in record.files.items()}
    if any(recorded.get(path) != digest_bytes(data) for path, data in wanted.items()):
        return False
    components = {
        name for node in prepared.nodes if node.output == output for name in (node.component, *node.components)
    }
    if not prepared.options.only and record.components.keys() - components:
        return False
    return is_current(output.path, record, wanted, prepared.store)


def publish_output(
    prepared: Prepared, resolver: Resolver, execution: Execution, output: Output, stagings: Stagings
) -> list[str] | None:
    """Publish one output: the components that were materialised, and what belongs beside them.

    Returns files that the output no longer has, left alone since they were changed; `None` if it already held all.

    Raises:
        MissingError: when somebody took away the record of what is there already.
        PassError: when what was made has names that files of an output may not have; the output is as it was.
        UsageError: when somebody else's file is in the way; the output is as it was.
        StoreError: when the disk is full or read-only; the output is as it was.
    """
    before = OutputRecord.read(output.path)
    staging = stagings.roots[output.path]
    workflow, target = prepared.workflow.workflow, prepared.workflow.workflow.target.choice()
    components: dict[str, ComponentRecord] = {}
    files: dict[str, OutputFile] = {}
    if before is not None and prepared.options.only:
        components, files = dict(before.components), dict(before.files)
    written: dict[str, str] = {}
    for node in prepared.nodes:
        if node.output != output:
            continue
        result = execution.results[node.id]
        if result.status == "hit":
            if before is None:
                raise MissingError(f"{output.path}: its record went away during the run; run again to write all of it")
            mine = {node.component, *node.components}
            components |= {name: entry for name, entry in before.components.items() if name in mine}
            files |= before.component_files(node.component)
            continue
        facets = resolver.facets(node) or {}
        assert result.key is not None
        facts: JsonView = result.facts
        for name, written_file in facts["files"].items():
            file = OutputFile(written_file["size"], written_file["sha256"], node.id, result.key)
            path = (PurePosixPath(node.folder(target.name)) / name).as_posix()
            files[path] = file
            written[path] = file.sha256
        found = {name: facts[name] for name in ("derivations", *LOST)}
        components[node.component] = ComponentRecord(
            result.key, facets, _passes(node, prepared.nodes), **found, made_of=_made_of(node.component, resolver)
        )
        for name, end in node.components.items():
            own, steps = _facets_of(name, facets), _passes(node, prepared.nodes, end)
            components[name] = ComponentRecord(result.key, own, steps, made_of=_made_of(name, resolver))
    assets = execution.results[f"{PIPELINE}.assets"].outputs["assets"]
    made = {path: (staging if path in written else output.path) / path for path in files}
    for path, data in _assets(prepared, assets, components, files, output, made).items():
        if path in files and files[path].node is not None:
            raise PassError(f"two steps make {path} of {output.path}: {files[path].node} and {PIPELINE}.assets")
        sha256 = digest_bytes(data)
        files[path] = OutputFile(len(data), sha256, source=path if path in prepared.source.extras else None)
        if (
            before is not None
            and path in before.files
            and before.files[path].sha256 == sha256
            and is_current(output.path, before, [path], prepared.store)
        ):
            continue
        stage(staging, path, data)
        written[path] = sha256
    same = before is not None and before.files.keys() == files.keys() and before.target == target
    same = same and before is not None and _licenses(before) == _licenses(prepared)
    if before is not None and same and not written and other_sources(prepared, output, before) is None:
        return None
    adapters, digests = prepared.adapters, resolver.inputs.digests
    record = OutputRecord(
        workflow.name,
        target,
        prepared.source.origin.published(output.path, prepared.workflow.project_folder),
        components,
        files,
        tuple(lora.record(lora.origin.published(), digests[lora.file.path]) for lora in adapters.loras),
        tuple(found.record(found.origin.published(), digests[found.path]) for found in adapters.embeddings),
        output.layout,
    )
    existing = existing_files(prepared, output, before)
    kept = publish(staging, output.path, record, before, existing.is_current, overwrite=prepared.options.overwrite)
    for path, sha256 in written.items():
        remember(output.path / path, prepared.store, sha256)
    remember_pipeline(prepared, output)
    return kept


def _licenses(made: Prepared | OutputRecord) -> list[License | None]:
    return [origin.license for _, origin in made.origins]


def _assets(
    prepared: Prepared,
    digest: str,
    components: Mapping[str, ComponentRecord],
    files: Mapping[str, FileFacts],
    output: Output,
    made: Mapping[str, Path],
) -> dict[str, bytes]:
    """Return what belongs beside the networks; a layout that is no pipeline has nothing there.

    `files` are those of the networks, and `made` where they are; others in them do not count.
    """
    layout = LAYOUTS[output.layout]
    if not layout.is_pipeline and not layout.tokenizer_files and layout.package is None:
        return {}
    read = prepared.store.require_bytes
    table = read_assets(read(digest, "the table of assets"))
    if not layout.is_pipeline and layout.package is None:  # What makes ids of texts.
        wanted = {TOKENIZER_OF[name] for name in components if name in TOKENIZER_OF}
        return {path: read(content, path) for path, content in table.items() if path.partition("/")[0] in wanted}
    pipeline = {INDEX_FILE: index(prepared.source.index, sorted(components), layout)}
    pipeline |= {relative: read(content, relative) for relative, content in table.items()}
    if (package := package_of(output.layout)) is None:
        return pipeline
    target = prepared.workflow.workflow.target
    models = {name: made[f"{layout.network_folder(name, target.name)}/{MODEL_FILE}"] for name in components}
    networks = {path: facts for path, facts in files.items() if path.partition("/")[0] in components}
    name = prepared.workflow.workflow.name
    return package.files(Packaged(name, target.choice(), models, pipeline, networks, _size(components)))


def _size(components: Mapping[str, ComponentRecord]) -> tuple[int, int] | None:
    """Return width and height of the only pictures that networks make, as their chains say it."""
    sizes = (step.options.get("size") for one in components.values() for step in one.passes if step.name == LAYOUT)
    return next((tuple(size) for size in sizes if isinstance(size, list)), None)


def _facets_of(component: str, facets: Mapping[str, str]) -> dict[str, str]:
    start = f"{component}."
    return {name.removeprefix(start): digest for name, digest in facets.items() if name.startswith(start)}


def _made_of(component: str, resolver: Resolver) -> dict[str, str]:
    """Return the digests of a component's files of weights, and of what was merged into it."""
    inputs = resolver.inputs
    files = [*inputs.weight_files(component), *inputs.adapter_files(component, ("loras", "embeddings", GUIDES_READ))]
    folder = torch_folder(component)
    return {
        f"{folder}/{path.name}" if path.parent.name == folder else path.name: inputs.digests[path] for path in files
    }


def _passes(node: Node, nodes: Sequence[Node], end: str | None = None) -> tuple[StepRecord, ...]:
    """Return the steps before a node, or of a chain that it joins, up to its `end`."""
    chain = ancestors(node, nodes)
    if end is not None:
        last = next(other for other in nodes if other.id == end)
        chain = [last, *ancestors(last, nodes)]
    steps = (before.step for before in reversed(chain))
    return tuple(
        StepRecord(step.pass_name, step.instance.model_dump(mode="json")) for step in steps if step is not None
    )
