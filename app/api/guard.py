"""The guard against web pages: without authentication a request proves nothing but that it reached us.

Any page open in a browser on this machine can send requests here, and by DNS rebinding even read the
answers. A browser says truthfully to whom it believes to speak (Host) and for whom (Origin, Sec-Fetch-Site),
so both are looked at. Everything is denied that is not known to be harmless: a new route is safe without
being named here. Whoever is not a browser sends no Origin and notices nothing.
"""

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache

from starlette.types import Scope

from app.errors import Forbidden, Unparsable

# What tells nothing about jobs and changes nothing: for health checks by whatever name, and the greeting.
OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/version"})
DASHBOARD = "/ui"
REFERENCE = "/docs"
READING = frozenset({"GET", "HEAD"})
# What a page may send to anybody without asking first (Fetch standard); no type at all counts as one.
SIMPLE_TYPES = frozenset({b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"})
# By Sec-Fetch-Site: the page itself, or a person (address bar, bookmark); "same-site" is another port.
OWN_SITES = frozenset({b"same-origin", b"none"})

# What may stand around the value of a header and is not part of it (RFC 9110, 5.5).
BLANKS = b" \t"

_HOST = re.compile(rb"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._\-]+))(?::[0-9]{1,5})?")


class Foreign(Forbidden):
    title = "Web pages of other sites may not do that"
    closes = True


class Guard:
    def __init__(self, allowed_hosts: Iterable[str] = (), cors_origins: Iterable[str] = ()) -> None:
        """`allowed_hosts` are names besides the loopback ones; `cors_origins` may call although foreign."""
        self._allowed_hosts = frozenset(each.lower().rstrip(".") for each in allowed_hosts)
        self._cors_origins = frozenset(each.encode().rstrip(b"/") for each in cors_origins)
        # Few spellings of few names come again and again.
        self._is_ours = lru_cache(maxsize=256)(self._looked_at)

    def check(self, scope: Scope, host: bytes | None, origin: bytes | None, site: bytes | None) -> None:
        """Raises Foreign unless the request comes from no page, a page of ours or an allowed one."""
        if host is not None and not self._is_ours(host) and not _is_open(scope):
            raise Foreign(
                "This name is not one of this server's. Call it by a loopback name (localhost, 127.0.0.1), "
                "or list the name in FOREMAN_ALLOWED_HOSTS."
            )
        if origin is not None:
            self._check_origin(scope, (host or b"").strip(BLANKS), origin.strip(BLANKS))
        elif (
            site is not None
            and site.strip(BLANKS) not in OWN_SITES
            and not _is_open(scope)
            and not _is_visit(scope)
        ):
            raise _foreign()

    def _check_origin(self, scope: Scope, host: bytes, origin: bytes) -> None:
        own = origin in (b"http://" + host, b"https://" + host)
        if not own and origin not in self._cors_origins and not _is_open(scope):
            raise _foreign()
        # The dashboard's own forms, which carry a token that only its own pages know.
        if own and _is_page(scope["path"]):
            return
        # Allowed or not: a page that means it says that its body is JSON, and has been asked about it.
        if scope["method"] not in READING and _has_simple_body(scope):
            raise Foreign("A body sent by a web page must have a Content-Type that says what it is.")

    def _looked_at(self, host: bytes) -> bool:
        found = _HOST.fullmatch(host.strip(BLANKS))
        if found is None:
            return False
        if found["v6"] is not None:
            return _is_loopback(found["v6"])
        name = found["name"].decode().lower().rstrip(".")
        return (
            name == "localhost"
            or name.endswith(".localhost")
            or name in self._allowed_hosts
            or _is_loopback(found["name"])
        )


def check_host(hosts: int, scope: Scope) -> None:
    """Exactly one Host, as HTTP/1.1 demands: of two, each reader would believe another one."""
    if hosts > 1 or (hosts == 0 and scope["http_version"] != "1.0"):
        raise Unparsable("A request must have exactly one Host header.")


def _is_loopback(address: bytes) -> bool:
    try:
        return ipaddress.ip_address(address.decode()).is_loopback
    except ValueError:
        return False


def _foreign() -> Foreign:
    return Foreign(
        "This request was made by a web page of another origin. "
        "Origins that may call are listed in FOREMAN_CORS_ORIGINS."
    )


def _is_open(scope: Scope) -> bool:
    return scope["method"] in READING and scope["path"] in OPEN_PATHS


def _is_page(path: str) -> bool:
    return path in {DASHBOARD, REFERENCE} or path.startswith(DASHBOARD + "/")


def _is_visit(scope: Scope) -> bool:
    """A person followed a link to a page: the page with the link sees nothing of it."""
    if scope["method"] not in READING or not _is_page(scope["path"]):
        return False
    said = {name: value.strip(BLANKS) for name, value in scope["headers"]}
    return said.get(b"sec-fetch-mode") == b"navigate" and said.get(b"sec-fetch-dest") == b"document"


def _has_simple_body(scope: Scope) -> bool:
    content_type = b""
    has_body = False
    for name, value in scope["headers"]:
        if name == b"content-type":
            content_type = value.partition(b";")[0].strip().lower()
        elif name == b"transfer-encoding" or (name == b"content-length" and value.strip(BLANKS) != b"0"):
            has_body = True
    return has_body and content_type in SIMPLE_TYPES
