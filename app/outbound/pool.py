"""The connections of one client: how many there may be at once, and which are kept for the next call.

Keeping one is safe whatever its name resolves to later: the address it is connected to was checked.
"""

import asyncio

from app.outbound.connection import Connection
from app.outbound.urls import Origin


class ConnectionPool:
    """Places for calls, and open connections that nobody uses at the moment, newest first per origin."""

    def __init__(self, *, max_connections: int, max_idle: int, idle_seconds: float) -> None:
        # Whoever makes a call takes a place first and keeps it until its answer was read.
        self.places = asyncio.Semaphore(max_connections)
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self._by_origin: dict[Origin, dict[Connection, asyncio.TimerHandle]] = {}
        self._idle = 0

    def take(self, origin: Origin) -> Connection | None:
        """A kept connection to `origin` that is still good, or None."""
        while connections := self._by_origin.get(origin):
            connection = next(reversed(connections))
            self._remove(origin, connection)
            if connection.is_reusable:
                return connection
            connection.abort()
        return None

    def put(self, origin: Origin, connection: Connection) -> None:
        """Keep `connection` if it can serve another request and there is room, else hang up."""
        if not connection.is_reusable or self._idle >= self._max_idle:
            connection.abort()
            return
        expiry = asyncio.get_running_loop().call_later(self._idle_seconds, connection.close)
        self._by_origin.setdefault(origin, {})[connection] = expiry
        self._idle += 1
        connection.on_closed = lambda: self._remove(origin, connection)

    def forget(self, origin: Origin) -> None:
        """Hang up all that is kept to `origin`."""
        for connection in list(self._by_origin.get(origin, ())):
            self._remove(origin, connection)
            connection.abort()

    def close(self) -> None:
        """Hang up all that is kept."""
        for origin in list(self._by_origin):
            self.forget(origin)

    def _remove(self, origin: Origin, connection: Connection) -> None:
        connection.on_closed = None
        connections = self._by_origin[origin]
        connections.pop(connection).cancel()
        self._idle -= 1
        if not connections:
            del self._by_origin[origin]
