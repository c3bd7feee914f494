"""/targets: where models run, for operators. And /usage: what was used there."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from msgspec import structs
from pydantic import BeforeValidator

from app.api.operator_documents import KeyUsageSums, Targets, UsageSums
from app.api.operator_documents import Target as Document
from app.api.parameters import JsonBody, KnownFilters, NameInPath, Server, Tenant
from app.api.routes import Answer, AnyOf, Reply, Routes
from app.api.services import Services
from app.errors import Conflict, NotFound
from app.identity.scopes import Scope
from app.jobs.lanes import LLM_LANES
from app.jobs.shapes import decode
from app.jobs.submission import invalid, is_name
from app.jobs.verbatim import members
from app.store import targets as store
from app.store.daily_counts import SWAP_AVOIDED, SWAPPED, of_today
from app.store.heads import heads_of
from app.store.usage import sums, sums_by_key
from app.targets.config import ECHO_NAME, TargetFields, problem_with
from app.targets.inventory import ECHO_INVENTORY
from app.targets.target import Target
from app.targets.wake import WakeError

routes = Routes("operators")
DEFAULT_DAYS = 30
# How far jobs that wait are counted, and in how many queues they are looked for, the fullest first.
MAX_WAITING = 10_000
MAX_QUEUES = 1000


@routes.get("/targets", Scope.ADMIN_READ, "All targets and how they are", "The targets")
async def list_targets(server: Server) -> Targets:
    await server.targets.catch_up()
    load = await _load(server)
    return Targets([_document(target, load) for target in server.targets.targets] or [_echo()])


@routes.get("/targets/{name}", Scope.ADMIN_READ, "One target", "The target", errors=(404,))
async def get_target(server: Server, name: NameInPath) -> Document:
    if name == ECHO_NAME and server.targets.is_empty:
        return _echo()
    await server.targets.catch_up()
    return _document(_found(server, name), await _load(server))


def _parse_fields(body: bytes, max_depth: int) -> tuple[TargetFields, bool]:
    """And whether they leave the token as it is: so does a change that does not speak of it, as long as it
    goes to the same server."""
    return decode(body, TargetFields, max_depth), "token" not in members(body, max_depth)


@routes.put(
    "/targets/{name}",
    Scope.ADMIN_WRITE,
    "Make or change a target",
    {200: Reply("Changed", Document), 201: Reply("Made", Document)},
    errors=(409,),
)
async def put_target(
    server: Server,
    name: NameInPath,
    given: Annotated[tuple[TargetFields, bool], Depends(JsonBody(TargetFields, parse=_parse_fields))],
) -> Answer[Document]:
    fields, keeps_token = given
    if not is_name(name) or name == ECHO_NAME:
        raise invalid("name", "is not a name that a target can have")
    fields = _with_known_wake(server, name, fields)
    wrong = problem_with(fields)
    if wrong is not None:
        raise invalid(*wrong)
    _refuse_configured(server, name)
    try:
        created = await server.targets.put(name, fields, keep_token=keeps_token)
    except ValueError as problem:
        raise invalid("token", str(problem)) from problem
    return Answer(_document(_found(server, name), await _load(server)), 201 if created else 200)


@routes.delete(
    "/targets/{name}",
    Scope.ADMIN_WRITE,
    "Remove a target; jobs that waited for it are looked at again",
    {204: Reply("Removed")},
    errors=(404, 409),
)
async def delete_target(server: Server, name: NameInPath) -> None:
    _refuse_configured(server, name)
    if not is_name(name) or not await server.targets.delete(name):
        raise NotFound("There is no such target.")


@routes.post(
    "/targets/{name}/wake",
    Scope.ADMIN_WRITE,
    "Try to wake a target now, whether or not there is work for it",
    "Tried; whether it helped shows when the target answers",
    errors=(404, 409),
)
async def wake_target(server: Server, name: NameInPath) -> Document:
    target = _found(server, name)
    if target.config.wake is None:
        raise Conflict("This target has no wake action: give it a MAC address or a URL to call.")
    try:
        await server.targets.wake_now(name)
    except WakeError as problem:
        raise Conflict(f"It could not be woken: {problem}.") from problem
    return _document(target, await _load(server))


@routes.post(
    "/targets/{name}/probe",
    Scope.ADMIN_WRITE,
    "Ask a target now how it is and what it has",
    "The target as it is",
    errors=(404,),
)
async def probe_target(server: Server, name: NameInPath) -> Document:
    target = _found(server, name)
    await server.targets.probe(name)
    return _document(target, await _load(server))


@dataclass(frozen=True, slots=True)
class Load:
    """How many jobs run on each target, how many wait for it, and what was counted there today."""

    running: Mapping[str, int]
    waiting: Mapping[str, int]
    today: Mapping[str, Counter[str]]


async def _load(server: Services) -> Load:
    counts = await server.queues.census.latest()
    ready = sorted((name for name in counts if counts[name].ready), key=lambda name: -counts[name].ready)
    heads = await heads_of(server.database, ready[:MAX_QUEUES], within=LLM_LANES)
    places = [(head.queue, head.lane) for head in heads]
    waiting: Counter[str] = Counter()
    for lane, jobs in (await store.waiting_in_lanes(server.database, places, MAX_WAITING)).items():
        serving = server.targets.serving_lane(lane)
        # One that is asleep is waited for only where no other can.
        waiting.update({target.name: jobs for target in serving.ready or serving.asleep})
    today = await of_today(server.database, "target")
    return Load(await store.running_on(server.database), waiting, today)


def _with_known_wake(server: Services, name: str, fields: TargetFields) -> TargetFields:
    """Who sends back the wake URL as it was shown means the one that there is."""
    target = server.targets.get(name)
    known = target.config.wake if target is not None else None
    if (
        fields.wake is None
        or known is None
        or fields.wake.url is None
        or fields.wake.url != known.shown().url
    ):
        return fields
    return structs.replace(fields, wake=structs.replace(fields.wake, url=known.url))


def _refuse_configured(server: Services, name: str) -> None:
    if server.targets.is_configured(name):
        raise Conflict("This target is made by the server's settings and can only be changed there.")


def _found(server: Services, name: str) -> Target:
    target = server.targets.get(name)
    if target is None:
        raise NotFound("There is no such target.")
    return target


def _document(target: Target, load: Load) -> Document:
    config, inventory = target.config, target.inventory
    today = load.today.get(config.name) or Counter()
    return Document(
        name=config.name,
        url=config.url,
        dialect=config.dialect,
        slots=config.slots,
        tags=list(config.tags),
        wake=config.wake and config.wake.shown(),
        has_token=config.token is not None,
        origin=config.origin,
        state="unknown" if target.awake is None else "awake" if target.awake else "asleep",
        breaker="closed" if target.breaker.is_closed else "open",
        in_use=load.running.get(config.name, 0),
        waiting=min(load.waiting.get(config.name, 0), MAX_WAITING),
        swapped_today=today[SWAPPED],
        swaps_avoided_today=today[SWAP_AVOIDED],
        models=list(inventory.names) if inventory else [],
        resident=sorted(inventory.resident_models) if inventory else [],
        residents=inventory.residents if inventory else [],
        version=inventory.version if inventory else None,
        warning=target.trouble,
        answered_at=target.answered_at,
        asleep_since=target.asleep_since,
    )


def _echo() -> Document:
    """The built-in one, shown while there is no other."""
    return Document(
        name=ECHO_NAME,
        url="builtin:echo",
        dialect="ollama",
        slots=64,
        tags=["builtin"],
        wake=None,
        has_token=False,
        origin="builtin",
        state="awake",
        breaker="closed",
        in_use=0,
        waiting=0,
        swapped_today=0,
        swaps_avoided_today=0,
        models=list(ECHO_INVENTORY.names),
        resident=[],
        residents=[],
        version=None,
        warning="Built in, for trying out: it says the last message back. Off once there is a target.",
        answered_at=None,
        asleep_since=None,
    )


def _day(field: str) -> BeforeValidator:
    def parse(given: Any) -> date:
        try:
            return date.fromisoformat(given)
        except ValueError as problem:
            raise invalid(field, "must be a date such as 2026-01-31") from problem

    return BeforeValidator(parse)


def _by(given: str) -> str:
    if given != "key":
        raise invalid("by", "must be key")
    return given


@routes.get(
    "/usage",
    Scope.ADMIN_READ,
    "What was used, by caller, model and day (UTC)",
    Reply("The sums; with `by=key` one for each key as well", AnyOf((UsageSums, KeyUsageSums))),
    errors=(422,),
)
async def usage(
    server: Server,
    tenant: Tenant,
    _known: Annotated[None, Depends(KnownFilters())],
    since: Annotated[date | None, _day("since"), Query()] = None,
    until: Annotated[date | None, _day("until"), Query()] = None,
    model: str | None = None,
    by: Annotated[
        Literal["key"] | None,
        BeforeValidator(_by),
        Query(description="`key`: the sums of each key; `key_id` null is for jobs that no key submitted."),
    ] = None,
) -> UsageSums | KeyUsageSums:
    last = until or datetime.now(UTC).date()
    first = since or last - timedelta(days=min(DEFAULT_DAYS, last.toordinal() - 1))
    if by == "key":
        return KeyUsageSums(await sums_by_key(server.database, tenant, first, last, model))
    return UsageSums(await sums(server.database, tenant, first, last, model))
