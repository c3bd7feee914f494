"""How the fleet has fared, for the charts: what each process saw, added up in buckets of three sizes.

Fine buckets are kept for half an hour, middle ones for half a day, coarse ones for a week: each window of a chart reads
about ninety of one size, along the primary key. Which bucket it is, the database's clock says; what a process could not
write for a while goes to the bucket of the moment at which it can.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import add
from typing import Any, Literal

import msgspec

from app.store import locks
from app.store.database import Database, Runner
from app.store.rows import as_rows
from app.telemetry import DURATIONS

# Seconds of a bucket, and for how long such buckets are kept.
KEPT: Mapping[int, float] = {10: 1_800, 240: 43_200, 7_200: 691_200}
FINEST = min(KEPT)

Window = Literal["15m", "6h", "7d"]
# Of which buckets, and of how many, each window of a chart is made.
WINDOWS: Mapping[Window, tuple[int, int]] = {"15m": (10, 90), "6h": (240, 90), "7d": (7_200, 84)}

# Queues that are told apart in a look; and in a bucket, which has seen many looks.
BUSIEST = 50
MOST_QUEUES = 200
# The queue that stands for all the others.
REST = ""
# Shown apart in a chart.
SHOWN_QUEUES = 6
# A look may take a while with a million jobs waiting, and is then seldom taken: until the next one, what it saw holds.
LOOK_HOLDS_SECONDS = 150
# A bucket that has begun a moment ago is taken for so old: what is in it came from a little before.
YOUNGEST_SECONDS = 30.0
PRUNE_BATCH = 1_000
# What lies so far ahead was written by a clock that was wrong.
AHEAD = "interval '1 day'"

_BUCKET = "date_bin(step * interval '1 second', now(), timestamptz 'epoch')"


class Figures(msgspec.Struct):
    """What happened: how many jobs and tokens; and of waits and runs, how many were about how long."""

    enqueued: int = 0
    done: int = 0
    failed: int = 0
    ended: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    wait: list[int] = msgspec.field(default_factory=list)
    run: list[int] = msgspec.field(default_factory=list)

    def __add__(self, other: "Figures") -> "Figures":
        return self._with(other, 1)

    def __sub__(self, other: "Figures") -> "Figures":
        return self._with(other, -1)

    def _with(self, other: "Figures", sign: int) -> "Figures":
        return Figures(
            *(getattr(self, name) + sign * getattr(other, name) for name in _COUNTS),
            *(
                _added(getattr(self, name), [sign * each for each in getattr(other, name)])
                for name in _HISTOGRAMS
            ),
        )

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in _COUNTS) or any(self.wait) or any(self.run)


_COUNTS = Figures.__struct_fields__[:-2]
_HISTOGRAMS = Figures.__struct_fields__[-2:]


def _added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """A longer histogram has further buckets at its end."""
    shorter, longer = sorted((one, other), key=len)
    return [*map(add, shorter, longer), *longer[len(shorter) :]]


def _sum_of(histogram: str) -> str:
    return f"""ARRAY(
        SELECT coalesce(had, 0) + coalesce(more, 0)
        FROM unnest(s.{histogram}, excluded.{histogram}) WITH ORDINALITY AS bucket (had, more, place) ORDER BY place
    )"""


_FIGURES = ", ".join(Figures.__struct_fields__)
ADD = f"""
INSERT INTO samples AS s (step, at, process, {_FIGURES})
SELECT step, {_BUCKET}, $1::text, {", ".join(f"${n}::bigint" for n in range(2, 8))}, $8::bigint[], $9::bigint[]
FROM unnest(ARRAY{list(KEPT)}) AS step
ON CONFLICT (step, at, process) DO UPDATE SET
    {", ".join(f"{name} = s.{name} + excluded.{name}" for name in _COUNTS)},
    {", ".join(f"{name} = {_sum_of(name)}" for name in _HISTOGRAMS)}
"""


async def add_sample(database: Runner, process: str, seen: Figures) -> None:
    """What this process saw since the last time, to its buckets of this moment."""
    await database.execute(ADD, process, *(getattr(seen, name) for name in Figures.__struct_fields__))


# -- queues ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Depth:
    """How many jobs of a queue wait, and run."""

    waiting: int
    running: int


def busiest(depths: Mapping[str, Depth]) -> dict[str, Depth]:
    """The busiest queues, and all the others as one. That one is always there: it says that somebody has looked."""
    by_depth = sorted(depths, key=lambda queue: (-depths[queue].waiting - depths[queue].running, queue))
    kept = {queue: depths[queue] for queue in by_depth[:BUSIEST] if depths[queue] != Depth(0, 0)}
    others = [depths[queue] for queue in by_depth[BUSIEST:]]
    return kept | {REST: Depth(sum(each.waiting for each in others), sum(each.running for each in others))}


ONE_AT_A_TIME = locks.try_lock(locks.SAMPLE)
LAST_LOOK = f"""
SELECT extract(epoch FROM now())::float8 AS now, coalesce(extract(epoch FROM now() - (
    SELECT at FROM queue_samples WHERE step = {FINEST} AND at <= now() AND queue = '{REST}' ORDER BY at DESC LIMIT 1
)), 'Infinity')::float8 AS seconds
"""


class LastLook(msgspec.Struct, frozen=True):
    """The database's clock, and how long ago a bucket began in which somebody of the fleet has looked at the queues."""

    now: float
    seconds: float


