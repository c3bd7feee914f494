"""Webhooks: how many a second reach a local receiver, and how long each takes from its event to its receipt.

The rate is taken from a backlog of no-op jobs, all of whose state changes are delivered, with one process
that does everything: it takes the jobs in, runs them and sends four webhooks each, in order. The latency is
taken at a leisurely pace. Beside it stands the guarded client alone: the same messages with no database
behind them.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.jobs.signing import new_secret, sign
from app.outbound.client import GuardedClient
from app.outbound.guard import AddressPolicy
from benchmarks.harness import Benchmark, Metric, System
from benchmarks.http_client import AskingConnection, ask, connect, until_answering
from benchmarks.lab import Lab
from benchmarks.measuring import Numbers, as_numbers, paced
from benchmarks.processes import Service, free_port, script_command

EVENTS = 4
BATCH = 1000
IN_FLIGHT = 64
PATIENCE_SECONDS = 120.0


@asynccontextmanager
async def receiving(lab: Lab, expected: int) -> AsyncIterator[tuple[Service, str]]:
    """A receiver, and the URL to send to."""
    arguments: dict[str, object] = {"expected": expected, "seconds": PATIENCE_SECONDS}
    command = script_command(Path(sys.executable), "benchmarks.webhook_receiver", "receive", arguments)
    async with lab.service("webhook-receiver", command, answers=True) as receiver:
        port = json.loads(await receiver.next_line(PATIENCE_SECONDS))["port"]
        yield receiver, f"http://127.0.0.1:{port}/"


async def received(receiver: Service) -> Numbers:
    return as_numbers(json.loads(await receiver.next_line(PATIENCE_SECONDS)))


@asynccontextmanager
async def serving(lab: Lab, dsn: str) -> AsyncIterator[int]:
    port = free_port()
    environment = {
        "FOREMAN_DATABASE_URL": dsn,
        "FOREMAN_AUTH": "off",
        "FOREMAN_PORT": str(port),
        "FOREMAN_OUTBOUND_ALLOW": "127.0.0.0/8",
        "FOREMAN_WEBHOOK_SECRET": new_secret(),
    }
    command = [sys.executable, "-m", "app", "serve"]
    async with lab.service("foreman-webhooks", command, environment) as server:
        await until_answering(server, port, "/readyz", 200)
        yield port


async def run_foreman(lab: Lab) -> Numbers:
    dsn = await lab.fresh_database("foreman")
    async with serving(lab, dsn) as port:
        rate = await _drained(lab, port)
        latency = await _followed(lab, port)
    return {"per_second": rate["per_second"], "p50_ms": latency["p50_ms"], "p99_ms": latency["p99_ms"]}


async def _drained(lab: Lab, port: int) -> Numbers:
    jobs = max(1, lab.scale.drain_jobs // EVENTS)
    async with receiving(lab, jobs * EVENTS) as (receiver, url):
        connection = await connect(port)
        for first in range(0, jobs, BATCH):
            batch = {"jobs": [_job(url)] * min(BATCH, jobs - first)}
            await ask(connection, "POST", "/jobs/batch", json.dumps(batch).encode(), 202)
        connection.transport.close()
        return await received(receiver)


async def _followed(lab: Lab, port: int) -> Numbers:
    idle: list[AskingConnection] = []
    jobs = round(lab.scale.latency_rate * lab.scale.latency_seconds)
    async with receiving(lab, jobs * EVENTS) as (receiver, url):
        body = json.dumps(_job(url)).encode()

        async def submit(_: int) -> None:
            connection = idle.pop() if idle else await connect(port)
            await ask(connection, "POST", "/jobs", body, 202)
            idle.append(connection)

        await paced(submit, rate=lab.scale.latency_rate, seconds=lab.scale.latency_seconds)
        return await received(receiver)


def _job(url: str) -> dict[str, object]:
    return {"kind": "noop", "state_webhook_url": url}


async def run_client(lab: Lab) -> Numbers:
    """The same number of messages of the same size, signed and sent by the same client, and nothing else."""
    count = max(1, lab.scale.drain_jobs // EVENTS) * EVENTS
    client = GuardedClient(AddressPolicy(allow_loopback=True))
    secrets = [new_secret()]
    async with receiving(lab, count) as (receiver, url):
        left = iter(range(count))

        async def keep_sending() -> None:
            for number in left:
                body = _message()
                now = int(time.time())
                headers = {
                    "content-type": "application/json",
                    "webhook-id": str(number),
                    "webhook-timestamp": str(now),
                    "webhook-signature": sign(secrets, str(number), now, body),
                }
                await client.request(
                    "POST", url, headers=headers, content=body, deadline_seconds=15, max_response_bytes=16384
                )

        await asyncio.gather(*(keep_sending() for _ in range(IN_FLIGHT)))
        numbers = await received(receiver)
    await client.aclose()
    return {"per_second": numbers["per_second"]}


def _message() -> bytes:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return b'{"type":"job.done","timestamp":"%b","data":{%b}}' % (at.encode(), b" " * 380)


BENCHMARK = Benchmark(
    name="webhooks",
    question="deliveries to a local receiver, four a job, in order",
    metrics=(
        Metric("per_second", "deliveries/s", "higher"),
        Metric("p50_ms", "event to receipt, p50 ms", "lower", compared=False),
        Metric("p99_ms", "p99 ms", "lower", compared=False),
    ),
    systems=(System("foreman", run_foreman), System("client alone", run_client)),
)
