"""The graph of a whole pipeline: texts or ids, noise and a few numbers in, pictures of 8 bits out.

What it computes is what `olivelike.runtime.pipeline` does for a request of the same values, step by step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from olivelike._untrusted import JsonView
from olivelike.engine.output.scheduler_model import (
    KEPT,
    NAMES_KEY,
    NOISE_TERM,
    Choices,
    GraphTable,
    config_of_schedules,
    scheduler_choices,
    write_table,
)
from olivelike.engine.output.tokenizer_step import tokenizer_architecture
from olivelike.errors import PassError
from olivelike.extras.one_file.composition import Network
from olivelike.families import TEXT_ENCODERS, TOKENIZER_OF, TOKENIZERS, denoiser_among
from olivelike.graphs.client_layout import lay_out
from olivelike.graphs.editing.arithmetic import Number, Writer
from olivelike.graphs.editing.values import type_of
from olivelike.graphs.inspect.borders import write_borders
from olivelike.model import Architecture, Graph
from olivelike.model.client_layouts import LAYOUTS
from olivelike.model.components import SAFETY_CHECKER, wrong_statistics
from olivelike.model.graph import FACTOR_KEY, SIZE_KEY

FLAGS: Final = "has_nsfw_concepts"
_GUIDANCE: Final = (-100, 1000)
"""As servers take it; with more, half of a float's range is soon left, and pictures are black."""
_MOST_SIDE: Final = 2048
"""Pixels of the largest square that is drawn, as of servers."""
_LENGTH: Final = 77
"""Ids per text: the positions of CLIP's text encoders."""
_FLOAT, _INT32, _INT64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64
_LOWEST_OPSET: Final = 20
_VAE_LEVELS: Final = 4
_SCALED: Final = 3
"""Inputs of a `Resize` by factors; one to given sizes has a fourth."""
_PREPROCESSOR: Final = "feature_extractor/preprocessor_config.json"
_SIZES: Final = 6
"""Numbers of SDXL's `time_ids`."""


@dataclass(frozen=True)
class PipelineFacts:
    """Facts of a pipeline's configs beside its networks."""

    choices: Choices
    """Schedulers that it can draw with."""
    vae: JsonView
    """Config of the VAE."""
    guidance_width: int | None = None
    """Width of the guidance's embedding, for a UNet that takes it as an input, as LCM's do."""
    preprocessor: JsonView | None = None
    """Config of the safety checker's image processor."""
    sample_size: tuple[int, int] | None = None
    """Height and width of the latents that the UNet was trained on."""
    zeros_for_empty: tuple[int, ...] = ()
    """Id that ends texts, per text encoder, where an empty negative prompt is zeros, as SDXL was trained."""


def pipeline_facts(
    index: JsonView, assets: Mapping[str, bytes], architectures: Mapping[str, Architecture]
) -> PipelineFacts:
    """Return what a pipeline is beside its networks.

    Raises `SourceError` if there is no scheduler that can draw, or a tokenizer is none of CLIP's.

    Args:
        index: The source's `model_index.json`.
        assets: Content of the files beside the networks, by relative path.
        architectures: Of the networks, where they are known.
    """
    choices = scheduler_choices(config_of_schedules(assets))
    vae = architectures.get("vae_decoder")
    unet = architectures.get(denoiser_among(architectures) or "")
    width, trained = (
        unet.config.get(key) if unet is not None else None for key in ("time_cond_proj_dim", "sample_size")
    )
    sides = [trained] * 2 if isinstance(trained, int) else trained
    known = None
    if isinstance(sides, list | tuple) and len(sides) == 2 and all(type(side) is int for side in sides):
        known = (sides[0], sides[1])
    zeros: tuple[int, ...] = ()
    if index.get("force_zeros_for_empty_prompt"):
        encoders = [name for name in TEXT_ENCODERS if name in architectures]
        zeros = tuple(_end(TOKENIZER_OF[name], assets) for name in encoders)
    return PipelineFacts(
        choices,
        vae.config if vae is not None else {},
        width if isinstance(width, int) else None,
        json.loads(assets[_PREPROCESSOR]) if _PREPROCESSOR in assets else None,
        known,
        zeros,
    )


def _end(tokenizer: str, assets: Mapping[str, bytes]) -> int:
    """Return the id that ends texts."""
    files = {path: data for path, data in assets.items() if path.startswith(f"{tokenizer}/")}
    end: int = tokenizer_architecture(tokenizer, files).config["vocab"]["<|endoftext|>"]
    return end


