"""Name lookup that names which do not answer cannot clog.

Event loops look names up in a small shared thread pool (four threads under uvloop), where a few names that do
not answer keep everybody else waiting. Here each name has its own short-lived daemon thread, and all who ask
for the same name meanwhile share its answer. Addresses are not cached once the answer is in.

A thread that waits for a name server cannot be stopped, so two things are bounded: how many look-ups are
young, and how many threads there are at all. A look-up that takes long gives its place to the next, and goes
on for whoever still waits. Names that were found lately have places and threads of their own: however many
names nobody answers for, theirs are found.
"""

import asyncio
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

Resolver = Callable[[str], Awaitable[Sequence[str]]]

# After so long it is not young any more. Most answers come within milliseconds.
SLOW_SECONDS = 1.0
# For how long a name that took that long and was not found in the end is not asked for again.
REFUSED_SECONDS = 10.0
# Names that were found lately.
MAX_KNOWN = 4096


class _Lane:
    def __init__(self, young: int, threads: int) -> None:
        self.young = asyncio.Semaphore(young)
        self.threads = asyncio.Semaphore(threads)


class ThreadResolver:
    """Resolves host names to addresses with the system's resolver. OSError when a name has none."""

    def __init__(self, *, young: int = 64, threads: int = 256, slow_seconds: float = SLOW_SECONDS) -> None:
        self._slow_seconds = slow_seconds
        self._strangers = _Lane(young, threads)
        self._acquainted = _Lane(max(1, young // 2), max(1, threads // 4))
        self._known: OrderedDict[str, None] = OrderedDict()
        self._refused: dict[str, float] = {}
        self._lookups: dict[str, asyncio.Task[list[str]]] = {}

    async def __call__(self, host: str) -> list[str]:
        lookup = self._lookups.get(host)
        if lookup is None:
            if self._is_refused(host):
                raise OSError(socket.EAI_AGAIN, "the name server did not answer")
            lookup = self._lookups[host] = asyncio.create_task(self._look_up(host))
            lookup.add_done_callback(lambda done: self._forget(host, done))
        # Shielded: the deadline of one who waits must not end the lookup for the others.
        return await asyncio.shield(lookup)

    def _forget(self, host: str, lookup: asyncio.Task[list[str]]) -> None:
        del self._lookups[host]
        if not lookup.cancelled():
            lookup.exception()  # seen, even when nobody waits for it any more

    def _is_refused(self, host: str) -> bool:
        now = time.monotonic()
        if self._refused and next(iter(self._refused.values())) <= now:
            self._refused = {name: until for name, until in self._refused.items() if until > now}
        return host in self._refused

    async def _look_up(self, host: str) -> list[str]:
        lane = self._acquainted if host in self._known else self._strangers
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        async with lane.young:
            await lane.threads.acquire()
            began = time.monotonic()
            try:
                # A daemon, because a process that shuts down must not wait for a name server.
                threading.Thread(
                    target=_ask_system, args=(host, answer, lane.threads.release), name="resolve", daemon=True
                ).start()
            except RuntimeError as problem:
                lane.threads.release()
                raise OSError(socket.EAI_AGAIN, "no thread could be started") from problem
            await asyncio.wait([answer], timeout=self._slow_seconds)
        try:
            addresses = await answer
        except OSError:
            self._known.pop(host, None)
            if time.monotonic() - began >= self._slow_seconds:
                self._refused[host] = time.monotonic() + REFUSED_SECONDS
            raise
        self._known[host] = None
        self._known.move_to_end(host)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return addresses


def _ask_system(host: str, answer: asyncio.Future[list[str]], done: Callable[[], None]) -> None:
    """Thread body: hands the addresses of `host`, or the error, to the loop that `answer` belongs to."""
    settle: Callable[[], None]
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        settle = partial(answer.set_result, list(dict.fromkeys(_written(entry[4]) for entry in entries)))
    except (OSError, UnicodeError) as error:
        settle = partial(answer.set_exception, error)

    def hand_over() -> None:
        done()
        if not answer.done():
            settle()

    with suppress(RuntimeError):  # the loop was closed while the name server kept us waiting
        answer.get_loop().call_soon_threadsafe(hand_over)


def _written(found: Sequence[object]) -> str:
    """The address, with the scope that a link-local one cannot be reached without."""
    return f"{found[0]}%{found[3]}" if len(found) == 4 and found[3] else str(found[0])
