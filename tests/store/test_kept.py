"""A look that takes its time is shared and kept, and who cannot wait for it is told so."""

import asyncio

import pytest

from app.errors import Unavailable
from app.store import kept
from app.store.kept import Kept
from tests.patience import until


class Look:
    """Answers how often it was asked, once it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self) -> int:
        self.asked += 1
        await self.may_answer.wait()
        return self.asked


async def test_a_quick_look_is_taken_anew_each_time() -> None:
    looks = Kept(Look())
    assert [await looks.take(), await looks.take_within(9)] == [1, 2]


async def test_a_look_that_took_long_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever takes any time at all has taken long, and is kept for longer than a test takes.
    monkeypatch.setattr(kept, "CHEAP_SECONDS", 0)
    monkeypatch.setattr(kept, "KEEP_SHARE", 1e12)
    looks = Kept(Look())
    # Of one alone nobody knows whether it was the look or the machine.
    assert [await looks.take(), await looks.take(), await looks.take()] == [1, 2, 2]


async def test_who_cannot_wait_is_told_so_and_the_next_gets_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "CHEAP_SECONDS", 0)
    monkeypatch.setattr(kept, "KEEP_SHARE", 1e12)
    look = Look()
    look.may_answer.clear()
    looks = Kept(look)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await looks.take_within(0.01)
    look.may_answer.set()
    await until(lambda: looks._renewal is None or looks._renewal.done())
    assert look.asked == 1
    assert await looks.take_within(60) == 2


async def test_a_look_that_fails_after_nobody_waits_any_more_is_nobody_s_trouble() -> None:
    go_on = asyncio.Event()

    async def look() -> int:
        await go_on.wait()
        raise Unavailable("away")

    looks = Kept(look)
    with pytest.raises(Unavailable, match="takes its time"):
        await looks.take_within(0.01)
    go_on.set()
    await until(lambda: looks._renewal is None or looks._renewal.done())
    with pytest.raises(Unavailable, match="away"):
        await looks.take_within(60)
