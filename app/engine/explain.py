"""A job explains itself: why it waits, what it is at, how it went.

Worked out when somebody asks, and never written: it may have changed by the time it is told, and nothing
depends on it. It costs a handful of look-ups, however much waits.
"""

from app.config import Settings
from app.engine.claimers import Claimers
from app.engine.explain_ended import ended_reasons
from app.engine.explain_run import running_reasons
from app.engine.explain_targets import TargetsOfJob
from app.engine.explain_waiting import WaitingJob
from app.jobs.explanation import Explanation, headline, next_at
from app.jobs.queue_settings import NO_SETTINGS, load_settings
from app.jobs.states import RUNNING, State
from app.store import explain as store
from app.store.database import Database
from app.store.read import queue_position
from app.targets.registry import Registry


class Explainer:
    """One per process."""

    def __init__(self, database: Database, targets: Registry, claimers: Claimers, settings: Settings) -> None:
        self._database = database
        self._targets = targets
        self._claimers = claimers
        self._patience = settings.affinity_patience_seconds
        self._grace = settings.cancel_grace_seconds

    async def explain(self, job_id: str, tenant: str, *, sees_all: bool = False) -> Explanation | None:
        """None when this tenant has no such job. `sees_all`: the names of other tenants' keys may be told."""
        job = await store.get_job(self._database, job_id, tenant)
        if job is None:
            return None
        state, since, position = State(job.state), job.entered_at, None
        queue = await store.get_queue(self._database, job.queue)
        rules = NO_SETTINGS if queue is None else load_settings(queue.settings)
        if state is State.QUEUED:
            position = await queue_position(self._database, job)
            targets = TargetsOfJob(self._database, self._targets, self._patience, job)
            waiting = WaitingJob(self._database, self._claimers, targets, job, rules)
            because = await waiting.reasons(queue, position, sees_all=sees_all)
        elif state in RUNNING:
            because = running_reasons(job, rules, self._grace)
        else:
            since = job.completed_at or since
            because = await ended_reasons(self._database, job)
        return Explanation(
            state=state,
            since=since,
            headline=headline(state, because),
            because=because,
            position=position,
            next_at=next_at(because, job.now),
        )
