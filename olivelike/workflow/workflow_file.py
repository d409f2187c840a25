"""Keys of a workflow file (`WorkflowFile`, and its JSON schema), and what they mean once resolved (`Workflow`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema, ValidationInfo, create_model
from pydantic_core import core_schema

from olivelike._untrusted import Json
from olivelike.families import COMPONENTS, LORA_COMPONENTS, TEXT_ENCODERS, TOKENIZERS
from olivelike.model.client_layouts import DEFAULT, LayoutName
from olivelike.model.components import Prediction
from olivelike.model.guides import GUIDES, IMAGE_ENCODER, GuideKind
from olivelike.model.targets import ALIASES, Precision, Target
from olivelike.workflow.places import FileRef, file_ref, source_path

if TYPE_CHECKING:
    from olivelike.pass_api import Pass, PrecisionPlan
    from olivelike.sources import SourceSpec
    from olivelike.workflow.findings import Position
    from olivelike.workflow.passes import Registry
    from olivelike.workflow.passes.registry import PassEntry

Size = Annotated[int, Field(ge=8, le=16384)]
if TYPE_CHECKING:
    ComponentName = str
else:
    ComponentName = Literal[LORA_COMPONENTS]
"""Components that LoRAs are made for."""


def _named_in_project(kind: type, resolve: Callable[[str, Path], object]) -> GetPydanticSchema:
    """Return the schema of a text in a file, told what it names in the project's folder; values of Python are taken."""

    def named(text: str, info: ValidationInfo[Path]) -> object:
        return resolve(text, info.context)

    text = core_schema.with_info_after_validator_function(named, core_schema.str_schema(min_length=1))
    schema = core_schema.json_or_python_schema(text, core_schema.is_instance_schema(kind))
    return GetPydanticSchema(lambda *_: schema)


SourcePath = Annotated[Path, _named_in_project(Path, source_path)]
"""Absolute; relative ones start at the project's folder."""
LicenseName = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=120,
        pattern=r"^[^\x00-\x1f\x7f]*$",
        description="Name of its licence, such as `openrail++`, where its files say none, or you were given another.",
    ),
]
WeightFile = Annotated[FileRef, _named_in_project(FileRef, file_ref)]


class _Section(BaseModel):
    # Descriptions stand in fields here: reading attribute docstrings back costs 15 ms at each start.
    model_config = ConfigDict(extra="forbid", frozen=True)


class Vae(_Section):
    """Another VAE than the source's own: either `hub` or `path`."""

    hub: str | None = Field(default=None, min_length=1, description="Model id on the Hugging Face hub, `OWNER/NAME`.")
    path: SourcePath | None = Field(
        default=None, description="A VAE's folder or file, or a pipeline's folder, relative to the project folder."
    )
    revision: str | None = Field(default=None, min_length=1, description="Branch, tag or commit on the hub.")
    variant: str | None = Field(default=None, min_length=1, description="Variant of the weight files, such as `fp16`.")
    license: LicenseName = None

    def spec(self) -> SourceSpec:
        """Return what `open_source` wants to know of it."""
        from olivelike.sources import SourceSpec

        return SourceSpec(self.path, self.hub, self.revision, self.variant, license=self.license)


PARTS: Final = (*TEXT_ENCODERS, "vae", *TOKENIZERS)
"""Keys of a source for networks and tokenizers beside the denoiser's file."""


def _beside(network: str) -> Any:
    words = f"Single file of {network}, where that of the denoiser has none, relative to the project folder."
    return Field(default=None, description=words)


def _own_tokenizer(encoder: str) -> Any:
    words = f"Folder of the tokenizer of {encoder}, in place of the published one, relative to the project folder."
    return Field(default=None, description=words)


