"""Both transports over httpx, and its errors as ours. Slower to load than all the rest of the client."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from foreman_client.errors import ForemanError, Unreachable
from foreman_client.transport import StreamReply
from foreman_client.wire import Reply, Request, without_password

# Shorter than the 5 s for which common servers keep an idle connection open: we let go first, so a request is
# hardly ever written into a connection that is being closed.
KEEPALIVE_SECONDS = 4.0
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEEPALIVE_SECONDS)


class AwaitedTransport:
    """httpx.AsyncClient, opened at the first request, in the event loop that makes it."""

    def __init__(self, base_url: str, headers: dict[str, str], timeout: float) -> None:
        self._options = _options(base_url, headers)
        self._timeout = timeout
        self._client: httpx.AsyncClient | None = None

    @property
    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(**self._options, limits=LIMITS)
        return self._client

    async def send(self, request: Request) -> Reply:
        with _translated():
            response = await self._send(request, stream=False)
            return Reply(response.status_code, dict(response.headers), response.content)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[StreamReply]:
        with _translated():
            response = await self._send(request, stream=True)
            try:
                yield _AwaitedStream(response)
            finally:
                await response.aclose()

    async def _send(self, request: Request, *, stream: bool) -> httpx.Response:
        built = self._open.build_request(**_arguments(request, self._timeout))
        try:
            return await self._open.send(built, stream=stream)
        except AttributeError as error:
            # anyio stumbles over a socket that uvloop closed already: one that was reset as it was connected.
            raise httpx.ReadError("the connection was reset as soon as it was made", request=built) from error

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


class BlockingTransport:
    """httpx.Client behind coroutines that never suspend; may be shared by threads, as httpx.Client may."""

    def __init__(self, base_url: str, headers: dict[str, str], timeout: float) -> None:
        self._timeout = timeout
        self._client = httpx.Client(**_options(base_url, headers), limits=LIMITS)

    async def send(self, request: Request) -> Reply:
        with _translated():
            response = self._client.request(**_arguments(request, self._timeout))
            return Reply(response.status_code, dict(response.headers), response.content)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[StreamReply]:
        with _translated(), self._client.stream(**_arguments(request, self._timeout)) as response:
            yield _BlockingStream(response)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # blocking is what this class is for

    async def close(self) -> None:
        self._client.close()


class _AwaitedStream:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = dict(response.headers)

    def chunks(self) -> AsyncIterator[bytes]:
        return self._response.aiter_bytes()

    async def read(self) -> bytes:
        return await self._response.aread()


class _BlockingStream:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = dict(response.headers)

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._response.iter_bytes():
            yield chunk

    async def read(self) -> bytes:
        return self._response.read()


def _options(base_url: str, headers: dict[str, str]) -> dict[str, Any]:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        # What httpx says of it may be a piece of a password.
        said = "" if "@" in base_url else f": {error}"
        raise ForemanError(f"{without_password(base_url)!r} is not an address{said}") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ForemanError(
            f"{without_password(base_url)!r} is not an address of a server; it looks like http://host:8080"
        )
    return {"base_url": url, "headers": headers}


def _arguments(request: Request, timeout: float) -> dict[str, Any]:
    return {
        "method": request.method,
        "url": request.path,
        "params": list(request.query) or None,
        "headers": request.headers,
        "content": request.content,
        "timeout": httpx.Timeout(timeout + request.hold_seconds, connect=min(timeout, 10.0)),
    }


class _translated:  # noqa: N801  # reads as a phrase: with _translated()
    """httpx's errors become ours."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
            raise Unreachable(_said(error), maybe_received=False) from error
        if isinstance(error, httpx.TransportError):
            raise Unreachable(_said(error), maybe_received=True) from error
        if isinstance(error, (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError)):
            raise ForemanError(_said(error)) from error


def _said(error: Exception) -> str:
    if isinstance(error, httpx.RequestError):
        try:
            where = f"{error.request.url.scheme}://{error.request.url.netloc.decode()}"
        except RuntimeError:  # httpx's way of saying that no request is attached
            where = "the server"
        return f"no answer from {where}: {str(error) or type(error).__name__}"
    return str(error) or type(error).__name__
