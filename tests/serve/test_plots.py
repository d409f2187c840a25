from __future__ import annotations

import pytest

from olivelike.errors import UsageError
from olivelike.serve.drawing.plots import cells
from olivelike.serve.orders import Axis, Order


def plot(x=None, y=None, **order):
    axes = {name: Axis(field=axis[0], values=axis[1:]) for name, axis in (("x", x), ("y", y)) if axis}
    return cells(Order(**{"prompt": "a red circle", **order, **axes}))


def test_cells_come_row_by_row_with_their_labels():
    found = plot(("steps", 10, "20"), ("guidance_scale", 1, 7.5))
    assert [(cell.order.steps, cell.order.guidance_scale) for cell in found] == [(10, 1), (20, 1), (10, 7.5), (20, 7.5)]
    assert [(cell.across, cell.down) for cell in found][1] == ("steps 20", "guidance_scale 1")
    assert all(cell.order.x is None for cell in found)


def test_an_order_without_axes_is_one_cell():
    (cell,) = plot(steps=3)
    assert (cell.order.steps, cell.across, cell.down) == (3, "", "")


def test_axes_of_texts_sizes_and_loras():
    words = [cell.order.prompt for cell in plot(("prompt_sr", "red", "blue", "green"))]
    assert words == ["a red circle", "a blue circle", "a green circle"]
    sizes = [(cell.order.width, cell.order.height) for cell in plot(("size", "64x32", "32x64"))]
    assert sizes == [(64, 32), (32, 64)]
    loras = [[(lora.name, lora.weight) for lora in cell.order.loras] for cell in plot(("lora", "style:0.5", "style"))]
    assert loras == [[("style", 0.5)], [("style", 1.0)]]


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (("steps", "many"), "axis steps: 'many'"),
        (("eta", 2), "axis eta: 2"),
        (("prompt_sr", "yellow", "blue"), "'yellow' is not in the prompts"),
        (("size", "large"), "is no size"),
        (("strength", 0), "axis strength: 0"),
    ],
)
def test_values_that_a_field_can_not_have_are_refused(axis, message):
    with pytest.raises(UsageError, match=message):
        plot(axis)
