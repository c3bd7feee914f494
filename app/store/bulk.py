"""Bulk operations: one verb for all jobs that match a filter, in small steps.

An operation is a row. A step locks it, moves the next few jobs and how far it got, all in one commit: so any
replica can go on with it, at any time, and nothing is done twice. It visits the jobs that were there when it
began, each once, in the order of their ids; a job that fails again after its replay is left alone.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import orjson

from app.jobs.ids import new_id
from app.jobs.states import LIVE, TERMINAL, State
from app.store import control, read
from app.store.changes import Changes
from app.store.database import AS_EVER, IN_ORDER, Database, Runner
from app.store.read import Filter
from app.store.rows import as_row, as_rows, columns
from app.telemetry import BULK

STEP = 100
# How many jobs a step looks at, to find those.
STEP_LOOKED = 2_000
COUNT_LOOKED = 20_000
# Who begins an operation does not wait for its number for longer.
COUNT_SECONDS = 2.0
# Counted no further: a number beyond is no help to anybody.
MAX_COUNT = 1_000_000

# Which states each action works on.
ACTIONS: Mapping[str, frozenset[State]] = {
    "cancel": LIVE,
    "retry": frozenset({State.FAILED}),
    "dismiss": frozenset({State.FAILED}),
    "delete": TERMINAL,
}


def look_statement(
    action: str, wanted: Filter, arguments: list[object], *, limit: int, looked: int, columns: str = "id"
) -> str:
    """The next jobs in the order of their ids, after $2 and up to $3; $1 is the tenant.

    Along the index of each state, where they have one: a few failed jobs among millions that are done.
    """
    known = replace(wanted, states=states_of(action, wanted))
    matching = " AND ".join(["tenant = $1", *read.conditions(known, arguments)])
    looks = read.ways(known, arguments)[0]
    return read.look_statement(looks, "ASC", matching, limit=limit, looked=looked, columns=columns)


def _as_far_as_looked(rows: Sequence[Any], limit: int) -> tuple[list[str], str | None]:
    """The ids that were found, as far as every look has come, and where to go on from; None at the end."""
    looked_to = min((row["looked_to"] for row in rows if row["looked_to"] is not None), default=None)
    ids = sorted({row["id"] for row in rows if row["id"] is not None})
    ids = [each for each in ids if looked_to is None or each <= looked_to][:limit]
    return ids, ids[-1] if len(ids) == limit else looked_to


def states_of(action: str, wanted: Filter) -> list[str]:
    """The states to look through; none when the filter asks for others than the action works on."""
    return sorted(state for state in ACTIONS[action] if not wanted.states or state in wanted.states)


_COUNT = """
WITH found AS MATERIALIZED ({looks})
, bound AS (SELECT min(looked_to) AS id FROM found)
SELECT bound.id AS looked_to, found.state,
       count(DISTINCT found.id) FILTER (WHERE bound.id IS NULL OR found.id <= bound.id) AS jobs
FROM bound CROSS JOIN found GROUP BY bound.id, found.state
"""


class Count(msgspec.Struct):
    """How many jobs an operation would visit, by their states."""

    by_state: dict[str, int]
    # Whether all were counted; if not, there are at least so many.
    is_whole: bool

    @property
    def jobs(self) -> int:
        return min(sum(self.by_state.values()), MAX_COUNT)


async def count(
    database: Database, action: str, wanted: Filter, tenant: str, seconds: float | None = None
) -> Count:
    """How many jobs an operation would visit now; no further than MAX_COUNT, nor for much longer than so many
    seconds. In steps: a statement that reads millions of rows would keep the dead ones of others alive."""
    ends = None if seconds is None else time.monotonic() + seconds
    found: Counter[str] = Counter()
    after, until = "", new_id()
    while found.total() < MAX_COUNT:
        arguments: list[object] = [tenant, after, until]
        looks = look_statement(
            action, wanted, arguments, limit=COUNT_LOOKED + 1, looked=COUNT_LOOKED, columns="id, state"
        )
        rows = await database.fetch_in_order(_COUNT.format(looks=looks), *arguments)
        found.update({row["state"]: row["jobs"] for row in rows if row["jobs"]})
        after = rows[0]["looked_to"]
        if after is None:
            return Count(dict(found), is_whole=True)
        if ends is not None and time.monotonic() > ends:
            return Count(dict(found), is_whole=False)
    return Count(dict(found), is_whole=False)


class Operation(msgspec.Struct, gc=False):
    """A bulk operation. `filter` is JSON text, `after_id` how far it got."""

    id: str
    tenant: str
    action: str
    filter: str
    state: str
    matched: int | None
    moved: int
    passed: int
    after_id: str
    until_id: str
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None


_COLUMNS = columns(Operation)
BEGIN = f"""
INSERT INTO bulk_operations (id, tenant, action, filter, matched, until_id)
VALUES ($1, $2, $3, $4::jsonb, $5, $1) RETURNING {_COLUMNS}
"""


async def begin(database: Database, action: str, wanted: Filter, tenant: str) -> Changes[Operation]:
    """Write the operation down; some replica's runner will take its steps. What would take long to count is not."""
    counted = await count(database, action, wanted, tenant, COUNT_SECONDS)
    # The million counts as a number, although there may be more.
    matched = counted.jobs if counted.is_whole or counted.jobs == MAX_COUNT else None
    [record] = await database.fetch(BEGIN, new_id(), tenant, action, _write(wanted), matched)
    return Changes([Operation(*record)], operations=True)


