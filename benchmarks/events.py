"""The event log under load: tokens relayed, events fanned out, streams that idle and streams that come back.

`relay`: echo speaks as fast as it can in one replica, and readers are attached to the same replica or to
another one. `fanout`: an event is posted on one replica and goes to a hundred readers, with and without
LISTEN. `streams`: what idle streams cost, and what it does to submitters when thousands come back at once.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from benchmarks.harness import Benchmark, Metric, System
from benchmarks.http_client import until_answering
from benchmarks.lab import QUICK, Lab
from benchmarks.measuring import Numbers, as_numbers, percentile
from benchmarks.processes import Service, free_port

READERS = "benchmarks.event_readers"
PYTHON = Path(sys.executable)


@dataclass(frozen=True)
class Sizes:
    relay_jobs: int
    relay_words: int
    readers: int
    events: int
    rate: float
    idle_streams: int
    idle_seconds: float
    storm_streams: int
    quiet_seconds: float
    # Longer than a storm lasts: the probe has to outlive it.
    storm_seconds: float


FULL_SIZES = Sizes(32, 3000, 100, 100, 20.0, 2000, 20.0, 5000, 8.0, 28.0)
QUICK_SIZES = Sizes(4, 200, 10, 10, 20.0, 50, 0.3, 100, 0.3, 2.0)


def sizes(lab: Lab) -> Sizes:
    return QUICK_SIZES if lab.scale == QUICK else FULL_SIZES


@dataclass(frozen=True)
class Replica:
    service: Service
    port: int


@asynccontextmanager
async def replica(lab: Lab, dsn: str, name: str, **settings: str) -> AsyncIterator[Replica]:
    port = free_port()
    environment = {"FOREMAN_DATABASE_URL": dsn, "FOREMAN_AUTH": "off", "FOREMAN_PORT": str(port), **settings}
    async with lab.service(f"foreman-{name}", [sys.executable, "-m", "app", "serve"], environment) as service:
        await until_answering(service, port, "/readyz", 200)
        yield Replica(service, port)


@asynccontextmanager
async def two_replicas(lab: Lab, **settings: str) -> AsyncIterator[tuple[Replica, Replica]]:
    """The first runs jobs, the second only answers."""
    dsn = await lab.fresh_database("foreman")
    async with (
        replica(lab, dsn, "first", **settings) as first,
        replica(lab, dsn, "second", FOREMAN_ROLE="api", **settings) as second,
    ):
        await lab.settle_down(dsn)
        yield first, second


async def relay(lab: Lab, *, other: bool) -> Numbers:
    size = sizes(lab)
    async with two_replicas(lab) as (first, second):
        return as_numbers(
            await lab.measure(
                PYTHON,
                READERS,
                "relay",
                submit_port=first.port,
                read_port=second.port if other else first.port,
                jobs=size.relay_jobs,
                words=size.relay_words,
            )
        )


async def fanout(lab: Lab, *, other: bool, listen: bool = True) -> Numbers:
    size = sizes(lab)
    async with two_replicas(lab, FOREMAN_LISTEN="on" if listen else "off") as (first, second):
        ports = {"post_port": first.port, "read_port": second.port if other else first.port}
        numbers = as_numbers(
            await lab.measure(
                PYTHON,
                READERS,
                "fanout",
                readers=size.readers,
                # Found by polling once a second: fewer, and not in step with it.
                events=size.events if listen else max(10, size.events // 4),
                rate=size.rate if listen else 0.9,
                **ports,
            )
        )
        waited = as_numbers(await lab.measure(PYTHON, READERS, "waiting_worker", events=20, **ports))
    return {**numbers, "worker_p50_ms": waited["p50_ms"], "worker_p99_ms": waited["p99_ms"]}


async def streams(lab: Lab) -> Numbers:
    return {**await idle(lab), **await storm(lab)}


async def idle(lab: Lab) -> Numbers:
    size = sizes(lab)
    dsn = await lab.fresh_database("foreman")
    async with replica(lab, dsn, "idle") as server:
        return as_numbers(
            await lab.measure(
                PYTHON,
                READERS,
                "idle",
                port=server.port,
                pid=server.service.pid,
                streams=size.idle_streams,
                seconds=size.idle_seconds,
            )
        )


async def storm(lab: Lab) -> Numbers:
    """The same pace of submissions before and during the storm, each from a process of its own."""
    size = sizes(lab)
    dsn = await lab.fresh_database("foreman")
    async with replica(lab, dsn, "storm") as server:
        await lab.settle_down(dsn)
        quiet = await probe(lab, server, size.quiet_seconds)
        probing = asyncio.ensure_future(probe(lab, server, size.storm_seconds))
        wind = as_numbers(
            await lab.measure(PYTHON, READERS, "storm", port=server.port, streams=size.storm_streams)
        )
        during = [took for at, took in await probing if wind["began"] <= at <= wind["ended"]]
    calm = percentile([took for _, took in quiet], 0.99) * 1000
    stormy = percentile(during, 0.99) * 1000 if during else calm
    return {
        "storm_seconds": wind["ended"] - wind["began"],
        "quiet_p99_ms": calm,
        "storm_p99_ms": stormy,
        "storm_ratio": stormy / calm,
    }


async def probe(lab: Lab, server: Replica, seconds: float) -> list[tuple[float, float]]:
    answer = await lab.measure(PYTHON, READERS, "probe", port=server.port, rate=100.0, seconds=seconds)
    return cast("list[tuple[float, float]]", answer)


RELAY = Benchmark(
    name="relay",
    question="tokens relayed from an echo that never pauses",
    metrics=(
        Metric("per_second", "tokens/s", "higher"),
        Metric("first_ms", "first token, p50 ms", "lower"),
    ),
    systems=(
        System("same replica", lambda lab: relay(lab, other=False)),
        System("other replica", lambda lab: relay(lab, other=True)),
    ),
    is_aside=True,
)
FANOUT = Benchmark(
    name="fanout",
    question="from posting an event to its arrival at 100 readers, and at a worker that waits for it",
    metrics=(
        Metric("p50_ms", "p50 ms", "lower"),
        Metric("p99_ms", "p99 ms", "lower"),
        Metric("worker_p50_ms", "waiting worker, p50 ms", "lower"),
        Metric("worker_p99_ms", "waiting worker, p99 ms", "lower"),
    ),
    systems=(
        System("same replica", lambda lab: fanout(lab, other=False)),
        System("other replica", lambda lab: fanout(lab, other=True)),
        System("other, no LISTEN", lambda lab: fanout(lab, other=True, listen=False)),
    ),
    is_aside=True,
)
STREAMS = Benchmark(
    name="streams",
    question="2,000 idle streams, and 5,000 that come back at once",
    metrics=(
        Metric("megabytes", "idle, MB", "lower"),
        Metric("core_percent", "idle, % of a core", "lower"),
        Metric("storm_seconds", "storm, s", "lower"),
        Metric("quiet_p99_ms", "submit p99 ms, quiet", "lower"),
        Metric("storm_p99_ms", "in the storm", "lower"),
        Metric("storm_ratio", "ratio", "lower"),
    ),
    systems=(System("foreman", streams),),
    is_aside=True,
)
BENCHMARKS = (RELAY, FANOUT, STREAMS)
