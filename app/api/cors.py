"""Browser clients: who may call from another origin. Nobody, unless FOREMAN_CORS_ORIGINS says so."""

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from app.config import listed


def with_cors(app: ASGIApp, origins: str) -> ASGIApp:
    allowed = listed(origins)
    if not allowed:
        return app
    return CORSMiddleware(
        app,
        allow_origins=allowed,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["X-Foreman-Job-Id", "X-Request-Id", "Location", "ETag", "Retry-After"],
        max_age=600,
    )
