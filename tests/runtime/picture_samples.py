"""Records of pictures, and pictures with them."""

from __future__ import annotations

from olivelike.runtime.pictures import PictureRecord, PictureWriter, UsedFile

RECORD = PictureRecord(
    'a (red:1.2) "circle", 東京 🎉\non a: background', "blurry,\nugly", 20, "DPM++ 2M Karras", "DPM++ 2M", "Karras",
    7.5, 0.25, 0.5, 42, 64, 96, 0.75, UsedFile("start.png", "ab" * 32), UsedFile("mask.png"), 1, False, "demo",
    "0123456789", (UsedFile("ink, wet", "0123456789ab", 0.8), UsedFile("line", "abcdef012345", 1.0)),
    "CPUExecutionProvider", "olivelike 0.1.0", {"RNG": "CPU"},
)  # fmt: skip
PLAIN = PictureRecord("a cat", seed=7, steps=4, width=8, height=8, sampler="Euler a", version="olivelike 0.1.0")


def save(folder, image, record=PLAIN, name="picture.png", **options):
    return PictureWriter(folder / name, **options).save(image, record)
