"""Claimers: who has lately asked for which kinds, so that a job that nobody would take says so.

A hint for people, worked out when a job is read and never written: nothing depends on it. Read from the
table of workers, which all replicas fill, at most every few seconds, and only when a job that could be
claimed is looked at.
"""

import asyncio
import time
from collections.abc import Iterable
from datetime import datetime

from app.jobs.lanes import worker_tenant
from app.store.database import Database
from app.store.job import JobSummary
from app.store.workers import Asked, asked_lately

# Longer than a claimer can wait on the line (60 s) and come back.
LATELY_SECONDS = 120.0
REMEMBER_SECONDS = 2.0
# How Foreman's own workers say that they serve every queue.
ANY_QUEUE = "*"


class Claimers:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._asked: list[Asked] = []
        self._looked = -REMEMBER_SECONDS
        self._looking = asyncio.Lock()

    async def missing(self, jobs: Iterable[JobSummary]) -> dict[str, datetime]:
        """Those of the jobs that could be claimed but that nobody asks for: by id, since when."""
        waiting = [(job, job.ready_at) for job in jobs if job.state == "queued" and job.ready_at]
        if not waiting:
            return {}
        await self._look()
        found = {}
        for job, ready_at in waiting:
            asked = [each for each in self._asked if _takes(each, job)]
            if not any(each.lately for each in asked):
                found[job.id] = max([ready_at, *(each.last_at for each in asked)])
        return found

    async def _look(self) -> None:
        async with self._looking:
            if time.monotonic() - self._looked >= REMEMBER_SECONDS:
                self._asked = await asked_lately(self._database, LATELY_SECONDS)
                self._looked = time.monotonic()


def _takes(asked: Asked, job: JobSummary) -> bool:
    kind = job.kind
    if job.queue not in asked.queues and ANY_QUEUE not in asked.queues:
        return False
    if worker_tenant(job.lane) is None:
        # Foreman's own workers run them for every tenant; who names no kinds does not get them.
        return kind in asked.kinds and (ANY_QUEUE in asked.queues or asked.tenant == job.tenant)
    return asked.tenant == job.tenant and (kind in asked.kinds or not asked.kinds)
