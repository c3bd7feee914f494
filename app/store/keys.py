"""Keyed concurrency: at most `max_active` jobs of a key run, over the whole fleet.

A job takes a place of its key from the moment it could be claimed until it runs no more: as long as it is
`loading`, `working`, or queued with a `ready_at`. All others of the key wait behind the gate, out of the claim's
way; so the claim needs no check, and a backlog of a hundred thousand costs it nothing.

There is no counter. Whoever hands out places (enqueue, `ready_next`) holds the key's advisory lock and counts the
places that are taken, from where it counted last (key_memory.py); everybody else only gives places back, which needs no
lock. Giving back commits first and
then asks for `ready_next`: a lock taken after rows would be in the wrong order, and a count in the statement that
frees the place could not see what was enqueued while it waited. A crash in between is healed by `repair`.

Lock order everywhere: advisory locks (sorted), then rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import asyncpg
import msgspec
from msgspec import Meta

from app.jobs.shapes import Count, JobId, Moment
from app.jobs.tenants import DEFAULT_TENANT, owned, scoped
from app.store.changes import Changes
from app.store.changes import Key as QueueKey
from app.store.database import Database, Runner
from app.store.key_memory import SERVER, KeyMemory, Known, array_literal, holding, mark_of, waiting
from app.store.live import moved_in_queue
from app.store.locks import lock, lock_number
from app.store.rows import as_rows, columns
from app.telemetry import GATES_PASSED

GATE = "key"
# Moved at once for one key; a key that was opened wide is opened in steps.
STEP = 500


def key_lock(key: QueueKey) -> int:
    return lock_number("key", *key)


_MAX_ACTIVE = """CASE WHEN queues.settings ? 'key' THEN coalesce((queues.settings->>'max_active')::bigint, 1)
        ELSE 1000000000 END"""

# Those who wait for the key `asked`, from the marks on: span by span, and in each best rank first, then oldest.
_SPANS = (
    "unnest(asked.lows::smallint[], asked.highs::smallint[], asked.firsts::text[]) AS span (low, high, first)"
)
_IN_SPAN = f"""q.queue = asked.queue AND q.gate = '{GATE}' AND q.concurrency_key = asked.key
              AND q.rank BETWEEN span.low AND span.high AND q.id >= span.first"""
_ROOM = f"greatest(least(asked.free, {STEP}), 0)"

# Which places are free, who is to have them: best rank first, then oldest. When the limit was lowered, those that nobody
# has claimed yet are taken back, newest first. SKIP LOCKED, because whoever holds such a row is about to move it.
HOLD_NEXT = f"""
WITH sent AS MATERIALIZED (
    SELECT queue, key, {mark_of("mark", "$5::timestamptz")} AS places_mark, ids AS places_ids, lows, highs, firsts
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $6::text[], $7::text[], $8::text[])
        AS sent (queue, key, mark, ids, lows, highs, firsts)
)
, places AS MATERIALIZED (
    SELECT asked.*, {_MAX_ACTIVE} - taken.jobs AS free, taken.ids, taken.mark
    FROM sent AS asked CROSS JOIN LATERAL {holding()} AS taken LEFT JOIN queues ON queues.name = asked.queue
)
, following AS MATERIALIZED (
    SELECT next.id, next.rank, asked.queue, asked.key FROM places AS asked CROSS JOIN LATERAL (
        SELECT found.id, found.rank FROM {_SPANS} CROSS JOIN LATERAL (
            SELECT q.id, q.rank FROM queued q CROSS JOIN LATERAL (
                SELECT 1 FROM jobs WHERE id = q.id AND state = 'queued' AND gate = '{GATE}' LIMIT 1 FOR UPDATE SKIP LOCKED
            ) AS held
            WHERE {_IN_SPAN}
            ORDER BY q.rank DESC, q.id LIMIT {_ROOM}
        ) AS found
        LIMIT {_ROOM}
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
SELECT asked.queue, asked.key, asked.free, asked.ids, asked.mark, {SERVER} AS server,
    ARRAY(
        SELECT following.id || ' ' || following.rank FROM following
        WHERE following.queue = asked.queue AND following.key = asked.key
    ) AS following,
    ARRAY(SELECT id FROM too_many) AS too_many,
    asked.free > (
        SELECT count(*) FROM following WHERE following.queue = asked.queue AND following.key = asked.key
    ) AND (
        SELECT true FROM {_SPANS} CROSS JOIN LATERAL (
            SELECT 1 FROM queued q WHERE {_IN_SPAN} AND q.id NOT IN (SELECT id FROM following)
            ORDER BY q.rank DESC, q.id LIMIT 1
        ) AS other
        LIMIT 1
    ) IS NOT NULL AS unfinished
FROM places AS asked
"""
# A number for the place that each of them gets, under the lock of its key.
READY = (
    """
WITH readied AS (
    UPDATE jobs AS j SET ready_at = now(), gate = NULL, reason = NULL, key_number = nextval('key_numbers')
    WHERE j.id = ANY ($1::text[]) RETURNING j.*
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
SELECT asked.queue, asked.key
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS asked (queue, key, lows, highs, firsts)
CROSS JOIN LATERAL (
    SELECT 1 FROM {_SPANS} CROSS JOIN LATERAL (
        SELECT 1 FROM queued q WHERE {_IN_SPAN} ORDER BY q.rank DESC, q.id LIMIT 1
    ) AS found
    LIMIT 1
) AS waiting
"""


async def with_waiting(
    database: Runner, keys: Sequence[QueueKey], memory: KeyMemory | None = None
) -> list[QueueKey]:
    """Those of the keys that someone waits for."""
    if not keys:
        return []
    memory = memory or KeyMemory()
    look = memory.lines.begin(keys)
    rows = await database.fetch(WITH_WAITING, *_columns(keys), *look.spans)
    found = [(row["queue"], row["key"]) for row in rows]
    memory.lines.ended(look, found)
    return found


def _columns(keys: Iterable[QueueKey]) -> tuple[list[str], list[str]]:
    return [queue for queue, _ in keys], [key for _, key in keys]


async def ready_next(
    database: Database, keys: Sequence[QueueKey], memory: KeyMemory | None = None
) -> Changes[QueueKey]:
    """Give the free places of these keys to those who wait for them; answers the keys that one step did not finish."""
    if not keys:
        return Changes()
    memory = memory or KeyMemory()
    async with database.transaction() as connection:
        await lock(connection, dict.fromkeys(map(key_lock, keys), True))
        rows = await _hold_next(connection, keys, memory)
        changes = await _ready(connection, rows)
    found = {(row["queue"], row["key"]): Known(tuple(row["ids"]), row["mark"]) for row in rows}
    memory.places.learn(rows[0]["server"], found)
    return changes


async def ready_next_locked(
    connection: Runner, keys: Sequence[QueueKey], memory: KeyMemory | None = None
) -> Changes[QueueKey]:
    """The same, for one who holds the keys' locks already."""
    return await _ready(connection, await _hold_next(connection, keys, memory or KeyMemory()))


async def _hold_next(connection: Runner, keys: Sequence[QueueKey], memory: KeyMemory) -> list[asyncpg.Record]:
    look = memory.lines.begin(keys)
    counted = memory.places
    rows = await connection.fetch(
        HOLD_NEXT, *_columns(keys), *counted.sent(keys), counted.server, *look.spans
    )
    for row in rows:
        taken = [_id_and_rank(each) for each in row["following"]]
        memory.lines.took(look, (row["queue"], row["key"]), taken, full=len(taken) == row["free"])
    memory.lines.ended(look)
    return rows


def _id_and_rank(text: str) -> tuple[str, int]:
    job_id, rank = text.split(" ")
    return job_id, int(rank)


async def _ready(connection: Runner, rows: Sequence[asyncpg.Record]) -> Changes[QueueKey]:
    changes = Changes([(row["queue"], row["key"]) for row in rows if row["unfinished"]])
    following = [_id_and_rank(each)[0] for row in rows for each in row["following"]]
    too_many = {job_id for row in rows for job_id in row["too_many"]}
    if following:
        readied = await connection.fetch(READY, following)
        changes.work = {(row["queue"], row["lane"]) for row in readied}
    if too_many:
        await connection.fetch(TAKE_BACK, sorted(too_many))
    if changes.work:
        changes.count(GATES_PASSED, GATE, by=len(changes.work))
    return changes


_NEXT_KEY = f"""
            SELECT queue, concurrency_key FROM queued
            WHERE gate = '{GATE}' AND (queue, gate, concurrency_key) > ({{after}})
              AND (queue, gate, concurrency_key) < (gap.to_queue, '{GATE}', gap.to_key)
            ORDER BY queue, gate, concurrency_key LIMIT 1"""
# A loose index scan: one probe per key that has someone waiting, however many wait. Between those that are known, of
# which it is known, too, where to look; in the database's own order.
WAITING_KEYS = f"""
WITH ends AS (
    SELECT $1::text AS queue, $2::text AS key
    UNION
    SELECT queue, key FROM unnest($4::text[], $5::text[]) AS known (queue, key)
    WHERE (queue COLLATE "C", key) > ($1::text, $2::text)
)
, gaps AS MATERIALIZED (
    SELECT queue, key, lead(queue, 1, $6::text) OVER line AS to_queue, lead(key, 1, '') OVER line AS to_key
    FROM ends WINDOW line AS (ORDER BY queue COLLATE "C", key)
)
SELECT found.queue, found.concurrency_key AS key FROM gaps AS gap CROSS JOIN LATERAL (
    WITH RECURSIVE waiting AS (
        (SELECT first.*, 1 AS n FROM ({_NEXT_KEY.format(after=f"gap.queue, '{GATE}', gap.key")}
        ) AS first)
        UNION ALL
        SELECT following.*, waiting.n + 1 FROM waiting CROSS JOIN LATERAL (
            {_NEXT_KEY.format(after=f"waiting.queue, '{GATE}', waiting.concurrency_key")}
        ) AS following
        WHERE waiting.n < $3
    )
    SELECT queue, concurrency_key FROM waiting
) AS found
ORDER BY gap.queue COLLATE "C", gap.key LIMIT $3
"""
# Behind all queues.
_LAST_QUEUE = "\U0010ffff"

# Those with a free place, or with more places taken than there are. Without their locks: nothing is remembered of it.
REPAIR = f"""
SELECT asked.queue, asked.key
FROM (
    SELECT queue, key, {mark_of("mark", "$5::timestamptz")} AS places_mark, ids AS places_ids
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) AS sent (queue, key, mark, ids) OFFSET 0
) AS asked
CROSS JOIN LATERAL {holding()} AS taken LEFT JOIN queues ON queues.name = asked.queue
WHERE {_MAX_ACTIVE} <> taken.jobs
"""


async def find_wrong(
    database: Runner, after: QueueKey, limit: int, memory: KeyMemory | None = None
) -> tuple[list[QueueKey], QueueKey | None]:
    """Keys with someone waiting although there is a place, from `after` on; and where to go on from."""
    memory = memory or KeyMemory()
    known = memory.lines.known()
    rows = await database.fetch(WAITING_KEYS, *after, limit, *_columns(known), _LAST_QUEUE)
    found = [(row["queue"], row["key"]) for row in rows]
    waiting = found + await with_waiting(database, known, memory)
    asked = (*_columns(waiting), *memory.places.sent(waiting), memory.places.server)
    wrong = [(row["queue"], row["key"]) for row in await database.fetch(REPAIR, *asked)] if waiting else []
    return wrong, found[-1] if len(found) == limit else None


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
    (SELECT id FROM queued WHERE queue = $1 AND concurrency_key = $2 AND ready_at IS NOT NULL ORDER BY key_number LIMIT $3)
    UNION ALL
    (SELECT id FROM queued WHERE queue = $1 AND concurrency_key = $2 AND ready_at IS NULL ORDER BY key_number LIMIT $3)
    ORDER BY id LIMIT $3
) AS waiter
CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = waiter.id LIMIT 1) AS j
WHERE j.state = 'queued' ORDER BY j.id
"""
STALE = "SELECT count(*) FROM endings WHERE queue = $1 AND concurrency_key = $2 AND state = 'stale'"
MAX_SHOWN = 1000


async def show_key(database: Database, queue: str, key: str, tenant: str) -> Key:
    """Of this tenant: others may have one of the same name."""
    kept = scoped(tenant, key)
    async with database.connection() as connection:
        active = as_rows(KeyHolder, await connection.fetch(ACTIVE, queue, kept))
        queued = as_rows(KeyWaiter, await connection.fetch(QUEUED, queue, kept, MAX_SHOWN))
        return Key(key, active, queued, await connection.fetchval(STALE, queue, kept))


class BusyKey(msgspec.Struct):
    """A key that has places taken."""

    key: str
    running: Annotated[Count, Meta(description="Jobs that run, counted up to 1,000.")]
    waiting: Annotated[Count, Meta(description="Queued jobs of the key, counted up to 1,000.")]
    longest_running: Annotated[JobId | None, Meta(description="The one of them that was claimed first.")]
    running_since: Moment | None


# A loose index scan: one probe for each key that has places taken, however many jobs it has.
_NEXT_HELD = """
        (SELECT concurrency_key AS key FROM running
         WHERE queue = $1 AND concurrency_key > {after} ORDER BY concurrency_key LIMIT 1)
        UNION ALL
        (SELECT concurrency_key AS key FROM queued
         WHERE queue = $1 AND concurrency_key > {after} AND ready_at IS NOT NULL ORDER BY concurrency_key LIMIT 1)
        ORDER BY key LIMIT 1"""
EACH_HELD = f"""
WITH RECURSIVE held AS (
    (SELECT first.key, 1 AS n FROM ({_NEXT_HELD.format(after="$2")}) AS first)
    UNION ALL
    SELECT following.key, held.n + 1 FROM held CROSS JOIN LATERAL ({_NEXT_HELD.format(after="held.key")}
    ) AS following
    WHERE held.n < $3
)
SELECT key FROM held
"""
LOOKED_AT = 500
# How many keys of other tenants are passed over before a page ends short.
MAX_LOOKS = 40


async def _own_held_keys(
    database: Database, queue: str, tenant: str, after: str, limit: int
) -> tuple[list[str], bool]:
    found: list[str] = []
    for _ in range(MAX_LOOKS):
        rows = await database.fetch(EACH_HELD, queue, after, LOOKED_AT)
        found += [row["key"] for row in rows if owned(row["key"])[0] == tenant]
        if len(found) > limit or len(rows) < LOOKED_AT:
            break
        after = rows[-1]["key"]
    return found[:limit], len(found) > limit


BUSY = f"""
SELECT {columns(BusyKey, key="asked.key", running="holder.jobs", waiting="waiter.jobs", longest_running="holder.id", running_since="holder.since")}
FROM unnest($2::text[]) WITH ORDINALITY AS asked (key, position)
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs, (array_agg(id ORDER BY claimed_at, id))[1] AS id, min(claimed_at) AS since FROM (
        SELECT id, claimed_at FROM running WHERE queue = $1 AND concurrency_key = asked.key LIMIT $3
    ) AS running
) AS holder
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs FROM (
        (SELECT 1 FROM queued WHERE queue = $1 AND concurrency_key = asked.key AND ready_at IS NOT NULL LIMIT $3)
        UNION ALL
        (SELECT 1 FROM queued WHERE queue = $1 AND concurrency_key = asked.key AND ready_at IS NULL LIMIT $3)
        LIMIT $3
    ) AS waiting
) AS waiter
ORDER BY asked.position
"""


async def busy_keys(
    database: Database, queue: str, tenant: str, *, after: str = "", limit: int = 100
) -> tuple[list[BusyKey], str | None]:
    """The keys of this tenant that have places taken, from `after` on; and where to go on from."""
    start = scoped(tenant, after) if after or tenant != DEFAULT_TENANT else ""
    held, more = await _own_held_keys(database, queue, tenant, start, limit)
    found = as_rows(BusyKey, await database.fetch(BUSY, queue, held, MAX_SHOWN)) if held else []
    for each in found:
        each.key = owned(each.key)[1]
    return found, found[-1].key if more else None


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


# Counted a little further than the limit: beyond it nothing changes.
_READY_ONES = (
    "min(id) FILTER (WHERE runs) AS active",
    "max(id) FILTER (WHERE NOT runs) AS newest",
    "ARRAY(SELECT id FROM found WHERE NOT runs ORDER BY id LIMIT asked.wanted) AS oldest",
)
_OTHERS = ("max(id) AS newest", "ARRAY(SELECT id FROM found ORDER BY id LIMIT asked.wanted) AS oldest")
PLACES = f"""
SELECT asked.queue, asked.key, {SERVER} AS server, taken.jobs AS holders, taken.ids, taken.mark,
    other.jobs AS waiting, other.ids AS waiting_ids, other.mark AS waiting_mark, other.jobs <= asked.most AS whole,
    greatest(taken.newest, other.newest) AS queued_id, taken.oldest || other.oldest AS oldest,
    taken.active, (SELECT state FROM jobs WHERE id = taken.active LIMIT 1) AS active_state
