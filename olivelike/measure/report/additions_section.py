"""LoRAs and textual inversions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.measure.report.element import Html, section, table
from olivelike.measure.report.origins import origin_text
from olivelike.measure.report.record_reading import mapping, shown

if TYPE_CHECKING:
    from olivelike.measure.report.record_reading import RunReport


def additions(run: RunReport) -> Html:
    """Return what was merged into the source, with its weights."""
    loras = [
        (origin_text(lora), shown(lora.get("weight")), shown(lora.get("weights")), shown(lora.get("adapter")))
        for lora in map(mapping, run.loras)
    ]
    embeddings = [
        (origin_text(embedding), shown(embedding.get("token")), shown(embedding.get("vectors")))
        for embedding in map(mapping, run.embeddings)
    ]
    return section(
        "additions",
        "LoRAs and embeddings",
        table("LoRAs that were merged", ("File", "Weight", "By component", "Adapter"), loras, numbers=(1,)),
        table("Textual inversions", ("File", "Token", "Vectors"), embeddings),
    )
