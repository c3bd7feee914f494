"""A receiver that does next to nothing per delivery, in a process of its own: it notes when each one came.

Says its port at once, and how long each delivery took from its event to here once all have come.
"""

import asyncio
import time
from datetime import datetime
from typing import cast

from benchmarks.measuring import Numbers, percentile
from benchmarks.scripting import main, say

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length: "
TIMESTAMP = b'"timestamp":"'


class Tally:
    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.arrivals: list[tuple[float, bytes]] = []
        self.complete = asyncio.Event()

    def add(self, message: bytes) -> None:
        start = message.find(TIMESTAMP) + len(TIMESTAMP)
        self.arrivals.append((time.time(), message[start : message.find(b'"', start)]))
        if len(self.arrivals) >= self.expected:
            self.complete.set()

    def numbers(self) -> Numbers:
        took = [at - datetime.fromisoformat(event.decode()).timestamp() for at, event in self.arrivals]
        first, last = self.arrivals[0][0], self.arrivals[-1][0]
        return {
            "per_second": len(took) / max(last - first, 1e-6),
            "p50_ms": percentile(took, 0.50) * 1000,
            "p99_ms": percentile(took, 0.99) * 1000,
        }


class Receiver(asyncio.Protocol):
    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        head_end = received.find(HEAD_END)
        if head_end < 0:
            return
        length_at = received.find(LENGTH, 0, head_end) + len(LENGTH)
        length = int(received[length_at : received.index(b"\r", length_at)])
        if len(received) < head_end + len(HEAD_END) + length:
            return
        self._received = b""
        self._tally.add(received[head_end:])
        self._transport.write(ANSWER)


async def receive(expected: int, seconds: float) -> Numbers:
    """Take deliveries until all that are expected have come."""
    tally = Tally(expected)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Receiver(tally), "127.0.0.1", 0)
    say({"port": server.sockets[0].getsockname()[1]})
    try:
        await asyncio.wait_for(tally.complete.wait(), seconds)
    except TimeoutError:
        raise TimeoutError(f"{len(tally.arrivals)} of {expected} deliveries came in {seconds:g} s") from None
    return tally.numbers()


if __name__ == "__main__":
    main(receive)
