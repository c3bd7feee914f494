"""A submitted job: from the bytes of a request to a `NewJob` row, checked field by field."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.dialects.protocol import AnyObject
from app.dialects.runner import RUNNER_OPTIONS, RunnerOptions
from app.errors import InvalidRequest
from app.jobs import lanes, verbatim
from app.jobs.explain import explain
from app.jobs.ids import is_id, new_id
from app.jobs.states import EXTRA_EVENT_TYPES, RESERVED_EVENT_TYPES, State
from app.jobs.verbatim import Members

# \Z, not $: that would let a line break at the end pass.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}\Z"
EVENT_TYPE = r"^[A-Za-z][A-Za-z0-9._\-]{0,63}\Z"
NO_NUL = r"^[^\x00]*\Z"
TEN_YEARS = 315_576_000.0
MAX_METADATA_ENTRIES = 64
# How many unknown fields an error lists.
MAX_NAMED = 20
# From here on it is worth while not to read the work twice.
LARGE_BYTES = 128 * 1024
# One step inside what datetime can hold: the driver takes the ends themselves for -infinity and infinity.
FIRST_MOMENT = datetime.min.replace(microsecond=1, tzinfo=UTC)
LAST_MOMENT = datetime.max.replace(microsecond=0, tzinfo=UTC)

Name = Annotated[str, Meta(pattern=NAME)]
Seconds = Annotated[float, Meta(ge=0, le=TEN_YEARS)]
Moment = Annotated[datetime, Meta(tz=True)]
Backoff = Annotated[list[Seconds], Meta(min_length=1, max_length=50)]
MetadataKey = Annotated[str, Meta(min_length=1, max_length=128, pattern=NO_NUL)]
MetadataValue = Annotated[str, Meta(max_length=2048, pattern=NO_NUL)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=MAX_METADATA_ENTRIES)]
# Described, but checked by hand: in words that say more than a pattern does.
GivenJobId = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"})]
WebhookUrl = Annotated[
    str, Meta(min_length=1, max_length=2048, pattern=NO_NUL, extra_json_schema={"format": "uri"})
]


class Extensions(msgspec.Struct, frozen=True, gc=False):
    """The fields that are Foreman's own; whatever else stands beside them is the work."""

    kind: Annotated[
        Name, Meta(description="chat, generate, embed, http, noop, or a kind of your own workers.")
    ] = "chat"
    queue: Name = "default"
    priority: Annotated[int, Meta(ge=-100, le=100, description="Higher goes first.")] = 0
    run_at: Annotated[Moment, Meta(description="Not before this moment.")] | None = None
    delay_seconds: Seconds | None = None
    deadline: Annotated[Moment, Meta(description="The whole job expires at this moment.")] | None = None
    deadline_seconds: Annotated[float, Meta(gt=0, le=TEN_YEARS)] | None = None
    max_duration_seconds: (
        Annotated[float, Meta(gt=0, le=TEN_YEARS, description="For one attempt.")] | None
    ) = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    backoff_seconds: Seconds | Backoff | None = None
    parent_id: GivenJobId | None = None
    state_webhook_url: WebhookUrl | None = None
    webhook_events: Annotated[list[Annotated[str, Meta(pattern=EVENT_TYPE)]], Meta(max_length=50)] | None = (
        None
    )
    webhook_secret: Annotated[str, Meta(max_length=512)] | None = None
    metadata: Metadata | None = None
    target: Name | None = None
    depends_on: (
        Annotated[
            list[GivenJobId],
            Meta(
                max_length=100,
                description="Jobs that must be done first; "
                "until then this one is queued, reason waiting_for.",
            ),
        ]
        | None
    ) = None
    on_dependency_failure: (
        Annotated[
            Literal["cancel", "run"],
            Meta(description="What to do when one of them ends other than done; cancel if absent."),
        ]
        | None
    ) = None


class LlmBody(msgspec.Struct, frozen=True, gc=False):
    """What Foreman itself needs to understand of an Ollama-shaped body."""

    model: Annotated[str, Meta(min_length=1, max_length=512, pattern=NO_NUL)]
    messages: list[AnyObject] | None = None
    options: RunnerOptions | None = None


class JobRequest(Extensions, frozen=True, gc=False):
    """An Ollama-shaped body with Foreman's fields beside it, or those fields and a payload.

    Unknown fields of a chat, generate or embed body are passed on to the target.
    """

    model: Annotated[str, Meta(description="For chat, generate and embed.")] | UnsetType = UNSET
    messages: list[dict[str, Any]] | None = None
    payload: (
        Annotated[
            dict[str, Any], Meta(description="The work, for kinds other than chat, generate and embed.")
        ]
        | UnsetType
    ) = UNSET