def pipeline_graph(networks: Mapping[str, Graph], facts: PipelineFacts) -> ir.Model:
    """Put the finished graphs of a pipeline together.

    Returns a weightless model, whose parameters are called `COMPONENT/PARAMETER`. Raises `PassError` if a network or a
    setting is of a kind that one file can't have; the message says which.

    Args:
        networks: By component, weightless. With tokenizers as ONNX models, texts are inputs; else their ids.
        facts: What else the pipeline has.
    """
    models = {component: graph.to_ir() for component, graph in networks.items()}
    for component, model in models.items():
        if component not in TOKENIZERS:  # Graphs of other exporters may have other names.
            lay_out(model, component, LAYOUTS["single"])
    opsets: dict[str, int] = {}
    for model in models.values():
        for domain, version in model.opset_imports.items():
            opsets[domain] = max(version, opsets.get(domain, 0))
    opsets[""] = max(opsets[""], _LOWEST_OPSET)
    graph = ir.Graph([], [], nodes=[], opset_imports=opsets, name="pipeline")
    parts = {component: Network(component, model) for component, model in models.items()}
    made = _Pipeline(graph, parts, facts)
    made.write()
    model = ir.Model(graph, ir_version=max(model.ir_version for model in models.values()), producer_name="olivelike")
    model.metadata_props.update({FACTOR_KEY: str(made.factor), NAMES_KEY: facts.choices.listed})
    if facts.sample_size is not None:
        height, width = facts.sample_size
        model.metadata_props[SIZE_KEY] = f"{width * made.factor}x{height * made.factor}"
    write_borders(model, {name: network.borders for name, network in parts.items() if network.borders})
    return model


