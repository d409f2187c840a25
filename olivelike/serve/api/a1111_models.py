"""What A1111's API takes, to the letter of its `modules/api/models.py`: all fields, null for a default, others ignored.

What can't be done here and would change the picture is refused when it is asked for, not when it is only mentioned.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from olivelike.serve.api.controlnet import check_units
from olivelike.serve.api.refusals import RequestRefusedError
from olivelike.serve.orders import Finite

Side = Annotated[int, Field(ge=0, le=1 << 16)]
Share = Annotated[Finite, Field(ge=0, le=1)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        """Take null for what is not given."""
        return {k: v for k, v in values.items() if v is not None} if isinstance(values, dict) else values


class Drawing(_Form):
    """What both ways to draw take."""

    prompt: str = ""
    negative_prompt: str = ""
    styles: list[str] = []
    seed: int = -1
    subseed: int = -1
    subseed_strength: Finite = 0
    sampler_name: str | None = None
    sampler_index: str | None = None
    scheduler: str | None = None
    batch_size: Annotated[int, Field(ge=1, le=64)] = 1
    n_iter: Annotated[int, Field(ge=1, le=100)] = 1
    steps: int = 50
    cfg_scale: Finite = 7.0
    width: Side = 0
    height: Side = 0
    restore_faces: bool = False
    tiling: bool = False
    eta: Finite | None = None
    clip_skip: int | None = None
    """SD.Next's; counted from 1."""
    refiner_checkpoint: str | None = None
    seed_resize_from_w: int = -1
    seed_resize_from_h: int = -1
    s_churn: Finite = 0
    s_noise: Finite = 1
    denoising_strength: Finite | None = None
    override_settings: dict[str, Any] = {}
    override_settings_restore_afterwards: bool = True
    script_name: str | None = None
    script_args: list[Any] = []
    alwayson_scripts: dict[str, Any] = {}
    send_images: bool = True
    save_images: bool = False

    def require_possible(self) -> None:
        """Raise `RequestRefusedError` for what is not here."""
        if self.script_name:
            raise refused(f"Script '{self.script_name}' not found")
        check_units(self.alwayson_scripts)
        for name, asked in (
            ("restore_faces", self.restore_faces),
            ("tiling", self.tiling),
            ("styles", self.styles),
            ("refiner_checkpoint", self.refiner_checkpoint not in (None, "", "None")),
            ("seed_resize_from_w", self.seed_resize_from_w > 0),
            ("seed_resize_from_h", self.seed_resize_from_h > 0),
            ("s_churn", self.s_churn),
            ("s_noise", self.s_noise != 1),
        ):
            if asked:
                raise refused(f"{name} is not done here")


class TextToImage(Drawing):
    """`/sdapi/v1/txt2img`."""

    enable_hr: bool = False
    hr_scale: Annotated[Finite, Field(ge=1, le=8)] = 2.0
    hr_upscaler: str | None = None
    hr_second_pass_steps: Annotated[int, Field(ge=0)] = 0
    hr_resize_x: Side = 0
    hr_resize_y: Side = 0
    hr_checkpoint_name: str | None = None
    hr_sampler_name: str | None = None
    hr_scheduler: str | None = None
    hr_prompt: str = ""
    hr_negative_prompt: str = ""

    @property
    def second_strength(self) -> float:
        """Share of the steps that the second pass runs."""
        return 0.75 if self.denoising_strength is None else self.denoising_strength

    def latent_scale(self) -> float | None:
        """Return how many times as large latents are drawn again; `None` if pixels are enlarged, or nothing is.

        Raises `RequestRefusedError` for a second pass that differs in more than its size.
        """
        if not self.enable_hr or self.hr_upscaler not in LATENT_MODES:
            return None
        same = (None, "", "Use same checkpoint", "Use same sampler", "Use same scheduler", 0)
        other = (
            "hr_second_pass_steps", "hr_resize_x", "hr_resize_y", "hr_checkpoint_name", "hr_sampler_name",
            "hr_scheduler", "hr_prompt", "hr_negative_prompt",
        )  # fmt: skip
        if given := [name for name in other if getattr(self, name) not in same]:
            raise refused(f"{given[0]} with hr_upscaler {self.hr_upscaler!r} is not done here; take Lanczos")
        return self.hr_scale


