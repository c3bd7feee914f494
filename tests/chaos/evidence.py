"""What is known when a run is over: what was seen from outside, and what the database says now."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from app.jobs.states import RUNNING, State
from app.store.history import ALL_EVENTS
from app.store.outbox import ALL_DELIVERIES
from tests import live_tables
from tests.chaos.callers import MARK
from tests.chaos.records import read

STATES = frozenset(str(state) for state in State)
RUNS = frozenset(str(state) for state in RUNNING)
JOBS = """
SELECT id, state, attempt, deferrals, seq, kind, queue, concurrency_key, created_at, started_at, completed_at, payload,
       metadata, result, webhook_url, lease_token, lease_expires_at
FROM jobs
"""
EVENTS = f"""
SELECT job_id, seq, type, state, reason, at FROM {ALL_EVENTS} AS events
UNION ALL SELECT job_id, seq, type, state, reason, at FROM chatter
ORDER BY job_id, seq
"""
DELIVERIES = f"SELECT job_id, seq, state, tries FROM {ALL_DELIVERIES} AS deliveries"


class Event(NamedTuple):
    seq: int
    type: str
    state: str
    reason: str | None
    at: datetime


class Run(NamedTuple):
    """One claim of a job, and the event that ended it; None: it still runs."""

    claim: Event
    events: list[Event]
    end: Event | None


@dataclass(slots=True)
class Story:
    """A job as the database has it, with its whole log."""

    job: dict[str, Any]
    events: list[Event] = field(default_factory=list)
    # By the seq that each tells of: its state, and how often it was tried.
    deliveries: dict[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return str(self.job["id"])

    @property
    def mark(self) -> str | None:
        """What its caller told it apart by."""
        mark: str | None = json.loads(self.job["metadata"] or "{}").get(MARK)
        return mark

    @property
    def token_of_result(self) -> str | None:
        """Whose result it has: workers over HTTP say so in it."""
        if self.job["state"] != "done" or not self.job["kind"].startswith("chaos."):
            return None
        token: str | None = json.loads(self.job["result"]).get("token")
        return token

    def runs(self) -> list[Run]:
        found: list[Run] = []
        for event in self.events:
            if event.type == "loading":
                found.append(Run(event, [event], None))
            elif found and found[-1].end is None:
                run = found[-1]
                run.events.append(event)
                if event.type in STATES and event.type not in RUNS:
                    found[-1] = run._replace(end=event)
        return found


class Acknowledged(NamedTuple):
    job: str
    mark: str
    flavour: str
    after: list[str]


class Sighting(NamedTuple):
    """Somebody was told that this seq of a job is this: a type with its moment, or only the state (an ETag)."""

    how: str
    job: str
    seq: int
    type: str | None
    state: str | None
    moment: datetime | None


class Claimed(NamedTuple):
    job: str
    seq: int
    attempt: int
    token: str
    until: datetime


class Settled(NamedTuple):
    job: str
    token: str
    verb: str
    ok: bool


class Arrival(NamedTuple):
    """A webhook as its receiver saw it."""

    at: float
    job: str
    seq: int
    type: str
    moment: datetime
    accepted: bool
    receiver: str


class Window(NamedTuple):
    """While something was made to go wrong."""

    name: str
    began: float
    ended: float


@dataclass(slots=True)
class Evidence:
    acknowledged: list[Acknowledged] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    claims: list[Claimed] = field(default_factory=list)
    # By token: until when its holder was last told that it holds.
    renewals: dict[str, datetime] = field(default_factory=dict)
    settlements: list[Settled] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    # How often the target was called for each job.
    calls: Counter[str] = field(default_factory=Counter)
    # Answers that nobody should get.
    wrong: list[str] = field(default_factory=list)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    stories: dict[str, Story] = field(default_factory=dict)
    # What was logged with its trace, by any process.
    crashes: list[str] = field(default_factory=list)
    # What else was found out while it ran: a column and what was wrong.
    found: list[tuple[str, str]] = field(default_factory=list)
    # The tempers of receivers, by URL.
    receivers: dict[str, str] = field(default_factory=dict)
    # The most requests that the inference target had at a time.
    target_peak: int = 0

    @property
    def acknowledged_jobs(self) -> set[str]:
        return {each.job for each in self.acknowledged}


def gather(records: Path, dsn: str) -> Evidence:
    evidence = Evidence()
    for path in sorted(records.glob("*.jsonl")):
        if path.name.startswith("arrivals-"):
            evidence.arrivals += _arrivals(path)
        else:
            _take(evidence, read(path))
    evidence.arrivals.sort()
    evidence.stories = asyncio.run(_stories(dsn))
    return evidence


def _take(evidence: Evidence, records: Iterable[dict[str, Any]]) -> None:
    for each in records:
        match each["what"]:
            case "acknowledged":
                evidence.acknowledged += [
                    Acknowledged(job, mark, each["flavour"], after)
                    for job, mark, after in zip(each["jobs"], each["marks"], each["after"], strict=True)
                ]
            case "saw":
                moment = _moment(each["moment"]) if "moment" in each else None
                evidence.sightings.append(
                    Sighting(
                        each["how"], each["job"], each["seq"], each.get("type"), each.get("state"), moment
                    )
                )
            case "claimed":
                until = _moment(each["until"])
                evidence.claims.append(
                    Claimed(each["job"], each["seq"], each["attempt"], each["token"], until)
                )
                _renew(evidence, each["token"], until)
            case "renewed":
                _renew(evidence, each["token"], _moment(each["until"]))
            case "settled":
                evidence.settlements.append(Settled(each["job"], each["token"], each["verb"], each["ok"]))
            case "called":
                evidence.calls[each["job"]] += 1
            case "wrong":
                evidence.wrong.append(json.dumps(each))
            case "refused" | "failed":
                evidence.refusals.append(each)


def _renew(evidence: Evidence, token: str, until: datetime) -> None:
    evidence.renewals[token] = max(until, evidence.renewals.get(token, until))


def _arrivals(path: Path) -> list[Arrival]:
    found = []
    receiver = path.stem.removeprefix("arrivals-")
    for each in read(path):
        data = json.loads(each["body"])["data"]
        type_ = json.loads(each["body"])["type"].removeprefix("job.")
        moment, accepted = _moment(data["timestamp"]), not each["failed"]
        # What it is told under this id must be what its body says.
        job_id, _, seq = each["headers"]["webhook-id"].rpartition("-")
        found.append(Arrival(each["at"], job_id, int(seq), type_, moment, accepted, receiver))
        if (job_id, int(seq)) != (data["job_id"], data["seq"]):
            found.append(Arrival(each["at"], job_id, int(seq), "another event", moment, accepted, receiver))
    return found


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def _stories(dsn: str) -> dict[str, Story]:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            stories = {row["id"]: Story(dict(row)) for row in await connection.fetch(JOBS)}
            events: dict[str, list[Event]] = defaultdict(list)
            for job_id, *event in await connection.fetch(EVENTS):
                events[job_id].append(Event(*event))
            for job_id, found in events.items():
                stories[job_id].events = found
            for job_id, seq, state, tries in await connection.fetch(DELIVERIES):
                stories[job_id].deliveries[seq] = state, tries
            await live_tables.check(connection)
            return stories
    finally:
        await connection.close()
