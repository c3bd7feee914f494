"""JSON is taken apart and put together again byte for byte; what nobody could carry is refused."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRequest, Unparsable
from app.jobs import verbatim
from app.jobs.verbatim import assemble, check_value, depth_exceeds, members


def refused(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        members(body)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b'{"a":1,}',
        b'{"a":1}{',
        b'{"a":1} x',
        b"{'a':1}",
        b'{"a":01}',
        b'{"a":+1}',
        b'{"a":.5}',
        b'{"a":1.}',
        b'{"a":0x1}',
        b'{"a":nul}',
        b'{"a":"\\x"}',
        b'{"a":"\x01"}',
        b'{"a":"',
        b'{"a":"\\',
        b"\xef\xbb\xbf{}",  # RFC 8259: a byte order mark must not be there
        '{"a":1}'.encode("utf-16-le"),
        '{"a":1}'.encode("utf-32-be"),
        b"model=echo&messages=hello",
    ],
)
def test_what_is_not_json_is_unparsable(body: bytes) -> None:
    assert isinstance(refused(body), Unparsable), refused(body).detail
    assert refused(body).status == 400


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"\xff"}',
        b'{"a":"\xc3"}',
        b'{"a":"\xed\xa0\x80"}',  # a surrogate written as UTF-8
        b'{"a":"\xc0\xaf"}',  # an overlong slash
        b'\xff\xfe{\x00"\x00',
        '{"a":1}'.encode("utf-16"),
    ],
)
def test_what_is_not_utf8_is_refused_as_such(body: bytes) -> None:
    assert refused(body).status == 422
    assert "UTF-8" in refused(body).detail


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"\\ud800"}',
        b'{"a":"\\udc00"}',
        b'{"a":"\\udc00\\ud800"}',
        b'{"a":"\\ud800\\u0041"}',
        b'{"\\ud800":1}',
        b'{"a":[{"b":"x\\ud83d"}]}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":[-Infinity]}',
    ],
)
def test_lone_surrogates_and_numbers_that_are_none_are_refused(body: bytes) -> None:
    assert refused(body).status == 422
    assert not isinstance(refused(body), Unparsable)


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null", b"true"])
def test_a_body_that_is_json_but_no_object_is_refused(body: bytes) -> None:
    assert refused(body).status == 422
    assert "object" in refused(body).detail


@pytest.mark.parametrize(
    "value",
    [
        b"1e999",
        b"1E+2",
        b"-0",
        b"-0.0",
        b"0.10",
        b"1" * 5000,
        b"123456789012345678901234567890",
        b"0.1000000000000000055511151231257827021181583404541015625",
        b'"\\u00e9\\/\\ud83d\\ude00"',
        b'"\\u0000"',
        b'{"z":1,"a":2,"z":3}',
        b"[ 1 , 2 ]",
        b'"\x7f"',
    ],
)
def test_values_come_out_as_they_were_spelt(value: bytes) -> None:
    assert bytes(members(b'{"a":%b}' % value)["a"]) == value


def test_members_keep_their_order_and_the_last_of_a_name_counts() -> None:
    parts = members(b'{"z":1,"a":2,"m":3,"z":4}')
    assert list(parts) == ["z", "a", "m"]
    assert bytes(parts["z"]) == b"4"


def test_assemble_leaves_out_and_keeps_the_rest_verbatim() -> None:
    parts = members(b'{"z": 1.0,"queue":"q","\\u00e9\\"":{"b" : 1e2, "a":[]}}')
    assert assemble(parts, frozenset({"queue"})) == '{"z":1.0,"é\\"":{"b" : 1e2, "a":[]}}'
    assert assemble({}, frozenset()) == "{}"


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return ('{"a":' + opening * (depth - 1) + closing * (depth - 1) + "}").encode()


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"k":', "}")])
def test_sixty_four_levels_are_taken_and_sixty_five_refused(opening: str, closing: str) -> None:
    filler = "1" if opening != "[" else ""
    for depth, fine in ((63, True), (64, True), (65, False), (1000, False), (100_000, False)):
        body = ('{"a":' + opening * (depth - 1) + filler + closing * (depth - 1) + "}").encode()
        if fine:
            members(body)
        else:
            assert refused(body).status == 422
            assert "nested" in refused(body).detail


def test_the_depth_limit_can_be_set() -> None:
    members(nested(100), 100)
    with pytest.raises(InvalidRequest, match="deeper than 99"):
        members(nested(100), 99)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"' + b"[" * 500 + b'"}',
        b'{"a":"\\"' + b"{[" * 500 + b'"}',
        b'{"a":"\\\\","b":[' + b"[]," * 500 + b"[]]}",
        b'{"a":[' + b'{"x":"]"},' * 500 + b'{"x":"["}]}',
    ],
)
def test_brackets_in_strings_and_side_by_side_are_no_depth(body: bytes) -> None:
    members(body)


def test_deep_nesting_that_never_closes_is_refused_too() -> None:
    assert refused(b'{"a":' + b"[" * 1000).status in {400, 422}
    assert refused(b"[" * 1_000_000).status == 422


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@given(json_values, st.integers(1, 8))
def test_depth_is_what_a_parser_would_count(value: object, limit: int) -> None:
    assert depth_exceeds(json.dumps(value).encode(), limit) is (depth_of(value) > limit)


@given(json_values, st.integers(1, 8), st.integers(1, 20))
def test_depth_is_the_same_wherever_a_slice_of_the_body_ends(value: object, limit: int, size: int) -> None:
    body = json.dumps([value, 'a"[[\\\\"{\\', value]).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verbatim, "_SLICE_BYTES", size)
        assert depth_exceeds(body, limit) is (depth_of([value]) > limit)


@pytest.mark.parametrize(
    ("tail", "status", "words"),
    [
        (b",NaN]}", 422, "NaN"),
        (b",-Infinity]}", 422, "Infinity"),
        (b',"\\udc00"]}', 422, "surrogate"),
        (b',"\\ud800"]}', 422, "surrogate"),
        (b"]", 400, "truncated"),
        (b",]}", 400, "byte 3000"),
        (b"]}]", 400, "trailing"),
        (b',"\\q"]}', 400, "escape"),
    ],
)
def test_what_is_wrong_with_a_large_body_is_said_without_building_it(
    monkeypatch: pytest.MonkeyPatch, tail: bytes, status: int, words: str
) -> None:
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(InvalidRequest) as caught:
        members(b'{"a":[0' + b",[]" * 100_000 + tail)
    assert caught.value.status == status
    assert words in caught.value.detail


@given(st.dictionaries(st.text(), json_values, max_size=5), st.booleans())
def test_any_object_survives_being_taken_apart_and_put_together(
    value: dict[str, object], escaped: bool
) -> None:
    text = json.dumps(value, ensure_ascii=escaped, separators=(",", ":"))
    assert json.loads(assemble(members(text.encode()), frozenset())) == json.loads(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_either_taken_or_refused(body: bytes) -> None:
    try:
        members(body)
    except InvalidRequest as problem:
        assert problem.status in {400, 422}


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":' + b"[" * 65 + b'"' + b'\\"' * 200_000,  # a string that never ends, full of escaped quotes
        b'{"a":' + b"[" * 65 + b'"' + b"\\" * 400_001,
        b'"' * 400_001 + b"[" * 65,
        b'{"a":[' + b"[]," * 200_000 + b"[]]}",
        b'{"a":[' + (b"[" * 60 + b"]" * 60 + b",") * 3000 + b"0]}",
        b"[]" * 200_000 + b"[" * 65,
        b'{"a":[' + (b"[" * 60 + b"]" * 60 + b",") * 12_000 + b"NaN]}",
        b'{"a":[' + b'"b",' * 400_000 + b"0]",
    ],
)
def test_hostile_bodies_take_no_longer_than_their_length(body: bytes) -> None:
    began = time.process_time()
    try:
        members(body)
    except InvalidRequest as problem:
        assert problem.status in {400, 422}
    assert time.process_time() - began < 1


def test_any_single_value_can_be_checked() -> None:
    for fine in (b"null", b"1", b'"x"', b"[]", b' {"a":1} ', b"1e999"):
        check_value(fine)
    for wrong, status in (
        (b"", 400),
        (b"{", 400),
        (b"NaN", 422),
        (b'"\\ud800"', 422),
        (b"[" * 65 + b"]" * 65, 422),
    ):
        with pytest.raises(InvalidRequest) as caught:
            check_value(wrong)
        assert caught.value.status == status, wrong
