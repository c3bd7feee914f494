"""Which methods and headers a caller may put on an outbound call, and how the request head is written.

Pure. The client itself writes everything that frames the message or names the host; a caller who could set
those could speak for another host, or smuggle a second request into the connection.
"""

import re
from collections.abc import Mapping

from app import __version__
from app.outbound.urls import OutboundUrl

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_HEADERS_BYTES = 32 * 1024

_IDEMPOTENT_METHODS = METHODS - {"POST", "PATCH"}
_DEDUPLICATED_BY = frozenset({"idempotency-key", "webhook-id"})
_OWN_HEADERS = frozenset(
    {
        "accept-encoding",  # the answer is read raw, so it is asked for uncompressed
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_USER_AGENT = f"Foreman/{__version__}"
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

Headers = Mapping[str, str]


def check_headers(headers: Headers) -> str | None:
    """Why these headers cannot be sent; None when they can. The text never repeats a value."""
    size = 0
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            return f"{name[:64]!r} is not a valid header name"
        if not _VALUE.fullmatch(value):
            return f"the header {name[:64]!r} contains a character that is not allowed"
        lowered = name.lower()
        if lowered in _OWN_HEADERS or lowered.startswith("proxy-"):
            return f"the header {name[:64]!r} cannot be set by a caller"
        size += len(name) + len(value) + 4
    return None if size <= MAX_HEADERS_BYTES else f"the headers are larger than {MAX_HEADERS_BYTES} bytes"


def token_problem(token: str) -> str | None:
    return check_headers({"authorization": f"Bearer {token}"})


def is_replayable(method: str, headers: Headers) -> bool:
    """Whether the request may be sent again when a reused connection died before a byte came back.

    True for idempotent methods, and for requests which carry the id by which their receiver deduplicates.
    """
    return method in _IDEMPOTENT_METHODS or not _DEDUPLICATED_BY.isdisjoint(map(str.lower, headers))


def request_head(method: str, url: OutboundUrl, headers: Headers, length: int) -> bytes:
    """The request line and headers as bytes. `headers` were checked before."""
    lines = [f"{method} {url.target} HTTP/1.1", f"host: {url.host_header}", "accept-encoding: identity"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if "user-agent" not in map(str.lower, headers):
        lines.append(f"user-agent: {_USER_AGENT}")
    if length or method in ("POST", "PUT", "PATCH"):
        lines.append(f"content-length: {length}")
    return "\r\n".join((*lines, "\r\n")).encode("latin-1")
