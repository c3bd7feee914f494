"""Bodies are decoded in one way, and what is wrong with them is named."""

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Raw

from app.errors import InvalidRequest
from app.jobs.shapes import decode
from app.jobs.submission import invalid


class Order(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    pieces: Annotated[int, Meta(ge=1)] = 1
    note: Raw = Raw(b"null")

    def check(self) -> None:
        if self.name == "nothing":
            raise invalid("name", "is not for sale")


def test_a_body_becomes_its_shape_and_raw_parts_stay_as_they_were() -> None:
    order = decode(b'{"name":"a","pieces":2,"note":{"x": 1.0e2}}', Order)
    assert (order.name, order.pieces, bytes(order.note)) == ("a", 2, b'{"x": 1.0e2}')


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        (b'{"name":"a","piece":2}', [{"field": "piece", "message": "is not a known field"}]),
        (b'{"name":"nothing"}', [{"field": "name", "message": "is not for sale"}]),
        (
            b'{"pieces":0}',
            [
                {"field": "name", "message": "is required"},
                {"field": "pieces", "message": "expected an integer >= 1"},
            ],
        ),
    ],
)
def test_what_is_wrong_is_named(body: bytes, errors: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        decode(body, Order)
    assert refusal.value.extra["errors"] == errors


@pytest.mark.parametrize("body", [b"[]", b'{"name":"a","note":' + b"[" * 70 + b"]" * 70 + b"}"])
def test_what_is_no_object_or_too_deep_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode(body, Order)
