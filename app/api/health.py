"""Whether the server is alive, ready, which version it is, and its metrics."""

import contextlib

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from app import __version__
from app.api import describe
from app.api.direct import direct_router, json_response
from app.api.house import house_of
from app.api.render import dump
from app.errors import Unavailable
from app.store.migrate import current_revision

router = direct_router("operators")


@router.get("/healthz", **describe.HEALTHZ)
async def healthz(_request: Request) -> Response:
    """Alive: the process answers, whatever the database does."""
    return json_response(b'{"status":"ok"}')


@router.get("/readyz", **describe.READYZ)
async def readyz(request: Request) -> Response:
    """Ready: the database is reachable, can be written, and its schema is current."""
    house = house_of(request)
    if house.hub.closing:
        raise Unavailable("The server is shutting down.", retry_after=1)
    async with house.database.connection() as connection:
        revision = await current_revision(connection)
    outage = house.database.outage
    if outage.cause is not None and outage.is_full:
        # It answers, but takes nothing more.
        raise Unavailable(outage.cause.text, retry_after=5)
    if revision is None or revision < house.newest_revision:
        raise Unavailable("The database schema is not current: run `foreman migrate`.", retry_after=5)
    return json_response(dump({"status": "ready", "revision": revision}))


@router.get("/version", **describe.VERSION)
async def version(_request: Request) -> Response:
    return json_response(dump({"name": "foreman", "version": __version__}))


@router.get("/metrics", **describe.METRICS)
async def metrics(request: Request) -> Response:
    # A database that is away takes only the queues' part from the answer.
    with contextlib.suppress(Unavailable):
        await house_of(request).queues.measure()
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
