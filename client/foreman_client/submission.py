"""From the arguments of `submit` to the body of `POST /jobs`, with what a running job hands down. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

from foreman_client.context import RunningJob
from foreman_client.wire import moment, plain, timestamp

# Their payload is the body itself, as Ollama has it; all other kinds have a field `payload`.
OLLAMA_KINDS: Final = frozenset({"chat", "generate", "embed"})


class ModelFields(TypedDict, total=False):
    """The usual fields of a chat, generate or embed job; rarer ones go into `payload` and are merged in."""

    model: str
    messages: Sequence[Mapping[str, Any]]
    prompt: str
    system: str
    input: str | Sequence[str]
    images: Sequence[str]
    tools: Sequence[Mapping[str, Any]]
    format: str | Mapping[str, Any]
    options: Mapping[str, Any]
    think: bool | str
    keep_alive: str | int | float


class JobOptions(ModelFields, total=False):
    """The extension fields, by their names on the wire. None is the same as leaving one out, but for
    `parent_id`: None there means no parent, even inside a running job."""

    queue: str | None
    priority: int | None
    run_at: datetime | str | None
    delay_seconds: float | timedelta | None
    deadline: datetime | str | None
    deadline_seconds: float | timedelta | None
    max_duration_seconds: float | timedelta | None
    max_attempts: int | None
    backoff_seconds: float | Sequence[float] | None
    parent_id: str | None
    depends_on: Sequence[str] | None
    state_webhook_url: str | None
    webhook_events: Sequence[str] | None
    webhook_secret: str | None
    metadata: Mapping[str, str] | None
    target: str | None


def job_body(
    kind: str, payload: Any, options: Mapping[str, Any], parent: RunningJob | None
) -> dict[str, Any]:
    """One entry for the server."""
    body: dict[str, Any] = {} if kind == "chat" else {"kind": kind}
    if payload is not None:
        content = payload if isinstance(payload, Mapping) else plain(payload)
        if kind in OLLAMA_KINDS:
            body.update(content)
        else:
            body["payload"] = content
    for name, value in options.items():
        if value is not None or name == "parent_id":
            body[name] = wire_value(value)
    return hand_down(body, parent)


def hand_down(body: Mapping[str, Any], parent: RunningJob | None) -> dict[str, Any]:
    """Add parent and deadline of the running job, unless the entry names a parent, or None, itself.

    The deadline goes as a point in time, not as seconds left: a handler that runs again then submits the very
    same body, and an idempotency key of its own choosing still matches.
    """
    entry = dict(body)
    if "parent_id" in entry:
        if entry["parent_id"] is None:
            del entry["parent_id"]
        return entry
    if parent is None:
        return entry
    entry["parent_id"] = parent.job_id
    # With deadline_seconds the server does the capping: it knows the parent and whose clock counts.
    if parent.deadline is not None and "deadline_seconds" not in entry:
        own = moment(entry.get("deadline"))
        entry["deadline"] = timestamp(min(own, parent.deadline) if own else parent.deadline)
    return entry


def wire_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value
