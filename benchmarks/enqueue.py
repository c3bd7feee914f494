"""How many jobs a second are taken in, each one safe on disk before it is answered.

Foreman and the bare route are asked over HTTP by the same load generator; the raw inserts and the peers,
which have no HTTP of their own, by callers inside one process, each waiting for its commit.
"""

import sys
from pathlib import Path

from app.identity.key import new_key
from benchmarks import foreman
from benchmarks.harness import Benchmark, Metric, System
from benchmarks.http_client import until_answering
from benchmarks.lab import Lab
from benchmarks.measuring import Numbers, as_numbers
from benchmarks.peering import QUEUES, Peer
from benchmarks.processes import Service, free_port, script_command

OUR_PYTHON = Path(sys.executable)


async def _load(
    lab: Lab, port: int, server: Service, *, keyed: bool = False, key: str | None = None
) -> Numbers:
    answer = await lab.measure(
        OUR_PYTHON,
        "benchmarks.http_load",
        "load_keyed" if keyed else "load",
        port=port,
        body=foreman.job_body().decode(),
        connections=lab.scale.connections,
        warmup=lab.scale.warmup,
        seconds=lab.scale.seconds,
        server_pid=server.pid,
        key=key,
    )
    return as_numbers(answer)


async def run_foreman(lab: Lab, *, keyed: bool = False, key: str | None = None) -> Numbers:
    """An API that no worker drains, so that only taking in is measured."""
    dsn = await lab.fresh_database("foreman")
    async with foreman.running(lab, dsn, "api", key) as server:
        await lab.settle_down(dsn)
        return await _load(lab, server.port, server.service, keyed=keyed, key=key)


async def run_foreman_keyed(lab: Lab) -> Numbers:
    """The same, each request with an idempotency key and a trace of its own."""
    return await run_foreman(lab, keyed=True)


async def run_foreman_authenticated(lab: Lab) -> Numbers:
    """Each request with an API key."""
    return await run_foreman(lab, key=new_key())


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


def _arguments(lab: Lab, dsn: str) -> dict[str, object]:
    scale = lab.scale
    return {"dsn": dsn, "callers": scale.callers, "warmup": scale.warmup, "seconds": scale.seconds}


async def run_raw_inserts(lab: Lab) -> Numbers:
    dsn = await lab.fresh_database("raw")
    await lab.settle_down(dsn)
    command = script_command(OUR_PYTHON, "benchmarks.raw_inserts", "enqueue", _arguments(lab, dsn))
    return as_numbers(await lab.run(command))


def peer_system(peer: Peer) -> System:
    async def run_once(lab: Lab) -> Numbers:
        dsn = await peer.installed(lab)
        await lab.settle_down(dsn)
        return as_numbers(await peer.ask(lab, "enqueue", **_arguments(lab, dsn)))

    return System(peer.name, run_once, peer=peer)


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
        System("foreman, API key", run_foreman_authenticated),
        System("foreman, keyed", run_foreman_keyed),
        System("bare route", run_bare_route),
        System("raw inserts", run_raw_inserts),
        *(peer_system(peer) for peer in QUEUES),
    ),
)
