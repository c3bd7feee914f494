"""What callers and operators do to jobs by their ids: cancel, revive, dismiss, delete."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.store.changes import Changes
from app.store.database import Database, Runner, in_transaction
from app.store.effects import all_it_owned, moved, told
from app.store.live import end, enter_queue_again, leave_queue, move_held
from app.store.rows import looked_up
from app.store.tallies import tally
from app.store.usage import booking


@dataclass(frozen=True, slots=True)
class Cancel:
    """What became of one job that was to be cancelled."""

    job_id: str
    # False when there was nothing (more) to do.
    changed: bool
    # It runs: its worker has been asked to stop.
    requested: bool


# A batch may have fifty thousand children.
FAMILY_BATCH = 1000
# Children go with their parent, at any depth; rows are locked in id order, before the statement that moves them (see
# live.py). So many at a time: parents come before their children, who cannot come in any more by then.
HOLD_FAMILY = f"""
WITH RECURSIVE family AS (
    SELECT id FROM jobs WHERE id = ANY ($1::text[]) AND tenant = $2
    UNION
    SELECT child.id FROM family CROSS JOIN LATERAL (SELECT id FROM jobs WHERE parent_id = family.id OFFSET 0) AS child
)
SELECT id FROM jobs
WHERE id = ANY (ARRAY(SELECT id FROM family))
  AND (id = ANY ($1::text[]) OR state = 'queued' OR (state IN ('loading', 'working') AND cancel_requested_at IS NULL))
ORDER BY id LIMIT {FAMILY_BATCH} FOR UPDATE
"""

# queued → cancelled at once. A running one is asked: its worker confirms, or the grace runs out.
CANCEL = (
    """
WITH held AS MATERIALIZED (
    SELECT id, state AS was FROM jobs
    WHERE id = ANY ($1::text[])
      AND (state = 'queued' OR (state IN ('loading', 'working') AND cancel_requested_at IS NULL))
)
, cancelled AS (
    UPDATE jobs AS j SET
        state = CASE WHEN held.was = 'queued' THEN 'cancelled' ELSE held.was END,
        reason = CASE WHEN held.was = 'queued' THEN coalesce($2, 'cancel') ELSE j.reason END,
        completed_at = CASE WHEN held.was = 'queued' THEN now() END,
        cancel_requested_at = now(), cancel_reason = $2,
        queued_seconds = j.queued_seconds
            + CASE WHEN held.was = 'queued' THEN date_part('epoch', now() - j.entered_at) ELSE 0 END,
        entered_at = CASE WHEN held.was = 'queued' THEN now() ELSE j.entered_at END,
        seq = j.seq + 1, updated_at = now()
    FROM held
    WHERE j.id = ANY (ARRAY(SELECT id FROM held)) AND j.id = held.id
    RETURNING j.*
)
"""
    + leave_queue("cancelled")
    + end("cancelled")
    + moved(
        "cancelled",
        verb="'cancel'",
        data="CASE WHEN $2::text IS NOT NULL THEN json_build_object('reason', $2::text)::text END",
        kind="CASE WHEN state = 'cancelled' THEN state ELSE 'cancel_requested' END",
    )
    + tally("cancelled")
    + """
SELECT j.id, coalesce(c.seq, j.seq) AS seq, j.kind, coalesce(c.state, j.state) AS state, j.queue, j.lane,
       c.id IS NOT NULL AS changed, j.concurrency_key AS key, j.has_dependents, false AS ready, NULL::float8 AS ran,
       'cancel' AS verb,
       (c.id IS NOT NULL AND c.state <> 'cancelled')
           OR (j.cancel_requested_at IS NOT NULL AND j.state IN ('loading', 'working')) AS cancel_requested
FROM jobs j LEFT JOIN cancelled c ON c.id = j.id WHERE j.id = ANY ($1::text[])
"""
)


async def cancel(
    database: Runner, job_ids: Sequence[str], tenant: str, reason: str | None, *, at_once: bool = True
) -> Changes[Cancel]:
    """Cancel jobs and their descendants; the answers about the jobs themselves come first, none if unknown.

    Unless `at_once`, those whom one statement takes, themselves among them: the others are for whoever looks after them.
    """
    changes: Changes[Cancel] = Changes()
    found: dict[str, Cancel] = {}
    while True:
        # A child that was being enqueued while we waited for its parent's lock is found by the next look.
        rows = await move_held(database, HOLD_FAMILY, (job_ids, tenant), CANCEL, reason)
        for row in rows:
            if row["changed"] or row["id"] not in found:
                found[row["id"]] = Cancel(row["id"], row["changed"], row["cancel_requested"])
            if row["cancel_requested"]:
                changes.cancels.add(row["id"])
        changed = [row for row in rows if row["changed"]]
        changes.moved(changed)
        if not changed or not at_once:
            named = set(job_ids)
            changes.answers = sorted(found.values(), key=lambda each: each.job_id not in named)
            return changes


# Those that are failed ones of the tenant, held before the statement that moves them (see live.py).
HOLD_FAILED = """
SELECT id FROM jobs WHERE id = ANY ($1::text[]) AND tenant = $2 AND state = 'failed' ORDER BY id FOR UPDATE
"""

# failed → queued under the same id; attempts start over. With a key it waits for its turn like any other.
REVIVE = (
    """
