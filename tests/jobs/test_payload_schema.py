"""A queue's schema: checked at submit, in a time that does not depend on how much is wrong."""

import json
import time
from typing import Any

import pytest

from app.errors import InvalidRequest
from app.jobs.payload_schema import EXPLAINED_BYTES, PIECE_BYTES, compile_schema

ROWS = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": {"type": "object", "required": ["a"]}}},
}


def refusal(schema: dict[str, Any], payload: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        compile_schema(schema)(json.dumps(payload))
    return caught.value


def test_the_first_thing_that_is_wrong_is_named() -> None:
    problem = refusal(ROWS, {"rows": [{"a": 1}, {"b": 1}, {"b": 2}]})
    assert problem.extra["errors"] == [
        {"field": "payload", "pointer": "/rows/1", "message": '"a" is a required property'}
    ]
    assert "/rows/1" in problem.detail


@pytest.mark.parametrize(
    "schema",
    [
        ROWS,
        {"anyOf": [ROWS, {"type": "object", "required": ["other"]}]},
        {"maxProperties": 0},
        {"not": {"type": "object"}},
    ],
)
def test_a_megabyte_of_errors_is_refused_at_the_first(schema: dict[str, Any]) -> None:
    payload = {"rows": [{"b": 1}] * 125_000}
    check = compile_schema(schema)
    text = json.dumps(payload)
    assert len(text) > 10**6
    began = time.process_time()
    with pytest.raises(InvalidRequest) as caught:
        check(text)
    # Processor time, and a tenth of what collecting the errors takes; how busy the machine is does not count.
    assert time.process_time() - began < 1
    assert caught.value.extra["errors"][0]["field"] == "payload"
    assert len(caught.value.detail) < 500


def test_a_message_does_not_repeat_the_payload() -> None:
    problem = refusal({"not": {}}, {"x": "y" * (EXPLAINED_BYTES - 100)})
    assert len(problem.detail) < 500


@pytest.mark.parametrize(
    "filler", ["x" * PIECE_BYTES, ["y"] * PIECE_BYTES, {"z": [1, {"a": "b" * PIECE_BYTES}]}]
)
def test_a_large_payload_is_checked_like_a_small_one(filler: Any) -> None:
    schema = {
        "properties": {
            "filler": {"const": filler},
            "last": {"type": "array", "items": {"type": "integer"}},
        }
    }
    check = compile_schema(schema)
    check(json.dumps({"filler": filler, "last": [1, 2]}))
    with pytest.raises(InvalidRequest):
        check(json.dumps({"filler": filler, "last": [1, "2"]}))


def test_a_number_that_nothing_can_hold_is_refused_not_a_bug() -> None:
    with pytest.raises(InvalidRequest):
        compile_schema({"properties": {"n": {"maximum": 1}}})('{"n": 1' + "0" * 400 + "}")
