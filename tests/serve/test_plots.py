from __future__ import annotations

import pytest

from olivelike.errors import UsageError
from olivelike.serve.drawing.plots import cells, heads
from olivelike.serve.form import form
from olivelike.serve.orders import Axis, Order, axis_label


def asked(x=None, y=None, z=None, **order):
    sides = (("x", x), ("y", y), ("z", z))
    axes = {name: Axis(field=axis[0], values=axis[1:]) for name, axis in sides if axis}
    return Order(**{"prompt": "a red circle", **order, **axes})


def plot(*axes, **order):
    return cells(asked(*axes, **order))


def test_cells_come_row_by_row_with_their_labels():
    sides = ("steps", 10, "20"), ("guidance_scale", 1, 7.5)
    found = plot(*sides)
    assert [(cell.order.steps, cell.order.guidance_scale) for cell in found] == [(10, 1), (20, 1), (10, 7.5), (20, 7.5)]
    assert [cell.place for cell in found] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]
    told = heads(asked(*sides, seed=5))
    steps, guidance = axis_label("steps"), axis_label("guidance_scale")
    assert (told.title, told.across) == ("a red circle\nSeed 5", [f"{steps} 10", f"{steps} 20"])
    assert (told.down, told.layers) == ([f"{guidance} 1", f"{guidance} 7.5"], ("",))
    assert all(not cell.order.axes for cell in found)


def test_a_third_axis_repeats_the_table():
    found = plot(("steps", 1, 2), None, ("hires", "2:0.4", 1.5), hires_strength=0.9)
    assert [cell.place for cell in found] == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    assert [(cell.order.hires, cell.order.hires_strength) for cell in found][1:3] == [(2.0, 0.4), (1.5, 0.9)]


def test_control_pictures_change_their_strength_together():
    led = [{"image": "0" * 64, "end": 0.5}, {"image": "1" * 64}]
    found = plot(("control_strength", 0.5, "1.2"), controls=led)
    strengths = [[(one.strength, one.end) for one in cell.order.controls] for cell in found]
    assert strengths == [[(0.5, 0.5), (0.5, 1.0)], [(1.2, 0.5), (1.2, 1.0)]]


def test_one_control_picture_changes_its_strength_alone():
    led = [{"image": "0" * 64}, {"image": "1" * 64, "end": 0.5}]
    found = plot(("control_strength_2", "0.4", 0), ("control_strength_1", 2), controls=led)
    strengths = [[(one.strength, one.end) for one in cell.order.controls] for cell in found]
    assert strengths == [[(2, 1.0), (0.4, 0.5)], [(2, 1.0), (0, 0.5)]]
    for one, all_of_them in (("y", "x"), ("x", "y")):  # Whichever side it is.
        axes = {one: ("control_strength_2", 0.4), all_of_them: ("control_strength", 0.9)}
        (cell,) = cells(asked(**axes, controls=led))
        assert [one.strength for one in cell.order.controls] == [0.9, 0.4]
    assert axis_label("control_strength_2") == "ControlNet weight (2)"
    with pytest.raises(UsageError, match="of 1 control pictures none is number 2"):
        plot(("control_strength_2", 1), controls=led[:1])


def test_each_field_that_can_be_an_axis_takes_a_value_as_text():
    texts = {
        "size": "64x32", "guidance_interval": "0.2:0.6", "prompt_sr": "red", "hires": "2", "scheduler": "Euler",
        "schedule": "Karras",
    }  # fmt: skip
    controls = [{"image": "0" * 64}]
    for one in form()["axes"]:
        (cell,) = plot((one["name"], texts.get(one["name"], "1")), controls=controls, scheduler="DPM++ 2M")
        assert not cell.order.axes


def test_a_schedule_type_is_that_of_the_sampler_beside_it():
    found = plot(("schedule", "Karras", "uniform", "Automatic"), ("scheduler", "DPM++ 2M", "Euler Beta"))
    names = ["DPM++ 2M Karras", "DPM++ 2M", "DPM++ 2M Karras", "Euler Karras", "Euler", "Euler"]
    assert [cell.order.scheduler for cell in found] == names
    assert heads(asked(("schedule", "Karras"))).across == ["Karras"]
    with pytest.raises(UsageError, match="scheduler 'LCM Karras': LCM has no schedule type Karras"):
        plot(("schedule", "Karras"), scheduler="LCM")


def test_an_order_without_axes_is_one_cell():
    (cell,) = plot(steps=3)
    assert (cell.order.steps, cell.place) == (3, (0, 0, 0))


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
        (("guidance_interval", "0.2"), "guidance interval '0.2' is none"),
        (("control_strength", 1), "no control picture"),
        (("schedule", "Karras"), "no sampler is named"),
    ],
)
def test_values_that_a_field_can_not_have_are_refused(axis, message):
    with pytest.raises(UsageError, match=message):
        plot(axis)


def test_an_order_of_before_counts_layers_that_are_left_out():
    axis = {"field": "clip_skip", "values": [0, 1]}
    found = Order.model_validate({"prompt": "a", "clip_skip": 1, "y": axis})
    assert (found.clip_layer, found.y) == (2, Axis(field="clip_layer", values=(1, 2)))
