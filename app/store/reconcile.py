"""After a change of a queue's settings: bring the jobs that are there already in line with it.

No job is lost by it. Places of keys are handed out or taken back (nobody's run is cut off), and jobs get the value
that their queue is now fair by. In small steps, by any replica, until it is done; what a process with an old book
let in during the first moments is covered by going on a little longer.
"""

from collections.abc import Sequence

import asyncpg

from app.jobs.queue_settings import QueueRules
from app.store import keys
from app.store.changes import Changes
from app.store.database import Database
from app.store.key_memory import KeyMemory
from app.store.queues import QueueBook

STEP = 500
# Books are at most a second old.
SETTLING_SECONDS = 2

UNRECONCILED = f"""
SELECT name FROM queues
WHERE updated_at > coalesce(reconciled_at, '-infinity') - interval '{SETTLING_SECONDS} seconds'
  AND (settings <> '{{}}'::jsonb OR reconciled_at IS NOT NULL)
"""
RECONCILED = "UPDATE queues SET reconciled_at = $2 WHERE name = $1"
NOW = "SELECT now() AS now"


async def reconcile(database: Database, book: QueueBook, memory: KeyMemory | None = None) -> Changes[str]:
    """Bring all queues with changed settings in line; answers which they were."""
    changes: Changes[str] = Changes()
    for row in await database.fetch(UNRECONCILED):
        changes.answers.append(row["name"])
        began = (await database.fetch(NOW))[0]["now"]
        await _reconcile_keys(database, row["name"], changes, memory or KeyMemory())
        rules = book.rules(row["name"])
        if rules is not None and rules.settings.fair_by is not None:
            await _reconcile_turns(database, rules)
        await database.execute(RECONCILED, row["name"], began)
    return changes


async def _reconcile_keys(database: Database, queue: str, changes: Changes[str], memory: KeyMemory) -> None:
    """Hand out and take back places, key by key."""
    after = ""
    while held := await keys.held_keys(database, queue, after, STEP):
        changes.add(await keys.ready_next(database, [(queue, key) for key in held], memory))
        after = held[-1]


QUEUED = """
SELECT j.id, j.tenant, j.metadata, j.fair_value
FROM (SELECT id FROM queued WHERE queue = $1 AND id > $2 ORDER BY id LIMIT $3) AS waiting
CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = waiting.id LIMIT 1) AS j
ORDER BY j.id
"""
HOLD = "SELECT id FROM jobs WHERE id = ANY ($1::text[]) AND state = 'queued' ORDER BY id FOR UPDATE"
TAG = """
WITH value AS (SELECT * FROM unnest($1::text[], $2::text[]) AS tagged (id, value))
, tagged AS (
    UPDATE jobs AS j SET fair_value = value.value FROM value
    WHERE j.id = value.id AND j.id = ANY ($1::text[]) AND j.state = 'queued'
)
UPDATE queued AS q SET fair_value = value.value FROM value WHERE q.id = value.id AND q.id = ANY ($1::text[])
"""


async def _reconcile_turns(database: Database, rules: QueueRules) -> None:
    after = ""
    while queued := await database.fetch(QUEUED, rules.name, after, STEP):
        changed = [(row["id"], value) for row, value in _values(rules, queued) if row["fair_value"] != value]
        if changed:
            ids = [job_id for job_id, _ in changed]
            async with database.transaction() as connection:
                await connection.fetch(HOLD, ids)
                await connection.execute(TAG, ids, [value for _, value in changed])
        after = queued[-1]["id"]


def _values(rules: QueueRules, queued: Sequence[asyncpg.Record]) -> list[tuple[asyncpg.Record, str]]:
    return [(row, rules.fair_value(row["tenant"], row["metadata"])) for row in queued]