class Source(Vae):
    """Origin of the pipeline: either `hub` or `path`."""

    path: SourcePath | None = Field(
        default=None,
        description="Single `.safetensors` or `.gguf` file, or folder in the layout of diffusers or of ONNX pipelines, "
        "relative to the project folder.",
    )
    prediction: Prediction | None = Field(
        default=None, description="What the UNet of a single file predicts, where the file does not tell."
    )
    distilled: bool | None = Field(
        default=None,
        description="Whether a single file is of a distilled network, as Z-Image Turbo, or of its base, where "
        "its name does not tell.",
    )
    transformer: SourcePath | None = Field(
        default=None, description="In place of `path`: single file of the denoiser, with others beside it."
    )
    text_encoder: SourcePath | None = _beside("the text encoder")
    text_encoder_2: SourcePath | None = _beside("the second text encoder")
    text_encoder_3: SourcePath | None = _beside("the third text encoder")
    vae: SourcePath | None = _beside("the VAE")
    tokenizer: SourcePath | None = _own_tokenizer("the text encoder")
    tokenizer_2: SourcePath | None = _own_tokenizer("the second text encoder")
    tokenizer_3: SourcePath | None = _own_tokenizer("the third text encoder")

    @property
    def parts(self) -> dict[str, Path]:
        """Files and folders beside that of the denoiser, by the folder of a pipeline that they stand for."""
        named = {name: getattr(self, name) for name in PARTS}
        return {name: path for name, path in named.items() if path is not None}

    def spec(self) -> SourceSpec:
        """Return what `open_source` wants to know of it."""
        return replace(super().spec(), prediction=self.prediction, distilled=self.distilled, parts=self.parts)


class GuideFile(_Section):
    """A guide that is a file of weights for the UNet, with its network."""

    file: WeightFile = Field(
        description="File, relative to the project folder; or a file on the hub, `OWNER/NAME/FILE`, such as "
        "`h94/IP-Adapter/models/ip-adapter_sd15.safetensors`."
    )
    image_encoder: Vae | None = Field(
        default=None, description="Folder or hub id of its image encoder; by default looked for near the file."
    )
    revision: str | None = Field(default=None, min_length=1, description="Branch, tag or commit on the hub.")
    license: LicenseName = None

    def spec(self) -> SourceSpec:
        """Return what `open_source` wants to know of it."""
        from olivelike.sources import SourceSpec

        encoder = None if self.image_encoder is None else self.image_encoder.spec()
        own = SourceSpec(self.file.path, self.file.hub, self.revision, file=self.file.name, network=encoder)
        return replace(own, license=self.license)


Guide = Vae | GuideFile


class Lora(_Section):
    """A LoRA that `merge_lora` merges."""

    file: WeightFile = Field(
        description="File or adapter folder, relative to the project folder; or hub id, `OWNER/NAME` or "
        "`OWNER/NAME/FILE`."
    )
    weight: float = Field(default=1.0, allow_inf_nan=False, description="How strongly it is merged; 0 leaves it out.")
    weights: dict[ComponentName, float] = Field(
        default_factory=dict, description="Weight of single components, in place of `weight`."
    )
    adapter: str | None = Field(default=None, min_length=1, description="Which adapter, where the file holds several.")
    revision: str | None = Field(default=None, min_length=1, description="Branch, tag or commit on the hub.")
    license: LicenseName = None

    def weight_of(self, component: str) -> float:
        """Return the weight that the LoRA has in a component; 0 leaves it out."""
        return next((weight for name, weight in self.weights.items() if name == component), self.weight)


class Embedding(_Section):
    """A textual inversion that is added to tokenizers and text encoders."""

    file: WeightFile = Field(
        description="File, relative to the project folder; or hub id, `OWNER/NAME` or `OWNER/NAME/FILE`."
    )
    token: str | None = Field(
        default=None,
        min_length=1,
        pattern=r"^\S+$",
        description="What prompts call it; by default the token in the file, or the file's name.",
    )
    revision: str | None = Field(default=None, min_length=1, description="Branch, tag or commit on the hub.")
    license: LicenseName = None


