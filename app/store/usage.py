"""The ledger of usage: sums per caller, model and day, booked in batches off the hot path.

A finished job's usage is booked once: the same statement that adds it to its day marks the job. What is not
booked yet is little, found by its own index, and counted in by whoever reads.
"""

from datetime import date

import asyncpg

from app.store.database import Database

_FIGURES = """
    count(*) AS jobs,
    coalesce(sum((usage::json->>'prompt_tokens')::bigint), 0)::bigint AS prompt_tokens,
    coalesce(sum((usage::json->>'completion_tokens')::bigint), 0)::bigint AS completion_tokens,
    coalesce(sum((usage::json->>'load_seconds')::float8), 0) AS load_seconds,
    coalesce(sum((usage::json->>'prefill_seconds')::float8), 0) AS prefill_seconds,
    coalesce(sum((usage::json->>'decode_seconds')::float8), 0) AS decode_seconds
"""
_UNBOOKED = "usage IS NOT NULL AND NOT usage_booked AND completed_at IS NOT NULL"

BOOK = f"""
WITH due AS MATERIALIZED (
    SELECT id FROM jobs WHERE {_UNBOOKED} ORDER BY completed_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
, booked AS (
    UPDATE jobs AS j SET usage_booked = true FROM due WHERE j.id = due.id
    RETURNING j.tenant, coalesce(j.model, '') AS model, (j.completed_at AT TIME ZONE 'UTC')::date AS day, j.usage
)
, days AS (
    SELECT tenant, model, day, {_FIGURES} FROM booked GROUP BY tenant, model, day ORDER BY tenant, model, day
)
, added AS (
    INSERT INTO usage_days AS u
    SELECT * FROM days
    ON CONFLICT (tenant, model, day) DO UPDATE SET
        jobs = u.jobs + EXCLUDED.jobs,
        prompt_tokens = u.prompt_tokens + EXCLUDED.prompt_tokens,
        completion_tokens = u.completion_tokens + EXCLUDED.completion_tokens,
        load_seconds = u.load_seconds + EXCLUDED.load_seconds,
        prefill_seconds = u.prefill_seconds + EXCLUDED.prefill_seconds,
        decode_seconds = u.decode_seconds + EXCLUDED.decode_seconds
)
SELECT count(*) FROM booked
"""


async def book(database: Database, limit: int) -> int:
    """Book finished jobs; returns how many."""
    return int(await database.fetchval(BOOK, limit))


SUMS = f"""
SELECT tenant AS caller, model, day, sum(jobs)::bigint AS jobs, sum(prompt_tokens)::bigint AS prompt_tokens,
       sum(completion_tokens)::bigint AS completion_tokens, sum(load_seconds) AS load_seconds,
       sum(prefill_seconds) AS prefill_seconds, sum(decode_seconds) AS decode_seconds
FROM (
    SELECT * FROM usage_days
    UNION ALL
    SELECT tenant, coalesce(model, ''), (completed_at AT TIME ZONE 'UTC')::date, {_FIGURES}
    FROM jobs WHERE {_UNBOOKED} GROUP BY 1, 2, 3
) AS ledger
WHERE tenant = $1 AND day BETWEEN $2 AND $3 AND ($4::text IS NULL OR model = $4)
GROUP BY tenant, model, day
ORDER BY day DESC, model
"""


async def sums(
    database: Database, tenant: str, since: date, until: date, model: str | None
) -> list[asyncpg.Record]:
    return await database.fetch(SUMS, tenant, since, until, model)
