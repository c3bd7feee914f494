"""Natural batching: one flush in flight, the next takes all that waited; failures stay where they belong."""

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from app.errors import InvalidRequest, Unavailable
from app.loops.batcher import Batcher
from tests.patience import turn_of_the_loop, until


class Gate:
    """A flush that waits to be let through, and remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self._open = asyncio.Event()
        self.entered = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def flush(self, items: Sequence[str]) -> list[str | Exception]:
        self.batches.append(list(items))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.entered.set()
        await self._open.wait()
        self.in_flight -= 1
        return [item.upper() for item in items]


async def all_of(*waiting: "asyncio.Task[str]") -> list[str | BaseException]:
    async with asyncio.timeout(5):
        return await asyncio.gather(*waiting, return_exceptions=True)


def put(batcher: Batcher[str, str], *items: str) -> list["asyncio.Task[str]"]:
    return [asyncio.create_task(batcher.put(item)) for item in items]


async def test_a_lone_item_leaves_at_once_and_alone() -> None:
    gate = Gate()
    gate.open()
    assert await Batcher("tested", gate.flush).put("a") == "A"
    assert gate.batches == [["a"]]


async def test_what_comes_while_a_flush_is_in_flight_leaves_together_in_order() -> None:
    gate = Gate()
    batcher = Batcher("tested", gate.flush)
    first = put(batcher, "a")
    await gate.entered.wait()
    rest = put(batcher, "b", "c", "d")
    await turn_of_the_loop()
    assert gate.batches == [["a"]]
    gate.open()
    assert await all_of(*first, *rest) == ["A", "B", "C", "D"]
    assert gate.batches == [["a"], ["b", "c", "d"]]
    assert gate.most_in_flight == 1


async def test_a_batch_is_as_heavy_as_allowed_and_no_heavier() -> None:
    gate = Gate()
    batcher = Batcher("tested", gate.flush, max_weight=5, weight=len)
    first = put(batcher, "x")
    await gate.entered.wait()
    rest = put(batcher, "aa", "bbb", "c", "toolongforany", "d")
    await turn_of_the_loop()
    gate.open()
    await all_of(*first, *rest)
    # What is heavier than a whole batch still leaves, alone.
    assert gate.batches == [["x"], ["aa", "bbb"], ["c"], ["toolongforany"], ["d"]]


async def test_a_batch_is_bounded_by_bytes_as_well_as_by_rows() -> None:
    gate = Gate()
    batcher = Batcher("tested", gate.flush, max_weight=3, max_size=10, size=len)
    first = put(batcher, "x")
    await gate.entered.wait()
    rest = put(batcher, "a" * 6, "b" * 4, "c", "d", "e", "f", "g" * 100, "h")
    await turn_of_the_loop()
    gate.open()
    await all_of(*first, *rest)
    assert [[item[0] for item in batch] for batch in gate.batches] == [
        ["x"],
        ["a", "b"],
        ["c", "d", "e"],
        ["f"],
        ["g"],
        ["h"],
    ]


async def test_several_flushes_may_be_in_flight_when_that_is_wanted() -> None:
    gate = Gate()
    batcher = Batcher("tested", gate.flush, max_weight=1, in_flight=3)
    waiting = put(batcher, "a", "b", "c", "d")
    await until(lambda: gate.in_flight == 3)
    gate.open()
    assert await all_of(*waiting) == ["A", "B", "C", "D"]
    assert gate.most_in_flight == 3


async def test_an_answer_that_is_an_exception_fails_its_own_item_only() -> None:
    async def flush(items: Sequence[str]) -> list[str | Exception]:
        return [InvalidRequest(item) if item == "bad" else item for item in items]

    batcher = Batcher("tested", flush)
    good, bad, other = await all_of(*put(batcher, "good", "bad", "other"))
    assert (good, other) == ("good", "other")
    assert isinstance(bad, InvalidRequest)


async def test_one_bad_item_does_not_poison_its_neighbours() -> None:
    flushed: list[list[str]] = []

    async def flush(items: Sequence[str]) -> list[str | Exception]:
        flushed.append(list(items))
        if "poison" in items:
            raise ValueError("cannot be written")
        return list(items)

    batcher = Batcher("tested", flush)
    before, poison, after = await all_of(*put(batcher, "before", "poison", "after"))
    assert (before, after) == ("before", "after")
    assert isinstance(poison, ValueError)
    assert flushed == [["before", "poison", "after"], ["before"], ["poison"], ["after"]]


async def test_a_failed_flush_fails_exactly_its_own_waiters() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def flush(items: Sequence[str]) -> list[str | Exception]:
        entered.set()
        await go_on.wait()
        if "a" in items:
            raise Unavailable("the database is away")
        return list(items)

    batcher = Batcher("tested", flush)
    lost = put(batcher, "a", "b")
    await entered.wait()
    kept = put(batcher, "c", "d")
    await turn_of_the_loop()
    go_on.set()
    assert [type(answer) for answer in await all_of(*lost)] == [Unavailable, Unavailable]
    assert await all_of(*kept) == ["c", "d"]


async def test_unavailable_is_not_tried_item_by_item() -> None:
    flushes = 0

    async def flush(items: Sequence[str]) -> list[str | Exception]:
        nonlocal flushes
        flushes += 1
        raise Unavailable

    assert [type(each) for each in await all_of(*put(Batcher("tested", flush), *"abc"))] == [Unavailable] * 3
    assert flushes == 1


async def test_what_must_not_be_lost_is_put_again_until_the_database_is_back() -> None:
    flushed: list[str] = []

    async def flush(items: Sequence[str]) -> list[str | Exception]:
        flushed.extend(items)
        if len(flushed) < 3:
            raise Unavailable
        return list(items)

    assert await Batcher("tested", flush).put_surely("a", 60) == "a"
    assert flushed == ["a"] * 3


async def test_patience_ends_with_its_time_and_is_only_for_a_database_that_is_away() -> None:
    async def away(items: Sequence[str]) -> list[str | Exception]:
        raise Unavailable

    async def broken(items: Sequence[str]) -> list[str | Exception]:
        tried.extend(items)
        raise ZeroDivisionError

    tried: list[str] = []
    with pytest.raises(Unavailable):
        await Batcher("tested", away).put_surely("a", 0)
    with pytest.raises(ZeroDivisionError):
        await Batcher("tested", broken).put_surely("a", 60)
    assert tried == ["a"]


async def test_a_waiter_that_goes_away_takes_nobody_with_it_and_its_item_is_still_flushed() -> None:
    gate = Gate()
    batcher = Batcher("tested", gate.flush)
    (first,) = put(batcher, "a")
    await gate.entered.wait()
    gone, stays = put(batcher, "gone", "stays")
    await turn_of_the_loop()
    first.cancel()
    gone.cancel()
    gate.open()
    assert (await all_of(stays)) == ["STAYS"]
    assert gate.batches == [["a"], ["gone", "stays"]]
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_a_flush_that_answers_too_few_leaves_nobody_waiting_for_ever() -> None:
    calls = 0

    async def flush(items: Sequence[str]) -> list[str | Exception]:
        nonlocal calls
        calls += 1
        return []

    batcher = Batcher("tested", flush)
    answers = await all_of(*put(batcher, "a", "b"))
    assert all(isinstance(answer, Exception) for answer in answers)
    # It may have been written: a second flush of the same items could write them twice.
    assert calls == 1


async def test_drain_waits_for_what_is_waiting_and_what_is_in_flight() -> None:
    gate = Gate()
    batcher = Batcher("tested", gate.flush)
    waiting = put(batcher, "a")
    await gate.entered.wait()
    waiting += put(batcher, "b")
    await turn_of_the_loop()
    drained = asyncio.create_task(batcher.drain())
    await turn_of_the_loop()
    assert not drained.done()
    gate.open()
    async with asyncio.timeout(5):
        await drained
    assert [task.done() for task in waiting] == [True, True]
    await batcher.drain()


async def test_a_thousand_waiters_each_get_their_own_answer() -> None:
    async def flush(items: Sequence[int]) -> list[int | Exception]:
        await turn_of_the_loop()
        return [ValueError(item) if item % 7 == 0 else item * 2 for item in items]

    batcher: Batcher[int, int] = Batcher("tested", flush, max_weight=50)
    answers = await asyncio.gather(*(batcher.put(n) for n in range(1000)), return_exceptions=True)
    for n, answer in enumerate(answers):
        assert isinstance(answer, ValueError) if n % 7 == 0 else answer == n * 2


async def test_whoever_does_not_wait_is_told_in_the_order_of_the_batch() -> None:
    gate = Gate()
    batcher = Batcher("tested", gate.flush)
    told: list[str | Exception] = []
    batcher.add("a", told.append)
    waiting = put(batcher, "b")
    await gate.entered.wait()
    batcher.add("c", told.append)
    batcher.add("d", told.append)
    assert not told
    gate.open()
    assert await all_of(*waiting) == ["B"]
    await until(lambda: len(told) == 3)
    assert told == ["A", "C", "D"]


async def test_whoever_cannot_be_told_keeps_nobody_else_from_being_told() -> None:
    gate = Gate()
    gate.open()
    batcher = Batcher("tested", gate.flush)

    def fails(_: object) -> None:
        raise RuntimeError

    told: list[str | Exception] = []
    with capture_logs() as logs:
        batcher.add("a", fails)
        batcher.add("b", told.append)
        await batcher.drain()
    assert told == ["B"]
    assert [each["event"] for each in logs] == ["batcher.not_told"]


async def test_of_items_with_a_key_in_common_one_leaves_and_the_others_keep_their_places() -> None:
    gate = Gate()
    batcher = Batcher("tested", gate.flush, max_weight=4, keys=lambda item: item.split("."))
    [first] = put(batcher, "busy")
    await gate.entered.wait()
    waiting = put(batcher, "a", "b", "a", "a.c", "c", "d", "e", "f")
    await turn_of_the_loop()
    gate.open()
    assert await all_of(first, *waiting) == ["BUSY", "A", "B", "A", "A.C", "C", "D", "E", "F"]
    # The second a waits for the first, a.c for the second, and c does not overtake a.c.
    assert gate.batches == [["busy"], ["a", "b", "d", "e"], ["a", "f"], ["a.c"], ["c"]]


async def test_what_shares_a_key_with_a_flush_in_flight_waits_for_its_end_and_holds_up_no_other() -> None:
    gate = Gate()
    batcher = Batcher("tested", gate.flush, in_flight=2, keys=lambda item: item.split("."))
    [first] = put(batcher, "a")
    await gate.entered.wait()
    waiting = put(batcher, "a.b", "b", "c")
    await until(lambda: len(gate.batches) == 2)
    # b does not overtake a.b, and whoever found nothing to take has gone.
    assert gate.batches == [["a"], ["c"]]
    gate.open()
    assert await all_of(first, *waiting) == ["A", "A.B", "B", "C"]
    assert gate.batches == [["a"], ["c"], ["a.b"], ["b"]]