WITH revived AS (
    UPDATE jobs AS j SET
        state = 'queued', reason = 'revive', attempt = 0, deferrals = 0, error = NULL, completed_at = NULL,
        run_at = now(), ready_at = CASE WHEN j.concurrency_key IS NULL THEN now() END,
        gate = CASE WHEN j.concurrency_key IS NOT NULL THEN 'key' END,
        -- It comes in without the lock of its key: without a number it is counted by everybody (see key_memory.py).
        key_number = NULL,
        cancel_requested_at = NULL, cancel_reason = NULL,
        deadline = CASE WHEN j.deadline > now() THEN j.deadline END,
        seq = j.seq + 1, entered_at = now(), updated_at = now()
    WHERE j.id = ANY ($1::text[])
    RETURNING j.*
)
, endings_gone AS (DELETE FROM endings WHERE id = ANY ($1::text[]))
"""
    + enter_queue_again("revived")
    + moved("revived", verb="'revive'")
    + tally("revived", state="'failed'", sign="-")
    + told("revived", verb="'revive'")
)


async def revive(database: Runner, job_ids: Sequence[str], tenant: str) -> Changes[str]:
    """failed → queued, for those that are failed ones of this tenant; answers their ids."""
    return await _move_failed(database, REVIVE, job_ids, tenant)


async def _move_failed(database: Runner, verb: str, job_ids: Sequence[str], tenant: str) -> Changes[str]:
    rows = await move_held(database, HOLD_FAILED, (job_ids, tenant), verb)
    changes = Changes([row["id"] for row in rows])
    changes.moved(rows)
    return changes


# failed → dismissed: an operator gave up on it.
DISMISS = (
    """
WITH dismissed AS (
    UPDATE jobs AS j SET
        state = 'dismissed', reason = 'dismiss', completed_at = now(), seq = j.seq + 1, updated_at = now()
    WHERE j.id = ANY ($1::text[])
    RETURNING j.*
)
"""
    + end("dismissed")
    + moved("dismissed", verb="'dismiss'")
    + tally("dismissed")
    + tally("dismissed", state="'failed'", sign="-", name="untallied")
    + told("dismissed", verb="'dismiss'")
)


async def dismiss(database: Runner, job_ids: Sequence[str], tenant: str) -> Changes[str]:
    """failed → dismissed, for those that are failed ones of this tenant; answers their ids."""
    return await _move_failed(database, DISMISS, job_ids, tenant)


_DELETE = (
    f"""
WITH gone AS (
    DELETE FROM jobs WHERE id = ANY ($1::text[]) AND completed_at IS NOT NULL
    RETURNING id, queue, state, created_at, updated_at, has_dependents, tenant, key_id, model, completed_at,
        usage, usage_booked
)
, outcomes AS (
    -- Those who wait for it may not have been told yet: whoever ended it may have died before.
    UPDATE dependencies SET outcome = gone.state FROM gone
    WHERE {looked_up("dependencies.depends_on", "gone.id")} AND gone.has_dependents AND dependencies.job_id <> ALL ($1::text[])
)
, dependencies_gone AS (DELETE FROM dependencies WHERE job_id = ANY (ARRAY(SELECT id FROM gone)))
, unbooked AS (
    SELECT tenant, key_id, model, completed_at, usage FROM gone WHERE usage IS NOT NULL AND NOT usage_booked
)
, unbooked_gone AS (DELETE FROM unbooked_usage WHERE id = ANY (ARRAY(SELECT id FROM gone WHERE NOT usage_booked)))
"""
    # What a job used stays in the ledger, however soon it is deleted.
    + booking("unbooked")
    + "{owned}"
    + tally("gone", sign="-")
    + "SELECT id FROM gone"
)
DELETE = _DELETE.replace("{owned}", all_it_owned(at_once=True))
# By retention: what lies in days of their own is left to those.
PRUNE = _DELETE.replace("{owned}", all_it_owned(at_once=False))
# Before, in a statement of its own: who records a delivery in this moment has moved it by then to where the delete
# sees it. Nobody can write another: that takes the job's lock.
EMPTY_OUTBOX = "DELETE FROM outbox WHERE job_id = ANY ($1::text[])"


# Locked before, in a statement of its own: a late settlement that was being noted meanwhile has committed
# its event by then, and the delete sees it. In one statement the event would be left behind.
LOCK_ENDED = """
SELECT id FROM jobs WHERE id = ANY ($1::text[]) AND tenant = $2 AND completed_at IS NOT NULL ORDER BY id FOR UPDATE
"""


async def delete(database: Database, job_ids: Sequence[str], tenant: str) -> Changes[str]:
    """Remove the terminal ones among these jobs, and all they own; answers their ids."""
    return await in_transaction(database, lambda connection: delete_in(connection, job_ids, tenant))


async def delete_in(connection: Runner, job_ids: Sequence[str], tenant: str) -> Changes[str]:
    """The same, in the caller's transaction."""
    locked = await connection.fetch(LOCK_ENDED, job_ids, tenant)
    return await delete_locked(connection, [row["id"] for row in locked])


async def delete_locked(connection: Runner, locked: Sequence[str]) -> Changes[str]:
    """The same for ended jobs whose rows this transaction holds already."""
    return await _remove(connection, locked, DELETE, min(locked, default=""), max(locked, default=""))


async def prune_locked(connection: Runner, locked: Sequence[str]) -> Changes[str]:
    """The same by retention: many at once, and their rows in `events` and `deliveries` go with their days."""
    return await _remove(connection, locked, PRUNE)


async def _remove(connection: Runner, locked: Sequence[str], statement: str, *span: str) -> Changes[str]:
    if not locked:
        return Changes()
    await connection.execute(EMPTY_OUTBOX, locked)
    gone = [row["id"] for row in await connection.fetch(statement, locked, *span)]
    return Changes(gone, jobs=set(gone))
