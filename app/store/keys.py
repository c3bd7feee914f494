"""Keyed concurrency: at most `max_active` jobs of a key run, over the whole fleet.

A job takes a place of its key from the moment it could be claimed until it runs no more: as long as it is
`loading`, `working`, or queued with a `ready_at`. All others of the key wait behind the gate, out of the claim's
way; so the claim needs no check, and a backlog of a hundred thousand costs it nothing.

There is no counter. Whoever hands out places (enqueue, `ready_next`) holds the key's advisory lock and counts the
places that are taken; everybody else only gives places back, which needs no lock. Giving back commits first and
then asks for `ready_next`: a lock taken after rows would be in the wrong order, and a count in the statement that
frees the place could not see what was enqueued while it waited. A crash in between is healed by `repair`.

Lock order everywhere: advisory locks (sorted), then rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from app.jobs.shapes import Count, JobId, Moment
from app.store.changes import Changes
from app.store.changes import Key as QueueKey
from app.store.database import Database, Runner
from app.store.live import moved_in_queue
from app.store.locks import lock, lock_number
from app.store.rows import as_rows, columns
from app.telemetry import GATES_PASSED

GATE = "key"
# Moved at once for one key; a key that was opened wide is opened in steps.
STEP = 500


def _holders(of: str) -> str:
    """How many places of a key are taken: by those that run, and those that could be claimed any moment."""
    return f"""(
        (SELECT count(*) FROM running WHERE queue = {of}.queue AND concurrency_key = {of}.key)
        + (SELECT count(*) FROM queued WHERE queue = {of}.queue AND concurrency_key = {of}.key AND ready_at IS NOT NULL)
    )"""


def _of_key(row: str, key: str) -> str:
    """That a row is of this key, as a range of one: so that only the index of keys has its order."""
    names = f"({row}.queue, {row}.concurrency_key)"
    return f"{row}.concurrency_key IS NOT NULL AND {names} >= ({key}) AND {names} <= ({key})"


def key_lock(key: QueueKey) -> int:
    return lock_number("key", *key)


# Which places are free, who is to have them: best rank first, then oldest. When the limit was lowered, those that nobody
# has claimed yet are taken back, newest first. SKIP LOCKED, because whoever holds such a row is about to move it.
HOLD_NEXT = f"""
WITH places AS MATERIALIZED (
    SELECT asked.queue, asked.key,
        CASE WHEN queues.settings ? 'key' THEN coalesce((queues.settings->>'max_active')::bigint, 1)
             ELSE 1000000000 END - {_holders("asked")} AS free
    FROM unnest($1::text[], $2::text[]) AS asked (queue, key) LEFT JOIN queues ON queues.name = asked.queue
)
, following AS MATERIALIZED (
    SELECT next.id, places.queue, places.key FROM places CROSS JOIN LATERAL (
        SELECT q.id FROM queued q CROSS JOIN LATERAL (
            SELECT 1 FROM jobs WHERE id = q.id AND state = 'queued' AND gate = '{GATE}' LIMIT 1 FOR UPDATE SKIP LOCKED
        ) AS held
        WHERE q.queue = places.queue AND q.gate = '{GATE}' AND q.concurrency_key = places.key
        ORDER BY q.rank DESC, q.id LIMIT greatest(least(places.free, {STEP}), 0)
    ) AS next
)
, too_many AS MATERIALIZED (
    SELECT last.id FROM places CROSS JOIN LATERAL (
        SELECT holder.id FROM (
            SELECT id, rank FROM queued
            WHERE queue = places.queue AND concurrency_key = places.key AND ready_at IS NOT NULL AND places.free < 0
            OFFSET 0
        ) AS holder
        CROSS JOIN LATERAL (
            SELECT 1 FROM jobs WHERE id = holder.id AND state = 'queued' AND ready_at IS NOT NULL LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) AS held
        ORDER BY holder.rank, holder.id DESC LIMIT greatest(-places.free, 0)
    ) AS last
)
SELECT places.queue, places.key,
    ARRAY(SELECT id FROM following WHERE following.queue = places.queue AND following.key = places.key) AS following,
    ARRAY(SELECT id FROM too_many) AS too_many,
    places.free > (
        SELECT count(*) FROM following WHERE following.queue = places.queue AND following.key = places.key
    ) AND (
        SELECT true FROM queued
        WHERE queue = places.queue AND gate = '{GATE}' AND concurrency_key = places.key
          AND id NOT IN (SELECT id FROM following)
        LIMIT 1
    ) IS NOT NULL AS unfinished
FROM places
"""
READY = (
    """
WITH readied AS (
    UPDATE jobs AS j SET ready_at = now(), gate = NULL, reason = NULL WHERE j.id = ANY ($1::text[]) RETURNING j.*
)
"""
    + moved_in_queue("readied")
    + "SELECT DISTINCT queue, lane FROM readied"
)
TAKE_BACK = (
    f"""
