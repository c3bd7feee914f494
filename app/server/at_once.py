"""A stream's next piece goes to the socket right where it becomes known: no task is woken to send it."""

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class AnswerAtOnce:
    """One answer's way past ASGI's `send`, between two calls of that (see app/api/open_streams.py)."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def is_ready(self) -> bool:
        cycle = self._cycle
        return (
            cycle.chunked_encoding is True
            and not cycle.response_complete
            and not cycle.disconnected
            and not cycle.flow.write_paused
        )

    def write(self, body: bytes) -> None:
        if body:
            self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
