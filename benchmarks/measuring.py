"""How rates and latencies are taken, the same way for every system: standard library only.

`closed_loop` keeps a number of callers busy and counts what they finish inside a window; `paced` submits at a
fixed rate without waiting for the answers, so that a slow system cannot slow its own clock down.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

Numbers = dict[str, float]

PAYLOAD_BYTES = 300


def payload_text() -> str:
    """The `text` member that makes `{"text": …}` a JSON object of PAYLOAD_BYTES bytes."""
    return "x" * (PAYLOAD_BYTES - len('{"text":""}'))


def percentile(values: Sequence[float], fraction: float) -> float:
    """The nearest-rank percentile: always a value that was really seen."""
    if not values:
        raise ValueError("no values were measured")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def as_numbers(answer: object) -> Numbers:
    """What a measuring script said, if it is what such scripts say."""
    if not isinstance(answer, dict):
        raise TypeError(f"expected numbers by name, got {answer!r}")
    return {str(name): float(value) for name, value in answer.items()}


def rate_and_latency(durations: Sequence[float], seconds: float) -> Numbers:
    return {
        "per_second": len(durations) / seconds,
        "p50_ms": percentile(durations, 0.50) * 1000,
        "p99_ms": percentile(durations, 0.99) * 1000,
    }


def in_rows(calls: Numbers, rows: int) -> Numbers:
    """What calls of so many rows each come to in rows."""
    return {**calls, "per_second": calls["per_second"] * rows}


async def closed_loop(
    callers: Sequence[Callable[[], Awaitable[object]]], *, warmup: float, seconds: float
) -> Numbers:
    """Each caller calls again as soon as it was answered; only calls that end inside the window count."""
    opens = time.perf_counter() + warmup
    closes = opens + seconds
    durations: list[float] = []

    async def keep_calling(call: Callable[[], Awaitable[object]]) -> None:
        began = time.perf_counter()
        while began < closes:
            await call()
            ended = time.perf_counter()
            if opens <= ended < closes:
                durations.append(ended - began)
            began = ended

    await asyncio.gather(*(keep_calling(call) for call in callers))
    return rate_and_latency(durations, seconds)


def departures(rate: float, seconds: float) -> list[float]:
    """When to send, in seconds from the start: evenly, but shaken so as not to beat with anyone's polling."""
    shake = random.Random(7)
    count = round(rate * seconds)
    return [(position + shake.uniform(-0.4, 0.4)) / rate + 0.5 / rate for position in range(count)]


async def paced(send: Callable[[int], Awaitable[object]], *, rate: float, seconds: float) -> int:
    """Open loop: every departure leaves on time, answered or not; returns how many were sent."""
    start = time.perf_counter()
    running: list[asyncio.Task[object]] = []
    for number, departure in enumerate(departures(rate, seconds)):
        await asyncio.sleep(max(0.0, start + departure - time.perf_counter()))
        running.append(asyncio.ensure_future(_awaited(send(number))))
    await asyncio.gather(*running)
    return len(running)


async def _awaited(sending: Awaitable[object]) -> object:
    return await sending
