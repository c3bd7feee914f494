"""Queues, schedules, targets and whatever else operators look at: the shapes of answers."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from app.api.job_documents import OBJECT, verbatim
from app.dialects import TargetDialectName
from app.jobs.queue_settings import QueueSettings
from app.jobs.shapes import Count, JobId, Moment, Number
from app.jobs.states import State
from app.jobs.submission import Name
from app.store.census import Gate
from app.store.keys import BusyKey
from app.store.usage import KeyUsage, Usage
from app.store.workers import Worker as KnownWorker
from app.targets.config import Origin, Slots, Tags, TargetUrl, WakeAction
from app.targets.inventory import Resident

MomentAsText = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class Alive(msgspec.Struct):
    status: str


class Ready(msgspec.Struct):
    status: str
    revision: str


class Version(msgspec.Struct):
    name: str
    version: str
    # The versions of `foreman-client` that this server was made for.
    client: str


class Counts(msgspec.Struct, kw_only=True):
    queued: Count
    loading: Count
    working: Count
    done: Count
    failed: Count
    cancelled: Count
    expired: Count
    skipped: Count
    stale: Count
    dismissed: Count


class Held(msgspec.Struct, kw_only=True):
    """Queued jobs that could not, by what holds them back."""

    scheduled: Count
    key_busy: Count
    waiting_for: Count


class Ages(msgspec.Struct, kw_only=True):
    oldest_queued_seconds: Number | None
    oldest_running_seconds: Number | None


class Rates(msgspec.Struct, kw_only=True):
    """Over the last minute."""

    enqueued_per_second: Number
    done_per_second: Number
    failed_per_second: Number


class Queue(QueueSettings, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=False):
    name: Name
    paused: bool
    paused_at: Moment | None
    paused_by: Annotated[
        str | None, Meta(description="The name of the key that paused it; null where there was none.")
    ]
    counts: Counts
    ready: Annotated[Count, Meta(description="Queued jobs that could be claimed now.")]
    held: Held
    gated_by: Gate | None
    ages: Ages
    rates: Rates
    created_at: Moment
    updated_at: Moment


class Queues(msgspec.Struct):
    queues: list[Queue]
    total: Annotated[Count, Meta(description="All queues that match, on this page or not.")]


class BusyKeys(msgspec.Struct):
    keys: list[BusyKey]
    next_after: Annotated[
        str | None, Meta(description="The `after` of the next page; null when this is the last.")
    ]


class Worker(KnownWorker, kw_only=True):
    alive: bool


class Workers(msgspec.Struct):
    workers: list[Worker]


BulkAction = Literal["cancel", "retry", "dismiss", "delete"]
BulkState = Literal["running", "done", "stopped"]


class BulkCount(msgspec.Struct, kw_only=True):
    action: BulkAction
    dry_run: bool
    matched: Count
    by_state: dict[State, Count]


class JobFilter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The filters of GET /jobs; an empty one matches everything."""

    # Texts, and checked by hand: in the words of the same filters in a query.
    state: str | list[str] | None = None
    queue: str | None = None
    kind: str | None = None
    model: str | None = None
    since: MomentAsText | None = None
    until: MomentAsText | None = None
    metadata: dict[str, str] | None = None
    error: str | None = None
    worker: str | None = None
    id_prefix: str | None = None


class BulkOperation(msgspec.Struct, kw_only=True):
    operation_id: JobId
    action: BulkAction
    filter: Annotated[JobFilter, Meta(description="As it was sent, without what is empty.")]
    state: BulkState
    matched: Annotated[Count | None, Meta(description="When it began; counted up to a million.")]
    visited: Count
    moved: Annotated[Count, Meta(description="Jobs that changed, with those that went along (children).")]
    created_at: Moment
    updated_at: Moment
    completed_at: Moment | None


class BulkOperations(msgspec.Struct):
    operations: list[BulkOperation]


class Tick(msgspec.Struct, kw_only=True):
    at: Moment
    outcome: Annotated[str, Meta(description="accepted, coalesced, replaced, or an error's code.")]
    job_id: JobId | None
    error: str | None


class Schedule(msgspec.Struct, kw_only=True):
    name: Name
    cron: str
    timezone: str
    job: Annotated[Raw, verbatim(OBJECT)]
    next_at: Moment
    last_at: Moment | None
    last_job_id: JobId | None
    last_outcome: Annotated[
        str | None, Meta(description="accepted, coalesced, replaced, or an error's code.")
    ]
    last_error: str | None
    last_ticks: Annotated[list[Tick], Meta(description="What came of the last ten, newest first.")]
    next_ticks: Annotated[list[Moment], Meta(description="The next five, of which `next_at` is the first.")]
    created_at: Moment
    updated_at: Moment


class Schedules(msgspec.Struct):
    schedules: list[Schedule]
    total: Annotated[Count, Meta(description="All schedules that match, on this page or not.")]


class Target(msgspec.Struct, kw_only=True):
    name: str
    url: TargetUrl
    dialect: TargetDialectName
    slots: Slots
    tags: Tags
    wake: WakeAction | None
    has_token: bool
    origin: Origin
    state: Literal["unknown", "awake", "asleep"]
    breaker: Literal["closed", "open"]
    in_use: Annotated[Count, Meta(description="Jobs that run there now, over the whole fleet.")]
    waiting: Annotated[
        Count, Meta(description="Queued jobs that are its to run, or its among others; counted up to 10,000.")
    ]
    swapped_today: Annotated[Count, Meta(description="Models that made room for others, since midnight UTC.")]
    swaps_avoided_today: Annotated[
        Count, Meta(description="How often a job waited so that others could use what was resident.")
    ]
    models: list[str]
    resident: list[str]
    residents: Annotated[list[Resident], Meta(description="The same, with what the target says of them.")]
    version: str | None
    warning: str | None
    answered_at: Moment | None
    asleep_since: Moment | None


class Targets(msgspec.Struct):
    targets: list[Target]


class UsageSums(msgspec.Struct):
    usage: list[Usage]


class KeyUsageSums(msgspec.Struct):
    usage: list[KeyUsage]
