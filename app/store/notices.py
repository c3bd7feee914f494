"""NOTIFY as a coalesced hint, outside any hot transaction: what of `Changes` crosses the processes.

And the connection on which it is heard.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from app.store.changes import Changes, Place
from app.store.database import AWAY, Database, connect, translated
from app.store.outage import Outage

CHANNEL = "foreman"
# Postgres takes at most 8,000 bytes a notice.
MAX_BYTES = 7_900
# How long a connection may take to answer.
ANSWER_SECONDS = 5.0


class Notice(msgspec.Struct, omit_defaults=True):
    """A hint as it is sent. Fields that a process of another version does not know are passed over.

    One that says nothing else says that its sender is there.
    """

    origin: str = msgspec.field(name="from")
    # Who else is there? Its sender has just begun to listen.
    asks: bool = False
    jobs: list[str] = []
    # More jobs changed than these: too many to name, or before the one who hears it was known to be there.
    many: bool = False
    work: list[Place] = []
    cancels: list[str] = []
    room: list[str] = []
    settings: list[str] = []

    @property
    def is_greeting(self) -> bool:
        return self == Notice(self.origin, asks=self.asks)

    def changes(self) -> Changes[None]:
        changes: Changes[None] = Changes()
        for name in _LISTS:
            setattr(changes, name, set(getattr(self, name)))
        return changes


_LISTS = ("jobs", "work", "cancels", "room", "settings")
read = msgspec.json.Decoder(Notice).decode

# It writes no row, and what it hints at is on disk already: nobody waits for the disk, nor keeps it from the others.
NOTIFY = """
SELECT pg_notify($1, notice) FROM set_config('synchronous_commit', 'off', true) CROSS JOIN unnest($2::text[]) AS notice
"""


async def send(database: Database, origin: str, changes: Changes[Any], *, many: bool) -> bool:
    """Tell the other processes; whether there was anything to tell."""
    notice = Notice(origin, asks=False, many=many, **{name: list(getattr(changes, name)) for name in _LISTS})
    if notice == Notice(origin):
        return False
    await database.execute(NOTIFY, CHANNEL, [text.decode() for text in _split(notice)])
    return True


def _split(notice: Notice) -> list[bytes]:
    """As one notice where it fits; otherwise its largest list is halved until each part does."""
    text = msgspec.json.encode(notice)
    if len(text) <= MAX_BYTES:
        return [text]
    name = max(_LISTS, key=lambda each: len(msgspec.json.encode(getattr(notice, each))))
    largest = getattr(notice, name)
    if len(largest) < 2:
        # A single hint that fits nowhere is left out: the others' polling finds what it was about.
        return _split(msgspec.structs.replace(notice, **{name: []}))
    middle = len(largest) // 2
    rest = Notice(notice.origin, **{name: largest[middle:]})
    return _split(msgspec.structs.replace(notice, **{name: largest[:middle]})) + _split(rest)


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

    async def greet(self, origin: str, *, asks: bool = False) -> bool:
        """Tell those who listen that this process does; False when nobody is at the other end."""
        greeting = msgspec.json.encode(Notice(origin, asks=asks)).decode()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._connection.execute("SELECT pg_notify($1, $2)", CHANNEL, greeting)
        except AWAY:
            return False
        return True

    def close(self) -> None:
        if self.is_open:
            self._connection.terminate()
