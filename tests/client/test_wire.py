"""Numbers of any length and size are read and written as they are; passwords in addresses are not shown."""

import copy
import json
import math
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foreman_client.wire import decode, encode, encode_for_people, without_password

DIGITS = st.text("0123456789", min_size=1, max_size=30)
LONG = st.builds(lambda digits, times: digits * times, DIGITS, st.sampled_from([1, 1, 20, 500]))


@st.composite
def numbers(draw: st.DrawFn) -> str:
    """As JSON spells them: no zero in front, digits on both sides of the point."""
    whole = draw(LONG).lstrip("0") or "0"
    fraction = f".{draw(LONG)}" if draw(st.booleans()) else ""
    exponent = draw(st.sampled_from(["", "e", "E", "e+", "e-", "E+"]))
    if exponent:
        exponent += draw(st.one_of(st.integers(0, 500).map(str), st.just("00400"), DIGITS))
    return draw(st.sampled_from(["", "-"])) + whole + fraction + exponent


def parts(number: str) -> tuple[bool, str, int]:
    """Sign, digits and power of ten: equal for equal numbers, however large the exponent."""
    mantissa, _, exponent = number.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    power = int(exponent or 0) - len(fraction) + len(digits) - len(kept)
    return (number.startswith("-"), kept, power) if kept else (False, "", 0)


@given(st.lists(numbers(), max_size=5))
@example(["-0", "0", "-0.0e5"])
@example(["1e400"])
@example(["-1e99999999999999999999999"])
@example(["9" * 5000, "0.5", "1"])
@example(["9" * 400 + ".5"])
@example(["2" + "0" * 308, "2" + "0" * 308 + ".0"])
def test_a_number_is_read_and_written_as_it_is(texts: list[str]) -> None:
    text = "[" + ",".join(texts) + "]"
    for document in (text, text.encode()):
        value = decode(document)
        written = encode(value).decode()
        assert decode(written) == value
        for given_text, written_text in zip(texts, filter(None, written[1:-1].split(",")), strict=True):
            is_real = any(each in given_text for each in ".eE")
            if is_real and math.isfinite(float(given_text)):
                # Rounded as Python rounds.
                assert float(written_text) == float(given_text)
            else:
                assert parts(written_text) == parts(given_text)


def test_the_usual_numbers_are_ints_and_floats() -> None:
    value = decode('{"a":[0,-1,18446744073709551616,0.1,1e308],"b":{"c":1}}')
    assert [type(each) for each in value["a"]] == [int, int, int, float, float]
    # In company of one that is neither, too.
    value = decode('{"a":[0,-1,18446744073709551616,0.1,1e308,1e309]}')
    assert [type(each) for each in value["a"]] == [int, int, int, float, float, Decimal]


def test_a_number_beyond_all_is_the_same_after_it_was_copied() -> None:
    text = "-1.5e99999999999999999999"
    value = decode(text)
    assert value < -(10**300)
    for each in (value, copy.deepcopy(value), pickle.loads(pickle.dumps(value))):  # noqa: S301 - our own
        assert encode([each]).decode() == f"[{text}]"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Decimal("0.10"), "0.10"),
        (Decimal("-0"), "-0"),
        (Decimal("1E+3"), "1E+3"),
        ({"price": Decimal("9.99"), "text": '9.99" and more', "nested": [Decimal(1), "1"]}, None),
    ],
)
def test_a_decimal_is_written_as_a_number(value: Any, written: str | None) -> None:
    text = encode(value).decode()
    assert written is None or text == written
    assert json.loads(text, parse_float=Decimal) == value
    assert json.loads(encode_for_people(value, indent=2), parse_float=Decimal) == value


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "sNaN"])
def test_what_is_no_number_is_neither_written_nor_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON"):
        encode({"n": Decimal(text)})
    with pytest.raises(ValueError, match=r"JSON|Expecting"):
        decode(f'{{"n":{text}}}')
    # As a text it is one.
    assert decode(encode({"n": text})) == {"n": text}


@pytest.mark.parametrize("value", [Fraction(1, 2), {1, 2}, object()])
def test_what_json_does_not_have_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        encode({"n": value})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://h/db", "postgresql://h/db"),
        ("postgresql://u@h:5432/db", "postgresql://u@h:5432/db"),
        ("postgresql://u:SECRET@h:5432/db?sslmode=require", "postgresql://u@h:5432/db"),
        ("postgresql://u@/db?host=/tmp/socket&port=5432", "postgresql://u@/db"),
        ("postgresql://u:SECRET@[::1]:5432/db", "postgresql://u@[::1]:5432/db"),
        ("postgresql://u:SECRET@h1:5432,h2:5433/db", "postgresql://u@h1:5432,h2:5433/db"),
        ("postgresql://:SECRET@h/db", "postgresql://h/db"),
        ("postgresql:///db?user=u&password=SECRET", "postgresql:///db"),
        # What had to be escaped and was not.
        ("postgresql://u:SECRET@SECRET@127.0.0.1:18399/db", "postgresql://u@127.0.0.1:18399/db"),
        ("postgresql://u:SECRET/SECRET@h/db", "postgresql://u@h/db"),
        ("postgresql://u:SECRET#SECRET@h/db", "postgresql://u@h/db"),
        ("postgresql://u:SECRET:SECRET@h/db", "postgresql://u@h/db"),
        ("postgresql://u:SECRET://SECRET@h/db", "postgresql://u@h/db"),
        ("postgresql://u:SECRET?SECRET@h/db", "postgresql://u@…"),
        ("postgresql:///db?user=u&password=SECRET@SECRET", "postgresql://…"),
        ("postgresql://u@h/db?password=SECRET@SECRET", "postgresql://u@…"),
        ("postgresql://u:SECRET@h/db?password=SECRET@SECRET", "postgresql://u@…"),
        ("http://u:SECRET@h:8080", "http://u@h:8080"),
        ("u:SECRET@h:8080", "u@h:8080"),
        ("", ""),
    ],
)
def test_of_an_address_with_a_password_the_password_is_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
    assert "SECRET" not in without_password(url)
