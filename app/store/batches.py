"""Batches: what a batch is beside its job, how its lines do, and the commit that ends it."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from app.jobs.batch_lines import CUSTOM_ID
from app.store import files
from app.store.database import Database, Runner, in_transaction
from app.store.files import NewFile
from app.store.rows import as_row, as_rows, columns


class Batch(msgspec.Struct, gc=False):
    """A batch, and as much of its job as it is made of. `errors`, `error` and `metadata` are JSON text."""

    job_id: str
    tenant: str
    input_file_id: str
    endpoint: str
    completion_window: str
    total: int | None
    errors: str | None
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    finalized_at: datetime | None
    output_file_id: str | None
    error_file_id: str | None
    completed: int | None
    failed: int | None
    # Of its job.
    state: str
    payload: str
    error: str | None
    metadata: str | None
    key_id: str | None
    created_at: datetime
    deadline: datetime | None
    is_late: bool
    cancel_requested_at: datetime | None
    completed_at: datetime | None


OF_JOB = (
    "state",
    "payload",
    "error",
    "metadata",
    "key_id",
    "created_at",
    "deadline",
    "cancel_requested_at",
    "completed_at",
)
_IS_LATE = "coalesce(j.deadline <= now(), false)"
_COLUMNS = columns(Batch, "b", is_late=_IS_LATE, **{name: f"j.{name}" for name in OF_JOB})
_BATCHES = f"SELECT {_COLUMNS} FROM batches b CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = b.job_id LIMIT 1) AS j"

# Held, so that nobody deletes it before the batch is there (see files.HOLD).
HOLD_INPUT = """
SELECT purpose FROM files WHERE id = $1 AND tenant = $2 AND (expires_at IS NULL OR expires_at > now()) FOR KEY SHARE
"""


async def hold_input(runner: Runner, file_id: str, tenant: str) -> str | None:
    """What the file is for; None when there is none. It stays until the end of the transaction."""
    rows = await runner.fetch(HOLD_INPUT, file_id, tenant)
    return rows[0]["purpose"] if rows else None


ADD = """
INSERT INTO batches (job_id, tenant, input_file_id, endpoint, completion_window) VALUES ($1, $2, $3, $4, $5)
"""


async def add(
    runner: Runner, job_id: str, tenant: str, input_file_id: str, endpoint: str, completion_window: str
) -> None:
    await runner.execute(ADD, job_id, tenant, input_file_id, endpoint, completion_window)


GET = f"{_BATCHES} WHERE b.job_id = $1 AND b.tenant = $2"


async def get(database: Database, job_id: str, tenant: str) -> Batch | None:
    return as_row(Batch, await database.of(tenant).fetchrow(GET, job_id, tenant))


# Compared as pairs, so that the index of the tenant is the one that has the order.
_MANY = (
    '{"object":"list","data":[{"code":"many_errors","message":"There are too many to be listed here: ask for this batch.",'
    '"line":null,"param":null}]}'
)
_BRIEFLY = f"CASE WHEN octet_length(b.errors) <= 16384 THEN b.errors WHEN b.errors IS NOT NULL THEN '{_MANY}' END AS errors"
PAGE = f"""
{_BATCHES.replace("b.errors", _BRIEFLY)} WHERE b.tenant = $1 AND (b.tenant, b.job_id) < ($1, $2) ORDER BY b.tenant DESC, b.job_id DESC LIMIT $3
"""


async def page(database: Database, tenant: str, after: str, limit: int) -> list[Batch]:
    """Newest first: those that came before the one with the id `after`."""
    return as_rows(Batch, await database.of(tenant).fetch(PAGE, tenant, after, limit))


class Counts(msgspec.Struct, gc=False):
    """How the lines do: those that are there, did well, did not, and have yet to end."""

    lines: int
    completed: int
    failed: int
    live: int


_LINES = f"parent_id = $1 AND metadata ? '{CUSTOM_ID}'"
_IS_LIVE = "state IN ('queued', 'loading', 'working')"
COUNT = f"""
SELECT count(*) AS lines, count(*) FILTER (WHERE state = 'done') AS completed,
    count(*) FILTER (WHERE state <> 'done' AND NOT {_IS_LIVE}) AS failed, count(*) FILTER (WHERE {_IS_LIVE}) AS live
