"""One call whose answer is read as it comes, or as a whole."""

from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from app.outbound.connection import Connection, Sink
from app.outbound.dial import Dialer
from app.outbound.errors import ConnectionDropped
from app.outbound.pool import ConnectionPool
from app.outbound.response import OutboundResponse, first_value
from app.outbound.urls import OutboundUrl


@dataclass(slots=True, eq=False)
class OutboundStream:
    """`async with` sends the request and begins with the answer's head; leaving it early hangs up.

    `idle_seconds` is for how long nothing may come; None for any time.
    """

    url: OutboundUrl
    request: bytes
    is_head: bool
    is_replayable: bool
    idle_seconds: float | None
    pool: ConnectionPool
    dialer: Dialer
    was_sent: bool = False
    status: int = 0
    headers: Sequence[tuple[str, str]] = ()  # in order, with lower-case names
    _connection: Connection = field(init=False)  # from the moment it is entered

    def header(self, name: str) -> str | None:
        """The first value of a header, by its lower-case name."""
        return first_value(self.headers, name)

    async def pour(self, sink: Sink) -> None:
        """Hands the body to `sink` as it comes, and returns at its end; raises what `sink` raises.

        And as `chunks` does. `sink` is called where the socket is read: it must not take long.
        """
        await self._connection.pour(sink, self.idle_seconds)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises OutboundTimeout when nothing comes for too long, AnswerCutError when it ends too soon.
        """
        while (chunk := await self._connection.next_chunk(self.idle_seconds)) is not None:
            yield chunk

    async def read(self, max_bytes: int) -> bytes:
        """The body, or as much of its beginning."""
        return (await self.whole(max_bytes)).body

    async def whole(self, max_bytes: int) -> OutboundResponse:
        """The answer with its body, which is cut off at `max_bytes`."""
        body, truncated = await self._connection.rest(max_bytes, self.idle_seconds)
        return OutboundResponse(self.status, self.headers, body, truncated)

    async def __aenter__(self) -> "OutboundStream":
        await self.pool.places.acquire()
        try:
            self._connection = await self._answered()
        except BaseException:
            self.pool.places.release()
            raise
        self.status = self._connection.status
        self.headers = self._connection.headers
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _problem: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.pool.put(self.url.origin, self._connection)
        self.pool.places.release()

    async def _answered(self) -> Connection:
        kept = self.pool.take(self.url.origin)
        if kept is not None:
            try:
                await self._send(kept)
                return kept
            except ConnectionDropped:
                # The receiver hung up on the idle connection just as it was used: no answer to this call.
                if not self.is_replayable:
                    raise
                self.was_sent = False
                # All others have been idle for longer.
                self.pool.forget(self.url.origin)
        fresh = await self.dialer.connect(self.url)
        try:
            await self._send(fresh)
        except ConnectionDropped as dropped:
            dropped.was_sent_twice = kept is not None
            raise
        return fresh

    def _send(self, connection: Connection) -> Coroutine[None, None, None]:
        self.was_sent = True
        return connection.send(self.request, is_head=self.is_head, idle_seconds=self.idle_seconds)
