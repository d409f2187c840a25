"""The value that states a family's facts, for every room that draws, converts or tells files apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from olivelike._untrusted import JsonView
from olivelike.errors import SourceError
from olivelike.model.components import TAKEN_STATES, Prediction

if TYPE_CHECKING:
    from olivelike.model.architecture import Architecture, Config

Shapes = Mapping[str, tuple[int, ...]]
T5_LAYERS: Final = ("encoder_block", "shared")
"""Beginnings of the layers of T5."""
T5_STREAMS: Final = {"T5EncoderModel": ("encoder.block.*.layer.*",)}
"""Of `Family.streams`. transformers keeps in float32 what its feed-forward layers give, and so the stream."""
QWEN_STREAMS: Final = dict.fromkeys(
    ("Qwen3Model", "Qwen3ForCausalLM", "Qwen2_5_VLForConditionalGeneration"),
    ("layers.*", "model.layers.*", "model.language_model.layers.*"),
)
QWEN_PREFIXES: Final = r"(.*\.)?qwen\w*\."
T5_PREFIXES: Final = r"(.*\.)?t5\w*\."
"""What programs put before the names of Qwen3 and of T5 in one file."""
Owns = Callable[[JsonView, Collection[str], JsonView], bool]


@dataclass(frozen=True)
class TextPart:
    """A text encoder of a family, and what the denoiser takes of it."""

    component: str
    tokenizer: str
    """Folder of its tokenizer."""
    width: int
    """Numbers of each of its vectors in the published network."""
    class_name: str = "CLIPTextModel"
    stored: str = "clip"
    """Way in which files of original names hold it, by the name of a `Stored`."""
    prefix: str = "cond_stage_model.transformer."
    """Beginning of its names in the published file."""
    prefixes: str = r"(cond_stage_model|conditioner\.embedders\.0(?!\.model)|text_encoder)\.|(.*\.)?clip_[lh]\."
    """Pattern of what programs put before its names in one file."""
    kind: str = "clip"
    """Way from texts to tokens, one of `runtime.prompts.text_kinds`: CLIP's have emphasis, and chunks of `length`."""
    length: int = 77
    """Tokens of a chunk, with those at its ends."""
    cut: bool = False
    """Whether a text is read to the end of its first chunk, and not further."""
    back: int = 0
    """Number of layers from the last one back to the states that the denoiser was trained on."""
    shortened: bool = False
    """Whether networks lack the last layer of the one that it was trained as, having been led by the one before."""
    normed: bool = True
    """Whether states of an earlier layer pass the norm behind the last one."""
    pooled: str = "text_embeds"
    """Output with one vector of a text, where there is one."""
    closes: bool = False
    """Whether it is closed once prompts are known, being about as large as the denoiser."""
    template: tuple[str, str] = ("", "")
    """Words of a chat's template before a text and behind it."""
    filled: bool = True
    """Whether texts of a chat are filled up to `length`; otherwise each is encoded, and attended to, as long as it is.
    """
    dropped: int = 0
    """Tokens at the beginning of such a text, as of a template, whose states the denoiser is not given."""
    states: Callable[[int], tuple[int, ...]] | None = None
    """Number of layers → numbers of the states that its graph joins for the denoiser, those of the embeddings being 0;
    `None` for a graph with all of them."""
    other_classes: tuple[str, ...] = ()
    """Further classes that hold the same network."""

    def layers_back(self, clip_layer: int) -> int:
        """Return how many layers before the network's last one a request's `clip_layer` is: never behind `back`."""
        return max(self.back, clip_layer - 1 - self.shortened) if self.kind == "clip" else self.back

    optional: bool = False
    """Whether pipelines of the family may lack it."""
    unprojected: bool = False
    """Whether files of its makers mean the pooled text as it is, and mostly lack the projection of its class."""

    @property
    def output(self) -> str:
        """Output of its network with the last states, or with those that its graph joins."""
        return "last_hidden_state" if self.states is None else "hidden_states"

    @property
    def chat_template(self) -> str:
        """A chat's template as transformers has it, for the one message that is a prompt.

        Its parts are quoted: a line's end behind a template is lost.
        """
        before, behind = map(json.dumps, self.template)
        return f"{{{{ {before} + messages[0]['content'] + {behind} }}}}"

    def marked(self, config: Config) -> Config:
        """Return the config of its network with the states that are taken of it."""
        layers = config.get("num_hidden_layers")
        if self.states is None or not isinstance(layers, int):
            return config
        return {**config, TAKEN_STATES: list(self.states(layers))}


