"""The way out: what runs come to is gathered into one commit, and those who wait are told."""

import random
from collections.abc import Sequence
from functools import partial

import orjson

from app.events.hub import Hub
from app.jobs.outcomes import Cancelled, Deferred, Failed, JobError, Outcome, Released, Retry, Succeeded
from app.jobs.retry import jitter
from app.jobs.states import Verb
from app.loops.batcher import Batcher
from app.store.database import Database
from app.store.settle import Settled, Settlement, settle

MAX_ROWS = 500
# How long a result is kept for a database that does not answer.
PATIENCE_SECONDS = 900.0


class Settler:
    """Settles by lease token. A database that is away is waited for: leases outlast an outage."""

    def __init__(self, database: Database, hub: Hub) -> None:
        self._database = database
        self._hub = hub
        self._batcher: Batcher[Settlement, Settled] = Batcher(self._flush, max_weight=MAX_ROWS, size=_size)

    async def settle(self, settlement: Settlement) -> Settled:
        """Settle once; raises Unavailable when the database is away."""
        return await self._batcher.put(settlement)

    async def settle_surely(self, settlement: Settlement) -> Settled:
        """Settle, waiting for a database that is away; only its answer can tell that the lease is lost."""
        return await self._batcher.put_surely(settlement, PATIENCE_SECONDS)

    async def settle_many(self, settlements: Sequence[Settlement]) -> Sequence[Settled]:
        """A batch of its own, in one commit; at most one settlement per job."""
        return await self._settle(settlements)

    async def drain(self) -> None:
        await self._batcher.drain()

    async def _flush(self, settlements: Sequence[Settlement]) -> Sequence[Settled | Exception]:
        if len({each.job_id for each in settlements}) == len(settlements):
            return await self._settle(settlements)
        # Callers over HTTP may settle one job from two places at once; then one after the other.
        return [(await self._settle([each]))[0] for each in settlements]

    async def _settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        changes = await settle(self._database, settlements)
        self._hub.announce(changes)
        return changes.answers


def _size(settlement: Settlement) -> int:
    return len(settlement.result or "") + len(settlement.error or "") + len(settlement.output or "")


def as_settlement(job_id: str, lease_token: str, outcome: Outcome) -> Settlement:
    """Each outcome is exactly one verb."""
    settlement = partial(Settlement, job_id, lease_token)
    match outcome:
        case Succeeded(result, usage):
            return settlement(Verb.COMPLETE, result=result, usage=usage)
        case Failed(error):
            return settlement(Verb.FAIL, error=error_json(error))
        case Retry(error, delay):
            spread = jitter(random.random())
            return settlement(Verb.RETRY, error=error_json(error), delay_seconds=delay, jitter=spread)
        case Deferred(delay, reason, error):
            said = error_json(error) if error else None
            return settlement(Verb.DEFER, delay_seconds=delay, reason=reason, error=said)
        case Released(reason, delay):
            return settlement(Verb.RELEASE, reason=reason, delay_seconds=delay)
        case Cancelled(reason):
            return settlement(Verb.CANCEL, reason=reason)


def error_json(error: JobError) -> str:
    # Whatever a target said: PostgreSQL's JSON carries no NUL, and a settlement must not fail over its error.
    message = error.message.replace("\0", "\ufffd")
    said: dict[str, object] = {"code": error.code, "message": message, "retryable": error.retryable}
    if error.status is not None:
        said["status"] = error.status
    return orjson.dumps(said).decode()
