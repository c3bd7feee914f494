"""One try: compose, sign, post, and judge the answer. Knows nothing of schedules, hosts or leases.

A message is made from the event's own row: every try says the same, however far the job has come.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Literal

import orjson

from app.jobs.artifacts import INLINE_LIMIT, RESULT, artifact_list, artifact_url
from app.jobs.lanes import LLM_KINDS
from app.jobs.openai_events import OPENAI_SHAPE
from app.jobs.outcomes import shown_error
from app.jobs.signing import sign
from app.jobs.states import TERMINAL, State
from app.outbound.client import GuardedClient
from app.outbound.errors import OutboundError, OutboundRefused
from app.outbound.response import OutboundResponse
from app.secretbox import SecretBox, SecretBoxError
from app.store import outbox
from app.store.database import Database
from app.store.events import CHATTER_TYPES
from app.store.outbox import DueDelivery
from app.webhooks.openai_event import compose_event

DEADLINE_SECONDS = 15.0
MAX_RESPONSE_BYTES = 16 * 1024
MAX_RESULT_BYTES = INLINE_LIMIT

_STATES = frozenset(str(state) for state in State)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a try went. `receiver_is_well` is None when nothing was learned about the receiver."""

    outcome: Literal["delivered", "failed", "given_up", "refused"]
    status: int | None = None
    error: str | None = None
    retry_after: float | None = None
    receiver_is_well: bool | None = None


class Sender:
    """Sends deliveries through the guard, signed with the job's secret or else the server's."""

    def __init__(
        self, client: GuardedClient, box: SecretBox | None, server_secrets: Sequence[str], database: Database
    ) -> None:
        self._client = client
        self._box = box
        self._server_secrets = server_secrets
        self._database = database
        # Results of many megabytes are looked into one at a time.
        self._large = asyncio.Lock()

    async def send(self, delivery: DueDelivery) -> Verdict:
        try:
            body = await self._body(delivery)
            response = await self._client.request(
                "POST",
                delivery.webhook_url,
                headers=self._headers(delivery, body, int(time.time())),
                content=body,
                deadline_seconds=DEADLINE_SECONDS,
                max_response_bytes=MAX_RESPONSE_BYTES,
            )
        except OutboundRefused as refused:
            return Verdict("refused", error=refused.reason)
        except OutboundError as problem:
            return Verdict("failed", error=problem.reason, receiver_is_well=False)
        except SecretBoxError as problem:
            # Never unsigned instead. The operator may bring the key back.
            return Verdict("failed", error=f"the webhook secret cannot be read: {problem}")
        return _judge(response)

    async def _body(self, delivery: DueDelivery) -> bytes:
        if delivery.type in CHATTER_TYPES:
            said = await outbox.chatter_of(self._database, delivery.job_id, delivery.seq)
            return compose(delivery, chatter=said)
        if not (is_too_large(delivery) and delivery.kind in LLM_KINDS):
            return _compose(delivery, None)
        async with self._large:
            result = await outbox.result_of(self._database, delivery.job_id)
            return _compose(delivery, result)

    def _headers(self, delivery: DueDelivery, body: bytes, timestamp: int) -> dict[str, str]:
        message_id = delivery_id(delivery.job_id, delivery.seq)
        headers = {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
        }
        secrets = self._secrets(delivery)
        if secrets:
            headers["webhook-signature"] = sign(secrets, message_id, timestamp, body)
        if delivery.traceparent:
            headers["traceparent"] = delivery.traceparent
            if delivery.tracestate:
                headers["tracestate"] = delivery.tracestate
        return headers

    def _secrets(self, delivery: DueDelivery) -> Sequence[str]:
        sealed = delivery.webhook_secret
        if sealed is None:
            return self._server_secrets
        if self._box is None:
            raise SecretBoxError("FOREMAN_SECRET_KEY is not set")
        return [self._box.open(sealed, delivery.job_id)]


def _judge(response: OutboundResponse) -> Verdict:
    status = response.status
    if 200 <= status < 300:
        return Verdict("delivered", status, receiver_is_well=True)
    error = f"the receiver answered {status}"
    if status == HTTPStatus.GONE:
        return Verdict("given_up", status, error, receiver_is_well=True)
    if 300 <= status < 400:
        error += ": redirects are not followed"
    return Verdict(
        "failed",
        status,
        error,
        retry_after=response.retry_after_seconds(datetime.now(UTC)),
        receiver_is_well=status < 500 and status != HTTPStatus.TOO_MANY_REQUESTS,
    )


def delivery_id(job_id: str, seq: int) -> str:
    """The `webhook-id`: equal on every try."""
    return f"{job_id}-{seq}"


def is_too_large(delivery: DueDelivery) -> bool:
    """Whether the result is left out of the message and referred to instead."""
    return (delivery.result_bytes or 0) > MAX_RESULT_BYTES


def _compose(delivery: DueDelivery, large_result: str | None) -> bytes:
    """In the shape that the job asked for. Only what a run says has no other shape than ours."""
    if delivery.webhook_shape == OPENAI_SHAPE:
        event_id = f"evt_{delivery_id(delivery.job_id, delivery.seq)}"
        return compose_event(delivery, event_id, large_result or delivery.result)
    return compose(delivery, large_result=large_result)


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
    error = shown_error(delivery.error) if is_end else None
    return orjson.Fragment(error) if error else None


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
