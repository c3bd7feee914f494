"""Hints cross only while somebody else may be listening."""

import contextlib
from collections.abc import AsyncIterator

import pytest

from app.events import neighbours
from app.events.hub import Hub
from app.events.neighbours import ANSWERED_SECONDS, GONE_SECONDS, Neighbours
from app.store import notices
from app.store.changes import Changes
from app.store.database import Database
from app.telemetry import NOTICES
from tests.patience import until
from tests.store.making import put_one


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_whoever_does_not_hear_itself_cannot_know() -> None:
    clock = Clock()
    known = Neighbours(clock)
    assert known.may_listen
    clock.now += 10 * GONE_SECONDS
    assert known.may_listen
    known.heard_itself()
    clock.now += ANSWERED_SECONDS
    assert not known.may_listen
    # Still connected, and heard nothing more: not even its own words.
    clock.now += GONE_SECONDS
    assert known.may_listen


def test_nobody_who_answers_is_nobody_there() -> None:
    clock = Clock()
    known = Neighbours(clock)
    known.heard_itself()
    assert known.may_listen
    clock.now += ANSWERED_SECONDS
    known.heard_itself()
    assert not known.may_listen
    known.lost()
    assert known.may_listen
    # Asked anew, the others have the time to answer once more.
    known.heard_itself()
    assert known.may_listen


def test_whoever_is_heard_is_there_until_nothing_was_heard_for_long() -> None:
    clock = Clock()
    known = Neighbours(clock)
    known.heard_itself()
    clock.now += ANSWERED_SECONDS
    known.heard()
    clock.now += GONE_SECONDS - 0.1
    known.heard_itself()
    assert known.may_listen
    clock.now += 0.1
    assert not known.may_listen


@contextlib.asynccontextmanager
async def running(database: Database, url: str | None) -> AsyncIterator[Hub]:
    hub = Hub(database, url, 3600)
    await hub.start()
    try:
        if url is not None:
            await until(lambda: hub._connection)
        yield hub
    finally:
        await hub.stop()


def sent() -> float:
    return float(NOTICES.labels("sent")._value.get())


async def test_alone_it_tells_nobody_and_a_newcomer_is_told_from_its_first_moment_on(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "ANSWERED_SECONDS", 0.0)
    job_id = await put_one(database)
    async with running(database, database_url) as here:
        await until(lambda: not here._neighbours.may_listen)
        before = sent()
        here.announce(Changes(jobs={job_id}))
        assert not here._untold.jobs
        async with running(database, database_url) as there:
            await until(lambda: here._neighbours.may_listen and there._neighbours.may_listen)
            with there.watch(job_id) as watch:
                here.announce(Changes(jobs={job_id}))
                assert await watch.changed(1, 600)
        # The answer to its question tells of no change, and does not count.
        await until(lambda: sent() - before == 1)


async def test_whoever_comes_is_told_to_look_because_it_was_told_of_nothing_before(
    database: Database, database_url: str
) -> None:
    heard: list[notices.Notice] = []
    async with running(database, database_url):
        listener = await notices.Listener.open(
            database_url,
            database.listening,
            lambda payload: heard.append(notices.read(payload)),
            lambda: None,
        )
        try:
            await listener.greet("newcomer", asks=True)
            await until(lambda: any(notice.many for notice in heard if notice.origin != "newcomer"))
        finally:
            listener.close()


async def test_a_process_that_hears_nothing_tells_the_others_all_the_same(
    database: Database, database_url: str
) -> None:
    job_id = await put_one(database)
    async with running(database, None) as deaf, running(database, database_url) as there:
        with there.watch(job_id) as watch:
            watch.seen = 1
            deaf.announce(Changes(jobs={job_id}))
            assert await watch.changed(1, 600)
