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


def nested(levels: int) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for _ in range(levels):
        payload = {"x": payload}
    return payload


RECURSIVE: dict[str, Any] = {
    "$defs": {
        "node": {
            "anyOf": [
                {"properties": {"x": {"$ref": "#/$defs/node"}}, "required": ["x", "left"]},
                {"properties": {"x": {"$ref": "#/$defs/node"}}, "required": ["x", "right"]},
            ]
        }
    },
    "$ref": "#/$defs/node",
}
BY_ANCHOR = json.loads(
    json.dumps(RECURSIVE).replace("#/$defs/node", "#n").replace('{"node": {', '{"node": {"$anchor": "n", ')
)
DYNAMIC = {
    "$dynamicAnchor": "n",
    **json.loads(
        json.dumps(RECURSIVE["$defs"]["node"]).replace('"$ref": "#/$defs/node"', '"$dynamicRef": "#n"')
    ),
}


@pytest.mark.parametrize("schema", [RECURSIVE, BY_ANCHOR, DYNAMIC])
def test_alternatives_that_refer_back_to_themselves_are_not_explained_level_by_level(
    schema: dict[str, Any],
) -> None:
    """Each level would double the time and the room for it: with sixty there is no end."""
    assert "anyOf" in refusal(schema, nested(2)).detail
    assert "too long to say where" in refusal(schema, nested(60)).detail


def test_references_that_double_at_each_step_are_refused() -> None:
    doubling = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(60)
    }
    with pytest.raises(InvalidRequest, match="parts once its references are followed"):
        compile_schema({"$defs": {**doubling, "d60": {"type": "string"}}, "$ref": "#/$defs/d0"})


def test_references_without_end_are_refused() -> None:
    chain = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(5000)}
    with pytest.raises(InvalidRequest, match="lead too far"):
        compile_schema({"$defs": {**chain, "d5000": {}}, "$ref": "#/$defs/d0"})


def test_a_reference_through_an_array_or_with_escapes_is_followed() -> None:
    schema = {
        "allOf": [{"$ref": "#/$defs/a~1b%20c"}, {"type": "object"}],
        "$defs": {"a/b c": {"properties": {"x": {"$ref": "#/allOf/0"}}}},
    }
    assert "too long" in refusal({**schema, "maxProperties": 0}, nested(9)).detail


@pytest.mark.parametrize(
    "pattern",
    [
        "x" * 1001,
        "(x{1,300}){1,30}y",
        "((a{10}){10}){11}",
        "a{100000}",
        r"\p{L}{1,1001}",
        "[a-z]{600}-[a-z]{600}",
    ],
)
@pytest.mark.parametrize("where", ["pattern", "patternProperties"])
def test_a_pattern_that_repeats_too_much_is_refused(pattern: str, where: str) -> None:
    part: dict[str, Any] = (
        {"pattern": pattern} if where == "pattern" else {"patternProperties": {pattern: {}}}
    )
    with pytest.raises(InvalidRequest, match="pattern of more than 1000"):
        compile_schema({"properties": {"a": {"allOf": [part]}}})


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        r"^\p{L}{1,100}$",
        r"^[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63}){0,3}$",
        r"^(\d{1,3}\.){3}\d{1,3}$",
    ],
)
def test_ordinary_patterns_are_taken(pattern: str) -> None:
    compile_schema({"pattern": pattern})
