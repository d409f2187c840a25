"""Pictures of a request, whatever stands for one, and their names in an order."""

from __future__ import annotations

from dataclasses import fields

import pytest

from olivelike.runtime import Request
from olivelike.runtime.pictures import PictureRecord
from olivelike.runtime.pipeline.request import NO_PICTURES, PICTURE_FIELDS, Control, Pictures
from olivelike.serve.orders import Order, uploads_of

NAMES = [letter * 64 for letter in "abcde"]
ORDER = Order(
    prompt="a", init_image=NAMES[0], mask=NAMES[1], controls=[{"image": NAMES[2], "net": "edges", "end": 0.5}],
    ip_adapter_images=NAMES[3:4], references=NAMES[4:],
)  # fmt: skip


def test_all_that_has_pictures_calls_them_alike():
    for holder in (Request(()), Order(prompt="a"), PictureRecord("a")):
        assert Pictures.of(holder) == NO_PICTURES
        assert not NO_PICTURES.given()
    assert tuple(one.name for one in fields(Pictures)) == PICTURE_FIELDS


def test_another_thing_stands_for_each_picture_and_all_else_stays():
    pictures = Pictures.of(ORDER)
    assert list(pictures) == NAMES
    found = pictures.map(NAMES.index)
    control = Control(2, "edges", 1.0, 0.0, 0.5)
    assert found == Pictures(init_image=0, mask=1, controls=(control,), ip_adapter_images=(3,), references=(4,))
    assert type(found.controls[0]) is Control
    assert found.map(str).given().keys() == {*PICTURE_FIELDS}


@pytest.mark.parametrize("left_out", [(), ("controls",), PICTURE_FIELDS])
def test_uploads_of_an_order_in_json_are_those_that_it_names(left_out):
    asked = {name: value for name, value in ORDER.model_dump(mode="json").items() if name not in left_out}
    wanted = [] if left_out == PICTURE_FIELDS else [NAMES[0], NAMES[1], *NAMES[3:]] if left_out else NAMES
    assert list(uploads_of(asked)) == wanted