GET = f"SELECT {_COLUMNS} FROM bulk_operations WHERE id = $1 AND tenant = $2"
LIST = f"SELECT {_COLUMNS} FROM bulk_operations WHERE tenant = $1 ORDER BY id DESC LIMIT $2"


async def get(database: Database, operation_id: str, tenant: str) -> Operation | None:
    return as_row(Operation, await database.of(tenant).fetchrow(GET, operation_id, tenant))


async def list_operations(database: Database, tenant: str, limit: int) -> list[Operation]:
    return as_rows(Operation, await database.of(tenant).fetch(LIST, tenant, limit))


STOP = f"""
UPDATE bulk_operations SET state = 'stopped', completed_at = now(), updated_at = now()
WHERE id = $1 AND tenant = $2 AND state = 'running' RETURNING {_COLUMNS}
"""


async def stop(database: Database, operation_id: str, tenant: str) -> Operation | None:
    """Take no further steps; None when it was not running."""
    return as_row(Operation, await database.fetchrow(STOP, operation_id, tenant))


ANY_RUNNING = "SELECT EXISTS (SELECT 1 FROM bulk_operations WHERE state = 'running')"
TAKE = f"""
SELECT {_COLUMNS} FROM bulk_operations WHERE state = 'running' ORDER BY updated_at LIMIT 1 FOR UPDATE SKIP LOCKED
"""
STEPPED = """
UPDATE bulk_operations SET
    after_id = coalesce($2, after_id), passed = passed + $3, moved = moved + $4, updated_at = clock_timestamp(),
    state = CASE WHEN $5 THEN 'done' ELSE state END, completed_at = CASE WHEN $5 THEN now() END
WHERE id = $1
"""


async def step(database: Database) -> Changes[Any] | None:
    """Take the next step of the operation that has waited longest; None when none is running."""
    # Nearly always, and asked every second: a transaction would be three ways to the database instead of one.
    if not await database.fetchval(ANY_RUNNING):
        return None
    async with database.transaction() as connection:
        operation = as_row(Operation, await connection.fetchrow(TAKE))
        if operation is None:
            return None
        ids, place = await _next_ids(connection, operation)
        changes = await _act(connection, operation, ids) if ids else Changes()
        moved = len(changes.jobs)
        await connection.execute(STEPPED, operation.id, place, len(ids), moved, place is None)
    changes.count(BULK, operation.action, by=moved)
    return changes


async def _next_ids(connection: Runner, operation: Operation) -> tuple[list[str], str | None]:
    wanted = _read(operation.filter)
    arguments: list[object] = [operation.tenant, operation.after_id, operation.until_id]
    statement = look_statement(operation.action, wanted, arguments, limit=STEP, looked=STEP_LOOKED)
    await connection.execute(IN_ORDER)
    found = await connection.fetch(statement, *arguments)
    await connection.execute(AS_EVER)
    return _as_far_as_looked(found, STEP)


async def _act(connection: Runner, operation: Operation, ids: list[str]) -> Changes[Any]:
    tenant = operation.tenant
    match operation.action:
        case "cancel":
            return await control.cancel(connection, ids, tenant, None)
        case "retry":
            return await control.revive(connection, ids, tenant)
        case "dismiss":
            return await control.dismiss(connection, ids, tenant)
        case _:
            return await control.delete_in(connection, ids, tenant)


FORGET = "DELETE FROM bulk_operations WHERE completed_at < now() - interval '7 days'"


async def forget_old(database: Database) -> None:
    await database.execute(FORGET)


_KEPT = ("queue", "kind", "model", "since", "until", "metadata", "error", "worker", "id_prefix")


def _write(wanted: Filter) -> str:
    kept = {name: getattr(wanted, name) for name in _KEPT}
    return orjson.dumps({"state": list(wanted.states), **kept}).decode()


def _read(text: str) -> Filter:
    kept: dict[str, Any] = orjson.loads(text)
    return msgspec.convert({"states": kept.pop("state"), **kept}, Filter)