FROM (
    SELECT queue, key, most, wanted, {mark_of("places_mark", "$9::timestamptz")} AS places_mark, places_ids,
        {mark_of("waiting_mark", "$10::timestamptz")} AS waiting_mark, waiting_ids
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::int[], $5::bigint[], $6::text[], $7::bigint[], $8::text[])
        AS sent (queue, key, most, wanted, places_mark, places_ids, waiting_mark, waiting_ids) OFFSET 0
) AS asked
CROSS JOIN LATERAL {holding(*_READY_ONES)} AS taken CROSS JOIN LATERAL {waiting(*_OTHERS)} AS other
"""

# SKIP LOCKED: one that is being claimed in this moment is as good as active, and is not replaced.
HOLD_OLDEST = """
SELECT asked.queue, asked.key, oldest.id, oldest.holds
FROM unnest($1::text[], $2::text[], $3::int[], $4::text[]) AS asked (queue, key, wanted, ids)
CROSS JOIN LATERAL (
    SELECT held.* FROM unnest(asked.ids::text[]) AS found (id) CROSS JOIN LATERAL (
        SELECT id, ready_at IS NOT NULL AS holds FROM jobs WHERE id = found.id AND state = 'queued' LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS held
    LIMIT asked.wanted
) AS oldest
ORDER BY oldest.id
"""
# In case some of them are just being claimed.
MORE_THAN_WANTED = 100


async def read_states(
    connection: Runner,
    limits: Mapping[QueueKey, int],
    replaceable: Mapping[QueueKey, int],
    memory: KeyMemory,
    *,
    learn: bool = False,
) -> dict[QueueKey, KeyState]:
    """The keys as they stand, counted up to the limit of each; with the oldest so many that may be replaced.

    `learn`: nothing was done yet in this transaction but to lock the keys.
    """
    if not limits:
        return {}
    wanted = [replaceable[key] + MORE_THAN_WANTED if key in replaceable else 0 for key in limits]
    rows = await connection.fetch(
        PLACES,
        *_columns(limits),
        list(limits.values()),
        wanted,
        *memory.places.sent(limits),
        *memory.waiting.sent(limits),
        memory.places.server,
        memory.waiting.server,
    )
    found = {(row["queue"], row["key"]): row for row in rows}
    if learn:
        _learn_of(memory, found)
    states = {
        key: KeyState(
            row["holders"],
            row["holders"] + row["waiting"],
            (row["active"], row["active_state"]) if row["active"] else None,
            row["queued_id"],
        )
        for key, row in found.items()
    }
    if replaceable:
        asked = [array_literal(sorted(found[key]["oldest"])) for key in replaceable]
        held = await connection.fetch(HOLD_OLDEST, *_columns(replaceable), list(replaceable.values()), asked)
        for row in held:
            states[row["queue"], row["key"]].replaceable.append((row["id"], row["holds"]))
    return states


def _learn_of(memory: KeyMemory, found: Mapping[QueueKey, asyncpg.Record]) -> None:
    holders = {key: Known(tuple(row["ids"]), row["mark"]) for key, row in found.items()}
    # Whoever holds a place now may wait later, under the same number.
    others = {
        key: Known((*row["waiting_ids"], *row["ids"]), min(row["waiting_mark"], row["mark"]))
        for key, row in found.items()
        if row["whole"]
    }
    server = next(iter(found.values()))["server"]
    memory.places.learn(server, holders)
    memory.waiting.learn(server, others)
