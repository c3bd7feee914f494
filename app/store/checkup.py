"""How a database is, for `foreman doctor`: asked over a connection of its own, beside whoever serves from it."""

import asyncio
import time
import uuid
from dataclasses import dataclass

from app.store.database import connect, translated
from app.store.migrate import current_revision

# A notification takes milliseconds; behind a PgBouncer it never comes.
HEAR_SECONDS = 2.0
ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Checkup:
    revision: str | None
    version: str
    # By how much its clock is ahead of this machine's, and how wrong that may be: asking takes its time.
    ahead_seconds: float
    uncertain_seconds: float


ASK = "SELECT split_part(current_setting('server_version'), ' ', 1), extract(epoch FROM clock_timestamp())::float8"


async def examine(url: str) -> Checkup:
    """Raises `Unavailable` when it does not answer."""
    connection = await connect(url)
    try:
        with translated():
            async with asyncio.timeout(ANSWER_SECONDS):
                revision = await current_revision(connection)
                asked = time.time()
                version, moment = await connection.fetchrow(ASK)
                answered = time.time()
    finally:
        connection.terminate()
    return Checkup(revision, version, moment - (asked + answered) / 2, (answered - asked) / 2)


NOTIFY = "SELECT pg_notify($1, '')"


async def hears_notifications(url: str) -> bool:
    """Whether what is told over this URL is heard over it, too. Raises `Unavailable` when it does not answer."""
    channel = f"foreman_doctor_{uuid.uuid4().hex[:12]}"
    heard = asyncio.Event()
    connection = await connect(url)
    try:
        with translated():
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.add_listener(channel, lambda *_: heard.set())
                await connection.execute(NOTIFY, channel)
        async with asyncio.timeout(HEAR_SECONDS):
            await heard.wait()
    except TimeoutError:
        return False
    finally:
        connection.terminate()
    return True
