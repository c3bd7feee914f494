"""Foreman as its users see it: the command that starts it, and HTTP."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.http_client import ask, connect, until_answering
from benchmarks.lab import Lab
from benchmarks.measuring import payload_text
from benchmarks.processes import Service, free_port

QUEUE = "bench"
BATCH = 1000


def job(**payload: object) -> dict[str, object]:
    return {"kind": "noop", "queue": QUEUE, "payload": payload or {"text": payload_text()}}


def job_body(**payload: object) -> bytes:
    return json.dumps(job(**payload), separators=(",", ":")).encode()


@dataclass(frozen=True)
class RunningForeman:
    service: Service
    port: int


def authentication(lab: Lab, key: str | None) -> dict[str, str]:
    """What a server is told that needs this key, or none."""
    if key is None:
        return {"FOREMAN_AUTH": "off"}
    path = lab.log_dir / "admin.key"
    path.write_text(key)
    return {"FOREMAN_AUTH": "on", "FOREMAN_ADMIN_KEY_FILE": str(path)}


def service(lab: Lab, dsn: str, role: str, port: int, key: str | None = None) -> Service:
    environment = {
        "FOREMAN_DATABASE_URL": dsn,
        "FOREMAN_HOST": "127.0.0.1",
        "FOREMAN_PORT": str(port),
        **authentication(lab, key),
    }
    return lab.service(f"foreman-{role}", [sys.executable, "-m", "app", "serve", "--role", role], environment)


@asynccontextmanager
async def running(lab: Lab, dsn: str, role: str, key: str | None = None) -> AsyncIterator[RunningForeman]:
    """Started, migrated and answering."""
    port = free_port()
    async with service(lab, dsn, role, port, key) as started:
        await until_answering(started, port, "/readyz", 200)
        yield RunningForeman(started, port)


async def fill(port: int, jobs: int, each: dict[str, object] | None = None, key: str | None = None) -> None:
    connection = await connect(port)
    for first in range(0, jobs, BATCH):
        batch = {"jobs": [each or job()] * min(BATCH, jobs - first)}
        await ask(connection, "POST", "/jobs/batch", json.dumps(batch).encode(), 202, key)
    connection.transport.close()