WITH taken_back AS (
    UPDATE jobs AS j SET ready_at = NULL, gate = '{GATE}', reason = 'key_busy' WHERE j.id = ANY ($1::text[]) RETURNING j.*
)
"""
    + moved_in_queue("taken_back")
    + "SELECT id FROM taken_back"
)


# Most keys have nobody waiting; one probe tells, and no lock is taken for them. One who comes to stand in line in
# this very moment looks again himself, after his commit (see Intake).
WITH_WAITING = f"""
SELECT asked.queue, asked.key FROM unnest($1::text[], $2::text[]) AS asked (queue, key)
CROSS JOIN LATERAL (
    SELECT 1 FROM queued
    WHERE queue = asked.queue AND gate = '{GATE}' AND concurrency_key = asked.key LIMIT 1
) AS waiting
"""


async def with_waiting(database: Database, keys: Sequence[QueueKey]) -> list[QueueKey]:
    """Those of the keys that someone waits for."""
    rows = await database.fetch(WITH_WAITING, [queue for queue, _ in keys], [key for _, key in keys])
    return [(row["queue"], row["key"]) for row in rows]


async def ready_next(database: Database, keys: Sequence[QueueKey]) -> Changes[QueueKey]:
    """Give the free places of these keys to those who wait for them; answers the keys that one step did not finish."""
    async with database.transaction() as connection:
        await lock(connection, dict.fromkeys(map(key_lock, keys), True))
        return await ready_next_locked(connection, keys)


async def ready_next_locked(connection: Runner, keys: Sequence[QueueKey]) -> Changes[QueueKey]:
    """The same, for one who holds the keys' locks already."""
    rows = await connection.fetch(HOLD_NEXT, [queue for queue, _ in keys], [key for _, key in keys])
    changes = Changes([(row["queue"], row["key"]) for row in rows if row["unfinished"]])
    following = [job_id for row in rows for job_id in row["following"]]
    too_many = {job_id for row in rows for job_id in row["too_many"]}
    if following:
        readied = await connection.fetch(READY, following)
        changes.work = {(row["queue"], row["lane"]) for row in readied}
    if too_many:
        await connection.fetch(TAKE_BACK, sorted(too_many))
    if changes.work:
        changes.count(GATES_PASSED, GATE, by=len(changes.work))
    return changes


# A loose index scan: one probe per key that has someone waiting, however many wait. Only keys with a free place
# are told, or with more places taken than there are.
REPAIR = f"""
WITH RECURSIVE waiting AS (
    (SELECT queue, concurrency_key, 1 AS n FROM queued
     WHERE gate = '{GATE}' AND (queue, gate, concurrency_key) > ($1, '{GATE}', $2)
     ORDER BY queue, gate, concurrency_key LIMIT 1)
    UNION ALL
    SELECT following.queue, following.concurrency_key, waiting.n + 1 FROM waiting CROSS JOIN LATERAL (
        SELECT queue, concurrency_key FROM queued
        WHERE gate = '{GATE}'
          AND (queue, gate, concurrency_key) > (waiting.queue, '{GATE}', waiting.concurrency_key)
        ORDER BY queue, gate, concurrency_key LIMIT 1
    ) AS following
    WHERE waiting.n < $3
)
SELECT waiting.queue, waiting.key,
    CASE WHEN queues.settings ? 'key' THEN coalesce((queues.settings->>'max_active')::bigint, 1)
         ELSE 1000000000 END <> {_holders("waiting")} AS wrong
FROM (SELECT queue, concurrency_key AS key FROM waiting) AS waiting LEFT JOIN queues ON queues.name = waiting.queue
"""


async def find_wrong(database: Runner, after: QueueKey, limit: int) -> tuple[list[QueueKey], QueueKey | None]:
    """Keys with someone waiting although there is a place, from `after` on; and where to go on from."""
    rows = await database.fetch(REPAIR, after[0], after[1], limit)
    wrong = [(row["queue"], row["key"]) for row in rows if row["wrong"]]
    return wrong, (rows[-1]["queue"], rows[-1]["key"]) if len(rows) == limit else None


# Keys of a queue whose limit may have been lowered: those that have places taken.
HELD_KEYS = """
SELECT DISTINCT concurrency_key AS key FROM (
    (SELECT concurrency_key FROM running
     WHERE queue = $1 AND concurrency_key > $2 ORDER BY concurrency_key LIMIT $3)
    UNION ALL
    (SELECT concurrency_key FROM queued
     WHERE queue = $1 AND concurrency_key > $2 AND ready_at IS NOT NULL ORDER BY concurrency_key LIMIT $3)
    ORDER BY concurrency_key LIMIT $3
) AS holders ORDER BY key
"""


async def held_keys(database: Runner, queue: str, after: str, limit: int) -> list[str]:
    return [row["key"] for row in await database.fetch(HELD_KEYS, queue, after, limit)]


class KeyHolder(msgspec.Struct):
    """A job that runs, and so holds a place of its key."""

    job_id: JobId
    worker: str | None
    started_at: Moment | None
    lease_expires_at: Moment | None
    attempt: Count
    heartbeat_at: Moment | None


