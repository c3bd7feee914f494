"""/bulk-operations: one verb for all jobs that match a filter, with a dry run and progress."""

import asyncio
import time
from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.api import describe_queues as describe
from app.api.direct import direct_router, json_response, read_as
from app.api.headers import prefer_wait
from app.api.house import House, house_of, tenant_of
from app.api.jobs import moment_of
from app.api.render import dump
from app.errors import InvalidTransition, NotFound
from app.jobs import verbatim
from app.jobs.ids import is_id
from app.jobs.states import State
from app.jobs.submission import explain, invalid
from app.store import bulk
from app.store.read import Filter

router = direct_router("operators")

MAX_LISTED = 100
LOOK_SECONDS = 0.1


class JobFilter(msgspec.Struct, forbid_unknown_fields=True):
    """The filters of GET /jobs, as JSON."""

    state: str | list[str] | None = None
    queue: str | None = None
    kind: str | None = None
    model: str | None = None
    since: str | None = None
    until: str | None = None
    metadata: dict[str, str] | None = None


class BulkRequest(msgspec.Struct, forbid_unknown_fields=True):
    filter: JobFilter
    action: str | None = None
    dry_run: bool = False


@router.post("/bulk-operations", status_code=202, **describe.BEGIN_BULK)
async def begin(request: Request) -> Response:
    wanted = await read_bulk(request)
    if wanted.action is None or wanted.action not in bulk.ACTIONS:
        raise invalid("action", f"must be one of {', '.join(bulk.ACTIONS)}")
    return await run_bulk(request, wanted.action, wanted)


@router.get("/bulk-operations", **describe.LIST_BULK)
async def list_operations(request: Request) -> Response:
    house = house_of(request)
    found = await bulk.list_operations(house.database, tenant_of(request), MAX_LISTED)
    return json_response(dump({"operations": [_document(each) for each in found]}))


@router.get("/bulk-operations/{operation_id}", **describe.GET_BULK)
async def get(request: Request) -> Response:
    return json_response(dump(_document(await _operation(request))))


@router.post("/bulk-operations/{operation_id}/stop", **describe.STOP_BULK)
async def stop(request: Request) -> Response:
    operation = await _operation(request)
    stopped = await bulk.stop(house_of(request).database, operation.id, tenant_of(request))
    if stopped is None:
        raise InvalidTransition(f"This operation is {operation.state} already.", state=operation.state)
    return json_response(dump(_document(stopped)))


async def read_bulk(request: Request) -> BulkRequest:
    return await read_as(request, _parse_bulk, house_of(request).settings.max_json_depth)


def _parse_bulk(body: bytes, max_depth: int) -> BulkRequest:
    parts = verbatim.members(body, max_depth)
    try:
        return msgspec.json.decode(body, type=BulkRequest)
    except msgspec.ValidationError as problem:
        unknown = sorted(parts.keys() - set(BulkRequest.__struct_fields__))
        raise (
            invalid(unknown[0], "is not a known field") if unknown else explain(parts, BulkRequest)
        ) from problem


async def run_bulk(request: Request, action: str, wanted: BulkRequest) -> Response:
    """Count (dry run), or begin and answer at once; with `Prefer: wait=N` when it is done, if in time."""
    house, tenant = house_of(request), tenant_of(request)
    matching = _filter(wanted.filter)
    if not bulk.states_of(action, matching):
        works_on = ", ".join(sorted(bulk.ACTIONS[action]))
        raise invalid("filter.state", f"{action} works on jobs that are {works_on}")
    if wanted.dry_run:
        matched = await bulk.count(house.database, action, matching, tenant)
        return json_response(dump({"action": action, "dry_run": True, "matched": matched}))
    begun = await bulk.begin(house.database, action, matching, tenant)
    house.hub.announce(begun)
    [operation] = begun.answers
    headers = {"location": f"/bulk-operations/{operation.id}"}
    wait = prefer_wait(request)
    if wait is not None:
        operation = await _wait(house, operation, tenant, wait)
        if operation.state != "running":
            headers["preference-applied"] = f"wait={wait}"
            return json_response(dump(_document(operation)), 200, headers)
    return json_response(dump(_document(operation)), 202, headers)


async def _wait(house: House, operation: bulk.Operation, tenant: str, seconds: float) -> bulk.Operation:
    ends = time.monotonic() + seconds
    while operation.state == "running" and time.monotonic() < ends and not house.hub.closing:
        await asyncio.sleep(LOOK_SECONDS)
        operation = await bulk.get(house.database, operation.id, tenant) or operation
    return operation


async def _operation(request: Request) -> bulk.Operation:
    operation_id: str = request.path_params["operation_id"]
    found = (
        await bulk.get(house_of(request).database, operation_id, tenant_of(request))
        if is_id(operation_id)
        else None
    )
    if found is None:
        raise NotFound("There is no such operation.")
    return found


def _filter(given: JobFilter) -> Filter:
    states = [given.state] if isinstance(given.state, str) else given.state or []
    for state in states:
        if state not in set(State):
            raise invalid("filter.state", f"must be one of {', '.join(State)}")
    texts = [given.queue, given.kind, given.model, *(given.metadata or {}), *(given.metadata or {}).values()]
    if any("\0" in text for text in texts if text is not None):
        raise invalid("filter", "has a NUL character")
    return Filter(
        states=states,
        queue=given.queue,
        kind=given.kind,
        model=given.model,
        since=moment_of("filter.since", given.since),
        until=moment_of("filter.until", given.until),
        metadata=given.metadata or {},
    )


def _document(operation: bulk.Operation) -> dict[str, Any]:
    kept = orjson.loads(operation.filter)
    return {
        "operation_id": operation.id,
        "action": operation.action,
        "filter": {name: value for name, value in kept.items() if value},
        "state": operation.state,
        "matched": operation.matched,
        "visited": operation.passed,
        "moved": operation.moved,
        "created_at": operation.created_at,
        "updated_at": operation.updated_at,
        "completed_at": operation.completed_at,
    }
