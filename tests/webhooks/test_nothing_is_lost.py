"""Receiver and server are killed with -9 again and again, a third of the answers is a 500; all arrives.

WEBHOOK_JOBS=2000 makes it the long run.
"""

import asyncio
import base64
import itertools
import os
import threading
from collections import defaultdict
from functools import partial
from pathlib import Path

import asyncpg
import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from app.store.history import ALL_EVENTS
from tests.conftest import Server, free_port, wait_until
from tests.webhooks.conftest import MakeReceiver, ReceiverProcess

JOBS = int(os.environ.get("WEBHOOK_JOBS", "300"))
ROUNDS = max(3, JOBS // 250)
JOB_SECRET = "whsec_" + base64.b64encode(b"j" * 32).decode()
SERVER_SECRETS = ["whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2)]
SETTINGS = {
    "FOREMAN_OUTBOUND_ALLOW": "127.0.0.0/8",
    "FOREMAN_SECRET_KEY": base64.b64encode(bytes(32)).decode(),
    "FOREMAN_WEBHOOK_SECRET": ",".join(SERVER_SECRETS),
    "FOREMAN_LEASE_SECONDS": "2",
    "FOREMAN_SWEEP_SECONDS": "0.5",
    "FOREMAN_POLL_SECONDS": "0.2",
}


class Clock(threading.Thread):
    """Makes the ladder's time pass quickly: what waits for a later try waits half a second at most."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.stopping = threading.Event()

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        connection = await asyncpg.connect(self._url)
        while not self.stopping.wait(0.25):
            await connection.execute("UPDATE outbox SET next_try_at = now() WHERE next_try_at > now()")
        await connection.close()


class Callers(threading.Thread):
    """Submit all the jobs, whatever happens to the server meanwhile; under keys, so that none is doubled."""

    def __init__(self, server: Server, url: str) -> None:
        super().__init__()
        self._server = server
        self._url = url
        self.job_ids: list[str] = []

    def run(self) -> None:
        for number in range(JOBS):
            fields: dict[str, object] = {"webhook_secret": JOB_SECRET} if number % 2 else {}
            body: dict[str, object] = {
                "kind": "noop",
                "state_webhook_url": self._url,
                "metadata": {"n": str(number)},
                **fields,
            }
            self.job_ids.append(wait_until(partial(self._submit, body, f"job-{number}"), 60))

    def have_submitted(self, count: int) -> bool:
        return len(self.job_ids) >= count

    def _submit(self, body: dict[str, object], key: str) -> str:
        """The job's id, or none as long as nobody takes it."""
        try:
            answer = httpx.post(
                f"{self._server.url}/jobs", json=body, headers={"idempotency-key": key}, timeout=5
            )
        except httpx.TransportError:
            return ""
        return str(answer.json()["job_id"]) if answer.status_code == 202 else ""


def expected_events(url: str) -> dict[str, list[int]]:
    """The seq of every state event of every job."""

    async def ask() -> dict[str, list[int]]:
        connection = await asyncpg.connect(url)
        found: dict[str, list[int]] = defaultdict(list)
        for row in await connection.fetch(
            f"SELECT job_id, seq FROM {ALL_EVENTS} AS events WHERE type = state ORDER BY job_id, seq"
        ):
            found[row["job_id"]].append(row["seq"])
        await connection.close()
        return found

    return asyncio.run(ask())


def unfinished(url: str) -> tuple[int, int]:
    """How many deliveries are still to be made, and how many jobs have not ended."""

    async def ask() -> tuple[int, int]:
        connection = await asyncpg.connect(url)
        pending = await connection.fetchval("SELECT count(*) FROM outbox")
        jobs = await connection.fetchval("SELECT count(*) FROM jobs WHERE completed_at IS NULL")
        await connection.close()
        return pending, jobs

    return asyncio.run(ask())


def given_up(url: str) -> set[str]:
    """A receiver that fails a third of the time fails eight times in a row for one delivery in 6,500."""

    async def ask() -> set[str]:
        connection = await asyncpg.connect(url)
        rows = await connection.fetch(
            "SELECT job_id || '-' || seq AS id FROM deliveries WHERE state = 'given_up' AND tries = 8"
        )
        await connection.close()
        return {row["id"] for row in rows}

    return asyncio.run(ask())


@pytest.mark.timeout(120 + JOBS)
def test_every_event_arrives_in_order_and_signed_whatever_is_killed(
    database_url: str, tmp_path: Path, make_receiver: MakeReceiver
) -> None:
    receiver = make_receiver("flaky", 0.33)
    server = Server(database_url, free_port(), SETTINGS, log_path=tmp_path / "server.log").start()
    clock, callers = Clock(database_url), Callers(server, receiver.url)
    clock.start()
    callers.start()
    try:
        # Spread over the submitting, each in the middle of it.
        for killing in range(1, 2 * ROUNDS + 1):
            wait_until(partial(callers.have_submitted, killing * JOBS // (2 * ROUNDS + 1)), 60)
            victim = server if killing % 2 else receiver
            victim.kill()
            victim.start()
        callers.join()
        wait_until(
            lambda: not any(unfinished(database_url)),
            60 + JOBS / 4,
            lambda: f"{unfinished(database_url)} {server.log()[-3000:]}",
            every=0.2,
        )
    finally:
        clock.stopping.set()
        clock.join()
        if server.process is not None:
            server.kill()
    assert set(callers.job_ids) == set(expected_events(database_url))
    check(receiver, expected_events(database_url), given_up(database_url))


def check(receiver: ReceiverProcess, expected: dict[str, list[int]], given_up: set[str]) -> None:
    arrivals = receiver.arrivals()
    assert len(given_up) <= 1 + JOBS // 200
    accepted: set[str] = {each.headers["webhook-id"] for each in arrivals if not each.failed}
    all_of: dict[str, list[int]] = defaultdict(list)
    for arrival in arrivals:
        all_of[arrival.job_id].append(arrival.seq)
    for job_id, seqs in expected.items():
        assert sorted(set(all_of[job_id])) == seqs, job_id
        assert {f"{job_id}-{seq}" for seq in seqs} <= accepted | given_up
        # Not even a repetition comes late: nothing leaves before what was before it is recorded as delivered.
        assert all(first <= second for first, second in itertools.pairwise(all_of[job_id])), all_of[job_id]
    for arrival in arrivals:
        own = int(arrival.message["data"]["metadata"]["n"]) % 2
        for secret in [JOB_SECRET] if own else SERVER_SECRETS:
            Webhook(secret).verify(arrival.body, arrival.headers)
        assert arrival.headers["webhook-id"] == f"{arrival.job_id}-{arrival.seq}"
    print(  # noqa: T201 - shown with -s, for the long run
        f"{len(expected)} jobs, {sum(map(len, expected.values()))} events, {len(arrivals)} arrivals, "
        f"{sum(each.failed for each in arrivals)} answered with 500, {len(given_up)} given up, "
        f"{ROUNDS} kills of each"
    )