@dataclass(frozen=True)
class TinyVae:
    """A published tiny VAE of a kind of latents."""

    title: str
    repository: str
    families: str
    """Families with these latents, in words."""
    digests: tuple[str, ...]
    """First 16 digits of the SHA-256 of its files."""


@dataclass(frozen=True)
class LatentColours:
    """Linear fit of colours to latents, for a picture of a pixel each: what a published VAE decodes, from -1 to 1.

    https://discuss.huggingface.co/t/decoding-latents-to-rgb-without-upscaling/23204; the numbers are those of
    `comfy/latent_formats.py` in https://github.com/comfyanonymous/ComfyUI.
    """

    factors: tuple[tuple[float, float, float], ...]
    """Channel → red, green and blue."""
    bias: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Latents:
    """Form of what a VAE makes of pictures."""

    channels: int
    factor: int
    """Pixels per latent, along one side."""
    scaling: float
    """Factor of latents behind the VAE's encoder."""
    colours: LatentColours | None = None
    """What previews show of them."""
    shift: float = 0.0
    """Number that is taken from latents before they are scaled."""
    packing: int = 1
    """Latents along a side of the squares that are packed for the denoiser, each of which is one to it."""
    tiny: TinyVae | None = None


@dataclass(frozen=True)
class Sizes:
    """Sizes of pictures, in pixels."""

    default: int
    """Height and width that the denoiser was trained on."""
    unit: int
    """Common divisor of the sides that the published denoiser takes."""


@dataclass(frozen=True)
class HalfPolicy:
    """Parts of a network that stay in float32, and why; `reason` goes into the run record."""

    whole: bool = False
    """The whole graph stays in float32."""
    operators: tuple[str, ...] = ()
    """Operator types that stay in float32."""
    streams: tuple[str, ...] = ()
    """Modules whose own sums leave float16's range, as paths with wildcards for one name each: they stay in float32."""
    reason: str = ""


@dataclass(frozen=True)
class Blocks:
    """Blocks that a quantising pass treats apart: module paths with wildcards, and what lies inside."""

    in_float: tuple[str, ...] = ()
    fine: tuple[str, ...] = ()
    """Blocks whose weights have more bits: few weights with a large part in the error."""
    paired: tuple[str, ...] = ()
    """Blocks whose weights have more bits where that takes no float copy of them."""
    exact: tuple[str, ...] = ()
    """Blocks that multiply activations as they are, where others round them."""
    exact_by_rows: tuple[str, ...] = ()
    """Further such blocks where what is rounded has a scale for each row alone."""


def blocks_of_transformer(
    shared: tuple[str, ...],
    values: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (),
    first: tuple[str, ...] = (),
    tables: tuple[str, ...] = (),
    exact: tuple[str, ...] = (),
    exact_by_rows: tuple[str, ...] = (),
) -> dict[str, Blocks]:
    """Return the blocks that `weights8` and `weights4` treat apart in a transformer and its text encoder.

    Args:
        shared: layers that all blocks read from, as the timestep's: their error is the same in each block, so it adds
            up where those of others average out.
        values: an encoder's projections to values, which several queries share.
        outputs: what follows its attention: many weights, so that they have more bits among those of 4 alone.
        first: what all that follows reads from, as first layers and what works on texts before the blocks do.
        tables: what rows of the first states are looked up in.
        exact: what multiplies values that lie far apart, as those behind a gate do, so that 8 bits are few.
        exact_by_rows: further such layers where a whole row has one scale.
    """
    few = (*shared, *values)
    return {
        "weights8": Blocks(fine=few, paired=(*few, *first, *tables), exact=exact, exact_by_rows=exact_by_rows),
        "weights4": Blocks(fine=(*few, *outputs, *first)),
    }


