"""Where the edge meets the pages for people (app/dashboard): whose paths they are, how they refuse, how a
browser says who it is."""

from collections.abc import Iterable
from typing import Protocol

from starlette.responses import Response
from starlette.types import Scope

from app.errors import ForemanError

SESSION_COOKIE = "foreman_session"


class Pages(Protocol):
    # What is sent with each of them, instead of what keeps browsers from showing anything.
    headers: list[tuple[bytes, bytes]]

    def owns(self, path: str) -> bool: ...

    def refuse(self, scope: Scope, error: ForemanError) -> Response:
        """As a page, or by leading to where one signs in."""


def cookie_of(headers: Iterable[tuple[bytes, bytes]], name: str) -> str | None:
    """What a browser sends back; of two, neither is believed."""
    found = None
    for header, value in headers:
        if header != b"cookie":
            continue
        for pair in value.decode("latin-1").split(";"):
            key, _, given = pair.strip().partition("=")
            if key == name:
                if found is not None:
                    return None
                found = given
    return found or None


def session_token(scope: Scope) -> bytes | None:
    found = cookie_of(scope["headers"], SESSION_COOKIE)
    return None if found is None else found.encode("latin-1")
