"""What a run's record says by itself: errors, changes, sizes, adapters, facts, environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from olivelike._text import count, duration, size
from olivelike.measure.report.comparison import COMPARISON_FACTS
from olivelike.measure.report.element import Html, element, facts, fold, moment, section, shown, table
from olivelike.measure.report.findings import Fusion, fusion

if TYPE_CHECKING:
    from olivelike.model.records.origin import Origin
    from olivelike.model.records.run_record import NodeRecord, RunRecord


def origin_text(origin: Origin) -> str:
    """Return where a source comes from, and its VAE if that comes from elsewhere."""
    return f"{origin}, VAE of {origin.vae}" if origin.vae is not None else str(origin)


def errors(run: RunRecord) -> Html:
    """Return what went wrong: each failed node with its log, or else the error of the run."""
    failed = [node for node in run.nodes if node.status == "failed"]
    blocks = [
        element(
            "article",
            element("h3", node.id),
            element("pre", node.error or "no message"),
            facts([("Log", node.log or "")]),
            class_="error",
        )
        for node in failed
    ]
    if not failed and run.error:
        blocks.append(element("article", element("pre", run.error), class_="error"))
    return section("errors", "What went wrong", *blocks)


def changes(run: RunRecord) -> Html:
    """Return times, sizes and nodes of this run and the one before; nothing if the record knows of none."""
    before = run.previous
    if before is None:
        return Html()
    ran = sum(node.status == "executed" for node in before.nodes.values())
    rows = [
        ("Time", duration(before.seconds), duration(run.seconds)),
        ("Nodes that ran", f"{ran:,}", f"{run.count('executed'):,}"),
    ]
    for path, files in run.output_files.items():
        name = f"Size of {path}" if len(run.output_files) > 1 else "Size"
        old = before.output_bytes.get(path)
        rows.append((name, size(old) if old is not None else "not there", size(sum(files.values()))))
    said = [
        ("Target", before.target.name, run.target.name),
        ("Precision", before.target.precision, run.target.precision),
        ("Source", origin_text(before.source), origin_text(run.source)),
    ]
    rows += [(name, old, new) for name, old, new in said if old != new]
    now, then = {node.id for node in run.nodes}, set(before.nodes)
    for title, ids in (("New nodes", now - then), ("Nodes that are gone", then - now)):
        if ids and run.nodes:
            named = f"{count(len(ids), 'node')}: {', '.join(sorted(ids))}"
            rows.append((title, *(("", named) if ids <= now else (named, ""))))
    caption = f"Compared with the run that ended on {moment(before.finished)}"
    return section("changes", "Since the last run", table(caption, ("", "Then", "Now"), rows))


def sizes(run: RunRecord) -> Html:
    """Return the sizes of the source's weight files and of the files of each output."""
    content = [_sizes("Weight files of the source", run.source_files)]
    for folder, files in run.output_files.items():
        title = f"Files of {folder}"
        content.append(fold(f"{title}, {size(sum(files.values()))}", _sizes(title, files)))
    return section("sizes", "Sizes", *content)


def _sizes(caption: str, files: Mapping[str, int]) -> Html:
    rows = [(name, size(found)) for name, found in files.items()]
    if len(rows) > 1:
        rows.append(("all", size(sum(files.values()))))
    return table(caption, ("File", "Size"), rows, numbers=(1,))


def adapters(run: RunRecord) -> Html:
    """Return what was merged into the source, with its weights."""
    loras = [(str(lora.origin), shown(lora.weight), shown(lora.weights), lora.adapter or "") for lora in run.loras]
    embeddings = [(str(found.origin), found.token, shown(found.vectors)) for found in run.embeddings]
    return section(
        "adapters",
        "LoRAs and embeddings",
        table("LoRAs that were merged", ("File", "Weight", "By component", "Adapter"), loras, numbers=(1,)),
        table("Textual inversions", ("File", "Token", "Vectors"), embeddings),
    )


def details(run: RunRecord) -> Html:
    """Return the facts of all steps that no other section shows, a row for each step."""
    rows = []
    for node in run.nodes:
        elsewhere = _shown_elsewhere(node)
        named = ((name.replace("_", " "), shown(value)) for name, value in node.facts.items() if name not in elsewhere)
        if found := facts(named):
            rows.append((node.id, found))
    found = table("Facts that no other section shows", ("Step", "Recorded"), rows, class_="facts")
    return section("details", "Details", fold(f"What {count(len(rows), 'step')} recorded", found) if rows else Html())


def _shown_elsewhere(node: NodeRecord) -> frozenset[str]:
    if node.name == "materialize":
        return COMPARISON_FACTS | {"files"}
    return COMPARISON_FACTS if fusion(node) is None else COMPARISON_FACTS | set(Fusion.__annotations__)


def environment(run: RunRecord) -> Html:
    """Return the kind of machine and the versions of the libraries."""
    host = run.host
    return section(
        "environment",
        "Environment",
        facts(
            [
                ("Machine", " ".join(filter(None, (host.system, host.release, host.machine)))),
                ("Cores", shown(host.cores)),
                ("Memory", size(host.memory_bytes) if host.memory_bytes else ""),
            ]
        ),
        element("h3", "Versions"),
        facts(run.versions.items()),
    )
