"""Bulk operations: one verb for all jobs that match a filter, in small steps.

An operation is a row. A step locks it, moves the next few jobs and how far it got, all in one commit: so any
replica can go on with it, at any time, and nothing is done twice. It visits the jobs that were there when it
began, each once, in the order of their ids; a job that fails again after its replay is left alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import asyncpg
import orjson

from app.jobs.ids import new_id
from app.jobs.states import LIVE, TERMINAL, State
from app.store.database import Database, Runner
from app.store.read import Filter, conditions
from app.store.steer import Steered, cancel_all, delete_all, dismiss_all, revive_all
from app.store.tables import BulkOperation, columns_of

STEP = 100
# Counted no further: a number beyond is no help to anybody.
MAX_COUNT = 1_000_000

# Which states each action works on.
ACTIONS: Mapping[str, frozenset[State]] = {
    "cancel": LIVE,
    "retry": frozenset({State.FAILED}),
    "dismiss": frozenset({State.FAILED}),
    "delete": TERMINAL,
}


def _matching(
    wanted: Filter, states: Sequence[str], arguments: list[object], *, select: str, limit: int
) -> str:
    """One look per state, each along its own index and in the order of ids; $1 tenant, $2 after, $3 until."""
    looks = []
    for state in states:
        among = " AND ".join(["tenant = $1", *conditions(replace(wanted, states=()), arguments)])
        looks.append(
            f"(SELECT {select} FROM jobs WHERE {_span(State(state))} AND {among}"
            f" ORDER BY {'id' if state == State.DONE else 'state, id'} LIMIT {limit})"
        )
    return " UNION ALL ".join(looks)


def _span(state: State) -> str:
    """The jobs of one state from $2 to $3, compared as pairs so that nothing but the state's index has the order.

    The primary key has it too, in a way; but walking it to find a few failed jobs among millions that are done
    is what a planner thinks is cheap when it believes that they lie evenly spread.
    """
    if state == State.DONE:
        return "state = 'done' AND id > $2 AND id <= $3"
    # The words of the partial index, so that the planner knows it.
    indexed = ", ".join(f"'{each}'" for each in sorted(LIVE if state in LIVE else TERMINAL - {State.DONE}))
    return f"state IN ({indexed}) AND (state, id) > ('{state}', $2) AND (state, id) <= ('{state}', $3)"


def states_of(action: str, wanted: Filter) -> list[str]:
    """The states to look through; none when the filter asks for others than the action works on."""
    return sorted(state for state in ACTIONS[action] if not wanted.states or state in wanted.states)


async def count(database: Database, action: str, wanted: Filter, tenant: str) -> int:
    """How many jobs an operation would visit now; no further than MAX_COUNT."""
    arguments: list[object] = [tenant, "", new_id()]
    looks = _matching(wanted, states_of(action, wanted), arguments, select="1", limit=MAX_COUNT)
    found = await database.fetch_planned(f"SELECT count(*) FROM ({looks}) AS matching", *arguments)
    return min(MAX_COUNT, int(found[0]["count"]))


_COLUMNS = columns_of(BulkOperation)
BEGIN = f"""
INSERT INTO bulk_operations (id, tenant, action, filter, matched, until_id)
VALUES ($1, $2, $3, $4::jsonb, $5, $1) RETURNING {_COLUMNS}
"""


async def begin(database: Database, action: str, wanted: Filter, tenant: str) -> asyncpg.Record:
    """Write the operation down; some replica's runner will take its steps."""
    matched = await count(database, action, wanted, tenant)
    rows = await database.fetch(BEGIN, new_id(), tenant, action, _write(wanted), matched)
    return rows[0]


GET = f"SELECT {_COLUMNS} FROM bulk_operations WHERE id = $1 AND tenant = $2"
LIST = f"SELECT {_COLUMNS} FROM bulk_operations WHERE tenant = $1 ORDER BY id DESC LIMIT $2"