async def last_look(database: Database) -> LastLook:
    return as_rows(LastLook, await database.fetch(LAST_LOOK))[0]


# A queue that a crowded bucket does not know yet is left out of it: how callers call their queues is up to them.
ADD_QUEUES = f"""
INSERT INTO queue_samples AS s (step, at, queue, waiting, running)
SELECT bucket.step, bucket.at, seen.queue, seen.waiting, seen.running
FROM (SELECT step, {_BUCKET} AS at FROM unnest(ARRAY{list(KEPT)}) AS step) AS bucket
CROSS JOIN LATERAL (
    SELECT count(*) >= {MOST_QUEUES} AS is_full FROM queue_samples had
    WHERE had.step = bucket.step AND had.at = bucket.at
) AS crowd
CROSS JOIN unnest($1::text[], $2::bigint[], $3::bigint[]) AS seen (queue, waiting, running)
WHERE seen.queue = '{REST}' OR NOT crowd.is_full OR EXISTS (
    SELECT 1 FROM queue_samples had
    WHERE had.step = bucket.step AND had.at = bucket.at AND had.queue = seen.queue
)
ON CONFLICT (step, at, queue) DO UPDATE SET
    waiting = greatest(s.waiting, excluded.waiting), running = greatest(s.running, excluded.running)
"""


async def add_queues(database: Database, depths: Mapping[str, Depth]) -> None:
    """How the queues are; of several looks within a bucket, the most. Nothing when another process is just at it."""
    seen = busiest(depths)
    async with database.transaction() as connection:
        if await connection.fetchval(ONE_AT_A_TIME):
            waiting, running = (
                [each.waiting for each in seen.values()],
                [each.running for each in seen.values()],
            )
            await connection.execute(ADD_QUEUES, list(seen), waiting, running)


# -- what is over ----------------------------------------------------------------------------------------------

_PRUNE = f"""
WITH old AS MATERIALIZED (
    SELECT found.ctid FROM unnest($1::int[], $2::float8[]) AS kept (step, seconds) CROSS JOIN LATERAL (
        (SELECT ctid FROM {{table}}
         WHERE step = kept.step AND at < now() - kept.seconds * interval '1 second' ORDER BY at LIMIT $3)
        UNION ALL
        (SELECT ctid FROM {{table}} WHERE step = kept.step AND at > now() + {AHEAD} ORDER BY at LIMIT $3)
    ) AS found
)
, gone AS (DELETE FROM {{table}} WHERE ctid = ANY (ARRAY(SELECT ctid FROM old)) RETURNING 1)
SELECT count(*) FROM gone
"""
PRUNE_SAMPLES = _PRUNE.format(table="samples")
PRUNE_QUEUES = _PRUNE.format(table="queue_samples")


async def prune(database: Database) -> bool:
    """Remove a batch of what is kept no longer; whether there may be more. Nothing when another process is at it."""
    kept = (list(KEPT), list(KEPT.values()), PRUNE_BATCH)
    async with database.transaction() as connection:
        if not await connection.fetchval(ONE_AT_A_TIME):
            return False
        gone = [await connection.fetchval(each, *kept) for each in (PRUNE_SAMPLES, PRUNE_QUEUES)]
    return any(number >= PRUNE_BATCH for number in gone)


# -- reading ---------------------------------------------------------------------------------------------------


class Point(msgspec.Struct, frozen=True):
    """One bucket, over the whole fleet: so many per second, and of those that waited or ran how many seconds it took
    half of them, and nineteen of twenty; None where none did."""

    at: datetime
    enqueued: float
    done: float
    failed: float
    ended: float
    prompt_tokens: float
    completion_tokens: float
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None


class QueueLine(msgspec.Struct, frozen=True):
    """How many jobs of a queue waited, and ran, at each of the points."""

    queue: str
    waiting: list[int]
    running: list[int]


class History(msgspec.Struct, frozen=True):
    window: Window
    # Seconds from one point to the next.
    step: int
    points: list[Point]
    # The queues that had most waiting, and all the others together.
    queues: list[QueueLine]
    other: QueueLine


# The buckets of a window, numbered from the oldest on. The finest one of this moment is not among them: not all
# processes have told yet what they saw in it.
_GRID = f"""(
    SELECT place, date_bin(width, coalesce($3::timestamptz, now()), timestamptz 'epoch')
        - ($2::int - 1 - place + ($1::int = {FINEST})::int) * width AS at
    FROM (SELECT $1::int * interval '1 second' AS width) AS bucket
    CROSS JOIN generate_series(0, $2::int - 1) AS place
) AS grid"""


