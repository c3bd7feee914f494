"""How many jobs a second are taken in, each one safe on disk before it is answered.

Foreman and the bare route are asked over HTTP by the same load generator; the raw inserts and the peers,
which have no HTTP of their own, by callers inside one process, each waiting for its commit.
"""

import sys
from pathlib import Path

from benchmarks import foreman, venvs
from benchmarks.harness import Aim, Benchmark, Metric, System
from benchmarks.http_client import until_answering
from benchmarks.lab import Lab
from benchmarks.measuring import Numbers, as_numbers
from benchmarks.processes import Service, free_port

OUR_PYTHON = Path(sys.executable)


async def _load(lab: Lab, port: int, server: Service) -> Numbers:
    answer = await lab.measure(
        OUR_PYTHON,
        "benchmarks.http_load",
        "load",
        port=port,
        path="/jobs",
        body=foreman.job_body().decode(),
        expected_status=202,
        connections=lab.scale.connections,
        warmup=lab.scale.warmup,
        seconds=lab.scale.seconds,
        server_pid=server.pid,
    )
    return as_numbers(answer)


async def run_foreman(lab: Lab) -> Numbers:
    """An API that no worker drains, so that only taking in is measured."""
    dsn = await lab.fresh_database("foreman")
    async with foreman.running(lab, dsn, "api") as server:
        await lab.settle_down(dsn)
        return await _load(lab, server.port, server.service)


async def run_bare_route(lab: Lab) -> Numbers:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "benchmarks.bare:app", "--port", str(port)]
    # What Foreman gives uvicorn too, so that the two differ in the application alone.
    command += ["--loop", "uvloop", "--http", "httptools", "--ws", "none", "--lifespan", "off"]
    command += [
        "--no-access-log",
        "--no-server-header",
        "--no-proxy-headers",
        "--log-level",
        "warning",
    ]
    async with lab.service("bare", command) as server:
        await until_answering(server, port, "/", 202)
        return await _load(lab, port, server)


async def _enqueue_calls(lab: Lab, dsn: str, python: Path, module: str) -> Numbers:
    scale = lab.scale
    await lab.settle_down(dsn)
    answer = await lab.measure(
        python,
        module,
        "enqueue",
        dsn=dsn,
        callers=scale.callers,
        warmup=scale.warmup,
        seconds=scale.seconds,
    )
    return as_numbers(answer)


async def run_raw_inserts(lab: Lab) -> Numbers:
    dsn = await lab.fresh_database("raw")
    return await _enqueue_calls(lab, dsn, OUR_PYTHON, "benchmarks.raw_inserts")


def peer(name: str) -> System:
    python, module = venvs.python_of(name), f"benchmarks.peers.{name}"

    async def run_once(lab: Lab) -> Numbers:
        dsn = await lab.fresh_database(name)
        await lab.measure(python, module, "install", dsn=dsn)
        return await _enqueue_calls(lab, dsn, python, module)

    return System(name, run_once, peer=name)


BENCHMARK = Benchmark(
    name="enqueue",
    question="jobs taken in, one by one",
    metrics=(
        Metric("per_second", "jobs/s", "higher"),
        Metric("p50_ms", "p50 ms", "lower", compared=False),
        Metric("p99_ms", "p99 ms", "lower", compared=False),
        Metric("server_cpu_us", "server CPU µs", "lower"),
    ),
    systems=(
        System("foreman", run_foreman),
        System("bare route", run_bare_route),
        System("raw inserts", run_raw_inserts),
        peer("pgqueuer"),
        peer("procrastinate"),
    ),
    aims=(
        Aim("bare route", "per_second", 0.4),
        Aim("pgqueuer", "per_second", 2.0),
        Aim("procrastinate", "per_second", 2.0),
    ),
)