@dataclass(frozen=True)
class Published:
    """Facts of the published pipeline beside its weights, which a checkpoint in one file does not hold."""

    index: JsonView
    """Further settings of `model_index.json`, such as `force_zeros_for_empty_prompt`."""
    tokenizers: Mapping[str, str]
    """Folder of the tokenizer → folder of its published settings."""
    scheduler: str
    """The scheduler for `epsilon`."""
    networks: str | None = None
    """File of the networks' configs in `data/published/networks`; `None` if no files in original names are read."""
    head_width: int | None = None
    """Channels per attention head of the denoiser; `None` if the count of heads is the same at every level."""
    changes: Mapping[Prediction, JsonView] = field(default_factory=dict)
    """Prediction → settings of the denoiser that differ between the published networks."""
    flow: Callable[[JsonView], str] | None = None
    """Config of the denoiser, with the settings of the index → file of the scheduler's settings, of those in
    `data/published/scheduler`; `None` for schedules of noise, which follow from the prediction."""
    vae_class: str = "AutoencoderKL"
    named_distilled: Callable[[str], bool | None] | None = None
    """Name of a denoiser's file, in small letters → whether it is of the distilled network, and not of the base, which
    has the same shapes; `None` for a name that says neither. `None` if there is one kind alone."""
    told_by_schedule: Callable[[JsonView], JsonView] = lambda settings: {}  # noqa: ARG005
    """Settings of a folder's scheduler → settings of the index that follow from them, where it lacks them."""

    @cached_property
    def configs(self) -> Mapping[str, JsonView]:
        """Folder → published `config.json`."""
        if self.networks is None:
            return {}
        path = Path(__file__).parents[1] / "data" / "published" / "networks" / self.networks
        configs: Mapping[str, JsonView] = json.loads(path.read_bytes())
        return configs


