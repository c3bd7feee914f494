"""Webhook deliveries: those of a job, those of all jobs, and sending one again."""

import base64
import binascii
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from app.api import describe_webhooks as describe
from app.api.direct import direct_router, json_response
from app.api.house import house_of, tenant_of
from app.api.jobs import job_id_of, limit_of
from app.api.render import dump
from app.errors import NotFound
from app.jobs.ids import ID_LENGTH, is_id
from app.jobs.submission import invalid
from app.store import outbox
from app.store.outbox import Delivery, DeliveryFilter
from app.webhooks.message import delivery_id

router = direct_router("webhooks")

STATES = ("pending", "delivered", "given_up", "refused")
FILTERS = frozenset({"host", "state", "limit", "cursor"})
MAX_OF_JOB = 1000
MAX_SEQ = 2**31 - 1


@router.get("/jobs/{job_id}/webhooks", **describe.OF_JOB)
async def of_job(request: Request) -> Response:
    house = house_of(request)
    job_id = job_id_of(request)
    after = _number(request.query_params.get("after", "0"))
    if after is None:
        raise invalid("after", "must be a seq")
    found = await outbox.deliveries_of(house.database, job_id, tenant_of(request), after, MAX_OF_JOB + 1)
    if not found and not await outbox.job_exists(house.database, job_id, tenant_of(request)):
        raise NotFound("There is no such job.")
    document: dict[str, Any] = {"deliveries": [_document(each) for each in found[:MAX_OF_JOB]]}
    if len(found) > MAX_OF_JOB:
        document["next_after"] = found[MAX_OF_JOB - 1].seq
    return json_response(dump(document))


@router.post("/jobs/{job_id}/webhooks/{delivery_id}/redeliver", status_code=202, **describe.REDELIVER)
async def redeliver(request: Request) -> Response:
    house = house_of(request)
    job_id = job_id_of(request)
    named, _, seq = request.path_params["delivery_id"].partition("-")
    number = _number(seq)
    if named != job_id or number is None:
        raise NotFound("There is no such delivery.")
    changes = await outbox.redeliver(house.database, job_id, tenant_of(request), number)
    if not changes.answers:
        raise NotFound("There is no such delivery.")
    house.hub.announce(changes)
    return json_response(dump(_document(changes.answers[0])), 202)


@router.get("/webhooks", **describe.LIST)
async def list_all(request: Request) -> Response:
    house = house_of(request)
    query = request.query_params
    for name, value in query.multi_items():
        if name not in FILTERS:
            raise invalid(name, "is not a known filter")
        if "\0" in value:
            raise invalid(name, "has a NUL character")
    state = query.get("state")
    if state is not None and state not in STATES:
        raise invalid("state", f"must be one of {', '.join(STATES)}")
    limit = limit_of(query.get("limit"))
    cursor = query.get("cursor")
    wanted = DeliveryFilter(state, query.get("host"), None if cursor is None else _decode_cursor(cursor))
    found = await outbox.list_deliveries(house.database, wanted, tenant_of(request), limit + 1)
    following = _encode_cursor(found[limit - 1]) if len(found) > limit else None
    headers = {}
    if following:
        page = request.url.include_query_params(cursor=following)
        headers["link"] = f'<{page.path}?{page.query}>; rel="next"'
    documents = [
        {"job_id": each.job_id, "host": each.host, "created_at": each.created_at, **_document(each)}
        for each in found[:limit]
    ]
    return json_response(dump({"deliveries": documents, "next_cursor": following}), 200, headers)


def _document(delivery: Delivery) -> dict[str, Any]:
    return {
        "delivery_id": delivery_id(delivery.job_id, delivery.seq),
        "seq": delivery.seq,
        "type": delivery.type,
        "state": delivery.state,
        "tries": delivery.tries,
        "last_status": delivery.last_status,
        "last_error": delivery.last_error,
        "next_try_at": delivery.next_try_at if delivery.state == "pending" else None,
        "delivered_at": delivery.delivered_at,
    }


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    number = int(text)
    return number if number <= MAX_SEQ else None


def _encode_cursor(last: Delivery) -> str:
    return base64.urlsafe_b64encode(f"1:{last.job_id}:{last.seq}".encode()).decode().rstrip("=")


def _decode_cursor(cursor: str) -> tuple[str, int]:
    try:
        version, _, rest = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition(":")
    except (binascii.Error, ValueError) as problem:
        raise invalid("cursor", "is not a cursor of ours") from problem
    job_id, seq = rest[:ID_LENGTH], _number(rest[ID_LENGTH + 1 :])
    if version != "1" or not is_id(job_id) or seq is None:
        raise invalid("cursor", "is not a cursor of ours")
    return job_id, seq
