"""The first API key: a new server with authentication has none, and nobody could make one.

It is made once, when there is no key at all, and either printed or kept in a file that was named for it. It
is told before the commit: a crash in between leaves a key that never was, and the next start tells another
one; the other way round there would be a key that nobody knows.
"""

import os
from collections.abc import Callable
from pathlib import Path

import structlog

from app.config import Settings
from app.identity.key import hash_of, is_key, new_key
from app.identity.scopes import ALL_SCOPES
from app.jobs.tenants import DEFAULT_TENANT
from app.server import ServeError
from app.store import api_keys
from app.store.database import Database

log = structlog.get_logger()

NAME = "admin"


async def provide_first_key(settings: Settings, database: Database, tell: Callable[[str], None]) -> None:
    """Make sure that there is one, and `tell` a new one. Raises ServeError when its file cannot be used."""
    if settings.auth != "on" or settings.role == "worker":
        return
    path = settings.admin_key_file
    if path is not None and path.exists():
        await _take_from(path, database)
        return
    key = new_key()

    def told(_: api_keys.ApiKey) -> None:
        if path is None:
            tell(key)
        else:
            _write(path, key)

    made = await api_keys.add_first(database, _admin(key), told)
    if made is not None:
        log.info("key.first_created", key_id=made.id, file=None if path is None else str(path))


def _admin(key: str) -> api_keys.NewKey:
    return api_keys.NewKey(DEFAULT_TENANT, NAME, hash_of(key.encode()), [str(each) for each in ALL_SCOPES])


async def _take_from(path: Path, database: Database) -> None:
    """The key in the file is a key of this server from now on."""
    key = _read(path)
    made = await api_keys.add(database, _admin(key))
    if made is not None:
        log.info("key.taken_from_file", key_id=made.id, file=str(path))


def _read(path: Path) -> str:
    try:
        key = path.read_text("ascii", errors="replace").strip()
    except OSError as problem:
        raise ServeError(f"FOREMAN_ADMIN_KEY_FILE: {path} cannot be read: {problem.strerror}.") from problem
    if not is_key(key.encode()):
        raise ServeError(
            f"FOREMAN_ADMIN_KEY_FILE: {path} does not hold an API key (fmn_ and 36 characters, of which the "
            "last 6 are a checksum). Remove it, and a key is made and written there."
        )
    return key


def _write(path: Path, key: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(key + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise ServeError(
            f"FOREMAN_ADMIN_KEY_FILE: {path} cannot be written: {problem.strerror}."
        ) from problem
