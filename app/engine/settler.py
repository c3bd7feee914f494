"""The way out: what runs come to is gathered into one commit, and those who wait are told."""

import asyncio
import random
from collections.abc import Sequence

import orjson
import structlog

from app.errors import Unavailable
from app.events.hub import Hub
from app.jobs.outcomes import Cancelled, Deferred, Failed, JobError, Outcome, Released, Retry, Succeeded
from app.jobs.retry import jitter
from app.jobs.states import Verb
from app.loops.batcher import Batcher
from app.store.database import Database
from app.store.settle import Settled, Settlement, settle

log = structlog.get_logger()

MAX_ROWS = 1000
# A single settlement does not wait for a thousand others whose commit is under way.
IN_FLIGHT = 2
# How long a result is kept for a database that does not answer.
PATIENCE_SECONDS = 900.0
# Of the lease's token: it is written with every job, and tells two runs of one job apart.
FINGERPRINT_CHARACTERS = 12

# What is settled in one commit: a single settlement, or all that a worker sends at once, one for each job.
Group = Sequence[Settlement]


class Settler:
    """Settles by lease token. A database that is away is waited for: leases outlast an outage."""

    def __init__(self, database: Database, hub: Hub) -> None:
        self._database = database
        self._hub = hub
        self._batcher: Batcher[Group, list[Settled]] = Batcher(
            "settlements",
            self._flush,
            max_weight=MAX_ROWS,
            weight=len,
            size=_size,
            in_flight=IN_FLIGHT,
            keys=_jobs,
        )

    async def settle(self, settlement: Settlement) -> Settled:
        """Settle once; raises Unavailable when the database is away."""
        return (await self._batcher.put([settlement]))[0]

    async def settle_surely(self, settlement: Settlement) -> Settled:
        """Settle, waiting for a database that is away; only its answer can tell that the lease is lost."""
        return (await self._batcher.put_surely([settlement], PATIENCE_SECONDS))[0]

    async def settle_many(self, settlements: Group) -> Sequence[Settled]:
        """All in one commit, which others may share; at most one settlement per job."""
        return await self._batcher.put(settlements)

    async def settle_many_surely(self, settlements: Group) -> None:
        """The same, waiting for a database that is away. One that cannot be settled takes no other along."""
        try:
            await self._batcher.put_surely(settlements, PATIENCE_SECONDS)
        except Unavailable:
            raise
        except Exception:
            await asyncio.gather(*map(self._settle_alone, settlements))

    async def _settle_alone(self, settlement: Settlement) -> None:
        try:
            await self.settle_surely(settlement)
        except Exception:
            log.exception("settler.not_settled", job_id=settlement.job_id)

    async def drain(self) -> None:
        await self._batcher.drain()

    async def _flush(self, groups: Sequence[Group]) -> Sequence[list[Settled] | Exception]:
        changes = await settle(self._database, [each for group in groups for each in group])
        self._hub.announce(changes)
        settled = iter(changes.answers)
        return [[next(settled) for _ in group] for group in groups]


def _jobs(settlements: Group) -> list[str]:
    """Callers over HTTP may settle one job from two places at once, or again when no answer came: one after
    the other."""
    return [each.job_id for each in settlements]


def _size(settlements: Group) -> int:
    return sum(
        [len(each.result or "") + len(each.error or "") + len(each.output or "") for each in settlements]
    )


def as_settlement(job_id: str, lease_token: str, outcome: Outcome) -> Settlement:
    """Each outcome is exactly one verb. Sent again because its answer was lost, it is known for the same."""
    settlement = _settlement(job_id, lease_token, outcome)
    settlement.fingerprint = f"{settlement.verb}-{lease_token[:FINGERPRINT_CHARACTERS]}"
    return settlement


def _settlement(job_id: str, lease_token: str, outcome: Outcome) -> Settlement:
    match outcome:
        case Succeeded(result, usage):
            return Settlement(job_id, lease_token, Verb.COMPLETE, result=result, usage=usage)
        case Failed(error):
            return Settlement(job_id, lease_token, Verb.FAIL, error=error_json(error), error_body=error.body)
        case Retry(error, delay):
            spread = jitter(random.random())
            return Settlement(
                job_id,
                lease_token,
                Verb.RETRY,
                error=error_json(error),
                error_body=error.body,
                delay_seconds=delay,
                jitter=spread,
            )
        case Deferred(delay, reason, error):
            said = error_json(error) if error else None
            return Settlement(job_id, lease_token, Verb.DEFER, delay_seconds=delay, reason=reason, error=said)
        case Released(reason, delay):
            return Settlement(job_id, lease_token, Verb.RELEASE, reason=reason, delay_seconds=delay)
        case Cancelled(reason):
            return Settlement(job_id, lease_token, Verb.CANCEL, reason=reason)


def error_json(error: JobError) -> str:
    # Whatever a target said: PostgreSQL's JSON carries no NUL, and a settlement must not fail over its error.
    message = error.message.replace("\0", "\ufffd")
    said: dict[str, object] = {"code": error.code, "message": message, "retryable": error.retryable}
    if error.status is not None:
        said["status"] = error.status
    if error.param is not None:
        said["param"] = error.param
    if error.retry_after is not None:
        said["retry_after"] = error.retry_after
    return orjson.dumps(said).decode()
