"""Targets in the database: those made over HTTP, and what is known of every one, for all replicas."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
import orjson

from app.jobs.lanes import TARGET_ASLEEP
from app.store.changes import Changes
from app.store.database import Database
from app.store.live import move_held, moved_in_queue
from app.store.rows import as_rows, columns
from app.store.tables.live import IN_LANES


class KnownTarget(msgspec.Struct, gc=False):
    """How a target was set up over HTTP (`settings` is JSON text, None for one that the environment makes), and what
    was last known of it."""

    name: str
    settings: str | None
    token: bytes | None
    wake_url: bytes | None
    inventory: str | None
    answered_at: datetime | None
    resident: str | None
    warning: str | None


LIST = f"SELECT {columns(KnownTarget)} FROM targets ORDER BY name"


async def list_targets(database: Database) -> list[KnownTarget]:
    return as_rows(KnownTarget, await database.fetch(LIST))


PUT = """
INSERT INTO targets (name, settings, token, wake_url) VALUES ($1, $2::jsonb, $3, $5)
ON CONFLICT (name) DO UPDATE SET
    settings = EXCLUDED.settings,
    wake_url = EXCLUDED.wake_url,
    -- Whoever else changed the address meanwhile: a token never goes where it was not meant to go.
    token = CASE WHEN targets.settings->>'url' = $4 THEN targets.token ELSE EXCLUDED.token END,
    inventory = CASE WHEN targets.settings->>'url' = EXCLUDED.settings->>'url' THEN targets.inventory END,
    resident = CASE WHEN targets.settings->>'url' = EXCLUDED.settings->>'url' THEN targets.resident END,
    asleep_since = NULL, warning = NULL, woken_at = NULL, wake_tries = 0, updated_at = now()
RETURNING (xmax = 0) AS created
"""


async def put_target(
    database: Database,
    name: str,
    settings: dict[str, Any],
    token: bytes | None,
    *,
    keep_token_of: str | None,
    wake_url: bytes | None = None,
) -> bool:
    """Make or change a target; True when it is new. What is known of it goes with its address.

    `keep_token_of`: the URL that the token was given for; if it is still the target's, the token stays.
    """
    kept = orjson.dumps(settings).decode()
    return bool(await database.fetchval(PUT, name, kept, token, keep_token_of, wake_url))


GIVEN_FOR = "SELECT settings->>'url' FROM targets WHERE name = $1 AND token IS NOT NULL"


async def url_of_token(database: Database, name: str) -> str | None:
    """Where the token of this target goes; None when it has none."""
    return await database.fetchval(GIVEN_FOR, name)  # type: ignore[no-any-return]


DELETE = "DELETE FROM targets WHERE name = $1 AND settings IS NOT NULL RETURNING name"


async def delete_target(database: Database, name: str) -> bool:
    return await database.fetchval(DELETE, name) is not None


KNOW = """
INSERT INTO targets (name, inventory) SELECT name, NULL FROM unnest($1::text[]) AS name ON CONFLICT DO NOTHING
"""


async def know_targets(database: Database, names: Sequence[str]) -> None:
    """Rows for the targets that the environment makes: their state is kept like everybody's."""
    await database.execute(KNOW, sorted(names))


ANSWERED = """
UPDATE targets SET
    inventory = $2::jsonb, answered_at = now(), asleep_since = NULL, warning = NULL, woken_at = NULL,
    wake_tries = 0, resident = CASE WHEN $3 THEN NULL ELSE resident END
WHERE name = $1
RETURNING answered_at
"""


async def record_answer(
    database: Database, name: str, inventory: dict[str, Any], *, forget: bool
) -> datetime | None:
    """When, by the database's clock; None when the target is gone. `forget`: nothing is resident any more."""
    answered_at: datetime | None = await database.fetchval(
        ANSWERED, name, orjson.dumps(inventory).decode(), forget
    )
    return answered_at


SLEEPS = "UPDATE targets SET asleep_since = coalesce(asleep_since, now()), warning = $2 WHERE name = $1"


async def record_sleep(database: Database, name: str, warning: str) -> None:
    await database.execute(SLEEPS, name, warning)


WARN = "UPDATE targets SET warning = $2 WHERE name = $1"


async def record_warning(database: Database, name: str, warning: str) -> None:
    await database.execute(WARN, name, warning)


# One replica at a time tries, each time after a longer pause.
TAKE_WAKE = """
UPDATE targets SET woken_at = now(), wake_tries = wake_tries + 1
WHERE name = $1
  AND (woken_at IS NULL OR woken_at < now() - least($3, $2 * 2 ^ least(wake_tries - 1, 20)) * interval '1 second')
RETURNING wake_tries
"""


async def take_wake(database: Database, name: str, first_seconds: float, most_seconds: float) -> int | None:
    """The number of this try to wake the target; None when it is not yet time for another."""
    return await database.fetchval(TAKE_WAKE, name, first_seconds, most_seconds)  # type: ignore[no-any-return]


# Written when a target swaps, not with every claim.
SET_RESIDENT = "UPDATE targets SET resident = $2 WHERE name = $1 AND resident IS DISTINCT FROM $2"


async def record_resident(database: Database, name: str, resident: str) -> None:
    await database.execute(SET_RESIDENT, name, resident)


