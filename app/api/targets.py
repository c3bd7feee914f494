"""/targets: where models run, for operators. And /usage: what was used there."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.api import describe_llm as describe
from app.api.direct import direct_router, json_response, read_as
from app.api.house import House, house_of, tenant_of
from app.api.render import dump
from app.errors import Conflict, NotFound
from app.jobs import verbatim
from app.jobs.submission import explain, invalid, is_name
from app.store.usage import sums
from app.targets.config import ECHO_NAME, TargetFields, problem_with
from app.targets.inventory import ECHO_INVENTORY
from app.targets.target import Target

router = direct_router("operators")
DEFAULT_DAYS = 30


@router.get("/targets", **describe.LIST_TARGETS)
async def list_targets(request: Request) -> Response:
    house = house_of(request)
    await house.targets.catch_up()
    targets = [_document(target) for target in house.targets.targets] or [_echo()]
    return json_response(dump({"targets": targets}))


@router.get("/targets/{name}", **describe.GET_TARGET)
async def get_target(request: Request) -> Response:
    house = house_of(request)
    name = request.path_params["name"]
    if name == ECHO_NAME and house.targets.is_empty:
        return json_response(dump(_echo()))
    await house.targets.catch_up()
    return json_response(dump(_document(_found(house, name))))


@router.put("/targets/{name}", **describe.PUT_TARGET)
async def put_target(request: Request) -> Response:
    house = house_of(request)
    name = request.path_params["name"]
    fields, keeps_token = await read_as(request, _parse_fields, house.settings.max_json_depth)
    if not is_name(name) or name == ECHO_NAME:
        raise invalid("name", "is not a name that a target can have")
    wrong = problem_with(fields)
    if wrong is not None:
        raise invalid(*wrong)
    _refuse_configured(house, name)
    try:
        created = await house.targets.put(name, fields, keep_token=keeps_token)
    except ValueError as problem:
        raise invalid("token", str(problem)) from problem
    return json_response(dump(_document(_found(house, name))), 201 if created else 200)


def _parse_fields(body: bytes, max_depth: int) -> tuple[TargetFields, bool]:
    """And whether they leave the token as it is: so does a change that does not speak of it, as long as it
    goes to the same server."""
    parts = verbatim.members(body, max_depth)
    unknown = sorted(parts.keys() - set(TargetFields.__struct_fields__))
    if unknown:
        raise invalid(unknown[0], "is not a known field")
    try:
        return msgspec.json.decode(body, type=TargetFields), "token" not in parts
    except msgspec.ValidationError as problem:
        raise explain(parts, TargetFields) from problem


@router.delete("/targets/{name}", status_code=204, **describe.DELETE_TARGET)
async def delete_target(request: Request) -> Response:
    house = house_of(request)
    name = request.path_params["name"]
    _refuse_configured(house, name)
    if not is_name(name) or not await house.targets.delete(name):
        raise NotFound("There is no such target.")
    return Response(status_code=204)


def _refuse_configured(house: House, name: str) -> None:
    if house.targets.is_configured(name):
        raise Conflict("This target is made by the server's settings and can only be changed there.")


def _found(house: House, name: str) -> Target:
    target = house.targets.get(name)
    if target is None:
        raise NotFound("There is no such target.")
    return target


_STATES = {None: "unknown", True: "awake", False: "asleep"}


def _document(target: Target) -> dict[str, Any]:
    config, inventory = target.config, target.inventory
    return {
        "name": config.name,
        "url": config.url,
        "dialect": config.dialect,
        "slots": config.slots,
        "tags": list(config.tags),
        "wake": None if config.wake is None else msgspec.to_builtins(config.wake),
        "has_token": config.token is not None,
        "origin": config.origin,
        "state": _STATES[target.awake],
        "breaker": "closed" if target.breaker.is_closed else "open",
        "models": list(inventory.names) if inventory else [],
        "resident": sorted(inventory.resident_models) if inventory else [],
        "version": inventory.version if inventory else None,
        "warning": target.warning,
        "answered_at": target.answered_at,
        "asleep_since": target.asleep_since,
    }


def _echo() -> dict[str, Any]:
    """The built-in one, shown while there is no other."""
    return {
        "name": ECHO_NAME,
        "url": "builtin:echo",
        "dialect": "ollama",
        "slots": 64,
        "tags": ["builtin"],
        "wake": None,
        "has_token": False,
        "origin": "builtin",
        "state": "awake",
        "breaker": "closed",
        "models": list(ECHO_INVENTORY.names),
        "resident": [],
        "version": None,
        "warning": "Built in, for trying out: it says the last message back. Off once there is a target.",
        "answered_at": None,
        "asleep_since": None,
    }


@router.get("/usage", **describe.USAGE)
async def usage(request: Request) -> Response:
    house = house_of(request)
    query = request.query_params
    for name in query:
        if name not in {"since", "until", "model"}:
            raise invalid(name, "is not a known filter")
    if "\0" in query.get("model", ""):
        raise invalid("model", "has a NUL character")
    until = _day("until", query.get("until")) or datetime.now(UTC).date()
    since = _day("since", query.get("since")) or until - timedelta(
        days=min(DEFAULT_DAYS, until.toordinal() - 1)
    )
    rows = await sums(house.database, tenant_of(request), since, until, query.get("model"))
    return json_response(dump({"usage": [dict(row) for row in rows]}))


def _day(field: str, given: str | None) -> date | None:
    if given is None:
        return None
    try:
        return date.fromisoformat(given)
    except ValueError as problem:
        raise invalid(field, "must be a date such as 2026-01-31") from problem
