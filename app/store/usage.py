"""The ledgers of usage: sums per caller, model and day, and the same per key, booked in batches off the hot path.

A finished job's usage is booked once: the same statement that adds it to its days marks the job, or deletes it.
What is not booked yet is little, found by its own index, and counted in by whoever reads.
"""

from datetime import date

import msgspec

from app.jobs.shapes import Count, Number
from app.store.database import Database
from app.store.live import move_held

_MOST = "9223372036854775807"
_UNBOOKED = "usage IS NOT NULL AND NOT usage_booked AND completed_at IS NOT NULL"


def _figure(name: str) -> str:
    """A figure of a job's usage as a number. Total: rows from before usage was checked hold anything, and one that
    cannot be read must stop neither the booking of all others nor the reading of the sums."""
    text = f"(readable.usage->>'{name}')"
    return (
        f"CASE WHEN {text} ~ '^[0-9]{{1,13}}([.][0-9]+)?(e-[0-9]{{1,3}})?$' THEN {text}::numeric ELSE 0 END"
    )


def _days(rows: str) -> str:
    """What the usage of these rows of `jobs` adds to each day, by key; as numbers of any size."""
    # PostgreSQL cannot take apart JSON with a NUL in any of its texts.
    return rf"""
    SELECT tenant, key_id, coalesce(model, '') AS model, (completed_at AT TIME ZONE 'UTC')::date AS day,
           count(*) AS jobs,
           sum(trunc({_figure("prompt_tokens")})) AS prompt_tokens,
           sum(trunc({_figure("completion_tokens")})) AS completion_tokens,
           sum({_figure("load_seconds")}) AS load_seconds,
           sum({_figure("prefill_seconds")}) AS prefill_seconds,
           sum({_figure("decode_seconds")}) AS decode_seconds
    FROM {rows} CROSS JOIN LATERAL (
        SELECT CASE WHEN usage !~ '(^|[^\\])(\\\\)*\\u0000' THEN usage::json END AS usage
    ) AS readable
    GROUP BY 1, 2, 3, 4
"""


_FIGURES = "jobs, prompt_tokens, completion_tokens, load_seconds, prefill_seconds, decode_seconds"
# No sum is larger than what a column holds, nor less than nothing.
_SUMS = f"""sum(jobs)::bigint AS jobs,
       greatest(least(sum(prompt_tokens), {_MOST}), 0)::bigint AS prompt_tokens,
       greatest(least(sum(completion_tokens), {_MOST}), 0)::bigint AS completion_tokens,
       greatest(sum(load_seconds), 0)::float8 AS load_seconds,
       greatest(sum(prefill_seconds), 0)::float8 AS prefill_seconds,
       greatest(sum(decode_seconds), 0)::float8 AS decode_seconds"""


def _book(ledger: str, key: str, of: str = "true") -> str:
    """In the order of the ledger's key, as everybody does."""
    return f"""
    INSERT INTO {ledger} AS u ({key}, {_FIGURES})
    SELECT {key}, {_SUMS} FROM used WHERE {of} GROUP BY {key} ORDER BY {key}
    ON CONFLICT ({key}) DO UPDATE SET
        jobs = u.jobs + EXCLUDED.jobs,
        prompt_tokens = least(u.prompt_tokens::numeric + EXCLUDED.prompt_tokens, {_MOST})::bigint,
        completion_tokens = least(u.completion_tokens::numeric + EXCLUDED.completion_tokens, {_MOST})::bigint,
        load_seconds = u.load_seconds + EXCLUDED.load_seconds,
        prefill_seconds = u.prefill_seconds + EXCLUDED.prefill_seconds,
        decode_seconds = u.decode_seconds + EXCLUDED.decode_seconds
"""


def booking(rows: str) -> str:
    """The part of a statement that books its rows of `jobs`."""
    return f"""
, used AS MATERIALIZED ({_days(rows)})
, booked_days AS ({_book("usage_days", "tenant, model, day")})
, booked_key_days AS ({_book("key_usage_days", "tenant, key_id, model, day", "key_id IS NOT NULL")})
"""