@dataclass(frozen=True)
class Calibration:
    """Prompts and settings of what the pipeline draws before networks are rounded to 8 bits."""

    prompts: tuple[str, ...]
    steps: int
    guidance_scale: float
    size: tuple[int, int] | None
    """Width and height in pixels; `None` is half of what the UNet was trained on, where that leaves 256."""
    seed: int
    """Seed of the first prompt's picture; the next ones have those that follow."""
    own_prompts: bool = False
    """Whether the workflow names them: one that draws what is unsafe is refused then, and left out otherwise."""
    components: tuple[str, ...] = ()
    """Components that are observed."""


@dataclass(frozen=True)
class Output:
    """A folder to write, and the last pass of each chain that it shows."""

    path: Path
    """Absolute."""
    until: str | None = None
    layout: LayoutName = DEFAULT
    variant: str | None = None
    """The variant of a sweep that it shows."""


@dataclass(frozen=True)
class Step:
    """One entry of a component's chain."""

    pass_name: str
    instance: Pass
    position: Position
    precision: PrecisionPlan | None = None
    """Precision that the steps behind this one convert the graph to, if the pass reads it."""


@dataclass(frozen=True)
class Workflow:
    """A workflow with every default filled in, without its chains; equal files give equal values."""

    name: str
    source: Source
    vae: Vae | None
    """Another VAE than the source's own."""
    preview: Vae | None
    """The tiny VAE that decodes previews."""
    loras: tuple[Lora, ...]
    embeddings: tuple[Embedding, ...]
    target: Target
    outputs: tuple[Output, ...]
    guides: Mapping[str, Sequence[Guide]] = field(default_factory=dict)
    """Guides beside the source by key: the first of a kind becomes its first component, the next one its second."""
    calibration: Calibration | None = None
    scheduler_model: bool = False
    """Whether outputs have schedules as a graph, too."""


class TargetSection(_Section):
    """The execution provider that the result is for."""

    provider: str = Field(description="Name of the target, such as `directml`.")
    device_id: int | None = Field(None, ge=0, description="Number of the device that sessions use.")
    precision: Precision | None = Field(None, description="Precision that passes aim at; by default the target's own.")
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="Options of the execution provider, passed on as they are."
    )
    session_options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="ONNX Runtime's session configuration entries, by their keys."
    )
    run_options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="ONNX Runtime's run configuration entries, by their keys."
    )


class CalibrationSection(_Section):
    """Pictures that the pipeline draws, in float, before `int8` or `fp8` rounds what passes through its networks."""

    prompts: list[str] | str | None = Field(
        None,
        min_length=1,
        description="Prompts, or a text file with one in each line, relative to the project folder; by default "
        "eight of olivelike's own.",
    )
    steps: int = Field(4, ge=1, le=1000, description="Of each picture; more of them see more kinds of noise.")
    guidance_scale: float = Field(7.5, ge=0, allow_inf_nan=False, description="How strongly prompts lead.")
    size: tuple[Size, Size] | None = Field(
        None, description="Width and height in pixels; by default half of what the UNet was trained on, if that is 256."
    )
    seed: int = Field(0, ge=0, lt=2**32 - 4096, description="Of the first picture; the others have those behind it.")


class OutputSection(_Section):
    """One folder to write."""

    path: str = Field(min_length=1, description="Folder, relative to the project folder.")
    until: str | None = Field(
        None, description="Last pass that this output shows, such as `convert`; by default the whole chain."
    )
    layout: LayoutName | None = Field(
        None, description="Client whose names, types and files the folder has; by default the workflow's."
    )


class VariantSection(_Section):
    """One variant of a sweep."""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.+-]*$", description="Its name, and that of its folder in the output.")
    components: Any = Field(
        None, description="Chains in place of those of the workflow; the others stay. By default all stay."
    )


