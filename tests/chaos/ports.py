"""Ports that stay ours while nobody listens on them.

Whoever is killed comes back on the same port. Meanwhile the kernel would give it to anybody's outgoing connection.
"""

import socket


class Ports:
    def __init__(self) -> None:
        self._places: list[socket.socket] = []

    def take(self) -> int:
        """Bound, and not listening: whoever also says SO_REUSEADDR may listen there, and nobody is given it by chance."""
        place = socket.socket()
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        self._places.append(place)
        return int(place.getsockname()[1])

    def close(self) -> None:
        for place in self._places:
            place.close()