HOLD = """
SELECT u.id FROM unbooked_usage u CROSS JOIN LATERAL (
    SELECT 1 FROM jobs WHERE id = u.id LIMIT 1 FOR UPDATE SKIP LOCKED
) AS held
ORDER BY u.id LIMIT $1
"""
BOOK = f"""
WITH booked AS (
    UPDATE jobs AS j SET usage_booked = true WHERE j.id = ANY ($1::text[]) AND {_UNBOOKED}
    RETURNING j.tenant, j.key_id, j.model, j.completed_at, j.usage
)
{booking("booked")}
, no_longer AS (DELETE FROM unbooked_usage WHERE id = ANY ($1::text[]))
SELECT count(*) AS jobs FROM booked
"""


async def book(database: Database, limit: int) -> int:
    """Book finished jobs; returns how many."""
    return sum(row["jobs"] for row in await move_held(database, HOLD, (limit,), BOOK))


class Usage(msgspec.Struct):
    """What a caller used of a model on a day (UTC)."""

    caller: str
    model: str
    day: date
    jobs: Count
    prompt_tokens: Count
    completion_tokens: Count
    load_seconds: Number
    prefill_seconds: Number
    decode_seconds: Number


_WAITING = _days(f"""(
        SELECT j.tenant, j.key_id, j.model, j.completed_at, j.usage FROM unbooked_usage u
        CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = u.id LIMIT 1) AS j WHERE {_UNBOOKED}
    ) AS unbooked""")
_WANTED = "tenant = $1 AND day BETWEEN $2 AND $3 AND ($4::text IS NULL OR model = $4)"
SUMS = f"""
SELECT tenant AS caller, model, day, {_SUMS}
FROM (
    SELECT tenant, model, day, {_FIGURES} FROM usage_days
    UNION ALL
    SELECT tenant, model, day, {_FIGURES} FROM ({_WAITING}) AS waiting
) AS ledger
WHERE {_WANTED}
GROUP BY tenant, model, day
ORDER BY day DESC, model
"""


async def sums(database: Database, tenant: str, since: date, until: date, model: str | None) -> list[Usage]:
    return [Usage(**record) for record in await database.of(tenant).fetch(SUMS, tenant, since, until, model)]


class KeyUsage(Usage):
    """The same by the key that submitted the jobs; without one, what no key is known of."""

    key_id: str | None = None
    # As it is called now; None when there is no such key any more.
    name: str | None = None


def _exactly(sign: str = "") -> str:
    """The figures of a ledger as decimal numbers: from floating ones, noise would be left when they are taken away."""
    return ", ".join(f"{sign}{name}::numeric AS {name}" for name in _FIGURES.split(", "))


# What no key is known of (jobs of schedules, and from before that was written down) is what the other ledger has beyond
# the keys' own: so the rows add up to the same sums.
SUMS_BY_KEY = f"""
SELECT tenant AS caller, key_id, model, day, {_SUMS}
FROM (
    SELECT tenant, NULL::text AS key_id, model, day, {_exactly()} FROM usage_days
    UNION ALL
    SELECT tenant, NULL, model, day, {_exactly("-")} FROM key_usage_days
    UNION ALL
    SELECT tenant, key_id, model, day, {_exactly()} FROM key_usage_days
    UNION ALL
    SELECT tenant, key_id, model, day, {_FIGURES} FROM ({_WAITING}) AS waiting
) AS ledger
WHERE {_WANTED}
GROUP BY tenant, key_id, model, day HAVING sum(jobs) > 0
ORDER BY day DESC, model, key_id NULLS LAST
"""
# Not behind the fence of the tenant, which has no keys in it.
NAMES = """
SELECT k.id, k.name FROM unnest($1::text[]) AS wanted (id)
CROSS JOIN LATERAL (SELECT id, name FROM api_keys WHERE id = wanted.id AND tenant = $2 LIMIT 1) AS k
"""


async def sums_by_key(
    database: Database, tenant: str, since: date, until: date, model: str | None
) -> list[KeyUsage]:
    found = await database.of(tenant).fetch(SUMS_BY_KEY, tenant, since, until, model)
    used = {record["key_id"] for record in found if record["key_id"] is not None}
    names = {row["id"]: row["name"] for row in await database.fetch(NAMES, list(used), tenant)}
    return [KeyUsage(**record, name=names.get(record["key_id"])) for record in found]
