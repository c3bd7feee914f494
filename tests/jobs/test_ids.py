"""Job ids are ULIDs that sort by time."""

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from app.jobs.ids import id_floor, is_id, new_id


def test_a_new_id_is_a_ulid_of_this_moment() -> None:
    before = time.time_ns() // 1_000_000
    made = new_id()
    after = time.time_ns() // 1_000_000
    assert is_id(made)
    assert before <= int(ULID.from_str(made).timestamp * 1000 + 0.5) <= after


def test_ids_of_different_milliseconds_sort_by_time() -> None:
    first = new_id()
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now:
        pass
    assert first < new_id()


def test_ids_of_one_millisecond_ascend_in_the_order_they_were_made() -> None:
    made = [new_id() for _ in range(20_000)]
    by_millisecond: dict[str, list[str]] = {}
    for each in made:
        by_millisecond.setdefault(each[:10], []).append(each)
    assert len(by_millisecond) < len(made) / 4
    assert all(each == sorted(each) for each in by_millisecond.values())


def test_ids_do_not_repeat() -> None:
    assert len({new_id() for _ in range(10_000)}) == 10_000


FORKING = """
import os
from app.jobs.ids import new_id

new_id()
child = os.fork()
# As many on both sides: out of one pool the same dice would be drawn.
made = [new_id()[10:] for _ in range(50)]
if child:
    os.waitpid(child, 0)
print(*made, flush=True)
os._exit(0)
"""


def test_the_child_of_a_fork_does_not_make_its_parent_s_ids() -> None:
    made = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True).stdout
    assert len(set(made.split())) == 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "01ARZ3NDEKTSV4RRFFQ69G5FA",  # too short
        "01ARZ3NDEKTSV4RRFFQ69G5FAVV",  # too long
        "01arz3ndektsv4rrffq69g5fav",  # one spelling only, or the same job has two addresses
        "01ARZ3NDEKTSV4RRFFQ69G5FAU",  # U is not in the alphabet
        "01ARZ3NDEKTSV4RRFFQ69G5FAI",  # nor is I
        "01ARZ3NDEKTSV4RRFFQ69G5FA\x00",
        "01ARZ3NDEKTSV4RRFFQ69G5F\u00c4A",
        "01ARZ3NDEKTSV4RRFFQ69G5FA\u0661",  # a digit, but not one of ours
        "../../../../../etc/passwd1",
    ],
)
def test_anything_else_is_not_an_id(text: str) -> None:
    assert not is_id(text)


def test_a_ulid_that_overflows_its_128_bits_is_not_an_id() -> None:
    assert is_id("7" + "Z" * 25)
    assert not is_id("8" + "0" * 25)


@given(st.text(max_size=30))
def test_any_text_can_be_asked_about(text: str) -> None:
    assert is_id(text) in {True, False}


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)))
def test_the_floor_of_a_moment_lies_below_its_ids_and_above_the_ids_before(naive: datetime) -> None:
    moment = naive.replace(tzinfo=UTC)
    milliseconds = int(moment.timestamp() * 1000)
    assert id_floor(moment) <= str(ULID.from_bytes((milliseconds << 80).to_bytes(16, "big")))
    before = str(ULID.from_bytes((((milliseconds - 1) << 80) | ((1 << 80) - 1)).to_bytes(16, "big")))
    assert before < id_floor(moment)


def test_moments_out_of_an_ids_range_are_clamped() -> None:
    assert id_floor(datetime(1, 1, 1, tzinfo=UTC)) == "0" * 26
    assert id_floor(datetime.max.replace(tzinfo=UTC)) == id_floor(datetime(9999, 1, 1, tzinfo=UTC))
    assert is_id(id_floor(datetime(9999, 1, 1, tzinfo=UTC) - timedelta(days=1)))
