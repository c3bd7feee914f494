"""/schedules: periodic jobs."""

import re
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.api import describe_queues as describe
from app.api.direct import direct_router, json_response, read_as
from app.api.house import house_of, tenant_of
from app.api.render import dump, raw
from app.errors import Conflict, ForemanError, InvalidRequest, NotFound
from app.jobs import verbatim
from app.jobs.cron import check_cron, check_timezone
from app.jobs.submission import NAME, explain, invalid, parse_job
from app.loops.off_loop import off_loop
from app.store import schedules
from app.store.idempotency import Submission

router = direct_router("operators")

_NAME = re.compile(NAME)


class ScheduleRequest(msgspec.Struct, forbid_unknown_fields=True):
    cron: str
    job: msgspec.Raw
    timezone: str = "UTC"


@router.get("/schedules", **describe.LIST_SCHEDULES)
async def list_schedules(request: Request) -> Response:
    found = await schedules.list_schedules(house_of(request).database, tenant_of(request))
    return json_response(dump({"schedules": [_document(each) for each in found]}))


@router.get("/schedules/{name}", **describe.GET_SCHEDULE)
async def get_schedule(request: Request) -> Response:
    found = await schedules.list_schedules(house_of(request).database, tenant_of(request), _name_of(request))
    if not found:
        raise NotFound("There is no such schedule.")
    return json_response(dump(_document(found[0])))


@router.put("/schedules/{name}", **describe.PUT_SCHEDULE)
async def put_schedule(request: Request) -> Response:
    house, tenant = house_of(request), tenant_of(request)
    name = _name_of(request, new=True)
    wanted = await read_as(request, _parse, house.settings.max_json_depth)
    check_cron(wanted.cron)
    check_timezone(wanted.timezone)
    body = bytes(wanted.job)
    try:
        # As it will be at each tick: what is wrong with the job is said now and not at night.
        job = await off_loop(len(body), parse_job, body, tenant, house.settings.max_json_depth)
        if job.webhook_secret is not None:
            # A schedule is kept as it was written, and a secret must not be.
            raise invalid("webhook_secret", "cannot be kept in a schedule; its jobs are signed by the server")
        await house.intake.check(Submission([job], tenant))
    except ForemanError as problem:
        raise InvalidRequest(f"job: {problem.detail}", errors=problem.extra.get("errors", [])) from problem
    changes = await schedules.put(house.database, name, tenant, wanted.cron, wanted.timezone, body.decode())
    if not changes.answers:
        raise Conflict("There is a schedule of that name already.")
    house.hub.announce(changes)
    schedule, created = changes.answers[0]
    return json_response(dump(_document(schedule)), 201 if created else 200)


@router.delete("/schedules/{name}", status_code=204, **describe.DELETE_SCHEDULE)
async def delete_schedule(request: Request) -> Response:
    if not await schedules.delete(house_of(request).database, tenant_of(request), _name_of(request)):
        raise NotFound("There is no such schedule.")
    return Response(status_code=204)


def _parse(body: bytes, max_depth: int) -> ScheduleRequest:
    parts = verbatim.members(body, max_depth)
    unknown = sorted(parts.keys() - set(ScheduleRequest.__struct_fields__))
    if unknown:
        raise invalid(unknown[0], "is not a known field")
    try:
        return msgspec.json.decode(body, type=ScheduleRequest)
    except msgspec.ValidationError as problem:
        raise explain(parts, ScheduleRequest) from problem


def _name_of(request: Request, *, new: bool = False) -> str:
    name: str = request.path_params["name"]
    if not _NAME.match(name):
        if new:
            raise invalid("name", "is not a name for a schedule: letters, digits and . _ : - (1 to 128)")
        raise NotFound("There is no such schedule.")
    return name


def _document(row: schedules.Schedule) -> dict[str, Any]:
    return {
        "name": row.name,
        "cron": row.cron,
        "timezone": row.timezone,
        "job": raw(row.job),
        "next_at": row.next_at,
        "last_at": row.last_at,
        "last_job_id": row.last_job_id,
        "last_outcome": row.last_outcome,
        "last_error": row.last_error,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }
