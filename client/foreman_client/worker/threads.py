"""Threads for handlers written without `await`.

Daemon threads, unlike concurrent.futures': a handler that will not stop must not keep a drained worker from
exiting; its job has been released by then, and is fenced off.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

Work = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class DaemonThreads:
    """Starts a thread only when none is idle; as many as there are handlers at once, never more."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def run(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            spare = self._idle > 0
            self._idle -= spare
        if not spare:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        self._work.put((loop, future, function))
        return future

    def _serve(self) -> None:
        while True:
            loop, future, function = self._work.get()
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:  # there is nobody else to tell
                error = raised
            with self._lock:
                self._idle += 1
            try:
                loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed: the worker has ended
            del future, function, result, error


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, (StopIteration, KeyboardInterrupt, SystemExit)):
        # Neither may travel through a future: the first is refused, the others would end the worker.
        future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
    else:
        future.set_exception(error)
