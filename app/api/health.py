"""Whether the server is alive, ready, which version it is, and its metrics."""

import asyncio

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from app import __version__
from app.api.operator_documents import Alive, Ready, Version
from app.api.parameters import Server
from app.api.routes import Access, Reply, Routes
from app.errors import Unavailable
from app.identity.scopes import Scope
from app.store.migrate import current_revision

routes = Routes("operators")
# What a load balancer may ask with.
HEAD = ("HEAD",)

# Which versions of `foreman-client` go with this server: those that it requires for its own command line.
CLIENT_VERSIONS = ">=0.1,<0.2"


@routes.get("/healthz", Access.OPEN, "Is the process alive?", "Alive", also=HEAD)
async def healthz() -> Alive:
    """Alive: the process answers, whatever the database does."""
    return Alive("ok")


@routes.get("/readyz", Access.OPEN, "Is it ready to serve?", "Ready", errors=(503,), also=HEAD)
async def readyz(server: Server) -> Ready:
    """Ready: the database is reachable, can be written, and its schema is current."""
    if server.hub.closing:
        raise Unavailable("The server is shutting down.", retry_after=1)
    async with server.database.connection() as connection:
        revision = await current_revision(connection)
    outage = server.database.outage
    if outage.cause is not None and outage.is_full:
        # It answers, but takes nothing more.
        raise Unavailable(outage.cause.text, retry_after=5)
    if revision is None or revision < server.newest_revision:
        raise Unavailable("The database schema is not current: run `foreman migrate`.", retry_after=5)
    return Ready("ready", revision)


@routes.get("/version", Access.OPEN, "Which version is this?", "The version", also=HEAD)
async def version() -> Version:
    return Version("foreman", __version__, CLIENT_VERSIONS)


@routes.get(
    "/metrics", Scope.ADMIN_READ, "Prometheus metrics", Reply("Metrics", str, media_type="text/plain")
)
async def metrics(server: Server) -> Response:
    # A database that is away takes only the part of queues and webhooks from the answer.
    await asyncio.gather(*(measure() for measure in server.measures))
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
