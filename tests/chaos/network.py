"""The wires of the cluster: every connection between two parts goes through a relay that can be told to misbehave.

A relay passes bytes on, holds them back for a while, swallows them (both ends believe to be connected: a half-open
connection), cuts what there is with a reset, or refuses whoever comes. They live in one thread with an event loop of
its own, so that nothing else in the process holds them up.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from tests.chaos.ports import Ports
from tests.patience import pretend_to_work

T = TypeVar("T")
# A unix socket's path, or a port on this machine.
Destination = Path | int
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Wire(Enum):
    PASSES = "passes"
    # Accepts, and closes at once: the host is there, what is behind it is not.
    CUTS = "cuts"
    # Nobody listens: the host says so.
    REFUSES = "refuses"
    # Accepts, and nothing ever arrives.
    SWALLOWS = "swallows"


class Network:
    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        self.relays: dict[str, Relay] = {}
        self.ports = Ports()

    def relay(self, name: str, destination: Destination | Callable[[], Destination]) -> "Relay":
        relay = Relay(
            self, name, self.ports.take(), destination if callable(destination) else lambda: destination
        )
        self.run(relay.open())
        self.relays[name] = relay
        return relay

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def heal(self) -> None:
        for relay in self.relays.values():
            relay.passes()

    def close(self) -> None:
        for relay in self.relays.values():
            self.run(relay.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.ports.close()


class Relay:
    """One port that leads somewhere; where to is asked at each connection."""

    def __init__(
        self, network: Network, name: str, port: int, destination: Callable[[], Destination]
    ) -> None:
        self.name = name
        self.port = port
        self._network = network
        self._destination = destination
        self._wire = Wire.PASSES
        self._delay = 0.0
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.WriteTransport] = set()
        # Those whose bytes are swallowed have lost their place in the stream, and are of no more use.
        self._deaf: set[asyncio.WriteTransport] = set()
        # The loop keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    # -- what a fault does, from any thread --------------------------------------------------------

    def passes(self) -> None:
        """As it should be. What lost bytes meanwhile is reset, as by a host that is back and knows of nothing."""
        self._network.run(self._become(Wire.PASSES, 0.0))

    def cuts(self) -> None:
        self._network.run(self._become(Wire.CUTS, 0.0))

    def refuses(self) -> None:
        self._network.run(self._become(Wire.REFUSES, 0.0))

    def swallows(self) -> None:
        self._network.run(self._become(Wire.SWALLOWS, 0.0))

    def delays(self, seconds: float) -> None:
        self._network.run(self._become(Wire.PASSES, seconds))

    def resets(self) -> None:
        """Every connection that there is, once."""
        self._network.run(self._reset(set(self._ends)))

    # -- in the thread of the network --------------------------------------------------------------

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", self.port, backlog=1024)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._reset(set(self._ends))
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _become(self, wire: Wire, delay: float) -> None:
        self._wire, self._delay = wire, delay
        if wire is Wire.REFUSES and self._server is not None:
            self._server.close()
            self._server = None
        elif wire is not Wire.REFUSES and self._server is None:
            await self.open()
        if wire is Wire.SWALLOWS:
            self._deaf |= self._ends
        elif wire is Wire.PASSES:
            await self._reset(set(self._deaf))
        else:
            await self._reset(set(self._ends))

    async def _reset(self, ends: set[asyncio.WriteTransport]) -> None:
        for transport in ends:
            _abort(transport)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._accept(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._wire is Wire.CUTS:
            _abort(writer.transport)
            return
        if self._wire is Wire.SWALLOWS:
            await self._leave_alone(reader, writer)
            return
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            _abort(writer.transport)
            return
        await self._join((reader, writer), (far_reader, far_writer))

    async def _leave_alone(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Nobody is at the other end, and nothing says so."""
        self._ends.add(writer.transport)
        self._deaf.add(writer.transport)
        try:
            await self._pump(reader, writer, writer.transport)
        finally:
            self._ends.discard(writer.transport)
            self._deaf.discard(writer.transport)
            writer.close()

    async def _join(self, near: Connection, far: Connection) -> None:
        """Until either hangs up: nobody here closes one direction only."""
        ends = {near[1].transport, far[1].transport}
        self._ends |= ends
        pumps = [
            asyncio.create_task(self._pump(near[0], far[1], near[1].transport)),
            asyncio.create_task(self._pump(far[0], near[1], far[1].transport)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if ends & self._deaf:
                # Even the end is swallowed: whoever hung up is not missed by the other.
                await asyncio.wait(pumps)
        finally:
            self._ends -= ends
            self._deaf -= ends
            for pump in pumps:
                pump.cancel()
            for _, writer in (near, far):
                writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        destination = self._destination()
        if isinstance(destination, Path):
            return await asyncio.open_unix_connection(str(destination))
        return await asyncio.open_connection("127.0.0.1", destination)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, near: asyncio.WriteTransport
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if near in self._deaf:
                    continue
                if self._delay:
                    await pretend_to_work(self._delay)
                writer.write(data)
                await writer.drain()
        except OSError:
            _abort(writer.transport)


def _abort(transport: asyncio.WriteTransport) -> None:
    """A reset, not a polite end."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    # It may have ended by itself in this moment, and have no descriptor any more.
    with contextlib.suppress(OSError, ValueError):
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
