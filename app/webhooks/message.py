"""What a webhook says: the event as it happened, with the job it happened to.

Pure. Made from the event's own row: every try of a delivery says the same, however far the job has come.
"""

from typing import Any

import orjson

from app.jobs.artifacts import INLINE_LIMIT, RESULT, artifact_list, artifact_url
from app.jobs.states import TERMINAL, State
from app.store.outbox import DueDelivery

MAX_RESULT_BYTES = INLINE_LIMIT

_STATES = frozenset(str(state) for state in State)


def delivery_id(job_id: str, seq: int) -> str:
    """The `webhook-id`: equal on every try."""
    return f"{job_id}-{seq}"


def is_too_large(delivery: DueDelivery) -> bool:
    """Whether the result is left out of the message and referred to instead."""
    return (delivery.result_bytes or 0) > MAX_RESULT_BYTES


def compose(delivery: DueDelivery, *, large_result: str | None = None, chatter: str | None = None) -> bytes:
    """The body, with what did not come with the delivery itself: a large result, what a run said."""
    is_state = delivery.type in _STATES
    said: dict[str, Any] = {
        "job_id": delivery.job_id,
        "seq": delivery.seq,
        "state": delivery.state,
        "previous_state": delivery.previous_state,
        "timestamp": delivery.at,
        "kind": delivery.kind,
        "queue": delivery.queue,
        "model": delivery.model,
        "attempt": delivery.attempt,
        "error": _error(delivery) if is_state else None,
        "result": _result(delivery),
        "artifacts": artifact_list(
            delivery.job_id,
            delivery.kind,
            (large_result or delivery.result) if delivery.type == "done" else None,
            delivery.stored_artifacts,
        ),
        "metadata": orjson.Fragment(delivery.metadata) if delivery.metadata else {},
    }
    if not is_state:
        data = delivery.data or chatter
        said["event"] = orjson.Fragment(data) if data else None
    return orjson.dumps(
        {"type": f"job.{delivery.type}", "timestamp": delivery.at, "data": said},
        option=orjson.OPT_UTC_Z,
    )


def _error(delivery: DueDelivery) -> Any:
    """The error that this event brought; for an end, also one that the job already had."""
    data = delivery.data
    if data and '"error"' in data:
        return orjson.loads(data).get("error")
    is_end = delivery.state in TERMINAL and delivery.state == delivery.job_state
    return orjson.Fragment(delivery.error) if is_end and delivery.error else None


def _result(delivery: DueDelivery) -> Any:
    if is_too_large(delivery):
        reference = {
            "name": RESULT,
            "content_type": "application/json",
            "size": delivery.result_bytes,
            "url": artifact_url(delivery.job_id, RESULT),
        }
        return {"artifact": reference}
    return None if delivery.result is None else orjson.Fragment(delivery.result)