def _total(name: str) -> str:
    """Of all processes; a histogram place by place, as far as we know its buckets."""
    if name in _COUNTS:
        return f"coalesce(sum(s.{name}), 0)::bigint AS {name}"
    places = (f"coalesce(sum(s.{name}[{place}]), 0)::bigint" for place in range(1, len(DURATIONS) + 2))
    return f"ARRAY[{', '.join(places)}] AS {name}"


BUCKETS = f"""
SELECT grid.at, coalesce($3::timestamptz, now()) AS now, {", ".join(map(_total, Figures.__struct_fields__))}
FROM {_GRID} LEFT JOIN LATERAL (SELECT {_FIGURES} FROM samples WHERE step = $1 AND at = grid.at) AS s ON true
GROUP BY grid.at ORDER BY grid.at
"""


async def history(database: Database, window: Window) -> History:
    """How the fleet has fared, from the oldest bucket of the window to this moment."""
    step, number = WINDOWS[window]
    rows = await database.fetch(BUCKETS, step, number, None)
    now: datetime = rows[0]["now"]
    points = [_point(row["at"], _seconds(now, row["at"], step), Figures(*row[2:])) for row in rows]
    lines = _lines(step, number, await database.fetch(DEEPEST, step, number, now))
    other = lines.pop(REST)
    deepest = sorted(lines.values(), key=lambda line: (-sum(line.waiting), line.queue))
    return History(window, step, points, deepest, other)


async def queue_history(database: Database, names: Collection[str], window: Window) -> dict[str, QueueLine]:
    """How many jobs of these queues waited, and ran; nothing but zeros of those that were never among the busiest."""
    step, number = WINDOWS[window]
    lines = _lines(step, number, await database.fetch(QUEUES, step, number, None, [*names, REST]))
    none = [0] * number
    return {name: lines.get(name) or QueueLine(name, none, none) for name in names}


def _seconds(now: datetime, at: datetime, step: int) -> float:
    """Of the time that a bucket stands for, how much is over: the last one has only begun."""
    return min(float(step), max((now - at).total_seconds(), YOUNGEST_SECONDS))


def _point(at: datetime, seconds: float, seen: Figures) -> Point:
    return Point(
        at,
        *(getattr(seen, name) / seconds for name in _COUNTS),
        *(quantile(counts, share) for counts in (seen.wait, seen.run) for share in (0.5, 0.95)),
    )


def quantile(counts: Sequence[int], share: float) -> float | None:
    """How long it took this share of all, at most: as if those of a bucket lay evenly between its bounds. Of the last
    bucket, which has no end, its beginning."""
    rank = share * sum(counts)
    if rank <= 0:
        return None
    passed = 0
    for place, count in enumerate(counts):
        if count and passed + count >= rank:
            low = DURATIONS[place - 1] if place else 0.0
            high = DURATIONS[place] if place < len(DURATIONS) else low
            return low + (high - low) * (rank - passed) / count
        passed += count
    return DURATIONS[-1]


_LINE = "array_agg(place) AS places, array_agg(waiting) AS waiting, array_agg(running) AS running"
QUEUES = f"""
SELECT queue, {_LINE} FROM {_GRID}
CROSS JOIN LATERAL (
    SELECT queue, waiting, running FROM queue_samples
    WHERE step = $1 AND at = grid.at AND queue = ANY ($4::text[])
) AS s
GROUP BY queue
"""
# The deepest of the window, and all the others as one.
DEEPEST = f"""
WITH seen AS MATERIALIZED (
    SELECT place, queue, waiting, running FROM {_GRID}
    CROSS JOIN LATERAL (
        SELECT queue, waiting, running FROM queue_samples WHERE step = $1 AND at = grid.at
    ) AS s
)
, deepest AS MATERIALIZED (
    SELECT queue FROM seen WHERE queue <> '{REST}'
    GROUP BY queue HAVING sum(waiting) > 0 ORDER BY sum(waiting) DESC, queue LIMIT {SHOWN_QUEUES}
)
, shown AS (
    SELECT place, coalesce(deepest.queue, '{REST}') AS queue,
        sum(waiting)::bigint AS waiting, sum(running)::bigint AS running
    FROM seen LEFT JOIN deepest ON deepest.queue = seen.queue GROUP BY 1, 2
)
SELECT queue, {_LINE} FROM shown GROUP BY queue
"""


def _lines(step: int, number: int, rows: Iterable[Any]) -> dict[str, QueueLine]:
    """By queue, with that of all others: where it is, somebody has looked. What a look saw holds until the next one, and
    no longer than so long."""
    seen = {
        queue: dict(zip(places, zip(waiting, running, strict=True), strict=True))
        for queue, places, waiting, running in rows
    }
    looks = seen.setdefault(REST, {})
    held: list[int | None] = []
    for place in range(number):
        last = held[-1] if held else None
        if place in looks:
            last = place
        elif last is not None and (place - last) * step > LOOK_HOLDS_SECONDS:
            last = None
        held.append(last)
    lines = {}
    for queue, depths in seen.items():
        at_each = [depths.get(place, (0, 0)) for place in held]
        lines[queue] = QueueLine(queue, [depth[0] for depth in at_each], [depth[1] for depth in at_each])
    return lines
