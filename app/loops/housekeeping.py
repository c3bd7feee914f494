"""Garbage collection that does not stop the server.

Python looks through all its objects whenever their number has grown by a quarter. Thousands of streams are
half a million objects and none of them is garbage: each look would hold everything up for half a second. So
what is there at the start is left out of it, young garbage is collected often and in small lots, and the look
through everything happens at set times.
"""

import gc
import time

import structlog

from app.loops.loop import Loop

log = structlog.get_logger()

FULL_SECONDS = 900.0
YOUNG_OBJECTS = 5_000
YOUNG_ROUNDS = 5
NEVER = 1_000_000_000


class Housekeeping(Loop):
    def __init__(self) -> None:
        super().__init__("housekeeping", self._run_once, interval=FULL_SECONDS)

    async def start(self) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, NEVER)
        await super().start()

    async def _run_once(self) -> float | None:
        # Only if enough has grown old since the last time to be worth the while.
        if gc.get_count()[2] > 10:
            began = time.perf_counter()
            collected = gc.collect()
            log.debug("housekeeping.collected", objects=collected, seconds=time.perf_counter() - began)
        return None
