"""The body of a request while it is read: bounded by itself, and together with all the others."""

from starlette.requests import Request
from starlette.types import Message, Receive

from app.errors import Overloaded, PayloadTooLarge

# So much of a body is let in however much is held already: claims, heartbeats and small jobs go on when large
# bodies fill the room. It is no more than what each connection may buffer anyway.
SMALL_BYTES = 64 * 1024
RETRY_SECONDS = 1.0


class InFlight:
    """Bytes of bodies that are held now, over all connections of this process."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Body:
    """Counts a body while it is read, so that nothing beyond the limits is ever buffered."""

    __slots__ = ("_held", "_in_flight", "_limit", "_receive", "_room")

    def __init__(self, receive: Receive, limit: int, in_flight: InFlight | None) -> None:
        """`in_flight` is for bodies that are kept until the request is answered."""
        self._receive = receive
        self._limit = self._room = limit
        self._in_flight = in_flight
        self._held = 0

    def check(self, length: int) -> None:
        """Refuse what says itself that it is too large."""
        if length > self._limit:
            raise self._too_large()

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._room -= size
            if self._room < 0:
                raise self._too_large()
            # What has come, not what was announced: announcing costs nothing and would keep others out.
            if self._in_flight is not None:
                self._held += size
                self._in_flight.held += size
                if self._in_flight.held > self._in_flight.limit and self._held > SMALL_BYTES:
                    raise Overloaded(
                        "Too many large requests at the same time; try again shortly.",
                        retry_after=RETRY_SECONDS,
                    )
        return message

    def release(self) -> None:
        """It is not held any more; harmless when said twice."""
        if self._in_flight is not None:
            self._in_flight.held -= self._held
            self._held = 0

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"The body may have at most {self._limit} bytes.")


def release_body(request: Request) -> None:
    """For whoever goes on answering for a long time without it."""
    body: Body | None = request.scope["state"].get("body")
    if body is not None:
        body.release()
