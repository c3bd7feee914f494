"""Why a job waits for a target: asleep, busy, pausing, with another model; or none has its model."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import UNSET

from app.jobs.explanation import Code, Reason, clock, lasting, named, quoted, sentence, soon
from app.jobs.lanes import parse_llm_lane
from app.store import explain as store
from app.store.database import Database
from app.store.explain import ExplainedJob
from app.targets.affinity import affinity_of
from app.targets.registry import Registry
from app.targets.target import Target


@dataclass(slots=True)
class TargetsOfJob:
    """A queued job, and the targets as this process knows them."""

    database: Database
    targets: Registry
    patience_seconds: float
    job: ExplainedJob

    async def reasons(self) -> list[Reason]:
        """Of a job that a target is to serve; without any target the built-in one does, at once."""
        lane = parse_llm_lane(self.job.lane)
        if lane is None or self.targets.is_empty:
            return []
        serving = self.targets.serving_lane(self.job.lane)
        if serving.ready:
            return await self._crowded(serving.ready)
        if serving.asleep:
            return await self._asleep(serving.asleep, lane.model)
        if serving.no_such_target:
            words = f"there is no target {lane.target}, to which it is pinned: it is about to fail"
            return [Reason(code=Code.NO_SUCH_TARGET, message=sentence(words), targets=[lane.target])]
        if serving.unasked:
            words = "its targets have not been asked yet what they have"
            return [Reason(code=Code.TARGET_UNASKED, message=sentence(words))]
        words = f"no target has the model {lane.model}: it is about to fail"
        return [Reason(code=Code.MODEL_UNKNOWN, message=sentence(words), model=lane.model)]

    async def held_back(self) -> list[Reason]:
        """It was held back because its target was asleep."""
        lane = parse_llm_lane(self.job.lane)
        serving = self.targets.serving_lane(self.job.lane)
        if lane is not None and serving.asleep and not serving.ready:
            return await self._asleep(serving.asleep, lane.model)
        words = "its target was asleep, and is no more: it is about to be claimable"
        return [Reason(code=Code.DUE, message=sentence(words), targets=[each.name for each in serving.ready])]

    async def _asleep(self, targets: Sequence[Target], model: str) -> list[Reason]:
        """Those that are known to have the model are waited for, or else any that might."""
        having = [each for each in targets if each.inventory is not None and each.inventory.serves(model)]
        names = [each.name for each in having or targets]
        recorded = await store.asleep_since(self.database, names)
        moments = [recorded.get(each.name) or each.asleep_since for each in having or targets]
        since = min((at for at in moments if at is not None and at.tzinfo), default=None)
        when = f"since {clock(since, self.job.now)}" if since else "for a while"
        words = f"{_its_targets(names)} {'has' if len(names) == 1 else 'have'} been asleep {when}"
        found = [
            Reason(code=Code.TARGET_ASLEEP, message=sentence(words), targets=names, since=since or UNSET)
        ]
        if not having:
            words = f"no target that answers has the model {model}, and {named(names)} may have it"
            found.append(Reason(code=Code.MODEL_UNKNOWN, message=sentence(words), model=model, targets=names))
        return found

    async def _crowded(self, ready: Sequence[Target]) -> list[Reason]:
        """All that could serve it are busy or have to pause. (Of pauses, a process knows its own alone.)"""
        moment, now = time.monotonic(), self.job.now
        running = await store.count_on_targets(self.database, [each.name for each in ready])
        pausing = [each for each in ready if each.breaker.room(moment) == 0]
        full = [
            each for each in ready if each not in pausing and running.get(each.name, 0) >= each.config.slots
        ]
        found = []
        if len(pausing) + len(full) == len(ready):
            if pausing:
                seconds = min(each.breaker.seconds_left(moment) for each in pausing)
                until = now + timedelta(seconds=seconds) if seconds > 0 else None
                found.append(_breaker_open(pausing, until, now))
            if full:
                found.append(_busy(full, sum(running.get(each.name, 0) for each in full)))
        return found + self._other_resident(ready, running)

    def _other_resident(self, ready: Sequence[Target], running: dict[str, int]) -> list[Reason]:
        """Where every target that could serve it is at work with another model, which is served on."""
        job, needs = self.job, affinity_of(self.job.lane)
        if job.ready_at is None or any(
            each.resident in (None, needs) or not running.get(each.name) for each in ready
        ):
            return []
        until = job.ready_at + timedelta(seconds=self.patience_seconds)
        if until <= job.now:
            return []
        loaded = named(f"{(each.resident or '').split(' ')[0]} on {each.name}" for each in ready)
        words = f"another model is loaded ({loaded}), whose jobs of the same priority go first"
        words += f" until this one has waited for {lasting(self.patience_seconds)}"
        return [
            Reason(
                code=Code.OTHER_MODEL_RESIDENT,
                message=sentence(words),
                until=until,
                targets=[each.name for each in ready],
                model=job.model or UNSET,
            )
        ]


def _breaker_open(pausing: Sequence[Target], until: datetime | None, now: datetime) -> Reason:
    names = [each.name for each in pausing]
    again = f"the next job tries it {soon(until, now)}" if until else "one job tries it out now"
    words = (
        f"{_its_targets(names)} kept failing and {'is' if len(names) == 1 else 'are'} given a pause: {again}"
    )
    trouble = next((each.trouble for each in pausing if each.trouble), None)
    return Reason(
        code=Code.BREAKER_OPEN,
        message=sentence(words),
        targets=names,
        until=until or UNSET,
        reason=quoted(trouble) if trouble else UNSET,
    )


def _busy(full: Sequence[Target], running: int) -> Reason:
    names, slots = [each.name for each in full], sum(each.config.slots for each in full)
    all_slots = "the only slot" if slots == 1 else f"all {slots} slots"
    words = f"{all_slots} of {_its_targets(names)} {'is' if slots == 1 else 'are'} in use"
    return Reason(code=Code.TARGET_BUSY, message=sentence(words), targets=names, limit=slots, running=running)


def _its_targets(names: Sequence[str]) -> str:
    return f"its {'target' if len(names) == 1 else 'targets'} {named(names)}"
