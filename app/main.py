"""create_app: the parts of app/foreman.py behind the routes of app/api."""

import functools
from importlib import import_module
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app import __version__
from app.api import (
    artifacts,
    batches,
    bulk,
    dead_letters,
    document,
    events,
    family,
    feed,
    files,
    health,
    jobs,
    keys,
    queues,
    schedules,
    stream,
    targets,
    webhooks,
    workers,
)
from app.api.edge import BodyLimits, Edge
from app.api.guard import Guard
from app.api.job_documents import JobError, OpenAIEvent, WebhookMessage
from app.api.mount import mounted
from app.api.problems import handle_foreman_error, handle_http_exception, handle_invalid_parameters
from app.api.worker_schemas import ReportedUsage
from app.config import Settings, listed
from app.dashboard import pages
from app.dashboard.page import TEMPLATES
from app.dashboard.refusals import DashboardPages
from app.dialects import DIALECTS
from app.errors import ForemanError
from app.foreman import Foreman

DESCRIPTION = "A durable job server that speaks HTTP: hand it work, hang up, be told when it is done."

# In the order in which the framework looks for them.
ROUTES = [
    *jobs.routes,
    *family.routes,
    *workers.routes,
    *events.routes,
    *stream.routes,
    *feed.routes,
    *artifacts.routes,
    *webhooks.routes,
    *queues.routes,
    *dead_letters.routes,
    *bulk.routes,
    *schedules.routes,
    *targets.routes,
    *keys.routes,
    # Before the surfaces, one of which answers for all of /v1 that is not there.
    *files.routes,
    *batches.routes,
    # The surface of a dialect stands in the module of its name. Those that stand first in the table are last:
    # they answer for what nobody offers.
    *(route for name in reversed(DIALECTS) for route in import_module(f"app.api.{name}").routes),
    *health.routes,
]

# What people see; not part of the interface that programs rely on.
PAGES = pages.routes

# Shapes that the document needs although no route names them.
UNNAMED = (JobError, ReportedUsage, WebhookMessage, OpenAIEvent)


def create_app(settings: Settings) -> Edge:
    """Put together, not started: `foreman serve` does that once the database is there."""
    foreman = Foreman(settings)
    if settings.role != "worker":
        # The first visitor does not wait for it to be made ready.
        TEMPLATES.get_template("overview.html")
    app = FastAPI(
        title="Foreman",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Traces are made in app/tracing. The framework's own would have messages of exceptions in them.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        exception_handlers={
            ForemanError: handle_foreman_error,
            RequestValidationError: handle_invalid_parameters,
            HTTPException: handle_http_exception,
            Exception: handle_foreman_error,
        },
    )
    app.state.foreman = foreman
    app.state.services = foreman.services
    is_worker = settings.role == "worker"
    routes = list(health.routes) if is_worker else [*ROUTES, *PAGES]
    # Not include_router: that would match every request twice and bring back the machinery that
    # the direct routes do without.
    app.router.routes.extend(mounted(routes))
    by_framework = app.openapi

    @functools.cache
    def openapi() -> dict[str, Any]:
        described = by_framework()
        document.describe(described, routes, UNNAMED)
        return described

    # FastAPI's documented way to extend the document.
    app.openapi = openapi  # type: ignore[method-assign]
    return Edge(
        app,
        Guard(listed(settings.allowed_hosts), listed(settings.cors_origins)),
        foreman.authenticator,
        limits=BodyLimits(
            settings.max_body_bytes,
            settings.max_artifact_bytes,
            settings.max_file_bytes,
            settings.max_bytes_in_flight,
        ),
        routes=routes,
        pages=None if is_worker else DashboardPages(),
    )
