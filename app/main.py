"""create_app: the parts of app/foreman.py behind the routes of app/api."""

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from app import __version__
from app.api import (
    artifacts,
    bulk,
    dead_letters,
    describe,
    describe_events,
    describe_llm,
    describe_queues,
    describe_webhooks,
    events,
    feed,
    health,
    jobs,
    ollama,
    openai,
    queues,
    schedules,
    stream,
    targets,
    webhooks,
    workers,
)
from app.api.edge import Edge
from app.api.guard import Guard
from app.api.problems import handle_bug, handle_foreman_error, handle_http_exception
from app.config import Settings, listed
from app.errors import ForemanError
from app.foreman import Foreman

DESCRIPTION = "A durable job server that speaks HTTP: hand it work, hang up, be told when it is done."

HOT_ROUTES = {
    ("POST", "/jobs"): jobs.submit,
    ("POST", "/jobs/batch"): jobs.submit_batch,
    ("POST", "/claims"): workers.claim,
    ("POST", "/settlements"): workers.settlements,
    ("POST", "/api/chat"): ollama.chat,
    ("POST", "/api/generate"): ollama.generate,
    ("POST", "/api/embed"): ollama.embed,
    ("POST", "/v1/chat/completions"): openai.chat_completions,
    ("POST", "/v1/embeddings"): openai.embeddings,
}
STREAM_ROUTES = {
    r"/jobs/(?P<job_id>[^/]+)/events": events.read,
    r"/jobs/(?P<job_id>[^/]+)/stream": stream.stream,
    r"/events": feed.feed,
}
ROUTERS = [
    each.router
    for each in (
        jobs,
        workers,
        events,
        stream,
        feed,
        artifacts,
        webhooks,
        targets,
        ollama,
        openai,
        queues,
        dead_letters,
        bulk,
        schedules,
        health,
    )
]


def create_app(settings: Settings) -> Edge:
    """Put together, not started: `foreman serve` does that once the database is there."""
    foreman = Foreman(settings)
    app = FastAPI(
        title="Foreman",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            ForemanError: handle_foreman_error,
            HTTPException: handle_http_exception,
            Exception: handle_bug,
        },
    )
    app.state.foreman = foreman
    app.state.house = foreman.house
    routers = [health.router] if settings.role == "worker" else ROUTERS
    for router in routers:
        # Not include_router: that would match every request twice and bring back the machinery that
        # the direct routes do without.
        app.router.routes.extend(router.routes)
    document = app.openapi

    def openapi() -> dict[str, Any]:
        described = document()
        described.setdefault("components", {}).setdefault("schemas", {}).update(
            describe.SCHEMAS
            | describe_events.SCHEMAS
            | describe_queues.SCHEMAS
            | describe_webhooks.SCHEMAS
            | describe_llm.SCHEMAS
        )
        return described

    # FastAPI's documented way to extend the document.
    app.openapi = openapi  # type: ignore[method-assign]
    hot_routes, stream_routes = ({}, {}) if settings.role == "worker" else (HOT_ROUTES, STREAM_ROUTES)
    return Edge(
        app,
        Guard(listed(settings.allowed_hosts), listed(settings.cors_origins)),
        max_body_bytes=settings.max_body_bytes,
        max_artifact_bytes=settings.max_artifact_bytes,
        max_bytes_in_flight=settings.max_bytes_in_flight,
        hot_routes=hot_routes,
        stream_routes=stream_routes,
    )
