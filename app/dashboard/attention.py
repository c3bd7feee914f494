"""What needs a person: each matter one sentence, with the page that deals with it."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from app.api.services import Services
from app.dashboard.words import counted, duration, listed, number
from app.jobs.lanes import worker_tenant
from app.jobs.states import State
from app.store import read, targets
from app.store.census import QueueCount
from app.store.heads import heads_of
from app.store.remembered import Remembered

KEPT_SECONDS = 2.0
# Counted no further: what is more than this is "many".
MAX_COUNTED = 1000
# How many queues are looked at more closely, those that have waited longest.
MAX_QUEUES = 50
MAX_NAMED = 3
# A limit that is met for a moment needs nobody.
HELD_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Matter:
    text: str
    address: str
    # What can be done there, in a word or two.
    action: str
    # Something is broken, rather than merely waiting.
    is_urgent: bool = False


class Attention:
    """Kept for a moment for each tenant: every open page shows how many matters there are."""

    def __init__(self) -> None:
        self._known: Remembered[tuple[int, str], tuple[float, list[Matter]]] = Remembered()

    async def matters(self, services: Services, tenant: str) -> list[Matter]:
        """The gravest first."""
        now = time.monotonic()
        place = (id(services), tenant)
        known = self._known.get(place)
        if known is None or now >= known[0]:
            known = (now + KEPT_SECONDS, await _look(services, tenant))
            self._known.put(place, known)
        return known[1]


ATTENTION = Attention()


async def _look(services: Services, tenant: str) -> list[Matter]:
    counts = await services.queues.census.take()
    found = [
        *await _dead_letters(services, counts, tenant),
        *await _sleepers(services),
        *_failing(services),
        *await _unclaimed(services, counts, tenant),
        *_unheard(services),
        *_gated(services, counts),
    ]
    return sorted(found, key=lambda matter: not matter.is_urgent)


async def _dead_letters(services: Services, counts: dict[str, QueueCount], tenant: str) -> list[Matter]:
    # Of all tenants: where there is none at all, nobody has to look.
    if not any(each.states[State.FAILED] for each in counts.values()):
        return []
    failed = await read.count_failed(services.database, tenant, MAX_COUNTED)
    if not failed:
        return []
    many = f"At least {number(failed)} jobs" if failed == MAX_COUNTED else counted(failed, "job")
    return [Matter(f"{many} failed for good.", "/ui/dead-letters", "Replay or dismiss", is_urgent=True)]


async def _sleepers(services: Services) -> list[Matter]:
    asleep = [each for each in services.targets.targets if each.asleep_since is not None]
    if not asleep:
        return []
    lanes = await targets.parked_lanes(services.database)
    needed = {target.name for lane in lanes for target in services.targets.serving_lane(lane).asleep}
    return [
        Matter(
            f"Target {each.name} is asleep, and jobs wait for it.", "/ui/targets", "Wake it", is_urgent=True
        )
        for each in asleep
        if each.name in needed
    ]


def _failing(services: Services) -> list[Matter]:
    """Targets that are reached and do badly, as far as this process has given them jobs."""
    return [
        Matter(
            f"Target {each.name} keeps failing ({each.failure})"
            f"{'.' if each.breaker.is_closed else ', and is given pauses.'}",
            f"/ui/targets/{each.name}",
            "Look at it",
            is_urgent=True,
        )
        for each in services.targets.targets
        if each.keeps_failing
    ]


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """A kind that jobs wait for in a queue, and that nobody asks for there."""

    kind: str
    queue: str
    since: datetime


async def unclaimed(services: Services, counts: dict[str, QueueCount], tenant: str) -> list[Unclaimed]:
    """In the queues that have waited longest; by their kinds."""
    waiting = sorted(
        (name for name, each in counts.items() if each.ready),
        key=lambda name: counts[name].oldest_queued_seconds or 0,
        reverse=True,
    )
    heads = await heads_of(services.database, waiting[:MAX_QUEUES])
    own = [head.id for head in heads if worker_tenant(head.lane) in (tenant, None)]
    jobs = await read.get_summaries(services.database, own[:MAX_COUNTED], tenant)
    missing = await services.claimers.missing(jobs)
    found = [Unclaimed(job.kind, job.queue, missing[job.id]) for job in jobs if job.id in missing]
    return sorted(found, key=lambda each: (each.kind, each.queue))


async def _unclaimed(services: Services, counts: dict[str, QueueCount], tenant: str) -> list[Matter]:
    kinds = sorted({each.kind for each in await unclaimed(services, counts, tenant)})
    if not kinds:
        return []
    return [
        Matter(
            f"Nobody claims jobs of kind {_some(kinds)}.",
            f"/ui/jobs?state=queued&kind={kinds[0]}",
            "See who waits",
            is_urgent=True,
        )
    ]


def _unheard(services: Services) -> list[Matter]:
    """Receivers that kept failing, as far as this process has tried them."""
    hosts = sorted(services.deliverer.open_circuits())
    if not hosts:
        return []
    keeps = "keeps" if len(hosts) == 1 else "keep"
    return [
        Matter(
            f"Webhooks wait: {_some(hosts)} {keeps} failing.",
            "/ui/webhooks",
            "See what it answers" if len(hosts) == 1 else "See what they answer",
            is_urgent=True,
        )
    ]


def _gated(services: Services, counts: dict[str, QueueCount]) -> list[Matter]:
    """Queues whose rules hold back what could be claimed, for a while already."""
    found = []
    for rules in services.queues.book.all():
        count = counts.get(rules.name)
        if count is None or not (count.ready or count.held["key"]):
            continue
        gate = count.gated_by(rules.settings, paused=rules.paused)
        waited = count.oldest_queued_seconds or 0
        if gate is None or (gate != "paused" and waited < HELD_SECONDS):
            continue
        held = counted(count.ready or count.held["key"], "job")
        words = {
            "paused": "is paused",
            "max_running": "runs as many as it may",
            "rate": "has used up its rate",
            "key": "waits for keys that are held",
        }[gate]
        found.append(
            Matter(
                f"Queue {rules.name} {words}: {held} waiting, the oldest for {duration(waited)}.",
                f"/ui/queues/{rules.name}",
                "Resume it" if gate == "paused" else "Look at its limits",
            )
        )
    found.sort(key=lambda matter: matter.text)
    return found[:MAX_QUEUES]


def _some(names: Iterable[str]) -> str:
    given = list(names)
    if len(given) <= MAX_NAMED:
        return listed(given)
    return f"{', '.join(given[:MAX_NAMED])} and {counted(len(given) - MAX_NAMED, 'other')}"
