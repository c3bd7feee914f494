"""What a crash left undone between a commit and what was to follow from it, and what somebody left who removed jobs by
hand. Bounded looks, one replica at a time."""

from dataclasses import dataclass

from app.store import dependencies, keys, live, locks
from app.store.changes import Key
from app.store.database import Database
from app.store.key_memory import KeyMemory

MAX_KEYS = 20_000
MAX_DEPENDENCIES = 5_000
MAX_LIVE = 5_000

ONE_AT_A_TIME = locks.try_lock(locks.REPAIR)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the last look stopped."""

    key: Key = ("", "")
    dependency: str = ""
    queued: str = ""
    running: str = ""


@dataclass(frozen=True, slots=True)
class Undone:
    keys: list[Key]
    ended: list[str]
    place: Place


async def find_undone(database: Database, place: Place, memory: KeyMemory | None = None) -> Undone | None:
    """Keys with free places that someone waits for, and ended jobs that someone waits for; None when another
    replica is looking."""
    async with database.transaction() as connection:
        if not await connection.fetchval(ONE_AT_A_TIME):
            return None
        wrong, key = await keys.find_wrong(connection, place.key, MAX_KEYS, memory)
        ended, dependency = await dependencies.find_unresolved(connection, place.dependency, MAX_DEPENDENCIES)
        queued = await live.forget_strays(connection, "queued", place.queued, MAX_LIVE)
        running = await live.forget_strays(connection, "running", place.running, MAX_LIVE)
    return Undone(wrong, ended, Place(key or ("", ""), dependency or "", queued, running))
