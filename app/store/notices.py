"""NOTIFY as a coalesced hint, outside any hot transaction; and the connection on which it is heard."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import orjson

from app.store.database import AWAY, Database, connect, translated
from app.store.outage import Outage

CHANNEL = "foreman"
# Postgres takes at most 8,000 bytes a notice.
MAX_BYTES = 7_900
# How long a connection may take to answer.
ANSWER_SECONDS = 5.0

# It writes no row, and what it hints at is on disk already: nobody waits for the disk, nor keeps it from the others.
NOTIFY = """
SELECT pg_notify($1, notice) FROM set_config('synchronous_commit', 'off', true) CROSS JOIN unnest($2::text[]) AS notice
"""


async def send(
    database: Database,
    origin: str,
    *,
    jobs: Collection[str],
    many: bool,
    work: Collection[tuple[str, str]],
    cancels: Collection[str],
) -> None:
    """Tell the other processes; `many` says that more jobs changed than are worth naming."""
    whole: dict[str, Any] = {"from": origin}
    if jobs:
        whole["jobs"] = list(jobs)
    if many:
        whole["many"] = True
    if work:
        whole["work"] = list(work)
    if cancels:
        whole["cancels"] = list(cancels)
    await database.execute(NOTIFY, CHANNEL, _split(whole))


def _split(notice: dict[str, Any]) -> list[str]:
    """As one notice where it fits; otherwise its largest list is halved until each part does."""
    text = orjson.dumps(notice).decode()
    if len(text.encode()) <= MAX_BYTES:
        return [text]
    lists = ((name, value) for name, value in notice.items() if isinstance(value, list))
    name, largest = max(lists, key=lambda each: len(orjson.dumps(each[1])))
    if len(largest) < 2:
        # A single hint that fits nowhere is left out: the others' polling finds what it was about.
        return _split({each: value for each, value in notice.items() if each != name})
    middle = len(largest) // 2
    return _split({**notice, name: largest[:middle]}) + _split(
        {"from": notice["from"], name: largest[middle:]}
    )


class Listener:
    """A connection of its own, outside the pool, on which notices are heard; made by `open`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @classmethod
    async def open(
        cls, url: str, outage: Outage, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> "Listener":
        """Raises `Unavailable` when the database does not answer. `lost` is called once the connection has ended."""
        connection = await connect(url, outage)
        try:
            with translated():
                async with asyncio.timeout(ANSWER_SECONDS):
                    await connection.add_listener(CHANNEL, lambda *notice: heard(notice[-1]))
        except BaseException:
            connection.terminate()
            raise
        connection.add_termination_listener(lambda _: lost())
        return cls(connection)

    @property
    def is_open(self) -> bool:
        return not self._connection.is_closed()

    async def answers(self) -> bool:
        """Whether anybody is at the other end."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._connection.execute("SELECT 1")
        except AWAY:
            return False
        return True

    def close(self) -> None:
        if self.is_open:
            self._connection.terminate()