async def get(database: Database, operation_id: str, tenant: str) -> asyncpg.Record | None:
    return await database.fetchrow(GET, operation_id, tenant)


async def list_operations(database: Database, tenant: str, limit: int) -> list[asyncpg.Record]:
    return await database.fetch(LIST, tenant, limit)


STOP = f"""
UPDATE bulk_operations SET state = 'stopped', completed_at = now(), updated_at = now()
WHERE id = $1 AND tenant = $2 AND state = 'running' RETURNING {_COLUMNS}
"""


async def stop(database: Database, operation_id: str, tenant: str) -> asyncpg.Record | None:
    """Take no further steps; None when it was not running."""
    return await database.fetchrow(STOP, operation_id, tenant)


TAKE = f"""
SELECT {_COLUMNS} FROM bulk_operations WHERE state = 'running' ORDER BY updated_at LIMIT 1 FOR UPDATE SKIP LOCKED
"""
STEPPED = """
UPDATE bulk_operations SET
    after_id = coalesce($2, after_id), passed = passed + $3, moved = moved + $4, updated_at = clock_timestamp(),
    state = CASE WHEN $5 THEN 'done' ELSE state END, completed_at = CASE WHEN $5 THEN now() END
WHERE id = $1
"""


@dataclass(slots=True)
class Step:
    """What one step did."""

    action: str
    moved: list[Steered] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    @property
    def jobs(self) -> int:
        return len(self.deleted) + sum(each.changed for each in self.moved)


async def step(database: Database) -> Step | None:
    """Take the next step of the operation that has waited longest; None when none is running."""
    async with database.transaction() as connection:
        operations: list[asyncpg.Record] = await connection.fetch(TAKE)
        if not operations:
            return None
        operation = operations[0]
        taken = Step(operation["action"])
        ids = await _next_ids(connection, operation)
        if ids:
            await _act(connection, operation, ids, taken)
        await connection.execute(
            STEPPED, operation["id"], ids[-1] if ids else None, len(ids), taken.jobs, len(ids) < STEP
        )
    return taken


async def _next_ids(connection: Runner, operation: asyncpg.Record) -> list[str]:
    wanted = _read(operation["filter"])
    arguments: list[object] = [operation["tenant"], operation["after_id"], operation["until_id"]]
    states = states_of(operation["action"], wanted)
    looks = _matching(wanted, states, arguments, select="id", limit=STEP)
    found = await connection.fetch(
        f"SELECT id FROM ({looks}) AS matching ORDER BY id LIMIT {STEP}", *arguments
    )
    return [row["id"] for row in found]


async def _act(connection: Runner, operation: asyncpg.Record, ids: list[str], taken: Step) -> None:
    tenant = operation["tenant"]
    match taken.action:
        case "cancel":
            taken.moved = await cancel_all(connection, ids, tenant, None)
        case "retry":
            taken.moved = await revive_all(connection, ids, tenant)
        case "dismiss":
            taken.moved = await dismiss_all(connection, ids, tenant)
        case "delete":
            taken.deleted = await delete_all(connection, ids, tenant)


FORGET = "DELETE FROM bulk_operations WHERE completed_at < now() - interval '7 days'"


async def forget_old(database: Database) -> None:
    await database.execute(FORGET)


def _write(wanted: Filter) -> str:
    return orjson.dumps(
        {
            "state": list(wanted.states),
            "queue": wanted.queue,
            "kind": wanted.kind,
            "model": wanted.model,
            "since": wanted.since,
            "until": wanted.until,
            "metadata": wanted.metadata,
        }
    ).decode()


def _read(text: str) -> Filter:
    kept: dict[str, Any] = orjson.loads(text)
    return Filter(
        states=kept["state"],
        queue=kept["queue"],
        kind=kept["kind"],
        model=kept["model"],
        since=_moment(kept["since"]),
        until=_moment(kept["until"]),
        metadata=kept["metadata"],
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
