"""/queues: settings, counts, ages and rates; pause and resume; who holds a key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from fastapi import Depends, Path, Query

from app.api.operator_documents import Ages, BusyKeys, Counts, Held, Queues, Rates
from app.api.operator_documents import Queue as Document
from app.api.parameters import Caller, JsonBody, KnownFilters, Server, Tenant, name_or
from app.api.routes import Answer, Reply, Routes
from app.api.services import Services
from app.errors import InvalidRequest, NotFound
from app.identity.scopes import Scope
from app.jobs.queue_settings import QueueSettings, in_force, load_settings, parse_settings
from app.jobs.tenants import scoped
from app.store import keys, queues
from app.store.census import RATES, QueueCount

routes = Routes("queues")
MAX_PAGE = 1000
MAX_KEYS, DEFAULT_KEYS = 1000, 100

ExistingName = Annotated[str, name_or(lambda: NotFound("There is no such queue."))]
NewName = Annotated[
    str,
    name_or(
        lambda: InvalidRequest(
            "A queue's name has 1 to 128 letters, digits and . _ : -, beginning with a letter or digit.",
            errors=[{"field": "name", "message": "is not a name for a queue"}],
        )
    ),
]


@routes.get("/queues", Scope.ADMIN_READ, "List queues", "A page of queues", errors=(422,))
async def list_queues(
    server: Server,
    _known: Annotated[None, Depends(KnownFilters())],
    search: Annotated[str, Query(max_length=128, description="Text that the name has.")] = "",
    paused: Annotated[bool | None, Query(description="Only those that are, or are not.")] = None,
    busy: Annotated[bool, Query(description="Only those with jobs that wait or run.")] = False,
    order: Annotated[
        Literal["name", "busiest"], Query(description="busiest: most jobs that wait or run first.")
    ] = "name",
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Queues:
    counts = await server.queues.census.take()
    wanted = Wanted(search, paused, busy, order, limit, offset)
    return await page_of(server, wanted, counts)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which queues, in which order, and which page of them."""

    search: str = ""
    paused: bool | None = None
    busy: bool = False
    order: Literal["name", "busiest"] = "name"
    limit: int = MAX_PAGE
    offset: int = 0


async def page_of(services: Services, wanted: Wanted, counts: Mapping[str, QueueCount]) -> Queues:
    names = await queues.find_queues(services.database, wanted.search, paused=wanted.paused)
    live = {name: counts[name].live for name in names if name in counts}
    if wanted.busy:
        names = [name for name in names if live.get(name)]
    if wanted.order == "busiest":
        names.sort(key=lambda name: -live.get(name, 0))
    page = names[wanted.offset : wanted.offset + wanted.limit]
    found = await queues.queues_named(services.database, page)
    return Queues([_document(services, row, counts.get(row.name)) for row in found], len(names))


@routes.get(
    "/queues/{name}",
    Scope.ADMIN_READ,
    "Read a queue: settings, counts, ages, rates",
    "The queue",
    errors=(404,),
)
async def get_queue(server: Server, name: ExistingName) -> Document:
    return await read_queue(server, name, await server.queues.census.take())


@routes.put(
    "/queues/{name}",
    Scope.ADMIN_WRITE,
    "Configure a queue; settings that are not named have their defaults again",
    {
        200: Reply("Changed; counts everywhere within a second", Document),
        201: Reply("New", Document),
    },
)
async def put_queue(
    server: Server,
    name: NewName,
    # As they were written, and so they are kept.
    settings: Annotated[dict[str, Any], Depends(JsonBody(QueueSettings, parse=parse_settings))],
) -> Answer[Document]:
    changes = await queues.configure(server.database, name, settings)
    await server.queues.configured(changes)
    return Answer(await _read(server, name), 201 if changes.answers[0] else 200)


@routes.post(
    "/queues/{name}/pause",
    Scope.ADMIN_WRITE,
    "Give out no more jobs of this queue; those that run go on",
    "Paused",
    errors=(422,),
)
async def pause(server: Server, caller: Caller, name: NewName) -> Document:
    by = None if caller.name is None else scoped(caller.tenant, caller.name)
    await server.queues.configured(await queues.pause(server.database, name, paused=True, by=by))
    return await _read(server, name)


@routes.post("/queues/{name}/resume", Scope.ADMIN_WRITE, "Give out jobs again", "Not paused", errors=(422,))
async def resume(server: Server, name: NewName) -> Document:
    await server.queues.configured(await queues.pause(server.database, name, paused=False))
    return await _read(server, name)


@routes.get(
    "/queues/{name}/keys",
    Scope.ADMIN_READ,
    "The concurrency keys of a queue that have places taken",
    "A page of keys",
    errors=(404, 422),
)
async def list_keys(
    server: Server,
    tenant: Tenant,
    name: ExistingName,
    _known: Annotated[None, Depends(KnownFilters())],
    after: Annotated[str, Query(description="The key that the page before ended with.")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_KEYS)] = DEFAULT_KEYS,
) -> BusyKeys:
    if not await queues.list_queues(server.database, name=name):
        raise NotFound("There is no such queue.")
    return BusyKeys(*await keys.busy_keys(server.database, name, tenant, after=after, limit=limit))


@routes.get(
    "/queues/{name}/keys/{key:path}",
    Scope.ADMIN_READ,
    "Who holds a concurrency key, and who waits for it",
    "The key",
    errors=(404,),
)
async def get_key(
    server: Server,
    tenant: Tenant,
    name: ExistingName,
    key: Annotated[str, Path(description="Its parts joined by slashes.")],
) -> keys.Key:
    if "\0" in key or not await queues.list_queues(server.database, name=name):
        raise NotFound("There is no such queue.")
    return await keys.show_key(server.database, name, key, tenant)


async def stored_settings(services: Services, name: str) -> dict[str, Any]:
    """As they were written, without defaults; none where there is no such queue."""
    found = await queues.list_queues(services.database, name=name)
    settings: Any = orjson.loads(found[0].settings) if found else {}
    return settings if isinstance(settings, dict) else {}


async def _read(services: Services, name: str) -> Document:
    return await read_queue(services, name, await services.queues.census.take())


async def read_queue(services: Services, name: str, counts: Mapping[str, QueueCount]) -> Document:
    found = await queues.list_queues(services.database, name=name)
    if not found:
        raise NotFound("There is no such queue.")
    return _document(services, found[0], counts.get(name))


def _document(services: Services, row: queues.Queue, count: QueueCount | None) -> Document:
    count = count or QueueCount()
    paused = row.paused_at is not None
    return Document(
        **in_force(orjson.loads(row.settings), services.queues.usual_retention),
        name=row.name,
        paused=paused,
        paused_at=row.paused_at,
        paused_by=row.paused_by,
        counts=Counts(**count.states),
        ready=count.ready,
        held=Held(
            scheduled=count.held["scheduled"],
            key_busy=count.held["key"],
            waiting_for=count.held["waiting_for"],
        ),
        gated_by=count.gated_by(load_settings(row.settings), paused=paused),
        ages=Ages(
            oldest_queued_seconds=count.oldest_queued_seconds,
            oldest_running_seconds=count.oldest_running_seconds,
        ),
        rates=Rates(
            **{f"{name}_per_second": count.per_second.get(part, 0.0) for name, part in RATES.items()}
        ),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
