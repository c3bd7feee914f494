"""How long ordinary callers wait beside others who want the server to themselves.

Two thousand sockets that never end what they say, or a key that asks ten times as often as it may: neither is
to be noticed by anybody else, nor in the server's memory.
"""

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from app.identity.key import new_key
from benchmarks import foreman
from benchmarks.harness import Benchmark, Metric, System
from benchmarks.http_client import ask, connect
from benchmarks.lab import QUICK, Lab
from benchmarks.measuring import Numbers, as_numbers
from benchmarks.processes import script_command

OUR_PYTHON = Path(sys.executable)
MODULE = "benchmarks.crowd_load"
SOCKETS = 2000
RATE = 200.0
GREEDY_LIMIT = 200
READY_SECONDS = 60.0

# Whoever else is there meanwhile; by the port, and a key that may make others.
Crowd = Callable[[Lab, int, str], contextlib.AbstractAsyncContextManager[None]]


@asynccontextmanager
async def nobody(_lab: Lab, _port: int, _key: str) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def _beside(lab: Lab, verb: str, **arguments: object) -> AsyncIterator[None]:
    command = script_command(OUR_PYTHON, MODULE, verb, arguments)
    async with lab.service(verb, command, answers=True) as crowd:
        await crowd.next_line(READY_SECONDS)
        yield


@asynccontextmanager
async def slow_sockets(lab: Lab, port: int, _key: str) -> AsyncIterator[None]:
    async with _beside(lab, "slow_sockets", port=port, number=100 if lab.scale == QUICK else SOCKETS):
        yield


@asynccontextmanager
async def greedy_key(lab: Lab, port: int, key: str) -> AsyncIterator[None]:
    connection = await connect(port)
    wanted = {"name": "greedy", "limits": {"requests_per_second": GREEDY_LIMIT}}
    made = await ask(connection, "POST", "/keys", json.dumps(wanted).encode(), 201, key)
    connection.transport.close()
    assert isinstance(made, dict)
    async with _beside(lab, "greedy", port=port, key=made["key"], rate=10.0 * GREEDY_LIMIT):
        yield


def beside(crowd: Crowd) -> Callable[[Lab], Awaitable[Numbers]]:
    async def run_once(lab: Lab) -> Numbers:
        dsn = await lab.fresh_database("foreman")
        key = new_key()
        async with foreman.running(lab, dsn, "api", key) as server:
            await lab.settle_down(dsn)
            async with crowd(lab, server.port, key):
                answer = await lab.measure(
                    OUR_PYTHON,
                    MODULE,
                    "calls",
                    port=server.port,
                    key=key,
                    rate=RATE,
                    seconds=lab.scale.latency_seconds,
                )
        return as_numbers(answer)

    return run_once


BENCHMARK = Benchmark(
    name="crowd",
    question=f"how long a job submitted at {RATE:.0f}/s is waited for, beside others",
    metrics=(Metric("p50_ms", "p50 ms", "lower"), Metric("p99_ms", "p99 ms", "lower")),
    systems=(
        System("foreman", beside(nobody)),
        System("beside 2,000 slow sockets", beside(slow_sockets)),
        System("beside a key at ten times its limit", beside(greedy_key)),
    ),
)
