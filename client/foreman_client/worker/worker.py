"""Worker: what to work on and how. The working itself is a Shift."""

import asyncio
import contextlib
import gc
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from foreman_client.worker.shift import Shift, Terms
from foreman_client.worker.tasks import Handler, RetryOn, Task, make_task

H = TypeVar("H", bound=Handler)

# What Python begins with, until 3.12 and since then.
PYTHONS_OWN: Final = (700, 2000)
YOUNG_OBJECTS: Final = 20_000


class Worker:
    """Register handlers with `@worker.task("kind")`, then `worker.run()`.

    `concurrency`: handlers at once. `lease_seconds`: how soon others take over when this process dies.
    `drain_seconds`: how long SIGTERM lets handlers finish before they are cancelled and their jobs released,
    which costs them no attempt. Address and key come from FOREMAN_URL and FOREMAN_API_KEY when not given.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        name: str | None = None,
        queues: Sequence[str] = ("default",),
        concurrency: int = 10,
        lease_seconds: float = 30.0,
        drain_seconds: float = 0.5,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self.terms = Terms(
            url=url,
            api_key=api_key,
            name=name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}",
            queues=(queues,) if isinstance(queues, str) else tuple(queues),
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            drain_seconds=drain_seconds,
        )
        self.tasks: dict[str, Task] = {}
        self._shift: Shift | None = None

    @property
    def name(self) -> str:
        return self.terms.name

    def task(
        self,
        kind: str,
        *,
        retry_on: RetryOn = (),
        max_duration: float | timedelta | None = None,
    ) -> Callable[[H], H]:
        """Register a handler: `async def f(payload, job)`, or a plain `def`, which runs in a thread.

        An exception in `retry_on` is tried again as the job's backoff says, any other is permanent.
        `max_duration` (seconds) bounds one attempt; what runs longer is cancelled and tried again.
        """
        if callable(kind):
            raise TypeError('a task needs the name of its kind: @worker.task("my_kind")')

        def register(handler: H) -> H:
            if kind in self.tasks:
                raise ValueError(f"kind {kind!r} already has a handler: {self.tasks[kind].handler!r}")
            self.tasks[kind] = make_task(kind, handler, retry_on=retry_on, max_duration=max_duration)
            return handler

        return register

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain, release, return; a second signal cuts the drain short."""
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            runner.run(self.serve(signals=True))

    async def serve(self, *, signals: bool = False) -> None:
        """The same within a running event loop, until `stop()`."""
        if not self.tasks:
            raise ValueError("this worker has no tasks: register one with @worker.task")
        if self._shift is not None:
            raise RuntimeError("this worker is running already")
        self._shift = Shift(self.terms, self.tasks)
        try:
            with _rarer_collections():
                await self._shift.work(signals=signals)
        finally:
            self._shift = None

    def stop(self) -> None:
        """Ask to drain, release and return, from any thread; a second call cuts the drain short."""
        if self._shift is not None:
            self._shift.ask_to_stop()


@contextlib.contextmanager
def _rarer_collections() -> Iterator[None]:
    """Python looks for garbage at every 700th new object: every thirtieth job, a quarter of a job's time.

    Whoever has set this otherwise is left alone.
    """
    usual = gc.get_threshold()
    if usual[0] not in PYTHONS_OWN:
        yield
        return
    gc.set_threshold(YOUNG_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it happens to be installed: about a third less time per job."""
    try:
        import uvloop  # noqa: PLC0415  # optional
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
