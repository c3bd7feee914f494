"""Small work is done at once, large work in a thread, and the loop goes on meanwhile."""

import asyncio
import threading

import pytest

from app.errors import InvalidRequest
from app.jobs import verbatim
from app.loops.off_loop import LARGE_BYTES, off_loop
from tests.patience import pace


async def test_small_work_stays_on_the_loop_and_large_work_leaves_it() -> None:
    assert await off_loop(LARGE_BYTES, threading.get_ident) == threading.get_ident()
    assert await off_loop(LARGE_BYTES + 1, threading.get_ident) != threading.get_ident()


@pytest.mark.parametrize("size", [1, LARGE_BYTES + 1])
async def test_what_the_work_raises_is_raised(size: int) -> None:
    with pytest.raises(ZeroDivisionError):
        await off_loop(size, lambda: 1 // 0)


async def test_the_loop_turns_while_a_large_body_is_read() -> None:
    """In a thread alone it would not: what holds the interpreter has to let go of it now and then."""
    body = b'{"a":[' + (b"[" * 60 + b"]" * 60 + b",") * 60_000 + b"NaN]}"
    reading = asyncio.ensure_future(off_loop(len(body), verbatim.members, body))
    turns = 0
    while not reading.done():
        turns += 1
        await pace(0.001)
    with pytest.raises(InvalidRequest):
        await reading
    assert turns > 5
