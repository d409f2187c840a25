"""LoRA files: what they hold, whether they fit a network, and the weights that come out of merging them.

Opening a file and checking its family reads headers alone and needs no library but the standard one.
`merge` imports torch, diffusers and peft; it runs in a worker.
"""

from olivelike.sources.adapters.lora_family import check_family
from olivelike.sources.adapters.lora_file import LoraFile, LoraModule
from olivelike.sources.adapters.merge import WeightedLora, merge
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.sources.adapters.training import TrainingNotes, training_notes

__all__ = [
    "LoraFile",
    "LoraModule",
    "TrainingNotes",
    "WeightedLora",
    "check_family",
    "merge",
    "open_lora",
    "training_notes",
]
