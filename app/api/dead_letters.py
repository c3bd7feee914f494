"""/dead-letters: failed jobs, to be replayed or given up on, one by one or by filter."""

from typing import Annotated

from fastapi import Depends, Query
from pydantic import BeforeValidator
from starlette.requests import Request

from app.api.bulk import BULK_ANSWERS, BULK_ERRORS, BulkRequest, PreferWait, run_bulk
from app.api.job_documents import DeadLetterGroup, DeadLetterGroups, DeadLetterPage
from app.api.job_documents import Job as Document
from app.api.job_parameters import (
    DEFAULT_LIMIT,
    JobFilter,
    JobIdInPath,
    Limit,
    encode_cursor,
    next_link,
)
from app.api.jobs import documents_of, moved_document, page_of
from app.api.operator_documents import BulkCount, BulkOperation
from app.api.parameters import JsonBody, Server, Tenant
from app.api.routes import LINK, Answer, Reply, Routes
from app.api.services import Services
from app.identity.scopes import Scope
from app.jobs.shapes import decode
from app.jobs.states import State
from app.jobs.submission import invalid
from app.jobs.verbatim import members
from app.store import control, dead_letters
from app.store.read import Filter

routes = Routes("operators")
RULE = "Only a failed job is a dead letter"


def _parse_filter(body: bytes, max_depth: int) -> BulkRequest:
    if "action" in members(body, max_depth):
        raise invalid("action", "is in the path already")
    return decode(body, BulkRequest, max_depth)


BulkBody = Annotated[BulkRequest, Depends(JsonBody(BulkRequest, parse=_parse_filter))]


def _refuse_state(_given: str) -> None:
    raise invalid("state", "is not a filter here: dead letters are failed jobs")


NoState = Annotated[None, BeforeValidator(_refuse_state), Query(alias="state", include_in_schema=False)]


@routes.get(
    "/dead-letters",
    Scope.ADMIN_READ,
    "List dead letters, newest first",
    Reply("A page of failed jobs", DeadLetterPage, (LINK,)),
    errors=(422,),
)
async def list_dead_letters(
    request: Request,
    server: Server,
    tenant: Tenant,
    wanted: JobFilter,
    _state: NoState = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Answer[DeadLetterPage]:
    wanted.states = [State.FAILED]
    jobs, cursor = await page_of(server, wanted, tenant, limit)
    return Answer(DeadLetterPage(jobs, cursor), headers=next_link(request, cursor))


@routes.get(
    "/dead-letters/groups",
    Scope.ADMIN_READ,
    "Dead letters by error, kind and queue",
    f"The groups among the newest {dead_letters.MAX_LOOKED:,} dead letters",
    errors=(422,),
)
async def list_groups(
    server: Server,
    tenant: Tenant,
    wanted: JobFilter,
    _state: NoState = None,
) -> DeadLetterGroups:
    return await groups_of(server, wanted, tenant)


async def groups_of(services: Services, wanted: Filter, tenant: str) -> DeadLetterGroups:
    found = await dead_letters.groups(services.database, wanted, tenant)
    newest = await documents_of(services, [each.newest_id for each in found.groups], tenant)
    return DeadLetterGroups(
        groups=[
            DeadLetterGroup(
                error=each.code,
                kind=each.kind,
                queue=each.queue,
                jobs=each.jobs,
                first_at=each.first_at,
                last_at=each.last_at,
                newest=newest[each.newest_id],
            )
            for each in found.groups
            # It may have been removed meanwhile; who looks again finds the next.
            if each.newest_id in newest
        ],
        found=found.found,
        looked=found.looked,
        next_cursor=None if found.next_before is None else encode_cursor(found.next_before),
    )


@routes.post(
    "/dead-letters/replay",
    Scope.ADMIN_WRITE,
    "Replay all dead letters that match a filter",
    BULK_ANSWERS,
    errors=BULK_ERRORS,
)
async def replay_many(
    server: Server, tenant: Tenant, wanted: BulkBody, wait: PreferWait
) -> Answer[BulkCount | BulkOperation]:
    return await run_bulk(server, tenant, "retry", wanted, wait)


@routes.post(
    "/dead-letters/dismiss",
    Scope.ADMIN_WRITE,
    "Dismiss all dead letters that match a filter",
    BULK_ANSWERS,
    errors=BULK_ERRORS,
)
async def dismiss_many(
    server: Server, tenant: Tenant, wanted: BulkBody, wait: PreferWait
) -> Answer[BulkCount | BulkOperation]:
    return await run_bulk(server, tenant, "dismiss", wanted, wait)


@routes.post(
    "/dead-letters/{job_id}/replay",
    Scope.ADMIN_WRITE,
    "Put a dead letter back into its queue, under the same id; attempts start over",
    "Queued again",
    errors=(404, 409),
)
async def replay(server: Server, tenant: Tenant, job_id: JobIdInPath) -> Document:
    changes = await control.revive(server.database, [job_id], tenant)
    return await moved_document(server, changes, job_id, tenant, RULE)


@routes.post(
    "/dead-letters/{job_id}/dismiss",
    Scope.ADMIN_WRITE,
    "Give up on a dead letter",
    "Dismissed",
    errors=(404, 409),
)
async def dismiss(server: Server, tenant: Tenant, job_id: JobIdInPath) -> Document:
    changes = await control.dismiss(server.database, [job_id], tenant)
    return await moved_document(server, changes, job_id, tenant, RULE)
