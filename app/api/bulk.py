"""/bulk-operations: one verb for all jobs that match a filter, with a dry run and progress."""

import asyncio
import time
from typing import Annotated, cast

import msgspec
import orjson
from fastapi import Depends, Header, Path
from msgspec import Meta
from starlette.requests import Request

from app.api.job_parameters import moment_of, prefer_wait, prefix_of
from app.api.operator_documents import (
    BulkAction,
    BulkCount,
    BulkOperation,
    BulkOperations,
    BulkState,
    JobFilter,
)
from app.api.parameters import JsonBody, Server, Tenant
from app.api.routes import LOCATION, Answer, AnswerHeader, AnyOf, Reply, Routes
from app.api.services import Services
from app.errors import InvalidTransition, NotFound
from app.identity.scopes import Scope
from app.jobs.ids import is_id
from app.jobs.states import State
from app.jobs.submission import invalid
from app.store import bulk
from app.store.read import Filter

routes = Routes("operators")

MAX_LISTED = 100
LOOK_SECONDS = 0.1


class BulkRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    filter: JobFilter
    dry_run: Annotated[bool, Meta(description="Only count.")] = False


class NewBulkOperation(BulkRequest, kw_only=True, forbid_unknown_fields=True):
    # Described, and checked by hand: the error then names them all.
    action: Annotated[str, Meta(extra_json_schema={"enum": list(bulk.ACTIONS)})]

    def check(self) -> None:
        if self.action not in bulk.ACTIONS:
            raise invalid("action", f"must be one of {', '.join(bulk.ACTIONS)}")


async def _wait(
    request: Request,
    # Read from the request, because there may be several.
    _prefer: Annotated[
        str | None,
        Header(
            alias="Prefer",
            description="`wait=N`, N up to 300: answer 200 when the last step is taken, if that is in time.",
        ),
    ] = None,
) -> int | None:
    return prefer_wait(request)


PreferWait = Annotated[int | None, Depends(_wait)]
BULK_ANSWERS = {
    202: Reply("Begun", BulkOperation, (LOCATION,)),
    200: Reply(
        "Counted (dry run), or finished in time",
        AnyOf((BulkCount, BulkOperation)),
        (LOCATION, AnswerHeader("Preference-Applied")),
    ),
}
BULK_ERRORS = (400, 413, 422, 503)


@routes.post(
    "/bulk-operations",
    Scope.ADMIN_WRITE,
    "Cancel, retry, dismiss or delete all jobs that match a filter",
    BULK_ANSWERS,
    errors=BULK_ERRORS,
)
async def begin(
    server: Server,
    tenant: Tenant,
    wanted: Annotated[NewBulkOperation, Depends(JsonBody(NewBulkOperation))],
    wait: PreferWait,
) -> Answer[BulkCount | BulkOperation]:
    return await run_bulk(server, tenant, cast(BulkAction, wanted.action), wanted, wait)


@routes.get("/bulk-operations", Scope.ADMIN_READ, "List bulk operations, newest first", "The last hundred")
async def list_operations(server: Server, tenant: Tenant) -> BulkOperations:
    found = await bulk.list_operations(server.database, tenant, MAX_LISTED)
    return BulkOperations([_document(each) for each in found])


async def existing_operation(
    server: Server, tenant: Tenant, operation_id: Annotated[str, Path()]
) -> bulk.Operation:
    found = await bulk.get(server.database, operation_id, tenant) if is_id(operation_id) else None
    if found is None:
        raise NotFound("There is no such operation.")
    return found


OperationInPath = Annotated[bulk.Operation, Depends(existing_operation)]


@routes.get(
    "/bulk-operations/{operation_id}",
    Scope.ADMIN_READ,
    "How far a bulk operation got",
    "The operation",
    errors=(404,),
)
async def get(operation: OperationInPath) -> BulkOperation:
    return _document(operation)


@routes.post(
    "/bulk-operations/{operation_id}/stop",
    Scope.ADMIN_WRITE,
    "Take no further steps of a bulk operation",
    "Stopped",
    errors=(404, 409),
)
async def stop(server: Server, tenant: Tenant, operation: OperationInPath) -> BulkOperation:
    stopped = await bulk.stop(server.database, operation.id, tenant)
    if stopped is None:
        raise InvalidTransition(f"This operation is {operation.state} already.", state=operation.state)
    return _document(stopped)


async def run_bulk(
    services: Services, tenant: str, action: BulkAction, wanted: BulkRequest, wait: int | None
) -> Answer[BulkCount | BulkOperation]:
    """Count (dry run), or begin and answer at once; with `Prefer: wait=N` when it is done, if in time."""
    matching = filter_of(wanted.filter)
    if not bulk.states_of(action, matching):
        works_on = ", ".join(sorted(bulk.ACTIONS[action]))
        raise invalid("filter.state", f"{action} works on jobs that are {works_on}")
    if wanted.dry_run:
        counted = await bulk.count(services.database, action, matching, tenant)
        by_state = {State(state): jobs for state, jobs in sorted(counted.by_state.items())}
        return Answer(BulkCount(action=action, dry_run=True, matched=counted.jobs, by_state=by_state), 200)
    begun = await bulk.begin(services.database, action, matching, tenant)
    services.hub.announce(begun)
    [operation] = begun.answers
    headers = {"location": f"/bulk-operations/{operation.id}"}
    if wait is not None:
        operation = await _wait_until_done(services, operation, tenant, wait)
        if operation.state != "running":
            headers["preference-applied"] = f"wait={wait}"
            return Answer(_document(operation), 200, headers)
    return Answer(_document(operation), 202, headers)


async def _wait_until_done(
    services: Services, operation: bulk.Operation, tenant: str, seconds: float
) -> bulk.Operation:
    ends = time.monotonic() + seconds
    while operation.state == "running" and time.monotonic() < ends and not services.hub.closing:
        await asyncio.sleep(LOOK_SECONDS)
        operation = await bulk.get(services.database, operation.id, tenant) or operation
    return operation


def filter_of(given: JobFilter) -> Filter:
    states = [given.state] if isinstance(given.state, str) else given.state or []
    for state in states:
        if state not in set(State):
            raise invalid("filter.state", f"must be one of {', '.join(State)}")
    metadata = given.metadata or {}
    texts = [given.queue, given.kind, given.model, given.error, given.worker, *metadata, *metadata.values()]
    if any("\0" in text for text in texts if text is not None):
        raise invalid("filter", "has a NUL character")
    return Filter(
        states=states,
        queue=given.queue,
        kind=given.kind,
        model=given.model,
        since=moment_of("filter.since", given.since),
        until=moment_of("filter.until", given.until),
        metadata=metadata,
        error=given.error,
        worker=given.worker,
        id_prefix=prefix_of("filter.id_prefix", given.id_prefix),
    )


def _document(operation: bulk.Operation) -> BulkOperation:
    kept = orjson.loads(operation.filter)
    # A row has no action and no state but these.
    action, state = cast(BulkAction, operation.action), cast(BulkState, operation.state)
    return BulkOperation(
        operation_id=operation.id,
        action=action,
        filter=JobFilter(**{name: kept[name] for name in JobFilter.__struct_fields__ if kept.get(name)}),
        state=state,
        matched=operation.matched,
        visited=operation.passed,
        moved=operation.moved,
        created_at=operation.created_at,
        updated_at=operation.updated_at,
        completed_at=operation.completed_at,
    )
