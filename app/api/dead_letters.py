"""/dead-letters: failed jobs, to be replayed or given up on, one by one or by filter."""

from starlette.requests import Request
from starlette.responses import Response

from app.api import describe_queues as describe
from app.api.bulk import read_bulk, run_bulk
from app.api.direct import direct_router, json_response
from app.api.house import House, house_of, tenant_of
from app.api.jobs import document_of, filter_of, job_id_of, page
from app.errors import InvalidTransition, NotFound
from app.jobs.states import State
from app.jobs.submission import invalid
from app.store import read, steer

router = direct_router("operators")


@router.get("/dead-letters", **describe.LIST_DEAD_LETTERS)
async def list_dead_letters(request: Request) -> Response:
    wanted, limit = filter_of(request)
    if wanted.states:
        raise invalid("state", "is not a filter here: dead letters are failed jobs")
    wanted.states = [State.FAILED]
    return await page(request, house_of(request), wanted, limit, "dead_letters")


@router.post("/dead-letters/replay", status_code=202, **describe.REPLAY_MANY)
async def replay_many(request: Request) -> Response:
    return await _many(request, "retry")


@router.post("/dead-letters/dismiss", status_code=202, **describe.DISMISS_MANY)
async def dismiss_many(request: Request) -> Response:
    return await _many(request, "dismiss")


async def _many(request: Request, action: str) -> Response:
    wanted = await read_bulk(request)
    if wanted.action is not None:
        raise invalid("action", "is in the path already")
    return await run_bulk(request, action, wanted)


@router.post("/dead-letters/{job_id}/replay", **describe.REPLAY)
async def replay(request: Request) -> Response:
    house = house_of(request)
    job_id = job_id_of(request)
    changes = await steer.revive(house.database, [job_id], tenant_of(request))
    if not changes.answers:
        raise await _refusal(house, job_id, tenant_of(request))
    house.hub.announce(changes)
    return json_response(await document_of(house, job_id, tenant_of(request)))


@router.post("/dead-letters/{job_id}/dismiss", **describe.DISMISS)
async def dismiss(request: Request) -> Response:
    house = house_of(request)
    job_id = job_id_of(request)
    changes = await steer.dismiss(house.database, [job_id], tenant_of(request))
    if not changes.answers:
        raise await _refusal(house, job_id, tenant_of(request))
    house.hub.announce(changes)
    return json_response(await document_of(house, job_id, tenant_of(request)))


async def _refusal(house: House, job_id: str, tenant: str) -> Exception:
    job = await read.get_job(house.database, job_id, tenant)
    if job is None:
        return NotFound("There is no such job.")
    return InvalidTransition(f"Only a failed job is a dead letter; this one is {job.state}.", state=job.state)
