"""The ledger of usage: sums per caller, model and day, booked in batches off the hot path.

A finished job's usage is booked once: the same statement that adds it to its day marks the job, or deletes it.
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
    """What the usage of these rows of `jobs` adds to each day."""
    # PostgreSQL cannot take apart JSON with a NUL in any of its texts.
    return rf"""
    SELECT tenant, coalesce(model, '') AS model, (completed_at AT TIME ZONE 'UTC')::date AS day, count(*) AS jobs,
           least(sum(trunc({_figure("prompt_tokens")})), {_MOST})::bigint AS prompt_tokens,
           least(sum(trunc({_figure("completion_tokens")})), {_MOST})::bigint AS completion_tokens,
           sum({_figure("load_seconds")})::float8 AS load_seconds,
           sum({_figure("prefill_seconds")})::float8 AS prefill_seconds,
           sum({_figure("decode_seconds")})::float8 AS decode_seconds
    FROM {rows} CROSS JOIN LATERAL (
        SELECT CASE WHEN usage !~ '(^|[^\\])(\\\\)*\\u0000' THEN usage::json END AS usage
    ) AS readable
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


_COLUMNS = """tenant, model, day, jobs, prompt_tokens, completion_tokens, load_seconds, prefill_seconds,
    decode_seconds"""


def booking(rows: str) -> str:
    """The part of a statement that books its rows of `jobs`. In the order of the ledger's key, as everybody does."""
    return f"""
, booked_days AS (
    INSERT INTO usage_days AS u ({_COLUMNS}) {_days(rows)}
    ON CONFLICT (tenant, model, day) DO UPDATE SET
        jobs = u.jobs + EXCLUDED.jobs,
        prompt_tokens = least(u.prompt_tokens::numeric + EXCLUDED.prompt_tokens, {_MOST})::bigint,
        completion_tokens = least(u.completion_tokens::numeric + EXCLUDED.completion_tokens, {_MOST})::bigint,
        load_seconds = u.load_seconds + EXCLUDED.load_seconds,
        prefill_seconds = u.prefill_seconds + EXCLUDED.prefill_seconds,
        decode_seconds = u.decode_seconds + EXCLUDED.decode_seconds
)
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
    RETURNING j.tenant, j.model, j.completed_at, j.usage
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


_WAITING = f"""
        SELECT j.tenant, j.model, j.completed_at, j.usage FROM unbooked_usage u
        CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = u.id LIMIT 1) AS j WHERE {_UNBOOKED}
"""
SUMS = f"""
SELECT tenant AS caller, model, day, sum(jobs)::bigint AS jobs,
       least(sum(prompt_tokens), {_MOST})::bigint AS prompt_tokens,
       least(sum(completion_tokens), {_MOST})::bigint AS completion_tokens, sum(load_seconds) AS load_seconds,
       sum(prefill_seconds) AS prefill_seconds, sum(decode_seconds) AS decode_seconds
FROM (
    SELECT {_COLUMNS} FROM usage_days
    UNION ALL
    SELECT {_COLUMNS} FROM ({_days(f"({_WAITING}) AS unbooked")}) AS waiting
) AS ledger
WHERE tenant = $1 AND day BETWEEN $2 AND $3 AND ($4::text IS NULL OR model = $4)
GROUP BY tenant, model, day
ORDER BY day DESC, model
"""


async def sums(database: Database, tenant: str, since: date, until: date, model: str | None) -> list[Usage]:
    return [Usage(**record) for record in await database.of(tenant).fetch(SUMS, tenant, since, until, model)]
