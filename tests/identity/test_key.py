"""The text of a key."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.identity.key import ALPHABET, PATTERN, checksum, hash_of, is_key, new_key

bodies = st.text(ALPHABET, min_size=30, max_size=30)


def test_a_new_key_is_as_specified_and_never_the_same() -> None:
    keys = {new_key() for _ in range(1000)}
    assert len(keys) == 1000
    assert all(re.fullmatch(r"fmn_[0-9A-Za-z]{36}", key) and re.fullmatch(PATTERN, key) for key in keys)
    assert all(is_key(key.encode()) for key in keys)
    assert all(len(hash_of(key.encode())) == 32 for key in keys)


@given(bodies)
def test_the_checksum_makes_it_a_key_and_no_other_does(body: str) -> None:
    good = f"fmn_{body}{checksum(body)}"
    assert is_key(good.encode())
    for index in range(4, len(good)):
        other = ALPHABET[(ALPHABET.index(good[index]) + 1) % len(ALPHABET)]
        assert not is_key((good[:index] + other + good[index + 1 :]).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"fmn_",
        b"fmn_" + b"0" * 35,
        b"fmn_" + b"0" * 37,
        b"FMN_" + b"0" * 36,
        b"fmn_" + b"\xff" * 36,
        b"\n",
    ],
)
def test_what_is_no_key_is_told_without_asking_anybody(text: bytes) -> None:
    assert not is_key(text)


def test_a_line_behind_it_does_not_belong_to_it() -> None:
    assert not is_key(new_key().encode() + b"\n")
