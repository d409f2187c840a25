"""Records of pictures, and pictures with them."""

from __future__ import annotations

from olivelike.runtime.pictures import PictureRecord, PictureWriter, UsedFile

RECORD = PictureRecord(
    'a (red:1.2) "circle", 東京 🎉\non a: background', "blurry,\nugly", 20, "DPM++ 2M Karras", "DPM++ 2M", "Karras",
    guidance_scale=7.5, guidance_rescale=0.25, eta=0.5, seed=42, width=64, height=96, strength=0.75,
    init_image=UsedFile("start.png", "ab" * 32), mask=UsedFile("mask.png"), clip_layer=2, prompt_weights=False,
    model="demo", model_hash="0123456789",
    loras=(UsedFile("ink, wet", "0123456789ab", 0.8), UsedFile("line", "abcdef012345", 1.0)),
    provider="CPUExecutionProvider", version="olivelike 0.1.0", other={"RNG": "CPU"},
)  # fmt: skip
PLAIN = PictureRecord("a cat", seed=7, steps=4, width=8, height=8, sampler="Euler a", version="olivelike 0.1.0")


def save(folder, image, record=PLAIN, name="picture.png", **options):
    return PictureWriter(folder / name, **options).save(image, record)
