"""Natural batching: one flush in flight, or a few, and the next takes all that waited.

Under light load an item leaves at once and alone; under heavy load the batches grow by themselves.
No timer, no tuning. A failed flush fails exactly its own waiters, and where the failure may be one
item's fault the items are tried one by one, so that a bad one never poisons its neighbours.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from app.errors import Unavailable
from app.telemetry import BATCH_SIZES

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# PostgreSQL takes no more than a gigabyte in one message, and all the waiters of a flush wait for its bytes.
MAX_FLUSH_BYTES = 16 * 1024 * 1024

Flush = Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]]
# Whom to tell what became of an item: its answer, or what went wrong.
Tell = Callable[[Answer | Exception], None]
# An item, whom to tell, and how many rows it is.
Entry = tuple[Item, Tell[Answer], int]

log = structlog.get_logger()


class Batcher(Generic[Item, Answer]):
    """Hands items to `flush` in batches and each waiter its own answer. Its `name` is for the metrics.

    A batch is bounded twice: by `weight`, how many rows an item is, and by `size`, how many bytes; an item
    that is too much by itself leaves alone. `in_flight` says how many flushes may run side by side. Items
    that share one of their `keys` leave one after the other: a batch takes the first, and the others keep
    their places in the queue until it was flushed.
    """

    def __init__(
        self,
        name: str,
        flush: Flush[Item, Answer],
        *,
        max_weight: int = 500,
        weight: Callable[[Item], int] = lambda _: 1,
        max_size: int = MAX_FLUSH_BYTES,
        size: Callable[[Item], int] = lambda _: 0,
        in_flight: int = 1,
        keys: Callable[[Item], Iterable[str]] | None = None,
    ) -> None:
        self._flush = flush
        self._sizes = BATCH_SIZES.labels(name)
        self._max_weight = max_weight
        self._weight = weight
        self._max_size = max_size
        self._size = size
        self._in_flight = in_flight
        self._keys = keys
        self._waiting: deque[Entry[Item, Answer]] = deque()
        self._flushes = 0
        self._keys_in_flight: set[str] = set()
        # The loop keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, item: Item) -> Answer:
        """Wait until the item's batch was flushed; returns or raises what became of this item."""
        return await self.submit(item)

    async def put_surely(self, item: Item, within_seconds: float) -> Answer:
        """The same, and once more and again while the database is away, for so long."""
        try:
            return await self.put(item)
        except Unavailable:
            patiently = AsyncRetrying(
                retry=retry_if_exception_type(Unavailable),
                stop=stop_after_delay(within_seconds),
                wait=wait_random_exponential(0.2, 1),
                reraise=True,
            )
            return await patiently(self.put, item)

    def submit(self, item: Item) -> "asyncio.Future[Answer]":
        """What becomes of this item, for those who have to know of it even when they stop waiting."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.add(item, partial(_settle, future))
        return future

    def add(self, item: Item, tell: Tell[Answer]) -> None:
        """The same for whoever does not wait: `tell` is called once, never before this returns."""
        weight = self._weight(item)
        self._waiting.append((item, tell, weight))
        if self._flushes < self._in_flight:
            self._flushes += 1
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """Wait until nothing is waiting or in flight."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self) -> None:
        # Counted down in the same step that finds nothing waiting: an item put by a waiter that is just
        # being answered must not believe that a flush is still on its way.
        try:
            # What waits for keys in flight alone is taken up by the flush that has them, when it is over.
            while batch := self._take():
                await self._flush_keys(batch)
                # What has arrived at the sockets meanwhile is read first, and leaves with the next batch.
                await asyncio.sleep(0)
        finally:
            self._flushes -= 1

    def _take(self) -> list[Entry[Item, Answer]]:
        batch: list[Entry[Item, Answer]] = []
        passed: list[Entry[Item, Answer]] = []
        taken = set(self._keys_in_flight)
        room, bytes_left = self._max_weight, self._max_size
        while self._waiting:
            item, _, weight = self._waiting[0]
            if self._keys is not None:
                keys = self._keys(item)
                is_free = taken.isdisjoint(keys)
                # Also those of what is passed over: nothing overtakes it.
                taken.update(keys)
                if not is_free:
                    passed.append(self._waiting.popleft())
                    continue
            room -= weight
            bytes_left -= self._size(item)
            if batch and (room < 0 or bytes_left < 0):
                break
            batch.append(self._waiting.popleft())
        self._waiting.extendleft(reversed(passed))
        return batch

    async def _flush_keys(self, batch: list[Entry[Item, Answer]]) -> None:
        """Flush, and meanwhile let nothing leave that shares a key."""
        if self._keys is None:
            return await self._flush_batch(batch)
        keys = {key for item, _, _ in batch for key in self._keys(item)}
        self._keys_in_flight |= keys
        try:
            await self._flush_batch(batch)
        finally:
            self._keys_in_flight -= keys

    async def _flush_batch(self, batch: list[Entry[Item, Answer]]) -> None:
        self._sizes.observe(len(batch))
        try:
            answers = await self._flush([item for item, _, _ in batch])
        except Unavailable as problem:
            # Nobody's fault among them: all are told the same.
            for _, tell, _ in batch:
                _tell(tell, problem)
        except Exception as problem:
            if len(batch) == 1:
                _tell(batch[0][1], problem)
            else:
                for entry in batch:
                    await self._flush_batch([entry])
        else:
            if len(answers) != len(batch):
                # It may have been written, so it is not flushed again; but nobody waits for ever.
                answers = [RuntimeError("the flush did not answer every item")] * len(batch)
            for (_, tell, _), answer in zip(batch, answers, strict=True):
                _tell(tell, answer)


def _tell(tell: Tell[Answer], answer: Answer | Exception) -> None:
    try:
        tell(answer)
    except Exception:
        # Only this one is not told: the others of the batch have nothing to do with it.
        log.exception("batcher.not_told")


def _settle(future: "asyncio.Future[Answer]", answer: Answer | Exception) -> None:
    # A waiter that went away has nobody to tell.
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
