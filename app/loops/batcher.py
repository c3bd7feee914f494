"""Natural batching: one flush in flight, the next takes all that waited.

Under light load an item leaves at once and alone; under heavy load the batches grow by themselves.
No timer, no tuning. A failed flush fails exactly its own waiters, and where the failure may be one
item's fault the items are tried one by one, so that a bad one never poisons its neighbours.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from app.errors import Unavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# PostgreSQL takes no more than a gigabyte in one message, and all the waiters of a flush wait for its bytes.
MAX_FLUSH_BYTES = 16 * 1024 * 1024

Flush = Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]]


class Batcher(Generic[Item, Answer]):
    """Hands items to `flush` in batches and each waiter its own answer.

    A batch is bounded twice: by `weight`, how many rows an item is, and by `size`, how many bytes; an item
    that is too much by itself leaves alone. `in_flight` says how many flushes may run side by side.
    """

    def __init__(
        self,
        flush: Flush[Item, Answer],
        *,
        max_weight: int = 500,
        weight: Callable[[Item], int] = lambda _: 1,
        max_size: int = MAX_FLUSH_BYTES,
        size: Callable[[Item], int] = lambda _: 0,
        in_flight: int = 1,
    ) -> None:
        self._flush = flush
        self._max_weight = max_weight
        self._weight = weight
        self._max_size = max_size
        self._size = size
        self._in_flight = in_flight
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._flushes = 0
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
        self._waiting.append((item, future))
        if self._flushes < self._in_flight:
            self._flushes += 1
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return future

    async def drain(self) -> None:
        """Wait until nothing is waiting or in flight."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self) -> None:
        # Counted down in the same step that finds nothing waiting: an item put by a waiter that is just
        # being answered must not believe that a flush is still on its way.
        try:
            while self._waiting:
                await self._flush_batch(self._take())
        finally:
            self._flushes -= 1

    def _take(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        room, bytes_left = self._max_weight, self._max_size
        while self._waiting:
            item = self._waiting[0][0]
            room -= self._weight(item)
            bytes_left -= self._size(item)
            if batch and (room < 0 or bytes_left < 0):
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _flush_batch(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._flush([item for item, _ in batch])
        except Unavailable as problem:
            # Nobody's fault among them: all are told the same.
            for _, future in batch:
                _fail(future, problem)
        except Exception as problem:
            if len(batch) == 1:
                _fail(batch[0][1], problem)
            else:
                for entry in batch:
                    await self._flush_batch([entry])
        else:
            if len(answers) != len(batch):
                # It may have been written, so it is not flushed again; but nobody waits for ever.
                answers = [RuntimeError("the flush did not answer every item")] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if isinstance(answer, Exception):
                    _fail(future, answer)
                elif not future.done():
                    future.set_result(answer)


def _fail(future: asyncio.Future[Answer], problem: Exception) -> None:
    # A waiter that went away has nobody to tell.
    if not future.done():
        future.set_exception(problem)
