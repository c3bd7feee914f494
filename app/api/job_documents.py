"""Jobs as callers and workers see them, with their events and deliveries: the shapes of answers.

What was submitted or answered verbatim is a `msgspec.Raw`, spliced in as it is; what is not always there is
`UNSET` when it is not.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from app.jobs.shapes import Count, JobId, Moment
from app.jobs.states import State
from app.jobs.submission import EVENT_TYPE

EventType = Annotated[str, Meta(pattern=EVENT_TYPE)]
_NULL: dict[str, str] = {"type": "null"}


def verbatim(*schemas: dict[str, Any], description: str | None = None) -> Meta:
    """How a raw value is described: as one of these."""
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return Meta(description=description, extra_json_schema=schema if schemas else None)


def reference(shape: type[msgspec.Struct]) -> dict[str, str]:
    """To a shape that stands in the document although no field has it as its type."""
    return {"$ref": f"#/components/schemas/{shape.__name__}"}


OBJECT: dict[str, Any] = {"type": "object"}
Metadata = Annotated[Raw, verbatim({"type": "object", "additionalProperties": {"type": "string"}})]
OptionalObject = Annotated[Raw, verbatim(OBJECT, _NULL)]


class Problem(msgspec.Struct, kw_only=True):
    """RFC 9457; `code` is stable."""

    type: str
    title: str
    status: int
    code: str
    detail: str


Outcome = Literal["accepted", "coalesced", "replaced"]


class Accepted(msgspec.Struct, kw_only=True):
    job_id: JobId
    state: State
    outcome: Outcome


class AcceptedJobs(msgspec.Struct):
    jobs: list[Accepted]


class JobError(msgspec.Struct, kw_only=True):
    code: str
    message: str
    retryable: bool
    status: Annotated[int | None, Meta(description="With what status a target refused it.")] | UnsetType = (
        UNSET
    )


OptionalError = Annotated[Raw, verbatim(reference(JobError), _NULL)]


class Artifact(msgspec.Struct, kw_only=True):
    name: str
    content_type: str
    size: Count
    inline: str | UnsetType = UNSET
    url: str | UnsetType = UNSET


class Trace(msgspec.Struct, kw_only=True):
    request_id: str | None
    traceparent: str | None
    tracestate: str | None


class Timings(msgspec.Struct, kw_only=True):
    queued_seconds: float
    loading_seconds: float
    working_seconds: float


class Job(msgspec.Struct, kw_only=True):
    job_id: JobId
    kind: str
    queue: str
    state: State
    reason: Annotated[str | None, Meta(description="Why. `no_worker`: nobody has lately asked for its kind.")]
    priority: int
    model: str | None
    payload: Annotated[Raw, verbatim(description="As submitted, verbatim. Not in lists.")] | UnsetType = UNSET
    result: (
        Annotated[Raw, verbatim(description="What the worker answered, verbatim. Not in lists.")] | UnsetType
    ) = UNSET
    error: OptionalError
    attempt: Count
    max_attempts: Count
    deferrals: Count
    progress: OptionalObject
    created_at: Moment
    run_at: Annotated[Moment | None, Meta(description="null while its target is asleep: nobody knows when.")]
    started_at: Moment | None
    completed_at: Moment | None
    updated_at: Moment
    deadline: Moment | None
    worker: str | None
    target: str | None
    lease_expires_at: Moment | None
    concurrency_key: str | None
    parent_id: JobId | None
    metadata: Metadata
    artifacts: list[Artifact] | UnsetType = UNSET
    trace: Trace
    timings: Timings
    seq: Count
    usage: OptionalObject
    queue_position: (
        Annotated[Count | None, Meta(description="1 is next; only while queued and ready.")] | UnsetType
    ) = UNSET
    submitted_by: (
        Annotated[JobId, Meta(description="The id of the key that submitted it; only where one did.")]
        | UnsetType
    ) = UNSET
    reason_since: (
        Annotated[Moment, Meta(description="Only with `no_worker`: since when. It moves no `seq`.")]
        | UnsetType
    ) = UNSET


class JobPage(msgspec.Struct):
    jobs: list[Job]
    next_cursor: str | None


class DeadLetterPage(msgspec.Struct):
    dead_letters: list[Job]
    next_cursor: str | None


class DeadLetterGroup(msgspec.Struct, kw_only=True):
    """Dead letters that share the code of their error, their kind and their queue."""

    error: Annotated[str | None, Meta(description="The code.")]
    kind: str
    queue: str
    jobs: Count
    first_at: Annotated[Moment, Meta(description="When the first of them failed.")]
    last_at: Moment
    newest: Annotated[Job, Meta(description="The one that failed last, without payload and result.")]


class DeadLetterGroups(msgspec.Struct, kw_only=True):
    groups: Annotated[list[DeadLetterGroup], Meta(description="The largest first, a hundred at most.")]
    found: Annotated[Count, Meta(description="How many groups there are among those looked at.")]
    looked: Annotated[
        Count, Meta(description="How many dead letters of the server were looked at, newest first.")
    ]
    next_cursor: Annotated[str | None, Meta(description="To look at the ones before those; null at the end.")]


class ClaimedJob(Job, kw_only=True):
    lease_token: str


class ClaimedJobs(msgspec.Struct):
    jobs: list[ClaimedJob]


class BriefTrace(msgspec.Struct, gc=False):
    traceparent: str | UnsetType = UNSET
    tracestate: str | UnsetType = UNSET


class BriefClaimedJob(msgspec.Struct, gc=False):
    """What it takes to run a job; what would be null, or empty, is left out."""

    job_id: JobId
    kind: str
    queue: str
    attempt: Count
    max_attempts: Count
    deferrals: Count
    lease_token: str
    lease_expires_at: Moment
    payload: Annotated[Raw, verbatim(description="As submitted, verbatim.")]
    trace: BriefTrace
    deadline: Moment | UnsetType = UNSET
    parent_id: JobId | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


class BriefClaimedJobs(msgspec.Struct):
    jobs: list[BriefClaimedJob]


class Settled(msgspec.Struct, kw_only=True):
    job_id: str
    state: State


class Noted(msgspec.Struct, kw_only=True):
    job_id: str
    seq: Count


class Lease(msgspec.Struct, kw_only=True):
    lease_expires_at: Moment
    cancel_requested: bool
    deadline: Moment | None


class SettlementAnswer(msgspec.Struct, kw_only=True):
    """Of one settlement among many: what the route for it alone would have answered, or the error's code."""

    job_id: str
    ok: bool
    code: str | UnsetType = UNSET
    state: State | UnsetType = UNSET
    seq: Count | UnsetType = UNSET
    lease_expires_at: Moment | UnsetType = UNSET
    cancel_requested: bool | UnsetType = UNSET
    deadline: Moment | UnsetType | None = UNSET


