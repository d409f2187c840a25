"""LoRA files: what they hold, whether they fit a network, and the weights that come out of merging them.

Opening a file and checking its family reads headers alone and needs no library but the standard one.
`merge` imports torch, diffusers and peft; it runs in a worker.
"""

from olivelike.lora.family import check_family
from olivelike.lora.file import LoraFile, LoraModule
from olivelike.lora.merge import WeightedLora, merge
from olivelike.lora.open import open_lora
from olivelike.lora.training import TrainingNotes, training_notes

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
