"""Name lookup that a hanging name server cannot clog.

Event loops look names up in a small shared thread pool (four threads under uvloop), where a few names that do
not answer keep everybody else waiting. Here each name has its own short-lived daemon thread, and all who ask
for the same name meanwhile share its answer. Nothing is cached once the answer is in.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

Resolver = Callable[[str], Awaitable[Sequence[str]]]


class ThreadResolver:
    """Resolves host names to addresses with the system's resolver. OSError when a name has none."""

    def __init__(self, max_threads: int = 64) -> None:
        self._slots = asyncio.Semaphore(max_threads)
        self._lookups: dict[str, asyncio.Task[list[str]]] = {}

    async def __call__(self, host: str) -> list[str]:
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = asyncio.create_task(self._look_up(host))
            lookup.add_done_callback(lambda done: self._forget(host, done))
        # Shielded: the deadline of one who waits must not end the lookup for the others.
        return await asyncio.shield(lookup)

    def _forget(self, host: str, lookup: asyncio.Task[list[str]]) -> None:
        del self._lookups[host]
        if not lookup.cancelled():
            lookup.exception()  # seen, even when nobody waits for it any more

    async def _look_up(self, host: str) -> list[str]:
        async with self._slots:
            answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
            # A daemon, because a process that shuts down must not wait for a name server.
            threading.Thread(target=_ask_system, args=(host, answer), name="resolve", daemon=True).start()
            return await answer


def _ask_system(host: str, answer: asyncio.Future[list[str]]) -> None:
    """Thread body: hands the addresses of `host`, or the error, to the loop that `answer` belongs to."""
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        _hand_over(answer, addresses, None)
    except (OSError, UnicodeError) as error:
        _hand_over(answer, [], error)


def _hand_over(answer: asyncio.Future[list[str]], addresses: list[str], error: Exception | None) -> None:
    def settle() -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(addresses)
        else:
            answer.set_exception(error)

    with suppress(RuntimeError):  # the loop was closed while the name server kept us waiting
        answer.get_loop().call_soon_threadsafe(settle)