class SettlementAnswers(msgspec.Struct):
    settlements: list[SettlementAnswer]


class Event(msgspec.Struct, kw_only=True):
    seq: Annotated[Count, Meta(description="Gapless from 1 for each job.")]
    type: Annotated[
        EventType, Meta(description="A state, progress, log, output, or a name that a caller posted.")
    ]
    state: Annotated[str, Meta(description="The job's state at that moment.")]
    reason: Annotated[str | None, Meta(description="The transition's verb.")]
    data: Annotated[
        Raw, verbatim(description="What the event carries; what was posted goes out as it came in.")
    ]
    at: Moment


class EventPage(msgspec.Struct):
    events: list[Event]
    next_after: Annotated[
        Count, Meta(description="The cursor to go on from; it moves even when no event matched.")
    ]


class FeedEvent(Event, kw_only=True):
    job_id: str
    queue: str
    truncated: Annotated[bool, Meta(description="The data is too large for the feed.")] | UnsetType = UNSET


class FeedPage(msgspec.Struct):
    events: list[FeedEvent]
    next_after: Annotated[str, Meta(description="The cursor to go on from; kept for at least a day.")]


class Posted(msgspec.Struct):
    seq: Count
    at: Moment


DeliveryState = Literal["pending", "delivered", "given_up", "refused"]