class _PipelineKeys(_Section):
    # The keys before those of guides.
    name: str | None = Field(None, min_length=1, description="Name of the workflow; by default the file's.")
    extends: str | None = Field(
        None, description="A workflow file or shipped name that this one overrides: maps merge, the rest replaces."
    )
    plugins: list[str] = Field(
        default_factory=list, description="Files, folders or modules that define passes, relative to this file."
    )
    source: Source = Field(description="Where the pipeline comes from: a hub id, a folder, a single file, or a map.")
    vae: Vae | None = Field(
        None, description="Another VAE than the source's own: a hub id, a folder, a file, or a map."
    )
    preview: Vae | None = Field(
        None, description="A tiny VAE (TAESD) whose decoder, `preview_decoder`, shows pictures of steps."
    )


def _guide_key(kind: GuideKind) -> tuple[Any, Any]:
    """Return the type and the field of a kind's key."""
    one = f"{kind.one[0].upper()}{kind.one[1:]}"
    about = f"{one} beside the source: {kind.says}."
    words = f"{one}'s folder, or one file, relative to the project folder."
    path: dict[str, Any] = {} if kind.is_file else {"path": (SourcePath | None, Field(None, description=words))}
    base: type[BaseModel] = GuideFile if kind.is_file else Vae
    section: Any = create_model(kind.section, __base__=base, __doc__=about, **path)
    first, *others = kind.components
    if kind.is_list:
        names = f"components `{first}`, `{others[0]}` and so on: hub ids, folders, files, or maps."
        words = f"{kind.some} that become the {names}"
        return list[section], Field(default_factory=list, max_length=len(kind.components), description=words)
    network = f"whose {kind.network_title}" if kind.is_file else "which"
    forms = "a file, or a map" if kind.is_file else "a hub id, a folder, a file, or a map"
    return section | None, Field(None, description=f"{one}, {network} becomes the component `{first}`: {forms}.")


if TYPE_CHECKING:
    _GuideKeys = _PipelineKeys
else:
    _GuideKeys = create_model(
        "_GuideKeys", __base__=_PipelineKeys, **{kind.key: _guide_key(kind) for kind in GUIDES.values()}
    )


class WorkflowFile(_GuideKeys):
    """The keys of a workflow file; sources, targets and steps in their long form."""

    loras: list[Lora] = Field(
        default_factory=list, description="LoRAs that `merge_lora` merges: files, `FILE:WEIGHT`, or maps."
    )
    embeddings: list[Embedding] = Field(
        default_factory=list, description="Textual inversions to add: files, or maps with `file` and `token`."
    )
    target: TargetSection = Field(description="The execution provider that the result is for: its name, or a map.")
    calibration: CalibrationSection | None = Field(
        None, description="What the pipeline draws for `int8` and `fp8`, which see what passes through its networks."
    )
    components: Any = Field(description="The chain of passes for each component of the pipeline.")
    layout: LayoutName = Field(DEFAULT, description="Client whose names, types and files the output folder has.")
    scheduler_model: bool = Field(
        False, description="Also write `scheduler/model.onnx`: schedules as a graph, for programs without their own."
    )
    output: str | None = Field(None, min_length=1, description="Folder for the result, relative to the project folder.")
    outputs: list[OutputSection] | None = Field(
        None, min_length=1, description="Several folders, in place of `output`."
    )
    matrix: Json | None = Field(
        None,
        description="One pipeline for each combination of the axes, in a folder of its name in `output`: an axis maps "
        "names to keys of a workflow, or, called like a key, lists values. `exclude` lists maps of what to leave out.",
    )
    sweep: list[VariantSection] | None = Field(
        None, min_length=1, description="Variants of the chains, each written to a folder of its name in `output`."
    )

    @property
    def guides(self) -> dict[str, tuple[Guide, ...]]:
        """Guides by key."""
        named = {kind.key: getattr(self, kind.key) for kind in GUIDES.values()}
        return {key: tuple(some) if isinstance(some, list) else (some,) for key, some in named.items() if some}


LISTS = ("loras", "embeddings", *(kind.key for kind in GUIDES.values() if kind.is_list))
"""Keys of files and folders, several of each."""


