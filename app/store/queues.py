"""Queues and their settings, and the book that every process keeps of them.

The book is a copy in memory, compared with the table twice a second: looking a queue up costs a dictionary
access, and a change made anywhere counts everywhere within a second.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import asyncpg
import msgspec
import orjson
import structlog

from app.errors import InvalidRequest
from app.jobs.queue_settings import QueueRules, load_settings
from app.loops.coalesced import Coalesced
from app.store.changes import Changes
from app.store.database import Database
from app.store.rows import as_rows, columns

log = structlog.get_logger()

_CONFIGURED = "(settings <> '{}'::jsonb OR paused_at IS NOT NULL)"

VERSIONS = f"SELECT name, updated_at FROM queues WHERE {_CONFIGURED}"
CHANGED = "SELECT name, settings, paused_at, updated_at FROM queues WHERE name = ANY ($1::text[])"

OnChange = Callable[[str], None]


class QueueBook:
    """The rules of all configured queues. A queue that is not in it has no rules."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rules: dict[str, QueueRules] = {}
        self._versions: dict[str, datetime] = {}
        self._on_change: list[OnChange] = []
        # Bring the book up to date. Two of them at a time would trip over each other's changes.
        self.refresh = Coalesced(self._read)

    def rules(self, queue: str) -> QueueRules | None:
        return self._rules.get(queue)

    def all(self) -> list[QueueRules]:
        return list(self._rules.values())

    def on_change(self, callback: OnChange) -> None:
        self._on_change.append(callback)

    async def _read(self) -> None:
        """Reads the settings of those that changed only."""
        versions = {row["name"]: row["updated_at"] for row in await self._database.fetch(VERSIONS)}
        changed = [name for name, at in versions.items() if self._versions.get(name) != at]
        gone = [name for name in self._versions if name not in versions]
        for row in await self._database.fetch(CHANGED, changed) if changed else ():
            settings = load_settings(row["settings"], partial(_warn, row["name"]))
            self._rules[row["name"]] = QueueRules(row["name"], settings, paused=row["paused_at"] is not None)
            self._versions[row["name"]] = row["updated_at"]
        for name in gone:
            del self._versions[name]
            self._rules.pop(name, None)
        for name in (*changed, *gone):
            for callback in self._on_change:
                callback(name)


def _warn(queue: str, setting: str) -> None:
    log.warning("queue.setting_unreadable", queue=queue, setting=setting)


# clock_timestamp, not now(): each change of a row has a version of its own.
CONFIGURE = """
INSERT INTO queues AS q (name, settings, updated_at) VALUES ($1, $2::jsonb, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET settings = excluded.settings, updated_at = excluded.updated_at
RETURNING xmax = 0 AS created
"""


async def configure(database: Database, name: str, settings: Mapping[str, Any]) -> Changes[bool]:
    """Replace a queue's settings; answers whether there was no such queue before."""
    try:
        created = bool(await database.fetchval(CONFIGURE, name, orjson.dumps(settings).decode()))
    except asyncpg.DataError as problem:
        raise InvalidRequest("The settings have a number or a text that cannot be kept.") from problem
    return Changes([created], settings={name})


# Whoever pauses it once more is not the one who did.
PAUSE = """
INSERT INTO queues AS q (name, paused_at, paused_by, updated_at)
VALUES ($1, CASE WHEN $2 THEN now() END, CASE WHEN $2 THEN $3::text END, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET
    paused_at = CASE WHEN $2 THEN coalesce(q.paused_at, now()) END,
    paused_by = CASE WHEN NOT $2 THEN NULL WHEN q.paused_at IS NULL THEN $3::text ELSE q.paused_by END,
    updated_at = excluded.updated_at
"""


async def pause(database: Database, name: str, *, paused: bool, by: str | None = None) -> Changes[None]:
    """Give out no more of its jobs, or give them out again; those that run go on.

    `by`: the name of the key that says so, as it is kept (see app/jobs/tenants.py); None where there is none.
    """
    await database.execute(PAUSE, name, paused, by)
    return Changes(settings={name})


class Queue(msgspec.Struct, gc=False):
    """A queue that was ever used. `settings` is JSON text, `paused_by` the name of a key, whosever it is."""

    name: str
    settings: str
    paused_at: datetime | None
    paused_by: str | None
    created_at: datetime
    updated_at: datetime


_PAUSED_BY = r"regexp_replace(paused_by, '^[^\x1f]*\x1f', '')"
LIST = f"""
SELECT {columns(Queue, paused_by=_PAUSED_BY)} FROM queues
WHERE ($1::text IS NULL OR name = $1) AND name > $2 ORDER BY name LIMIT $3
"""


async def list_queues(
    database: Database, *, name: str | None = None, after: str = "", limit: int = 1000
) -> list[Queue]:
    return as_rows(Queue, await database.fetch(LIST, name, after, limit))


# Names alone, so that all of them can be put in order by what is counted elsewhere.
FIND = """
SELECT name FROM queues
WHERE strpos(lower(name), lower($1)) > 0 AND ($2::bool IS NULL OR (paused_at IS NOT NULL) = $2)
ORDER BY name
"""


async def find_queues(database: Database, containing: str = "", *, paused: bool | None = None) -> list[str]:
    """The names of all queues with this text in them."""
    return [row["name"] for row in await database.fetch(FIND, containing, paused)]


NAMED = f"SELECT {columns(Queue, paused_by=_PAUSED_BY)} FROM queues WHERE name = ANY ($1::text[])"


async def queues_named(database: Database, names: Sequence[str]) -> list[Queue]:
    """In the order of the names."""
    found = {row.name: row for row in as_rows(Queue, await database.fetch(NAMED, list(names)))}
    return [found[name] for name in names if name in found]