TroubledState = Literal["given_up", "refused"]


class Delivery(msgspec.Struct, kw_only=True):
    delivery_id: Annotated[str, Meta(description="The `webhook-id` header, equal on every try.")]
    seq: Count
    type: Annotated[str, Meta(description="The type of the event it tells of.")]
    state: DeliveryState
    tries: Count
    last_status: int | None
    last_error: str | None
    next_try_at: Annotated[Moment | None, Meta(description="Only while pending.")]
    delivered_at: Moment | None


class ListedDelivery(Delivery, kw_only=True):
    job_id: JobId
    host: str
    created_at: Moment


class DeliveriesOfJob(msgspec.Struct):
    deliveries: list[Delivery]
    next_after: Count | UnsetType = UNSET


class DeliveryPage(msgspec.Struct):
    deliveries: list[ListedDelivery]
    next_cursor: str | None


class DeliveriesToday(msgspec.Struct, kw_only=True):
    """Tries of this day (UTC), by what came of them."""

    delivered: Count = 0
    retried: Count = 0
    given_up: Count = 0
    refused: Count = 0


class WebhookReceiver(msgspec.Struct, kw_only=True):
    host: Annotated[str, Meta(description="`host`, or `host:port`, as it stands in the URLs of jobs.")]
    pending: Annotated[Count, Meta(description="Counted up to 10,000.")]
    failing: Annotated[Count, Meta(description="Of those, how many have been tried before; up to 1,000.")]
    oldest_pending_at: Moment | None
    next_try_at: Moment | None
    last_status: Annotated[int | None, Meta(description="Of a pending one that failed.")]
    last_error: str | None
    circuit: Annotated[
        Literal["closed", "open"],
        Meta(description="open: this process leaves it alone for a while, because it kept failing."),
    ]
    today: DeliveriesToday


class WebhookReceivers(msgspec.Struct):
    receivers: list[WebhookReceiver]


class Redelivery(msgspec.Struct, kw_only=True):
    host: str
    state: TroubledState
    dry_run: bool
    matched: Count
    redelivered: Count
    next_cursor: Annotated[str | None, Meta(description="There may be more: send it along to go on.")]


class WebhookData(msgspec.Struct, kw_only=True):
    job_id: JobId
    seq: Count
    state: State
    previous_state: State | UnsetType | None = UNSET
    timestamp: Moment
    kind: str
    queue: str
    model: str | UnsetType | None = UNSET
    attempt: Count
    error: OptionalError | UnsetType = UNSET
    result: (
        Annotated[Raw, verbatim(description='Of a job that is done; over 256 KB, `{"artifact": …}`.')]
        | UnsetType
    ) = UNSET
    artifacts: list[Artifact]
    metadata: Metadata
    event: (
        Annotated[Raw, verbatim(description="What the event said, for types that are not states.")]
        | UnsetType
    ) = UNSET


class WebhookMessage(msgspec.Struct):
    """The body of a webhook; see docs/receivers.md."""

    type: Annotated[str, Meta(examples=["job.done"])]
    timestamp: Moment
    data: WebhookData


class OpenAIEventData(msgspec.Struct):
    id: Annotated[str, Meta(examples=["resp_01JZ7Q0C3N8W9V5T4R2E1D6A7B"])]


class OpenAIEvent(msgspec.Struct):
    """The body of a webhook in OpenAI's shape: of a response or a batch that has ended."""

    id: Annotated[str, Meta(description="Equal on every try.")]
    object: Literal["event"]
    created_at: Annotated[int, Meta(description="When it ended, in seconds since 1970.")]
    type: Annotated[str, Meta(examples=["response.completed", "batch.failed"])]
    data: OpenAIEventData
