"""What tests of whole servers need: submitting many jobs, and looking into the tables while they run."""

import asyncio
from typing import Any

import asyncpg
import httpx

from app.store.database import Database
from app.store.history import ALL_EVENTS
from tests.conftest import Server, wait_until
from tests.store import invariants

# Short leases, so that what dies is noticed while a test can wait for it.
QUICK = {
    "FOREMAN_LEASE_SECONDS": "2",
    "FOREMAN_SWEEP_SECONDS": "0.3",
    "FOREMAN_POLL_SECONDS": "0.2",
    "FOREMAN_LOG_LEVEL": "warning",
}


def echo(words: int = 1, delay_ms: float = 0, **fields: Any) -> dict[str, Any]:
    """A job that takes words × delay."""
    return {
        "model": "echo",
        "messages": [{"role": "user", "content": " ".join(["word"] * words)}],
        "options": {"echo_delay_ms": delay_ms},
        **fields,
    }


def submit(server: Server, *jobs: dict[str, Any]) -> list[str]:
    answer = httpx.post(f"{server.url}/jobs/batch", json={"jobs": list(jobs)}, timeout=30)
    assert answer.status_code == 202, answer.text
    return [entry["job_id"] for entry in answer.json()["jobs"]]


def fetch(url: str, statement: str, *arguments: object) -> list[asyncpg.Record]:
    async def run() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(url)
        try:
            return list(await connection.fetch(statement, *arguments))
        finally:
            await connection.close()

    return asyncio.run(run())


def count(url: str, *states: str) -> int:
    return int(fetch(url, "SELECT count(*) FROM jobs WHERE state = ANY ($1::text[])", list(states))[0][0])


def all_reach(url: str, state: str, seconds: float = 60) -> None:
    """Wait until no job is in any other state."""

    def there() -> bool:
        return not fetch(url, "SELECT 1 FROM jobs WHERE state <> $1 LIMIT 1", state)

    def explain() -> str:
        return str(fetch(url, "SELECT state, reason, count(*) FROM jobs GROUP BY 1, 2"))

    wait_until(there, seconds, explain)


def check_invariants(url: str) -> int:
    async def check() -> int:
        database = Database(url)
        await database.open()
        try:
            return await invariants.check_all(database)
        finally:
            await database.close()

    return asyncio.run(check())


def story(url: str, job_id: str) -> list[tuple[str, str]]:
    """(type, reason) of each transition."""
    rows = fetch(
        url, f"SELECT type, reason FROM {ALL_EVENTS} AS events WHERE job_id = $1 ORDER BY seq", job_id
    )
    return [(row["type"], row["reason"]) for row in rows]