@dataclass(frozen=True, kw_only=True)
class Family:
    """The facts of one family."""

    name: str
    title: str
    pipelines: tuple[str, ...]
    """Classes of diffusers: from text, and for inpainting."""
    owns: Owns
    """Tells from index, components and denoiser's config whether a pipeline's folder is of this family."""
    denoiser: str
    """Component that is called at each step."""
    denoiser_class: str
    texts: tuple[TextPart, ...]
    """In the order in which their vectors are joined."""
    latents: Latents
    sizes: Sizes
    widths: tuple[int, ...]
    """Channels of each level of the published denoiser."""
    published: Published
    matches: Callable[[Shapes], str | None]
    """Tells from shapes in a file's original names why they are a denoiser of this family, whatever its width of text.

    The text itself tells more; `None` if they are not.
    """
    prediction: Prediction = "epsilon"
    """Meaning of the denoiser's output, unless a file says otherwise."""
    steps: int = 50
    """Steps of a request that names none, as in diffusers' pipeline."""
    guidance: float = 7.5
    """Its `guidance_scale`, likewise."""
    asked: Callable[[float], Mapping[str, Any]] = lambda scale: {"guidance_scale": scale}
    """Scale of a request without negative prompt, of which 1 is no guidance → arguments of diffusers' pipeline."""
    most_references: int = 0
    """Most pictures that its denoiser may be shown beside the text."""
    shows_masked: bool = False
    """Whether the picture behind a mask is shown to it, too, as diffusers' pipeline does."""
    refines_texts: bool = False
    """Whether its denoiser has blocks that read the text alone, so that they need not run in each step."""
    takes_negatives: bool = True
    """Whether guidance leads away from a negative prompt."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Field of a request that has no meaning → why, as the end of a sentence."""
    prompt_syntax: bool = True
    """Whether brackets, `AND` and `BREAK` in prompts mean what they do in A1111; they are text otherwise."""
    even_sigmas: bool = False
    """Whether a flow falls evenly from 1 to one step's share, before it is shifted; otherwise to the last timestep."""
    aligned_levels: tuple[float, ...] = (14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029)
    """Noise levels of Align Your Steps, falling; those of Stable Diffusion 1.5 serve all that have none of their own:
    https://research.nvidia.com/labs/toronto-ai/AlignYourSteps/howto.html."""
    flow_shift: Callable[[Any, Any, Any], Any] | None = None
    """Array interface, patches of a picture, steps → shift of a flow by these; `None` if its scheduler says it."""
    variant: Callable[[JsonView, JsonView], Mapping[str, Any]] = lambda *_: {}
    """Index of a pipeline and config of its denoiser → facts that differ, as those of distilled networks do."""
    half: Callable[[Architecture], HalfPolicy | None] = lambda architecture: None  # noqa: ARG005
    """Default for one of its networks; `None` if all of it can be in half precision."""
    streams: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Class of its networks → modules for `HalfPolicy.streams`."""
    blocks: Mapping[str, Blocks] = field(default_factory=dict)
    """Quantising pass → blocks of its networks that it treats apart; those of `int8` are those of `fp8`, too."""
    text_key: str = "cross_attention_dim"
    """Key of the denoiser's config for the width of its texts, if their vectors are joined to one of that width.

    Otherwise empty: they follow each other, filled up to the widest, and the width tells no family.
    """
    size_inputs: Callable[[int, int], Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]] = lambda *_: {}
    """Width and height of a picture → inputs with numbers of it: a row for prompts, and one for negative prompts."""
    sample: str = "sample"
    """Input for the latents."""
    takes_masks: bool = False
    """Whether there are denoisers of it that take a mask and the masked picture behind the channels of latents."""
    timestep: Literal["steps", "sigma", "1 - sigma"] = "steps"
    """Input that it takes for a timestep of 1000: 1000 itself, the share of noise, or that of the picture."""
    zeros_for_no_text: bool = False
    """Whether `force_zeros_for_empty_prompt` of an index is followed."""
    lora_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Component → words for it in the names of a LoRA's tensors."""
    lora_layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Component → beginnings of its layers, for names that say no network, beside those of `Network.held`."""
    unread: tuple[str, ...] = ()
    """Parts of names that tell a file of its original code, where those are not read."""
    guides: frozenset[str] = frozenset()
    """Kinds of guides whose inputs its denoiser has joints for."""
    caches: frozenset[str] = frozenset()
    """Passes that let steps between whole ones run a part of its denoiser."""

    @property
    def usual(self) -> Mapping[str, float]:
        """Fields of a request that are the family's where nothing names them."""
        return {"steps": self.steps, "guidance_scale": self.guidance}

    @property
    def text_width(self) -> int:
        """Width of the prompt's vectors that the denoiser attends to: all encoders' joined, or the widest's."""
        widths = [text.width for text in self.texts]
        return sum(widths) if self.text_key else max(widths)

    @property
    def compact_on_cpu(self) -> bool:
        """Whether large networks have weights of 8 bits on a CPU, which they would fill as floats.

        Each step waits for the denoiser, which rounds what it multiplies by them there as well.
        """
        return self.denoiser == "transformer"

    @property
    def networks(self) -> tuple[str, ...]:
        """Components that each pipeline of the family has."""
        return (*(text.component for text in self.texts), self.denoiser, "vae_decoder", "vae_encoder")

    @property
    def parts(self) -> tuple[str, ...]:
        """Folders of the networks that draw a picture with a denoiser."""
        return ("vae", *(text.component for text in self.texts if not text.optional))

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of the networks in a pipeline of torch, but for a safety checker."""
        return (self.denoiser, "vae", *(text.component for text in self.texts))


def is_distilled(index: JsonView) -> bool | None:
    """Return what an index says of the denoiser by FLUX.2's switch; `None` if nothing."""
    said = index.get("is_distilled")
    if said is None or isinstance(said, bool):
        return said
    raise SourceError(
        f"model_index.json has `is_distilled: {json.dumps(said)[:32]}`, where true or false makes sense; get it again"
    )
