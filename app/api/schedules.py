"""/schedules: periodic jobs."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
import structlog
from fastapi import Depends, Query
from msgspec import Meta, Raw, structs
from starlette.requests import Request

from app.api import admission
from app.api.job_documents import Accepted, reference, verbatim
from app.api.job_parameters import trace_of
from app.api.jobs import accepted
from app.api.operator_documents import Schedule as Document
from app.api.operator_documents import Schedules, Tick
from app.api.parameters import Caller, JsonBody, KnownFilters, Server, Tenant, name_or
from app.api.routes import LOCATION, Answer, Content, Reply, Routes
from app.api.services import Services
from app.engine.scheduler import job_of
from app.errors import ForemanError, InvalidRequest, NotFound
from app.identity.scopes import Scope
from app.jobs.cron import check_cron, check_timezone, ticks_from
from app.jobs.submission import JobRequest, invalid, parse_job
from app.loops.off_loop import off_loop
from app.store import schedules
from app.store.idempotency import Submission

log = structlog.get_logger()

routes = Routes("operators")
MAX_PAGE = 1000
NEXT_TICKS = 5
# The next ticks of one take a tenth of a millisecond and more to find: others are let in between so many.
AT_ONCE = 20
EXAMPLE = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "job": {"kind": "report", "payload": {}}}


class NewSchedule(msgspec.Struct, forbid_unknown_fields=True):
    cron: Annotated[str, Meta(description="Five fields, or six with leading seconds.")]
    job: Annotated[Raw, verbatim(reference(JobRequest))]
    timezone: str = "UTC"


BAD_NAME = "is not a name for a schedule: letters, digits and . _ : - (1 to 128)"
ExistingName = Annotated[str, name_or(lambda: NotFound("There is no such schedule."))]
NewName = Annotated[str, name_or(lambda: invalid("name", BAD_NAME))]


@routes.get("/schedules", Scope.ADMIN_READ, "List schedules", "A page of schedules", errors=(422,))
async def list_schedules(
    server: Server,
    tenant: Tenant,
    _known: Annotated[None, Depends(KnownFilters())],
    search: Annotated[str, Query(max_length=128, description="Text that the name has.")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Schedules:
    text = search.lower()
    names = [name for name in await schedules.schedule_names(server.database, tenant) if text in name.lower()]
    found = await schedules.schedules_named(server.database, tenant, names[offset : offset + limit])
    return Schedules(await _documents(server, found), len(names))


@routes.get("/schedules/{name}", Scope.ADMIN_READ, "Read a schedule", "The schedule", errors=(404,))
async def get_schedule(server: Server, tenant: Tenant, name: ExistingName) -> Document:
    found = await schedules.list_schedules(server.database, tenant, name)
    if not found:
        raise NotFound("There is no such schedule.")
    return (await _documents(server, found))[0]


@routes.put(
    "/schedules/{name}",
    Scope.ADMIN_WRITE,
    "Make or change a schedule",
    {200: Reply("Changed", Document), 201: Reply("New", Document)},
    request=Content(Annotated[NewSchedule, Meta(examples=[EXAMPLE])]),
)
async def put_schedule(
    server: Server,
    tenant: Tenant,
    name: NewName,
    wanted: Annotated[NewSchedule, Depends(JsonBody(NewSchedule))],
) -> Answer[Document]:
    check_cron(wanted.cron)
    check_timezone(wanted.timezone)
    body = bytes(wanted.job)
    try:
        # As it will be at each tick: what is wrong with the job is said now and not at night.
        job = await off_loop(len(body), parse_job, body, tenant, server.settings.max_json_depth)
        if job.webhook_secret is not None:
            # A schedule is kept as it was written, and a secret must not be.
            raise invalid("webhook_secret", "cannot be kept in a schedule; its jobs are signed by the server")
        await server.intake.check(Submission([job], tenant))
    except ForemanError as problem:
        raise InvalidRequest(f"job: {problem.detail}", errors=problem.extra.get("errors", [])) from problem
    changes = await schedules.put(server.database, name, tenant, wanted.cron, wanted.timezone, body.decode())
    server.hub.announce(changes)
    schedule, created = changes.answers[0]
    [document] = await _documents(server, [schedule])
    return Answer(document, 201 if created else 200)


@routes.delete(
    "/schedules/{name}",
    Scope.ADMIN_WRITE,
    "Remove a schedule; jobs that it made stay",
    {204: Reply("Gone")},
    errors=(404,),
)
async def delete_schedule(server: Server, tenant: Tenant, name: ExistingName) -> None:
    if not await schedules.delete(server.database, tenant, name):
        raise NotFound("There is no such schedule.")


@routes.post(
    "/schedules/{name}/run",
    Scope.ADMIN_WRITE,
    "Submit the job of a schedule once, now; its ticks stay as they are",
    {
        202: Reply("Accepted: the job is safely queued", Accepted, (LOCATION,)),
        200: Reply("Coalesced into the job that is named", Accepted, (LOCATION,)),
    },
    errors=(404, 409, 422),
)
async def run_schedule(
    request: Request, server: Server, caller: Caller, name: ExistingName
) -> Answer[Accepted]:
    found = await schedules.list_schedules(server.database, caller.tenant, name)
    if not found:
        raise NotFound("There is no such schedule.")
    job = await off_loop(len(found[0].job), job_of, found[0])
    trace = trace_of(request)
    job.request_id, job.traceparent, job.tracestate = trace.request_id, trace.traceparent, trace.tracestate
    receipt = await admission.submit(server, caller, Submission([job], caller.tenant))
    answer = accepted(receipt.each()[0])
    status = 200 if answer.outcome == "coalesced" else 202
    return Answer(answer, status, {"location": f"/jobs/{answer.job_id}"})


async def _documents(services: Services, rows: Sequence[schedules.Schedule]) -> list[Document]:
    ticks = await schedules.last_ticks(services.database, [row.name for row in rows])
    documents = []
    for number, row in enumerate(rows, start=1):
        documents.append(_document(row, ticks[row.name]))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    return documents


def _document(row: schedules.Schedule, ticks: Sequence[schedules.Ticked]) -> Document:
    shown: dict[str, Any] = {name: getattr(row, name, None) for name in Document.__struct_fields__}
    made: dict[str, Any] = {
        "name": row.own_name,
        "job": Raw(row.job),
        "last_ticks": [Tick(**structs.asdict(tick)) for tick in ticks],
        "next_ticks": _next_ticks(row),
    }
    return Document(**shown | made)


def _next_ticks(row: schedules.Schedule) -> list[datetime]:
    try:
        return list(ticks_from(row.cron, row.timezone, row.next_at, NEXT_TICKS))
    except Exception:
        # As the scheduler meets it, too: such as a time zone that is not known on this machine.
        log.exception("schedules.no_next_ticks", schedule=row.name)
        return [row.next_at]
