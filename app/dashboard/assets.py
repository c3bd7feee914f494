"""Style and script, in memory: named by their content, so that a browser keeps them for ever."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from app.api.routes import Access, Reply, Routes

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOR_EVER = "public, max-age=31536000, immutable"

routes = Routes("dashboard")


@dataclass(frozen=True, slots=True)
class Asset:
    name: str
    media_type: str
    plain: bytes
    compressed: bytes
    url: str


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    version = hashlib.sha256(content).hexdigest()[:12]
    return Asset(
        path.name,
        MEDIA_TYPES[path.suffix],
        content,
        gzip.compress(content, mtime=0),
        f"/ui/static/{path.name}?{version}",
    )


ASSETS = {path.name: _read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in MEDIA_TYPES}


def asset_url(name: str) -> str:
    return ASSETS[name].url


def _serve(asset: Asset) -> None:
    """A route of its own for each: there is no path to look up, and so none that leads elsewhere."""

    @routes.get(
        f"/ui/static/{asset.name}",
        Access.OPEN,
        "A part of the dashboard",
        Reply("The file", str, media_type=asset.media_type),
        documented=False,
    )
    async def serve(request: Request) -> Response:
        headers = {"cache-control": FOR_EVER, "vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(asset.compressed, headers=headers, media_type=asset.media_type)
        return Response(asset.plain, headers=headers, media_type=asset.media_type)


for each in ASSETS.values():
    _serve(each)
