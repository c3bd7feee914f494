"""A deliverer of this process on a real database, and what became of its deliveries."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from app.config import Settings
from app.events.hub import Hub
from app.outbound.client import GuardedClient
from app.outbound.guard import AddressPolicy
from app.secretbox import SecretBox
from app.store.database import Database
from app.store.outbox import ALL_DELIVERIES
from app.webhooks.deliverer import Deliverer
from app.webhooks.send import Sender
from tests.outbound.receivers import Visit


@asynccontextmanager
async def dispatching(
    database: Database,
    *,
    policy: AddressPolicy | None = None,
    box: SecretBox | None = None,
    server_secrets: tuple[str, ...] = (),
    host_concurrency: int = 32,
    poll_seconds: float = 0.05,
    hub: Hub | None = None,
) -> AsyncIterator[Deliverer]:
    client = GuardedClient(policy or AddressPolicy(allow_loopback=True))
    settings = Settings(
        webhook_host_concurrency=host_concurrency, poll_seconds=poll_seconds, shutdown_grace_seconds=1
    )
    sender = Sender(client, box, server_secrets, database)
    running = Deliverer(database, hub or Hub(database, None, 1), sender, settings)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()
        await client.aclose()


async def rows(database: Database, job_id: str) -> list[dict[str, Any]]:
    found = await database.fetch(
        "SELECT deliveries.*, leased_until, extract(epoch FROM deliveries.next_try_at - now())::float8 AS due_in "
        f"FROM {ALL_DELIVERIES} AS deliveries LEFT JOIN outbox USING (job_id, seq) WHERE job_id = $1 ORDER BY seq",
        job_id,
    )
    return [dict(row) for row in found]


async def over(database: Database, job_id: str) -> list[dict[str, Any]] | None:
    found = await rows(database, job_id)
    return found if all(row["state"] != "pending" for row in found) else None


async def let_time_pass(database: Database, job_id: str, by: str = "1 day") -> None:
    """What is due in the future is due now."""
    await database.execute(
        "UPDATE outbox SET next_try_at = now() - $2::text::interval WHERE job_id = $1",
        job_id,
        by,
    )


def answering(
    status: int, *, headers: str = "", times: int | None = None
) -> Callable[[Visit], Awaitable[None]]:
    """Answers with a status; after so many times, if said, with 204."""
    answered = 0

    async def script(visit: Visit) -> None:
        nonlocal answered
        while True:
            await visit.read_request()
            answered += 1
            shown = status if times is None or answered <= times else 204
            extra = headers if shown == status else ""
            await visit.send(f"HTTP/1.1 {shown} X\r\n{extra}content-length: 0\r\n\r\n".encode())

    return script


def parsed(request: bytes) -> tuple[dict[str, str], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")[1:]
    return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}, body