FROM jobs WHERE {_LINES}
"""


async def count(database: Database, job_id: str) -> Counts:
    return Counts(*await database.fetchrow(COUNT, job_id) or (0, 0, 0, 0))


BEGIN = """
UPDATE batches SET total = $2, in_progress_at = coalesce(in_progress_at, now())
WHERE job_id = $1 AND finalized_at IS NULL
"""


async def begin(database: Database, job_id: str, total: int) -> None:
    """Its lines were found good: there are so many."""
    await database.execute(BEGIN, job_id, total)


REFUSE = """
UPDATE batches SET errors = $2, finalized_at = now() WHERE job_id = $1 AND finalized_at IS NULL RETURNING job_id
"""


async def refuse(database: Database, job_id: str, errors: str) -> None:
    """Its lines are wrong: nothing of it is run."""
    await database.execute(REFUSE, job_id, errors)


class LineState(msgspec.Struct, gc=False):
    """A line's job, and how large what it came to is."""

    id: str
    state: str
    custom_id: str
    size: int


LINES = f"""
SELECT id, state, metadata ->> '{CUSTOM_ID}' AS custom_id, coalesce(octet_length(result), 0) AS size
FROM jobs WHERE {_LINES}
"""


async def lines(database: Database, job_id: str) -> list[LineState]:
    """All that are there, in the order in which they came in."""
    found = as_rows(LineState, await database.fetch(LINES, job_id))
    return sorted(found, key=lambda line: line.id)


class Ended(msgspec.Struct, gc=False):
    """What became of a line."""

    id: str
    state: str
    custom_id: str
    result: str | None
    error: str | None


OUTCOMES = f"""
SELECT id, state, metadata ->> '{CUSTOM_ID}' AS custom_id, result, error FROM jobs WHERE id = ANY ($1::text[]) ORDER BY id
"""


async def outcomes(database: Database, job_ids: Sequence[str]) -> list[Ended]:
    return as_rows(Ended, await database.fetch(OUTCOMES, list(job_ids)))


# One at a time, as far as that can be known: whoever began may have died. Two are harmless (see FINALIZED).
FINALIZING = """
UPDATE batches SET finalizing_at = now() WHERE job_id = $1 AND finalized_at IS NULL
  AND ($2::float8 IS NULL OR finalizing_at IS NULL OR finalizing_at < now() - $2 * interval '1 second')
RETURNING job_id
"""


async def finalizing(database: Database, job_id: str, unless_since: float | None = None) -> bool:
    """Its files are about to be written; False when they are, or somebody began to within so many seconds."""
    return bool(await database.fetch(FINALIZING, job_id, unless_since))


FINALIZED = """
UPDATE batches SET
    finalized_at = now(), output_file_id = $2, error_file_id = $3, completed = $4, failed = $5
WHERE job_id = $1 AND finalized_at IS NULL
RETURNING job_id
"""


async def finalize(
    database: Database,
    job_id: str,
    output: NewFile | None,
    errors: NewFile | None,
    completed: int,
    failed: int,
) -> bool:
    """Its files are there now; False when somebody else was first, or the batch is gone."""

    async def steps(runner: Runner) -> bool:
        output_id, error_id = (None if file is None else file.id for file in (output, errors))
        if not await runner.fetch(FINALIZED, job_id, output_id, error_id, completed, failed):
            return False
        for file in (output, errors):
            if file is not None:
                await files.add(runner, file)
        return True

    return await in_transaction(database, steps)


# Along the index of those that are open: they are few.
ENDED = f"{_BATCHES} WHERE b.finalized_at IS NULL AND j.completed_at IS NOT NULL ORDER BY b.job_id LIMIT $1"


async def ended(database: Database, limit: int) -> list[Batch]:
    """Those whose job has ended otherwise than by them: cancelled, expired, given up on."""
    return as_rows(Batch, await database.fetch(ENDED, limit))


OPEN = f"{_BATCHES} WHERE b.job_id = $1"


async def of_job(database: Database, job_id: str) -> Batch | None:
    return as_row(Batch, await database.fetchrow(OPEN, job_id))


INPUT = f"SELECT {columns(files.File)} FROM files WHERE id = $1"


async def input_file(database: Database, file_id: str) -> files.File | None:
    """Also one whose time is over: while a batch reads it, it is there."""
    return as_row(files.File, await database.fetchrow(INPUT, file_id))