class _Pipeline:
    """A graph in the making."""

    def __init__(self, graph: ir.Graph, networks: Mapping[str, Network], facts: PipelineFacts) -> None:
        self._graph, self._networks, self._facts = graph, networks, facts
        self._writer = Writer(graph, "pipeline/")
        self._encoders = [name for name in TEXT_ENCODERS if name in networks]
        self._pools = "unet" in networks and "text_embeds" in networks["unet"].inputs
        self._texts: dict[str, tuple[Number, Number]] = {}
        """By tokenizer, or text encoder if there are none: negative prompts and prompts."""

    def write(self) -> None:
        self._check()
        self._feed_texts()
        scheduler = self._feed("scheduler", ir.DataType.STRING, [1], f"A name of {NAMES_KEY} in the metadata.")
        steps = self._feed("steps", _INT64, [1], "From noise to a picture; some schedulers call the UNet more often.")
        guidance = self._feed("guidance", _FLOAT, [1], "How strongly the prompt leads; at 1 and below, alone.")
        noise = self._feed(
            "noise", _FLOAT, ["draws", "pictures", self._channels, "latent_height", "latent_width"],
            "Standard normal; the first draw begins, schedulers that add noise take one more for each call that does.",
        )  # fmt: skip
        wide = Writer(self._graph, "schedule/", self._writer, np.float64)
        table = write_table(wide, self._facts.choices, scheduler, steps)
        latents = self._denoised(noise, table, guidance)
        pictures = self._decoded(latents)
        if SAFETY_CHECKER in self._networks:
            flags = self._flags(pictures)
            column = self._writer.op("Reshape", flags, self._writer.integers(-1, 1, 1, 1))
            pictures = column.where(self._writer.constant(0, np.uint8), pictures)
            self._give("images", pictures, ir.DataType.UINT8, ["pictures", "height", "width", 3])
            # The network's own output keeps its name.
            self._give(FLAGS, self._writer.op("Identity", flags), ir.DataType.BOOL, ["pictures"])
        else:
            self._give("images", pictures, ir.DataType.UINT8, ["pictures", "height", "width", 3])

    @property
    def _channels(self) -> int:
        dims = self._networks["vae_decoder"].inputs["latent_sample"].shape
        channels = dims[1] if dims is not None else None
        return channels if isinstance(channels, int) else int(self._facts.vae.get("latent_channels", 4))

    def _check(self) -> None:
        for needed in ("unet", "vae_decoder"):
            if needed not in self._networks:
                raise PassError(f"layout single: has no {needed}; put it into `components`")
        if not self._encoders:
            raise PassError("layout single: has no text_encoder; put it into `components`")
        dims = self._networks["unet"].inputs["sample"].shape
        taken = dims[1] if dims is not None else None
        if isinstance(taken, int) and taken != self._channels:
            raise PassError(
                f"layout single: the UNet takes {taken} channels where latents have {self._channels}, as those for "
                "inpainting do; one file draws from prompts alone: take another layout"
            )

    def _feed(self, name: str, dtype: ir.DataType, dims: Sequence[int | str], doc: str) -> Number:
        value = ir.Value(name=name, shape=ir.Shape(list(dims)), type=ir.TensorType(dtype), doc_string=doc)
        self._graph.inputs.append(value)
        return Number(value, self._writer)

    def _give(self, name: str, number: Number, dtype: ir.DataType, dims: Sequence[int | str]) -> None:
        value = number.value
        value.name, value.dtype, value.shape = name, dtype, ir.Shape(list(dims))
        self._graph.outputs.append(value)

    def _feed_texts(self) -> None:
        """Declare the inputs for texts: strings for all tokenizers, or ids for each text encoder."""
        tokenizers = [TOKENIZER_OF[encoder] for encoder in self._encoders]
        as_texts = tokenizers[0] in self._networks
        for number, key in enumerate(tokenizers if as_texts else self._encoders):
            if as_texts and number:
                self._texts[key] = self._texts[tokenizers[0]]
                continue
            suffix = "" if as_texts else "_ids" + key.removeprefix(TEXT_ENCODERS[0])
            dtype = ir.DataType.STRING if as_texts else _INT32
            prompt, negative = (
                self._feed(
                    f"{name}{suffix}", dtype, [count] if as_texts else [count, _LENGTH],
                    what if as_texts else f"{what} As the ids of {TOKENIZER_OF[key]}, {_LENGTH} for each.",
                )
                for name, count, what in (
                    ("prompt", "pictures", "One for each picture."),
                    ("negative_prompt", "negatives", "One for all pictures, or one for each."),
                )
            )  # fmt: skip
            self._texts[key] = negative, prompt

    def _encoded(self, pictures: Number) -> tuple[Number, Number | None]:
        """Return hidden states and pooled text of negative prompts, then prompts: a row each per picture."""
        writer = self._writer
        states: list[Number] = []
        pooled: Number | None = None
        for place, encoder in enumerate(self._encoders):
            network, tokenizer = self._networks[encoder], TOKENIZER_OF[encoder]
            negative, prompt = self._texts[tokenizer if tokenizer in self._texts else encoder]
            texts = writer.op("Concat", negative, prompt, axis=0)
            ids = texts
            if tokenizer in self._networks:
                ids = self._networks[tokenizer].place({"string_input": texts}, ["input_ids"], writer)[0]
            wanted = [self._layer(network)]
            if "text_embeds" in network.outputs:
                wanted.append("text_embeds")
            found = network.place({"input_ids": ids.cast(network.dtype("input_ids"))}, wanted, writer)
            rows = [self._per_picture(one.cast(_FLOAT), negative, pictures, ids, place) for one in found]
            states.append(rows[0])
            pooled = rows[1] if len(rows) > 1 else pooled
        joined = states[0] if len(states) == 1 else writer.op("Concat", *states, axis=2)
        return joined, pooled if self._pools else None

    def _layer(self, network: Network) -> str:
        """Return the output that the UNet was trained on: SDXL's on the last layer but one."""
        layers = sum(name.startswith("hidden_states.") for name in network.outputs) - 1
        return f"hidden_states.{layers - 1}" if self._pools else "last_hidden_state"

    def _per_picture(self, rows: Number, negative: Number, pictures: Number, ids: Number, encoder: int) -> Number:
        """Return rows of negative prompts as often as there are pictures, then those of the prompts."""
        writer = self._writer
        count = negative.size(0)
        if self._facts.zeros_for_empty:
            rows = self._without_empty(rows, ids, count, self._facts.zeros_for_empty[encoder])
        first, rest = rows.slice(0, count), rows.slice(count)
        shape = writer.op("Concat", pictures, writer.op("Shape", rows, start=1), axis=0)
        return writer.op("Concat", writer.op("Expand", first, shape), rest, axis=0)

    def _without_empty(self, rows: Number, ids: Number, negatives: Number, end: int) -> Number:
        """Return rows with zeros for negative prompts that are empty: ids that end behind the first."""
        writer = self._writer
        second = ids.cast(_INT64).slice(1, 2, axis=1)
        places = writer.op("Range", writer.constant(0, np.int64), _scalar(ids.size(0)), writer.constant(1, np.int64))
        negative = writer.op("Unsqueeze", writer.op("Less", places, negatives), writer.integers(1))
        empty = writer.op("And", writer.op("Equal", second, writer.integers(end)), negative)
        ones = writer.op("Expand", writer.integers(1), writer.op("Shape", writer.op("Shape", rows, start=1)))
        column = writer.op("Reshape", empty, writer.op("Concat", writer.integers(-1), ones, axis=0))
        return column.where(0.0, rows)

    def _pictures(self, noise: Number, guidance: Number) -> Number:
        """Return how many pictures are drawn; what must agree with that, and the guidance, are checked before."""
        writer, count = self._writer, noise.size(1)
        negative, prompt = next(iter(self._texts.values()))
        single, each = (writer.op("Equal", negative.size(0), number) for number in (writer.integers(1), count))
        least, most = (writer.constant([float(bound)]) for bound in _GUIDANCE)
        leads = writer.op("And", writer.op("GreaterOrEqual", guidance, least), writer.op("LessOrEqual", guidance, most))
        total = noise.apply("Abs").apply("ReduceSum", keepdims=0)  # Not a number if one of them is none.
        sides = writer.op("Shape", noise, start=3, end=5)
        area = writer.constant((_MOST_SIDE // self.factor) ** 2, np.int64)
        drawn = writer.op("LessOrEqual", sides.apply("ReduceProd", keepdims=0), area)
        rest = writer.op("Mod", sides, writer.integers(self._unit))
        # Sides of nothing leave no rest.
        whole = writer.op("Equal", rest, writer.integers(0)), writer.op("Greater", sides, writer.integers(0))
        fits = writer.op("And", *whole).cast(_INT64).apply("ReduceMin", keepdims=0).cast(ir.DataType.BOOL)
        for condition, message in (
            (writer.op("Equal", prompt.size(0), count), "noise must be for as many pictures as there are prompts"),
            (writer.op("Or", single, each), "negative_prompt must be one, or one for each prompt"),
            (leads, f"guidance must be {_GUIDANCE[0]} to {_GUIDANCE[1]}"),
            (writer.op("Less", total, writer.constant(math.inf)), "noise must be finite numbers"),
            (drawn, f"noise must be for at most {_MOST_SIDE}x{_MOST_SIDE} pixels"),
            (fits, f"noise must have sides that are multiples of {self._unit}"),
        ):
            count += writer.require(condition, message)
        return count

    def _denoised(self, noise: Number, table: GraphTable, guidance: Number) -> Number:
        writer, unet = self._writer, self._networks["unet"]
        pictures = self._pictures(noise, guidance)
        states, pooled = self._encoded(pictures)
        embeds_guidance = "timestep_cond" in unet.inputs
        # Without guidance the rows of negative prompts are left out, in every step alike.
        both = guidance > writer.constant([math.inf if embeds_guidance else 1.0])
        begin, times = both.where(writer.integers(0), pictures), both.where(writer.integers(2), writer.integers(1))
        scale = writer.op("Max", guidance, writer.constant([1.0]))
        given = {"encoder_hidden_states": states.slice(begin)}
        if pooled is not None:
            given |= {"text_embeds": pooled.slice(begin), "time_ids": self._times(noise, pictures, begin)}
        if embeds_guidance:
            given["timestep_cond"] = self._guidance(guidance, pictures)
        given = {name: value.cast(unet.dtype(name)) for name, value in given.items() if name in unet.inputs}
        drawn = writer.op("Greater", noise.size(0), writer.integers(0))
        first = writer.here(table.initial)
        start = _scalar(noise.at(writer.require(drawn, "noise needs a draw to begin with"))) * first
        factors = writer.ops("Split", writer.here(table.picture), axis=1, outputs=2, num_outputs=2)
        columns = [*map(writer.here, (table.timesteps, table.scale)), *factors, self._draws(table)]

        number, going, state = (
            ir.Value(name=f"loop/{name}", type=ir.TensorType(dtype), shape=shape)
            for name, dtype, shape in (
                ("call", _INT64, ir.Shape([])),
                ("going", ir.DataType.BOOL, ir.Shape([])),
                ("state", _FLOAT, None),
            )
        )
        body = ir.Graph([number, going, state], [], nodes=[], name="denoising")
        inner = Writer(body, "loop/", writer)
        call, held = inner.op("Unsqueeze", number, inner.integers(0)), Number(state, inner)
        t, s, p, q, draw = (inner.op("Reshape", inner.here(one).at(call), inner.integers(1)) for one in columns)
        x = _scalar(held[:1])
        repeats = inner.op("Concat", inner.here(times), inner.integers(1, 1, 1), axis=0)
        sample = inner.op("Tile", (x * s).cast(unet.dtype("sample")), repeats)
        (output,) = unet.place(
            {"sample": sample, "timestep": self._moment(t), **given}, [next(iter(unet.outputs))], inner, writer
        )
        output = output.cast(_FLOAT)
        count = inner.here(pictures)
        positive, negative = output.slice(-count), output.slice(0, count)
        predicted = negative + inner.here(scale) * (positive - negative)
        foretold = self._cut(x * p + predicted * q, table)
        fresh = inner.op("Gather", inner.here(noise), draw, name="noise has too few draws for this scheduler", axis=0)
        terms = inner.op("Concat", held[:1], inner.stack([foretold, predicted]), fresh, held[1:], axis=0)
        flat = inner.op("Flatten", terms, axis=1)
        following = inner.op("MatMul", _scalar(inner.here(table.following).at(call)), flat)
        after = inner.op("Reshape", following, inner.op("Shape", held))
        body.outputs.extend([inner.op("Identity", going).value, after.value])
        calls = _scalar(columns[0].size(0))
        looped = writer.op(
            "Loop", calls, None, writer.stack([start, *[start * 0.0] * KEPT]), name="denoising",
            body=ir.AttrGraph("body", body),
        )  # fmt: skip
        return _scalar(looped[:1])

    def _draws(self, table: GraphTable) -> Number:
        """Return the place of each call's noise among the draws; the first one, which is there, for calls without."""
        writer = self._writer
        drawn, sums = writer.here(table.draws), writer.here(table.following)
        counts = writer.op("CumSum", drawn.cast(_INT64), writer.constant(0, np.int64))
        factors = sums.at(writer.constant(NOISE_TERM, np.int64), axis=2).apply("Abs")
        used = writer.op("ReduceMax", factors, writer.integers(1), keepdims=0) > 0.0
        return (drawn & used).where(counts, writer.integers(0))

    def _cut(self, foretold: Number, table: GraphTable) -> Number:
        """Return foretold pictures as `clip_sample` and `thresholding` have them, where a scheduler may."""
        inner, choices = foretold.writer, self._facts.choices
        if not (choices.has("clip_sample") or choices.has("thresholding")):
            return foretold
        quantile, most = inner.ops("Split", inner.here(table.threshold), axis=0, outputs=2, num_outputs=2)

        def clipped(writer: Writer) -> Sequence[Number]:
            limit = writer.here(table.clip)
            return [writer.op("Max", writer.op("Min", writer.here(foretold), limit), -limit)]

        def thresholded(writer: Writer) -> Sequence[Number]:
            """Section 2.3 of https://arxiv.org/abs/2205.11487, quantiles as NumPy's."""
            rows = writer.op("Flatten", writer.here(foretold).apply("Abs"), axis=1)
            last = rows.size(1) - writer.integers(1)
            ordered = writer.ops("TopK", rows, rows.size(1), outputs=2, axis=1, largest=0)[0]
            place = writer.here(quantile) * last.cast(_FLOAT)
            low = place.apply("Floor")
            below, above = (ordered.at(writer.op("Min", one.cast(_INT64), last), axis=1) for one in (low, low + 1.0))
            limit = writer.op("Max", below + (place - low) * (above - below), writer.constant(1.0))
            limit = writer.op("Unsqueeze", writer.op("Min", limit, writer.here(most)), writer.integers(2, 3))
            return [writer.op("Max", writer.op("Min", writer.here(foretold), limit), -limit) / limit]

        which = (quantile > 0.0).cast(_INT64)
        return inner.one_of(which, [clipped, thresholded] if choices.has("thresholding") else [clipped], name="cut")[0]

    def _moment(self, t: Number) -> Number:
        """Return a timestep as the UNet takes it."""
        value = self._networks["unet"].inputs["timestep"]
        if value.dtype in (_INT32, _INT64):
            t = t.apply("Round")
        t = t.cast(type_of(value))
        return t if value.shape is None or len(value.shape) else _scalar(t)

    def _times(self, noise: Number, pictures: Number, begin: Number) -> Number:
        """Return SDXL's `time_ids`, of shape (rows, 6): original size, crop's corner, target size."""
        writer = self._writer
        dims = self._networks["unet"].inputs["time_ids"].shape
        if dims is not None and isinstance(dims[1], int) and dims[1] != _SIZES:
            raise PassError(
                f"layout single: the UNet takes {dims[1]} sizes, as SDXL's refiner does, which goes on with another "
                "pipeline's pictures; one file draws from prompts alone: take another layout"
            )
        size = writer.op("Shape", noise, start=3, end=5) * writer.integers(self.factor)
        row = writer.op("Concat", size, writer.integers(0, 0), size, axis=0).cast(_FLOAT)
        rows = pictures * writer.integers(2) - begin
        return writer.op("Expand", row, writer.op("Concat", rows, writer.integers(1), axis=0))

    @property
    def factor(self) -> int:
        """Pixels per latent, along one side."""
        vae = self._facts.vae
        levels = vae.get("block_out_channels") or vae.get("decoder_block_out_channels") or range(_VAE_LEVELS)
        return int(2 ** (len(levels) - 1))

    @property
    def _unit(self) -> int:
        """Divisor of the sides of latents: the UNet doubles sizes on its way up, whatever they were."""
        graph = self._networks["unet"].model.graph
        return int(2 ** sum(node.op_type == "Resize" and len(node.inputs) == _SCALED for node in graph))

    def _guidance(self, guidance: Number, pictures: Number) -> Number:
        """Return the embedding of the guidance scale: https://arxiv.org/abs/2310.04378, section 4.3."""
        writer, width = self._writer, self._facts.guidance_width or 0
        half = width // 2
        frequencies = np.exp(np.arange(half, dtype=np.float32) * -(math.log(10000.0) / (half - 1)))
        angles = (guidance - 1.0) * 1000.0 * writer.constant(frequencies)
        found = writer.op("Concat", angles.apply("Sin"), angles.apply("Cos"), axis=0)
        if width % 2:
            found = writer.op("Concat", found, writer.constant([0.0]), axis=0)
        return writer.op("Expand", found, writer.op("Concat", pictures, writer.integers(1), axis=0))

    def _decoded(self, latents: Number) -> Number:
        """Return pictures: uint8 of shape (pictures, height, width, 3)."""
        writer, vae, decoder = self._writer, self._facts.vae, self._networks["vae_decoder"]
        factor = vae.get("scaling_factor") or 0.18215
        wrong = wrong_statistics(vae)
        if type(factor) not in (int, float):
            wrong = "a `scaling_factor` that is no number"
        if wrong:
            raise PassError(f"layout single: the VAE's config has {wrong}; get its config.json again")
        mean, std = vae.get("latents_mean"), vae.get("latents_std")
        if mean is None or std is None:
            unscaled = latents / factor
        else:
            means, deviations = (writer.constant(np.reshape(one, (1, -1, 1, 1))) for one in (mean, std))
            unscaled = latents * deviations / factor + means
        given = {"latent_sample": unscaled.cast(decoder.dtype("latent_sample"))}
        (pixels,) = decoder.place(given, [next(iter(decoder.outputs))], writer)
        shares = writer.op("Clip", pixels.cast(_FLOAT) * 0.5 + 0.5, writer.constant(0.0), writer.constant(1.0))
        return (shares * 255.0).apply("Round").cast(ir.DataType.UINT8).apply("Transpose", perm=[0, 2, 3, 1])

    def _flags(self, pictures: Number) -> Number:
        """Return what the safety checker says of each picture, after what `CLIPImageProcessor` does to it."""
        from olivelike.extras.one_file.clip_pixels import clip_pixels

        writer, checker = self._writer, self._networks[SAFETY_CHECKER]
        if self._facts.preprocessor is None:
            raise PassError("layout single: the source has no feature_extractor, which its safety checker needs")
        seen = clip_pixels(pictures, self._facts.preprocessor)
        given = {"clip_input": seen.cast(checker.dtype("clip_input"))}
        if "images" in checker.inputs:  # What it would blacken; a pixel will do, since that output is not asked for.
            shape = writer.op("Concat", pictures.size(0), writer.integers(1, 1, 3), axis=0)
            given["images"] = writer.op("Expand", writer.constant(0.0), shape).cast(checker.dtype("images"))
        return checker.place(given, [FLAGS], writer)[0]


def _scalar(value: Number) -> Number:
    """Return it without the first axis, whose size is 1."""
    return value.writer.op("Squeeze", value, value.writer.integers(0))