def json_schema(registry: Registry) -> dict[str, Any]:
    """Return the schema, draft 2020-12, of files that use the passes of `registry`."""
    made = WorkflowFile.model_json_schema()
    # Definitions keep the names by which editors know them.
    names = {name: f"{name.removesuffix('Section')}Section" for name in made["$defs"]}
    renamed = re.sub(r'(?<="#/\$defs/)\w+', lambda found: names[found[0]], json.dumps(made))
    schema: Json = json.loads(renamed)
    definitions = {name: {**schema["$defs"][own], "title": name} for own, name in names.items()}
    schema["$defs"] = definitions
    properties = schema["properties"]
    definitions["TargetSection"]["properties"]["provider"] = _target_names()
    text = {"type": "string", "minLength": 1}
    properties["source"] = _either(text, properties["source"])
    for key in LISTS:
        properties[key]["items"] = {"oneOf": [text, properties[key]["items"]]}
    for key in ("vae", "preview", *(kind.key for kind in GUIDES.values() if not kind.is_list)):
        properties[key]["anyOf"].insert(0, text)
    for kind in GUIDES.values():
        if kind.is_file:
            definitions[f"{kind.section}Section"]["properties"][IMAGE_ENCODER]["anyOf"].insert(0, text)
    properties["target"] = _either(_target_names(), properties["target"])
    definitions["Step"] = _step(registry, definitions)
    chain = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Step"}}
    for holder in (properties, definitions["VariantSection"]["properties"]):
        # Nothing can't stand for a map of chains.
        holder["components"] = {
            "description": holder["components"]["description"],
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {component: {"oneOf": [chain, {"type": "null"}]} for component in (*COMPONENTS, *TOKENIZERS)},
        }
    for key in ("output", "outputs"):
        # Nothing can't stand for a folder; elsewhere it means the default.
        (wanted,) = (branch for branch in properties[key]["anyOf"] if branch != {"type": "null"})
        properties[key] = {"description": properties[key]["description"], **wanted}
    del schema["required"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "olivelike workflow",
        "description": "Which passes run on each component of a Stable Diffusion pipeline.",
        "dependentSchemas": {
            "sweep": {"if": {"properties": {"sweep": {"type": "array"}}}, "then": {"not": {"required": ["outputs"]}}}
        },
        # A file that extends another may leave keys out, and remove components with `~`.
        "if": {
            "anyOf": [
                {"required": ["extends"], "properties": {"extends": {"type": "string"}}},
                {"required": ["matrix"], "properties": {"matrix": {"type": "object"}}},
            ]
        },
        "then": {"not": {"required": ["output", "outputs"]}},
        "else": {
            "required": ["source", "target", "components"],
            "oneOf": [{"required": ["output"]}, {"required": ["outputs"]}],
            "properties": {"components": {"additionalProperties": {"type": "array"}}},
        },
    }


def _either(short: Json, described: Json) -> Json:
    """Return a schema for text or the map that `described` refers to, with its description."""
    return {"description": described["description"], "oneOf": [short, {"$ref": described["$ref"]}]}


def _target_names() -> Json:
    from olivelike.model.plugin_targets import target_names

    return {"enum": [*target_names(), *ALIASES], "description": "Name of the target."}


def _step(registry: Registry, definitions: Json) -> Json:
    names = [{"const": entry.name, "description": _purpose(entry)} for entry in registry.entries()]
    options: Json = {}
    for entry in registry.entries():
        reference = f"pass.{entry.name}"
        options_schema = entry.cls.model_json_schema(ref_template=f"#/$defs/{reference}.{{model}}")
        for name, definition in options_schema.pop("$defs", {}).items():
            definitions[f"{reference}.{name}"] = definition
        definitions[reference] = options_schema
        options[entry.name] = {
            "description": _purpose(entry),
            "oneOf": [{"$ref": f"#/$defs/{reference}"}, {"type": "null"}],
        }
    one_key = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": options,
    }
    return {"description": "A pass name, or a map from a pass name to its options.", "oneOf": [*names, one_key]}


def _purpose(entry: PassEntry) -> str:
    """Return the first line of the pass's docstring."""
    return (entry.cls.__doc__ or "").strip().partition("\n")[0]
