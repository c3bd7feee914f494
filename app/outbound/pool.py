"""Idle connections, kept for a few seconds for the next request to the same origin.

Keeping one is safe whatever its name resolves to later: the address it is connected to was checked.
"""

import asyncio

from app.outbound.http1 import Http1Connection

Origin = tuple[str, str, int]


class IdleConnections:
    """Open connections that nobody uses at the moment, newest first per origin."""

    def __init__(self, *, limit: int, idle_seconds: float) -> None:
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._by_origin: dict[Origin, dict[Http1Connection, asyncio.TimerHandle]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, origin: Origin) -> Http1Connection | None:
        """A connection to `origin` that is still good, or None."""
        while connections := self._by_origin.get(origin):
            connection = next(reversed(connections))
            self._remove(origin, connection)
            if connection.is_reusable:
                return connection
            connection.close()
        return None

    def put(self, origin: Origin, connection: Http1Connection) -> None:
        """Keep `connection` if it can serve another request and there is room, else close it."""
        if not connection.is_reusable or self._count >= self._limit:
            connection.close()
            return
        expiry = asyncio.get_running_loop().call_later(self._idle_seconds, connection.close)
        self._by_origin.setdefault(origin, {})[connection] = expiry
        self._count += 1
        connection.on_closed = lambda: self._remove(origin, connection)

    def close(self) -> None:
        for connections in list(self._by_origin.values()):
            for connection, expiry in list(connections.items()):
                expiry.cancel()
                connection.abort()
        self._by_origin.clear()
        self._count = 0

    def _remove(self, origin: Origin, connection: Http1Connection) -> None:
        connection.on_closed = None
        connections = self._by_origin.get(origin, {})
        expiry = connections.pop(connection, None)
        if expiry is None:
            return
        expiry.cancel()
        self._count -= 1
        if not connections:
            del self._by_origin[origin]
