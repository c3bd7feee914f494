"""The client's requests over the standard library: httpx takes longer to load than `foreman get` may take.

For plain HTTP straight to the server. What needs more (HTTPS, a proxy, a password in the address) goes by
httpx, as in every other program that uses the client.
"""

import http.client
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import quote, urlencode, urlsplit

from foreman_client.errors import ForemanError, Unreachable
from foreman_client.transport import StreamReply, Transport
from foreman_client.wire import Reply, Request

CONNECT_SECONDS = 10.0
PIECE_BYTES = 65_536
# What a path may have beside letters and digits; a percent sign was put there to escape something.
PATH_SAFE = "/%:@!$&'()*+,;=~"


def chosen(url: str) -> type[Transport] | None:
    """This transport where it is enough; None for httpx."""
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme == "http" and bool(parts.hostname) and "@" not in parts.netloc
        _ = parts.port  # raises when it is none
    except ValueError:
        return None  # httpx has the words for what is wrong with it
    if not is_plain or not url.isascii() or parts.query or parts.fragment or _has_proxy():
        return None
    return QuickTransport


def _has_proxy() -> bool:
    return any(os.environ.get(each) for name in ("http_proxy", "all_proxy") for each in (name, name.upper()))


class QuickTransport:
    """A connection for each request: a command makes one or two."""

    def __init__(self, base_url: str, headers: dict[str, str], timeout: float) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._where = f"http://{parts.netloc}"
        self._prefix = parts.path.rstrip("/")
        self._headers = headers
        self._timeout = timeout

    async def send(self, request: Request) -> Reply:
        with self._answer(request) as answer, self._translated(maybe_received=True):
            return Reply(answer.status, _headers(answer), answer.read())

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[StreamReply]:
        with self._answer(request) as answer, self._translated(maybe_received=True):
            yield _Stream(answer)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # as the client's own blocking transport does

    async def close(self) -> None:
        pass

    @contextmanager
    def _answer(self, request: Request) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(
            self._host, self._port, timeout=min(self._timeout, CONNECT_SECONDS)
        )
        try:
            with self._translated(maybe_received=False):
                connection.connect()
            connection.sock.settimeout(self._timeout + request.hold_seconds)
            with self._translated(maybe_received=True):
                headers = {**self._headers, **request.headers, "Connection": "close"}
                connection.request(request.method, self._target(request), request.content, headers)
                answer = connection.getresponse()
            yield answer
        finally:
            connection.close()

    def _target(self, request: Request) -> str:
        path = self._prefix + quote(request.path, safe=PATH_SAFE)
        return f"{path}?{urlencode(request.query)}" if request.query else path

    @contextmanager
    def _translated(self, *, maybe_received: bool) -> Iterator[None]:
        try:
            yield
        except ValueError:
            # A header that cannot be sent; what is said of it would show the key.
            raise ForemanError("FOREMAN_API_KEY has characters that no key has") from None
        except (OSError, http.client.HTTPException) as error:
            said = str(error) or type(error).__name__
            raise Unreachable(
                f"no answer from {self._where}: {said}", maybe_received=maybe_received
            ) from error


def _headers(answer: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.getheaders()}


class _Stream:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer
        self.status = answer.status
        self.headers = _headers(answer)

    async def chunks(self) -> AsyncIterator[bytes]:
        while piece := self._answer.read1(PIECE_BYTES):
            yield piece

    async def read(self) -> bytes:
        return self._answer.read()
