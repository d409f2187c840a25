"""`olivelike adapters`: LoRAs as files that ONNX Runtime feeds to a folder's networks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from olivelike.cli import options as shared
from olivelike.cli.options import argument, option

if TYPE_CHECKING:
    from olivelike.engine.output.low_rank_factors import WrittenAdapter


def adapters(
    folder: shared.OutputFolder,
    loras: Annotated[list[str], argument("LORA[:WEIGHT]...", "LoRA files, or hub ids; 1 is the weight.")],
    output: Annotated[Path, option("--output -o DIR", "Where to write.")],
    together: Annotated[
        str | None, option("NAME", "Make one adapter of all of them, of this name, with their weights in it.")
    ] = None,
    allow_pickle: shared.AllowPickle = False,
    json: shared.Json = False,
) -> None:
    """Write LoRAs as ONNX Runtime's adapters, for programs that draw with a folder's `lora_inputs.onnx`.

    DIR gets `NETWORK/NAME.onnx_adapter` for each network that a LoRA changes, and `NETWORK/NAME.1.onnx_adapter` and so
    on to have it beside another one.
    """
    from olivelike._table import Table
    from olivelike._text import size
    from olivelike.cli.stdout import write_found
    from olivelike.engine.output.low_rank_factors import write_adapters
    from olivelike.engine.output.swap import LiveLoras

    files = LiveLoras(allow_pickle=allow_pickle)
    opened = [files.weighted(files.named(text)) for text in loras]
    written = write_adapters(folder, [opened] if together else [[one] for one in opened], output, together)

    def row(one: "WrittenAdapter") -> tuple[str, ...]:
        return one.name, one.component, str(one.rank), str(one.layers), size(one.nbytes)

    table = Table(("adapter", "network", "rank", "layers", "size"), [row(one) for one in written], (2, 3, 4))
    write_found({"adapters": [one.to_json() for one in written]}, table.lines(), json=json)
