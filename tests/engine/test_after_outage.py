"""After an outage leases are left alone until those who hold them had their turn."""

from datetime import UTC, datetime, timedelta

import pytest

from app.store.database import Database
from app.store.sweep import Watchfulness, sweep
from tests.store.making import backdate, log_of, running

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.fixture
def watchful() -> Watchfulness:
    """One that looked every 5 s for long enough; its next look is due at NOW + 5."""
    watchfulness = Watchfulness(5, 3)
    watchfulness.look(after(-5), LONG_AGO)
    assert watchfulness.look(NOW, LONG_AGO) == 0
    return watchfulness


def test_the_first_look_of_a_process_is_not_trusted() -> None:
    watchfulness = Watchfulness(5, 3)
    assert watchfulness.look(NOW, LONG_AGO) == 3
    assert watchfulness.look(after(2), LONG_AGO) == 1
    assert watchfulness.look(after(3), LONG_AGO) == 0
    assert watchfulness.look(after(8), LONG_AGO) == 0


def test_nor_is_the_first_one_after_a_look_that_failed(watchful: Watchfulness) -> None:
    watchful.failed()
    assert watchful.look(after(6), LONG_AGO) == 3
    watchful.failed()
    assert watchful.look(after(8), LONG_AGO) == 3
    assert watchful.look(after(11), LONG_AGO) == 0


def test_nor_one_that_comes_much_too_late(watchful: Watchfulness) -> None:
    """A frozen process, or a computer that slept: its own clock may have noticed nothing."""
    assert watchful.look(after(9), LONG_AGO) == 0
    assert watchful.look(after(900), LONG_AGO) == 3
    assert watchful.look(after(903), LONG_AGO) == 0


def test_on_a_machine_that_is_always_late_leases_end_all_the_same(watchful: Watchfulness) -> None:
    waits = [watchful.look(after(60 * n), LONG_AGO) for n in range(1, 7)]
    assert waits == [3, 0, 3, 0, 3, 0]


def test_nor_one_soon_after_the_database_was_started(watchful: Watchfulness) -> None:
    """However short it was away: nobody may have looked meanwhile."""
    assert watchful.look(after(5), after(4)) == 2
    assert watchful.look(after(7), after(4)) == 0


def test_a_clock_that_was_set_back_is_an_outage_and_no_hindrance(watchful: Watchfulness) -> None:
    assert watchful.look(after(-3600), LONG_AGO) == 3
    assert watchful.look(after(-3597), LONG_AGO) == 0


async def test_meanwhile_nothing_is_rescued_but_what_is_late_expires(database: Database) -> None:
    lost, _ = await running(database)
    late, _ = await running(database, deadline_seconds=60)
    await backdate(database, lost, "lease_expires_at")
    await backdate(database, late, "deadline")
    watchfulness = Watchfulness(5, 3600)
    swept = await sweep(database, cancel_grace_seconds=10, watchfulness=watchfulness)
    assert swept is not None
    assert ([each["id"] for each in swept.expired], swept.rescued) == ([late], [])
    assert 3590 < swept.blind_seconds <= 3600
    trusted = Watchfulness(5, 0)
    swept = await sweep(database, cancel_grace_seconds=10, watchfulness=trusted)
    assert swept is not None
    assert [each["id"] for each in swept.rescued] == [lost]
    assert (await log_of(database, lost))[-1][1:] == ("queued", "rescue")
