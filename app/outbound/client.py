"""The one client for calls to the outside: webhooks, jobs of kind `http`, wake URLs, and calls to targets.

It follows no redirects, reads no proxy settings, unpacks nothing, and caps what it reads. Where it may
connect to is decided in `guard` and enforced in `dial`. Why it is our own stands in docs/decisions/0012.
"""

import asyncio
import ssl

from app.outbound.dial import Dialer
from app.outbound.errors import OutboundRefused, OutboundTimeout, OutboundUnreachable
from app.outbound.guard import AddressPolicy
from app.outbound.headers import METHODS, Headers, check_headers, is_replayable, request_head
from app.outbound.pool import ConnectionPool
from app.outbound.resolve import Resolver, ThreadResolver
from app.outbound.response import OutboundResponse
from app.outbound.stream import OutboundStream
from app.outbound.urls import OutboundUrl, UrlInvalid, parse_url

_VERDICT_SECONDS = 10.0
_MAX_VERDICTS = 1024


class GuardedClient:
    """Makes HTTP calls that cannot reach what the policy refuses.

    Belongs to one event loop; `aclose` it in the end. At most `max_connections` calls run at once, the others
    wait their turn within their own deadline: whoever calls many hosts limits the calls per host beforehand.
    """

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        resolver: Resolver | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int = 512,
        max_idle: int = 256,
        connect_seconds: float = 10.0,
        idle_seconds: float = 4.0,  # below the 5 s after which common servers hang up on an idle client
    ) -> None:
        self._policy = policy
        self._dialer = Dialer(policy, resolver or ThreadResolver(), ssl_context, connect_seconds)
        self._pool = ConnectionPool(
            max_connections=max_connections, max_idle=max_idle, idle_seconds=idle_seconds
        )
        self._verdicts: dict[str, tuple[float, str | None]] = {}

    async def aclose(self) -> None:
        """Close the idle connections. Calls still under way end by their own deadline or cancellation."""
        self._pool.close()

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Headers | None = None,
        content: bytes = b"",
        idle_seconds: float | None,
        replayable: bool = False,
    ) -> OutboundStream:
        """A call to be entered with `async with`, which raises one of the OutboundErrors.

        A `replayable` request may be sent again when a kept connection turns out to be closed, whatever its
        method. Nothing may come for `idle_seconds`; there is no deadline beside them.
        """
        headers = headers or {}
        parsed = self._admitted(method, url, headers)
        return OutboundStream(
            url=parsed,
            request=request_head(method, parsed, headers, len(content)) + content,
            is_head=method == "HEAD",
            is_replayable=replayable or is_replayable(method, headers),
            idle_seconds=idle_seconds,
            pool=self._pool,
            dialer=self._dialer,
        )

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Headers | None = None,
        content: bytes = b"",
        deadline_seconds: float,
        max_response_bytes: int,
    ) -> OutboundResponse:
        """Make one call and return its answer, whatever its status. Raises one of the OutboundErrors."""
        stream = self.stream(method, url, headers=headers, content=content, idle_seconds=None)
        try:
            async with asyncio.timeout(deadline_seconds), stream:
                return await stream.whole(max_response_bytes)
        except TimeoutError:
            if stream.was_sent:
                raise OutboundTimeout(f"no complete answer within {deadline_seconds:g} s") from None
            raise OutboundUnreachable(f"no connection within {deadline_seconds:g} s") from None

    async def refusal(self, url: str, *, deadline_seconds: float = 2.0) -> str | None:
        """Why `url` would be refused if it were called now; None when nothing is known against it.

        For submit time, with the name resolved. Advice only, and remembered for some seconds per host: a name
        that cannot be resolved is no objection, and the call itself checks afresh.
        """
        reason = self._policy.check_url(url)
        if reason is not None or (parsed := parse_url(url)).address is not None:
            return reason
        now = asyncio.get_running_loop().time()
        known_until, verdict = self._verdicts.get(parsed.host, (0.0, None))
        if known_until <= now:
            verdict = await self._resolved_verdict(parsed, deadline_seconds)
            if len(self._verdicts) >= _MAX_VERDICTS:
                self._verdicts.clear()
            self._verdicts[parsed.host] = (now + _VERDICT_SECONDS, verdict)
        return verdict

    async def _resolved_verdict(self, url: OutboundUrl, deadline_seconds: float) -> str | None:
        try:
            async with asyncio.timeout(deadline_seconds):
                await self._dialer.checked_addresses(url)
        except OutboundRefused as refused:
            return refused.reason
        except (OutboundUnreachable, TimeoutError):
            pass
        return None

    def _admitted(self, method: str, url: str, headers: Headers) -> OutboundUrl:
        if method not in METHODS:
            raise OutboundRefused("the method is not allowed")
        try:
            parsed = parse_url(url)
        except UrlInvalid as error:
            raise OutboundRefused(str(error)) from None
        reason = check_headers(headers) or self._policy.check_parsed(parsed)
        if reason is not None:
            raise OutboundRefused(reason)
        return parsed