class KeyWaiter(msgspec.Struct):
    """A job of the key that does not run yet."""

    job_id: JobId
    created_at: Moment
    reason: str | None


class Key(msgspec.Struct):
    """Who holds a key and who waits for it."""

    key: str
    active: list[KeyHolder]
    queued: list[KeyWaiter]
    stale_takeovers: Annotated[Count, Meta(description="Jobs of this key that are stale now.")]


# The last renewal is not kept; it lies one lease before the lease's end.
_HEARTBEAT = "least(now(), lease_expires_at - lease_seconds * interval '1 second')"
ACTIVE = f"""
SELECT {columns(KeyHolder, "j", job_id="j.id", heartbeat_at=_HEARTBEAT)}
FROM (SELECT id FROM running WHERE queue = $1 AND concurrency_key = $2 OFFSET 0) AS holder
CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = holder.id LIMIT 1) AS j
WHERE j.state IN ('loading', 'working') ORDER BY j.id
"""
QUEUED = f"""
SELECT {columns(KeyWaiter, "j", job_id="j.id")}
FROM (
    SELECT q.id FROM queued q WHERE {_of_key("q", "$1, $2")} ORDER BY q.queue, q.concurrency_key, q.id LIMIT $3
) AS waiter
CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = waiter.id LIMIT 1) AS j
WHERE j.state = 'queued' ORDER BY j.id
"""
STALE = "SELECT count(*) FROM endings WHERE queue = $1 AND concurrency_key = $2 AND state = 'stale'"
MAX_SHOWN = 1000


async def show_key(database: Database, queue: str, key: str) -> Key:
    async with database.connection() as connection:
        active = as_rows(KeyHolder, await connection.fetch(ACTIVE, queue, key))
        queued = as_rows(KeyWaiter, await connection.fetch(QUEUED, queue, key, MAX_SHOWN))
        return Key(key, active, queued, await connection.fetchval(STALE, queue, key))


@dataclass(slots=True)
class KeyState:
    """A key as it stands: who runs, who waits. Changed while decisions are made."""

    holders: int
    live: int
    # (id, state) of one that runs.
    active: tuple[str, str] | None
    # The one that newcomers are coalesced into.
    queued_id: str | None
    # Those that may be replaced, oldest first, and whether each takes a place.
    replaceable: list[tuple[str, bool]] = field(default_factory=list)


# Counted no further than the limit: beyond it nothing changes.
PLACES = f"""
SELECT asked.queue, asked.key, {_holders("asked")} AS holders,
    (SELECT count(*) FROM (
        (SELECT 1 FROM queued WHERE queue = asked.queue AND concurrency_key = asked.key LIMIT asked.places)
        UNION ALL
        (SELECT 1 FROM running WHERE queue = asked.queue AND concurrency_key = asked.key LIMIT asked.places)
        LIMIT asked.places
    ) AS counted) AS live,
    (SELECT j.id || ':' || j.state FROM (
        SELECT min(id) AS id FROM running WHERE queue = asked.queue AND concurrency_key = asked.key
     ) AS holder CROSS JOIN LATERAL (SELECT id, state FROM jobs WHERE id = holder.id LIMIT 1) AS j) AS active,
    (SELECT max(id) FROM (
        SELECT id FROM queued WHERE queue = asked.queue AND concurrency_key = asked.key LIMIT 100
     ) AS queued) AS queued_id
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS asked (queue, key, places)
"""

# SKIP LOCKED: one that is being claimed in this moment is as good as active, and is not replaced.
OLDEST = f"""
SELECT asked.queue, asked.key, oldest.id, oldest.holds
FROM unnest($1::text[], $2::text[], $3::int[]) AS asked (queue, key, wanted)
CROSS JOIN LATERAL (
    SELECT held.* FROM queued q CROSS JOIN LATERAL (
        SELECT id, ready_at IS NOT NULL AS holds FROM jobs WHERE id = q.id AND state = 'queued' LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS held
    WHERE {_of_key("q", "asked.queue, asked.key")}
    ORDER BY q.queue, q.concurrency_key, q.id
    LIMIT asked.wanted
) AS oldest
ORDER BY oldest.id
"""


async def read_states(
    connection: Runner, limits: Mapping[QueueKey, int], replaceable: Mapping[QueueKey, int]
) -> dict[QueueKey, KeyState]:
    """The keys as they stand, counted up to the limit of each; with the oldest so many that may be replaced."""
    if not limits:
        return {}
    rows = await connection.fetch(PLACES, *map(list, zip(*limits, strict=True)), list(limits.values()))
    states = {
        (row["queue"], row["key"]): KeyState(
            row["holders"],
            row["live"],
            tuple(row["active"].split(":")) if row["active"] else None,
            row["queued_id"],
        )
        for row in rows
    }
    if replaceable:
        asked = map(list, zip(*replaceable, strict=True))
        for row in await connection.fetch(OLDEST, *asked, list(replaceable.values())):
            states[row["queue"], row["key"]].replaceable.append((row["id"], row["holds"]))
    return states