class PlainRequest(Extensions, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """The fields and a payload, as most submissions are: read in one go, the payload left as it is."""

    # Without a kind it would be a chat.
    kind: Name
    payload: msgspec.Raw = msgspec.Raw(b"{}")


class MetadataAsWritten(msgspec.Struct, frozen=True, gc=False):
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


EXTENSION_FIELDS = frozenset(Extensions.__struct_fields__)
_decode_extensions = msgspec.json.Decoder(Extensions).decode
_decode_llm = msgspec.json.Decoder(LlmBody).decode
_decode_plain = msgspec.json.Decoder(PlainRequest).decode
_decode_metadata = msgspec.json.Decoder(MetadataAsWritten).decode
_decode_all_plain = msgspec.json.Decoder(list[PlainRequest]).decode
_decode_all_metadata = msgspec.json.Decoder(list[MetadataAsWritten]).decode


class NewJob(msgspec.Struct, gc=False):
    """A job about to be enqueued: one row of the insert."""

    id: str
    tenant: str
    queue: str
    lane: str
    kind: str
    payload: str
    model: str | None = None
    priority: int = 0
    interactive: bool = False
    run_at: datetime | None = None
    delay_seconds: float | None = None
    deadline: datetime | None = None
    deadline_seconds: float | None = None
    max_duration_seconds: float | None = None
    max_attempts: int | None = None
    backoff_seconds: list[float] | None = None
    parent_id: str | None = None
    webhook_url: str | None = None
    webhook_events: list[str] | None = None
    # As it came; what is stored is the sealed form, which whoever takes the job in puts beside it.
    webhook_secret: str | None = None
    sealed_webhook_secret: bytes | None = None
    metadata: str | None = None
    target: str | None = None
    request_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    depends_on: list[str] | None = None
    on_dependency_failure: str | None = None
    # Decided by the queue's settings, not by the caller.
    concurrency_key: str | None = None
    fair_value: str | None = None
    dialect: str | None = None
    # Not the caller's word, but what the caller is known by.
    key_id: str | None = None
    webhook_shape: str | None = None

    def __repr__(self) -> str:
        """Without what is nobody's business: payloads and secrets are in no log."""
        return f"NewJob(id={self.id!r}, tenant={self.tenant!r}, queue={self.queue!r}, kind={self.kind!r})"


def parse_job(body: bytes, tenant: str, max_depth: int = verbatim.DEFAULT_MAX_DEPTH) -> NewJob:
    """Check a submitted job and make its row. Raises InvalidRequest naming every wrong field."""
    return _parse_plain(body, tenant, max_depth) or _parse_any(body, tenant, max_depth)


def _parse_plain(body: bytes, tenant: str, max_depth: int) -> NewJob | None:
    """A job whose work is its payload; None for any other, and for what is wrong in whatever way."""
    if b'"kind"' not in body:
        return None
    verbatim.check_text(body, max_depth)
    try:
        request = _decode_plain(body)
        return _plain_job(tenant, request, _decode_metadata(body) if request.metadata else None)
    except NOT_PLAIN:
        return None


def parse_plain_jobs(array: msgspec.Raw, tenant: str) -> list[NewJob] | None:
    """The same of a whole list of them, whose text was checked."""
    try:
        requests = _decode_all_plain(array)
        if not any(request.metadata for request in requests):
            return [_plain_job(tenant, request, None) for request in requests]
        written = zip(requests, _decode_all_metadata(array), strict=True)
        return [
            _plain_job(tenant, request, metadata if request.metadata else None)
            for request, metadata in written
        ]
    except NOT_PLAIN:
        return None


def _plain_job(tenant: str, request: PlainRequest, metadata: MetadataAsWritten | None) -> NewJob:
    payload = str(request.payload, "utf-8")
    if request.kind in lanes.LLM_KINDS or not payload.startswith("{"):
        raise _NotPlain
    _check_pairs(request)
    given = None if metadata is None else str(metadata.metadata, "utf-8")
    return new_job(tenant, request, payload, metadata=given)


class _NotPlain(Exception):
    """It has to be read more thoroughly."""


NOT_PLAIN = (_NotPlain, msgspec.MsgspecError, RecursionError, InvalidRequest)


def _parse_any(body: bytes, tenant: str, max_depth: int) -> NewJob:
    """Field by field: it knows the words for all that can be wrong."""
    parts = verbatim.members(body, max_depth)
    try:
        fields = _decode_extensions(body if len(body) <= LARGE_BYTES else _own_fields(parts))
    except msgspec.ValidationError as problem:
        raise explain(parts, Extensions) from problem
    _check_pairs(fields)
    metadata = bytes(parts["metadata"]).decode() if fields.metadata else None
    if fields.kind not in lanes.LLM_KINDS:
        return new_job(tenant, fields, _payload(parts), metadata=metadata)
    try:
        llm = _decode_llm(body)
    except msgspec.ValidationError as problem:
        raise explain(parts, LlmBody) from problem
    payload = verbatim.assemble(parts, EXTENSION_FIELDS)
    return new_job(tenant, fields, payload, llm.model, llm.options, metadata=metadata)


def checked(given: Mapping[str, Any]) -> Extensions:
    """Fields that came by another way than a body, checked as if they had come in one."""
    body = msgspec.json.encode(given)
    try:
        fields = _decode_extensions(body)
    except msgspec.ValidationError as problem:
        raise explain(verbatim.members(body), Extensions) from problem
    _check_pairs(fields)
    return fields


def new_job(
    tenant: str,
    fields: Extensions,
    payload: str,
    model: str | None = None,
    options: RunnerOptions | None = None,
    *,
    metadata: str | None = None,
) -> NewJob:
    """The row of a job whose fields were checked, with the model of an LLM job; `metadata` is their JSON."""
    if model is None:
        lane = lanes.kind_lane(fields.kind, tenant)
    else:
        lane = lanes.llm_lane(model, _options_key(options), fields.target)
    # In the order of its fields: by name it would cost as much again as all the rest of reading a small job.
    return NewJob(
        new_id(),
        tenant,
        fields.queue,
        lane,
        fields.kind,
        payload,
        model,
        fields.priority,
        False,  # interactive
        None if fields.run_at is None else _utc("run_at", fields.run_at),
        fields.delay_seconds,
        None if fields.deadline is None else _utc("deadline", fields.deadline),
        fields.deadline_seconds,
        fields.max_duration_seconds,
        fields.max_attempts,
        None if fields.backoff_seconds is None else _ladder(fields.backoff_seconds),
        fields.parent_id,
        fields.state_webhook_url,
        fields.webhook_events,
        fields.webhook_secret,
        None,  # the sealed secret
        metadata,
        fields.target,
        depends_on=list(dict.fromkeys(fields.depends_on)) if fields.depends_on else None,
        on_dependency_failure=fields.on_dependency_failure,
    )


def _own_fields(parts: Members) -> str:
    """Without the work, which has been read once already."""
    return verbatim.assemble(parts, frozenset(parts.keys() - EXTENSION_FIELDS))


def _check_pairs(fields: Extensions) -> None:
    if fields.run_at is not None and fields.delay_seconds is not None:
        raise invalid("delay_seconds", "give run_at or delay_seconds, not both")
    if fields.deadline is not None and fields.deadline_seconds is not None:
        raise invalid("deadline_seconds", "give deadline or deadline_seconds, not both")
    if fields.parent_id is not None and not is_id(fields.parent_id):
        raise invalid("parent_id", "is not a job id")
    for dependency in fields.depends_on or ():
        if not is_id(dependency):
            raise invalid("depends_on", f"{shown(dependency)} is not a job id")
    if fields.on_dependency_failure is not None and not fields.depends_on:
        raise invalid("on_dependency_failure", "means nothing without depends_on")
    if fields.state_webhook_url is None and (fields.webhook_events or fields.webhook_secret):
        raise invalid("state_webhook_url", "is needed when webhook_events or webhook_secret is given")
    for name in fields.webhook_events or ():
        _check_event_name(name)


def _check_event_name(name: str) -> None:
    """Foreman's own types by their word; a caller's own have a dot, so that no slip passes for one."""
    if name in RESERVED_EVENT_TYPES or ("." in name and not name.startswith("job.")):
        return
    known = ", ".join([*State, *sorted(EXTRA_EVENT_TYPES)])
    raise invalid(
        "webhook_events",
        f"{shown(name)} is not an event type: there are {known}, and names of your own with a dot",
    )


def _options_key(options: RunnerOptions | None) -> str:
    if options is None:
        return ""
    given = ((name, getattr(options, name)) for name in RUNNER_OPTIONS)
    return ",".join(f"{name}={value}" for name, value in given if value is not UNSET and value is not None)


def _payload(parts: Members) -> str:
    unknown = sorted(parts.keys() - EXTENSION_FIELDS - {"payload"})
    if unknown:
        named = unknown[:MAX_NAMED]
        more = f" and {len(unknown) - len(named)} more" if len(unknown) > len(named) else ""
        raise InvalidRequest(
            f"Not known beside payload: {', '.join(map(shown, named))}{more}.",
            errors=[{"field": name, "message": "is unknown; the work goes into payload"} for name in named],
        )
    raw = parts.get("payload")
    if raw is None:
        return "{}"
    text = bytes(raw).decode()
    if not text.startswith("{"):
        raise invalid("payload", "must be an object")
    return text


def _utc(field: str, moment: datetime) -> datetime:
    try:
        return min(max(moment.astimezone(UTC), FIRST_MOMENT), LAST_MOMENT)
    except OverflowError as problem:
        raise invalid(field, "is out of range") from problem


def _ladder(backoff: float | list[float]) -> list[float]:
    return backoff if isinstance(backoff, list) else [backoff]


def is_name(text: str) -> bool:
    return re.match(NAME, text) is not None


def shown(text: str) -> str:
    """A caller's own text, made short enough to be named in an error."""
    return text if len(text) <= 80 else text[:77] + "…"


def invalid(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{shown(field)}: {message}.", errors=[{"field": field, "message": message}])
