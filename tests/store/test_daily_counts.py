"""What is counted by name and day: bounded, added up over processes, and forgotten after a while."""

import pytest

from app.errors import DatabaseUnavailable
from app.store import daily_counts
from app.store.daily_counts import (
    KEPT_DAYS,
    LONGEST_NAME,
    MOST_NAMES,
    OTHER,
    DailyTally,
    of_days,
    of_today,
    prune,
)
from app.store.database import Database


async def test_processes_add_up(database: Database) -> None:
    for _ in range(2):
        tally = DailyTally()
        tally.count("receiver", "hooks.example:443", "delivered", 5)
        tally.count("receiver", "hooks.example:443", "given_up")
        tally.count("target", "studio", "swapped", 2)
        for _ in range(2):
            await tally.flush(database)
    assert await of_today(database, "receiver") == {"hooks.example:443": {"delivered": 10, "given_up": 2}}
    assert await of_today(database, "target") == {"studio": {"swapped": 4}}
    assert (await of_today(database, "receiver"))["hooks.example:443"]["refused"] == 0


async def test_nothing_is_written_where_nothing_was_counted(database: Database) -> None:
    await DailyTally().flush(database)
    assert await database.fetchval("SELECT count(*) FROM daily_counts") == 0


async def test_no_more_names_than_so_many_are_told_apart(database: Database) -> None:
    tally = DailyTally()
    for n in range(10_000):
        tally.count("receiver", f"host-{n}", "delivered")
    tally.count("receiver", "host-0", "delivered")
    await tally.flush(database)
    # The names count for the day, not until they are written.
    tally.count("receiver", "host-9999", "delivered")
    tally.count("receiver", "x" * 3000, "delivered")
    tally.count("receiver", "host-1", "delivered")
    await tally.flush(database)
    counts = await of_today(database, "receiver")
    assert len(counts) == MOST_NAMES + 1
    assert (counts["host-0"]["delivered"], counts["host-1"]["delivered"]) == (2, 2)
    assert counts[OTHER]["delivered"] == 10_000 - MOST_NAMES + 2


async def test_a_name_is_kept_no_longer_than_a_key_may_be(database: Database) -> None:
    tally = DailyTally()
    tally.count("receiver", "é" * 3000, "delivered")
    await tally.flush(database)
    assert list(await of_today(database, "receiver")) == ["é" * LONGEST_NAME]


async def test_what_a_database_that_is_away_does_not_take_is_kept(database: Database) -> None:
    tally = DailyTally()
    tally.count("target", "studio", "swapped", 3)
    await database.close()
    with pytest.raises(DatabaseUnavailable):
        await tally.flush(database)
    tally.count("target", "studio", "swapped", 4)
    await database.open()
    await tally.flush(database)
    assert await of_today(database, "target") == {"studio": {"swapped": 7}}


async def test_days_are_read_newest_first_and_go_after_a_while(database: Database) -> None:
    await database.execute(
        "INSERT INTO daily_counts SELECT (now() AT TIME ZONE 'UTC')::date - n, 'target', 'studio', 'swapped', n "
        "FROM generate_series(-1, 40) AS n"
    )
    assert [each.count for each in await of_days(database, "target", 3)] == [0, 1, 2]
    assert not await prune(database)
    assert await database.fetchval("SELECT max(count) FROM daily_counts") == KEPT_DAYS
    async with database.transaction() as other:
        await other.execute("INSERT INTO daily_counts VALUES ('2000-01-01', 'target', 'old', 'swapped', 1)")
        await other.fetchval(daily_counts.ONE_AT_A_TIME)
        assert not await prune(database)
    assert await database.fetchval("SELECT count(*) FROM daily_counts WHERE name = 'old'") == 1
