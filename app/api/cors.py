"""Browser clients: who may call from another origin. Nobody, unless FOREMAN_CORS_ORIGINS says so.

Where keys are needed, the synchronous surfaces are also open to what runs on the caller's own machine, as
Ollama is: pages on localhost, and applications whose pages have a scheme of their own. The key is still
theirs to send. Without keys such a page is as foreign as any other (app/api/guard.py).
"""

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import surfaces
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


# Not "null": that is also what a frame in a page of anybody's says.
LOCAL_ORIGINS = (
    r"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(:[0-9]{1,5})?"
    r"|(app|file|tauri|vscode-webview|vscode-file)://[!-~]*"
)


def with_cors(app: ASGIApp, origins: str, *, local: bool) -> ASGIApp:
    """`local`: whether the surfaces are open to what runs on the caller's machine."""
    allowed = listed(origins)
    if not allowed and not local:
        return app
    everywhere = _asked(app, allowed) if allowed else app
    on_surfaces = _asked(app, allowed, LOCAL_ORIGINS) if local else everywhere

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not any(name == b"origin" for name, _ in scope["headers"]):
            # No browser: nearly everybody.
            await app(scope, receive, send)
        elif surfaces.of_path(scope["path"]) is None:
            await everywhere(scope, receive, send)
        else:
            await on_surfaces(scope, receive, send)

    return answer


def _asked(app: ASGIApp, allowed: list[str], pattern: str | None = None) -> ASGIApp:
    """Any header may be sent (`x-stainless-os`, `anthropic-version`): what counts is the key."""
    return CORSMiddleware(
        app,
        allow_origins=allowed,
        allow_origin_regex=pattern,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=EXPOSED,
        max_age=600,
    )