class ImageToImage(Drawing):
    """`/sdapi/v1/img2img`."""

    init_images: list[str] | None = None
    denoising_strength: Finite | None = 0.75
    resize_mode: Literal[0, 1, 2, 3] = 0
    mask: str | None = None
    mask_blur: Annotated[int, Field(ge=0, le=256)] = 4
    inpainting_fill: Literal[0, 1, 2, 3] = 0
    inpaint_full_res: bool = True
    inpaint_full_res_padding: Annotated[int, Field(ge=0, le=1024)] = 0
    inpainting_mask_invert: bool = False
    include_init_images: bool = False

    def require_possible(self) -> None:
        """Raise `RequestRefusedError` for what is not here."""
        super().require_possible()
        if not self.init_images:
            raise RequestRefusedError(404, "not_found", "Init image not found")
        if len(self.init_images) > 1:
            raise refused("init_images: one picture is taken at a time")
        if self.resize_mode == 3:
            raise refused("resize_mode 3: latents are not resized here; take 0, 1 or 2")
        if self.mask and self.inpainting_fill > 1:
            raise refused("inpainting_fill: latents are not filled here; take 0 (fill) or 1 (original)")


class Extras(_Form):
    """`/sdapi/v1/extra-single-image` and, with `imageList`, `extra-batch-images`."""

    resize_mode: Literal[0, 1] = 0
    show_extras_results: bool = True
    gfpgan_visibility: Share = 0
    codeformer_visibility: Share = 0
    upscaling_resize: Annotated[Finite, Field(gt=0, le=8)] = 2
    upscaling_resize_w: Annotated[int, Field(ge=1, le=1 << 16)] = 512
    upscaling_resize_h: Annotated[int, Field(ge=1, le=1 << 16)] = 512
    upscaling_crop: bool = True
    upscaler_1: str = "None"
    upscaler_2: str = "None"
    extras_upscaler_2_visibility: Share = 0
    image: str = ""


class FileData(_Form):
    """A picture of a batch."""

    data: str
    name: str = ""


class ManyExtras(Extras):
    """`/sdapi/v1/extra-batch-images`."""

    imageList: Annotated[list[FileData], Field(max_length=32)]  # noqa: N815  (as A1111 writes it)


class PngInfo(_Form):
    """`/sdapi/v1/png-info`."""

    image: str


LATENT_MODES: Final = ("Latent",)
"""A1111's ways to enlarge latents: bilinear."""
SAMPLER_ALIASES: Final = {
    "DPM++ 2M": ["k_dpmpp_2m"],
    "DPM++ SDE": ["k_dpmpp_sde"],
    "DPM++ 2M SDE": ["k_dpmpp_2m_sde"],
    "DPM++ 2M SDE Heun": ["k_dpmpp_2m_sde_heun"],
    "DPM++ 3M SDE": ["k_dpmpp_3m_sde"],
    "Euler a": ["k_euler_a", "k_euler_ancestral"],
    "Euler": ["k_euler"],
    "LMS": ["k_lms"],
    "Heun": ["k_heun"],
    "DPM2": ["k_dpm_2"],
    "DPM2 a": ["k_dpm_2_a"],
    "DDIM": ["ddim"],
    "PLMS": ["plms"],
    "UniPC": ["unipc"],
    "LCM": ["k_lcm"],
}
"""A1111's further names of its samplers."""
SCHEDULE_NAMES: Final = {
    "automatic": "Automatic",
    "uniform": "Uniform",
    "karras": "Karras",
    "exponential": "Exponential",
    "sgm_uniform": "SGM Uniform",
    "simple": "Simple",
    "normal": "Normal",
    "beta": "Beta",
}
"""Schedule types by the names that programs send; people read the labels."""


def refused(message: str) -> RequestRefusedError:
    """Return the refusal of a value."""
    return RequestRefusedError(422, "invalid", message)