# Not a transition: they stay queued, but out of the claim's way until the target answers. No event.
HOLD_CLAIMABLE = f"""
SELECT q.id FROM queued q CROSS JOIN LATERAL (
    SELECT 1 FROM jobs WHERE id = q.id AND state = 'queued' AND ready_at IS NOT NULL LIMIT 1 FOR UPDATE SKIP LOCKED
) AS held
WHERE q.queue = $1 AND q.lane = ANY ($2::text[]) AND {IN_LANES}
LIMIT $3
"""
PARK = (
    f"""
WITH parked AS (
    UPDATE jobs AS j SET ready_at = NULL, run_at = 'infinity', reason = '{TARGET_ASLEEP}', updated_at = now()
    WHERE j.id = ANY ($1::text[])
    RETURNING j.*
)
"""
    + moved_in_queue("parked")
    + "SELECT id, concurrency_key AS key FROM parked"
)


async def park(database: Database, queue: str, lanes: Sequence[str], limit: int = 1000) -> Changes[str]:
    """Hold back jobs whose targets are asleep; answers their ids. They give up the places of their keys."""
    rows = await move_held(database, HOLD_CLAIMABLE, (queue, list(lanes), limit), PARK)
    ids = [row["id"] for row in rows]
    return Changes(ids, jobs=set(ids), keys={(queue, row["key"]) for row in rows if row["key"] is not None})


# Waits for a row that somebody holds: one that is passed over would sleep on until a target answers anew.
HOLD_PARKED = f"""
SELECT q.id FROM queued q CROSS JOIN LATERAL (
    SELECT 1 FROM jobs WHERE id = q.id AND state = 'queued' AND ready_at IS NULL AND reason = '{TARGET_ASLEEP}'
    LIMIT 1 FOR UPDATE
) AS held
WHERE q.asleep AND q.id > $1
ORDER BY q.id LIMIT $2
"""
UNPARK = (
    """
WITH woken AS (
    UPDATE jobs AS j SET
        run_at = now(), updated_at = now(),
        -- It gave up its key's place when it was parked, and has to stand in line for it again.
        ready_at = CASE WHEN j.concurrency_key IS NULL THEN now() END,
        gate = CASE WHEN j.concurrency_key IS NOT NULL THEN 'key' END,
        reason = CASE WHEN j.concurrency_key IS NOT NULL THEN 'key_busy' END
    WHERE j.id = ANY ($1::text[])
    RETURNING j.*
)
"""
    + moved_in_queue("woken")
    + "SELECT queue, lane, concurrency_key AS key, max(id) AS last FROM woken GROUP BY queue, lane, concurrency_key"
)
UNPARK_BATCH = 1000


async def unpark(database: Database) -> AsyncIterator[Changes[None]]:
    """A target answered: all that waited for one is claimable, or in line for its key. Told batch by batch.

    Each job is visited once, in the order of the ids: those that only another target could serve are held back
    again meanwhile.
    """
    after = ""
    while rows := await move_held(database, HOLD_PARKED, (after, UNPARK_BATCH), UNPARK):
        yield Changes(
            work={(row["queue"], row["lane"]) for row in rows if row["key"] is None},
            keys={(row["queue"], row["key"]) for row in rows if row["key"] is not None},
        )
        after = max(row["last"] for row in rows)


RUNNING_ON = "SELECT runs_on, count(*) AS jobs FROM running WHERE runs_on IS NOT NULL GROUP BY runs_on"


async def running_on(database: Database) -> dict[str, int]:
    """How many jobs run on each target, over the whole fleet."""
    return {row["runs_on"]: row["jobs"] for row in await database.fetch(RUNNING_ON)}


# Each counted no further than somebody wants to know.
WAITING_IN = f"""
SELECT lane, sum(jobs)::bigint AS jobs FROM (
    SELECT asked.lane, waiting.jobs FROM unnest($1::text[], $2::text[]) AS asked (queue, lane) CROSS JOIN LATERAL (
        SELECT count(*) AS jobs FROM (
            SELECT 1 FROM queued WHERE queue = asked.queue AND lane = asked.lane AND {IN_LANES} LIMIT $3
        ) AS ready
    ) AS waiting
    UNION ALL
    SELECT lane, count(*) FROM (SELECT lane FROM queued WHERE asleep LIMIT $3) AS asleep GROUP BY lane
) AS waiting GROUP BY lane
"""


async def waiting_in_lanes(
    database: Database, places: Sequence[tuple[str, str]], at_most: int
) -> dict[str, int]:
    """How many jobs wait in these (queue, lane), and in any lane for a target that is asleep."""
    queues, lanes = [queue for queue, _ in places], [lane for _, lane in places]
    rows = await database.fetch(WAITING_IN, queues, lanes, at_most)
    return {row["lane"]: row["jobs"] for row in rows}


# A loose index scan: one probe per lane, however many wait in it. Asked again and again while a target sleeps.
PARKED_LANES = """
WITH RECURSIVE parked AS (
    (SELECT lane FROM queued WHERE asleep ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT following.lane FROM parked CROSS JOIN LATERAL (
        SELECT lane FROM queued WHERE asleep AND lane > parked.lane ORDER BY lane LIMIT 1
    ) AS following
)
SELECT lane FROM parked
"""


async def parked_lanes(database: Database) -> list[str]:
    return [row["lane"] for row in await database.fetch(PARKED_LANES)]
