"""`foreman serve` with a known bug in it: what the checker has to find, or it is worth nothing.

CHAOS_PLANTED=NAME python -m tests.chaos.planted serve

The switch is here and not in the server: each bug is a change to its modules before it starts.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from app.cli import main
from app.engine import remote_claims, settler, worker
from app.events import hub
from app.store import heads, settle
from app.store.changes import Changes
from app.store.database import Database, Runner
from tests.patience import pace

BUGS: dict[str, Callable[[], None]] = {}
LONGER_THAN_ANY_RUN = 86_400.0


def bug(plant: Callable[[], None]) -> Callable[[], None]:
    BUGS[plant.__name__.replace("_", "-")] = plant
    return plant


def _replaced(text: str, old: str, new: str) -> str:
    """Fails when the statement is no longer what the bug was made for."""
    assert old in text, f"{old!r} is not there any more"
    return text.replace(old, new)


def _patch(owner: Any, name: str, value: Any) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, value)


@bug
def settle_by_id() -> None:
    """Whoever names a running job settles it, whatever lease he had: as most queues do."""
    for key, statement in settle._STATEMENTS.items():
        settle._STATEMENTS[key] = _replaced(
            statement, "AND lease_token = input.lease_token LIMIT 1", "AND lease_token IS NOT NULL LIMIT 1"
        )


@bug
def event_outside_the_transaction() -> None:
    """The state is committed, and its event in a commit of its own, a moment later."""
    split = settle.SETTLE
    inserts = "INSERT INTO events (job_id, seq, type, state, reason, data, at)\n    SELECT id, seq, type, state, verb"
    split = _replaced(split, inserts, "SELECT id, seq, type, state, verb")
    settle._STATEMENTS[False, False] = split
    later = "INSERT INTO events (job_id, seq, type, state, reason, at) VALUES ($1, $2, $3, $3, $4, now())"

    class Split:
        """Runs the statement, and afterwards writes the events of its rows."""

        def __init__(self, database: Runner) -> None:
            self._database = database

        async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
            rows = await self._database.fetch(statement, *arguments)
            if statement is split:
                # The moment in which it may die.
                await pace(0.2)
                for row in rows:
                    # What starts and what is done stands in the job's own row.
                    if row["seq"] is not None and row["state"] not in {"working", "done"}:
                        await self._database.fetch(later, row["id"], row["seq"], row["state"], row["verb"])
            return rows

        async def execute(self, statement: str, *arguments: Any) -> str:
            return await self._database.execute(statement, *arguments)

    async def settle_split(
        database: Runner, settlements: Sequence[settle.Settlement]
    ) -> Changes[settle.Settled]:
        return await settle.settle(Split(database), settlements)

    _patch(settler, "settle", settle_split)


@bug
def notify_is_the_only_wake_up() -> None:
    """Nobody looks for himself: what was not heard of is never found."""

    async def nothing(*_: Any) -> None:
        return None

    async def no_page(_: heads.HeadsWalk) -> list[heads.Head]:
        return []

    _patch(hub.Hub, "_poll", nothing)
    _patch(heads.HeadsWalk, "next_page", no_page)
    _patch(remote_claims.RemoteClaims, "_rest", lambda *_: LONGER_THAN_ANY_RUN)


@bug
def told_before_it_is_durable() -> None:
    """Commits do not wait for the disk."""
    init = Database.__init__

    def hasty(self: Database, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self._settings["synchronous_commit"] = "off"

    _patch(Database, "__init__", hasty)


@bug
def keeper_slower_than_the_sweeper() -> None:
    """Leases are renewed when it is too late."""
    renew = worker.Worker._renew

    async def seldom(self: worker.Worker) -> float | None:
        await renew(self)
        return self._lease_seconds * 3

    _patch(worker.Worker, "_renew", seldom)


if __name__ == "__main__":
    BUGS[os.environ["CHAOS_PLANTED"]]()
    main()
