"""Browser clients: who may call from another origin. Nobody, unless FOREMAN_CORS_ORIGINS says so."""

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from app.config import listed

# What a page may read of an answer beside its body.
EXPOSED = [
    "ETag",
    "Location",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "WWW-Authenticate",
    "X-Foreman-Job-Id",
    "X-Request-Id",
]


def with_cors(app: ASGIApp, origins: str) -> ASGIApp:
    allowed = listed(origins)
    if not allowed:
        return app
    return CORSMiddleware(
        app,
        allow_origins=allowed,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=EXPOSED,
        max_age=600,
    )
