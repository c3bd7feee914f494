"""/queues: settings, counts, ages and rates; pause and resume; who holds a key."""

import re
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.api import describe_queues as describe
from app.api.direct import direct_router, json_response, read_as
from app.api.house import House, house_of
from app.api.render import dump
from app.errors import InvalidRequest, NotFound
from app.jobs.queue_settings import in_force, load_settings, parse_settings
from app.jobs.submission import NAME
from app.store import keys, queues
from app.store.census import RATES, QueueCount

router = direct_router("queues")

_NAME = re.compile(NAME)


@router.get("/queues", **describe.LIST_QUEUES)
async def list_queues(request: Request) -> Response:
    house = house_of(request)
    counts = await house.queues.census.take()
    found = await queues.list_queues(house.database)
    shown = [_shown(house, row, counts.get(row.name)) for row in found]
    return json_response(dump({"queues": shown}))


@router.get("/queues/{name}", **describe.GET_QUEUE)
async def get_queue(request: Request) -> Response:
    house = house_of(request)
    return json_response(dump(await _document(house, queue_of(request))))


@router.put("/queues/{name}", **describe.PUT_QUEUE)
async def put_queue(request: Request) -> Response:
    """Replaces all settings; what is not named has its default again."""
    house = house_of(request)
    name = queue_of(request, new=True)
    settings = await read_as(request, parse_settings, house.settings.max_json_depth)
    changes = await queues.configure(house.database, name, settings)
    await house.queues.configured(changes)
    return json_response(dump(await _document(house, name)), 201 if changes.answers[0] else 200)


@router.post("/queues/{name}/pause", **describe.PAUSE_QUEUE)
async def pause(request: Request) -> Response:
    return await _pause(request, paused=True)


@router.post("/queues/{name}/resume", **describe.RESUME_QUEUE)
async def resume(request: Request) -> Response:
    return await _pause(request, paused=False)


async def _pause(request: Request, *, paused: bool) -> Response:
    house = house_of(request)
    name = queue_of(request, new=True)
    await house.queues.configured(await queues.pause(house.database, name, paused=paused))
    return json_response(dump(await _document(house, name)))


@router.get("/queues/{name}/keys/{key:path}", **describe.GET_KEY)
async def get_key(request: Request) -> Response:
    house = house_of(request)
    name = queue_of(request)
    key: str = request.path_params["key"]
    if "\0" in key or not await queues.list_queues(house.database, name=name):
        raise NotFound("There is no such queue.")
    return json_response(dump(await keys.show_key(house.database, name, key)))


async def _document(house: House, name: str) -> dict[str, Any]:
    found = await queues.list_queues(house.database, name=name)
    if not found:
        raise NotFound("There is no such queue.")
    return _shown(house, found[0], (await house.queues.census.take()).get(name))


def _shown(house: House, row: queues.Queue, count: QueueCount | None) -> dict[str, Any]:
    count = count or QueueCount()
    settings = in_force(orjson.loads(row.settings), house.queues.usual_retention)
    paused = row.paused_at is not None
    return {
        "name": row.name,
        "paused": paused,
        "paused_at": row.paused_at,
        **settings,
        "counts": count.states,
        "ready": count.ready,
        "held": {
            "scheduled": count.held["scheduled"],
            "key_busy": count.held["key"],
            "waiting_for": count.held["waiting_for"],
        },
        "gated_by": count.gated_by(load_settings(row.settings), paused=paused),
        "ages": {
            "oldest_queued_seconds": count.oldest_queued_seconds,
            "oldest_running_seconds": count.oldest_running_seconds,
        },
        "rates": {f"{name}_per_second": count.per_second.get(part, 0.0) for name, part in RATES.items()},
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def queue_of(request: Request, *, new: bool = False) -> str:
    name: str = request.path_params["name"]
    if not _NAME.match(name):
        if new:
            raise InvalidRequest(
                "A queue's name has 1 to 128 letters, digits and . _ : -, beginning with a letter or digit.",
                errors=[{"field": "name", "message": "is not a name for a queue"}],
            )
        raise NotFound("There is no such queue.")
    return name
