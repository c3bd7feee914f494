"""One embedded server: its lock, its socket, its process."""

import fcntl
import hashlib
import os
import signal
import stat
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

from app.embedded.cluster import BINARIES, NEUTRAL, Command, make_cluster
from app.embedded.identity import Identity, choose_identity, in_child
from app.embedded.processes import EmbeddedPostgresError, can_be_signalled, command_line, end, wait_until

SETTINGS = {
    "listen_addresses": "",
    "port": "5432",  # only names the socket
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    "autovacuum_naptime": "10s",
    "jit": "off",
    "huge_pages": "off",  # promised but not granted in some containers, where touching them is a bus error
    "timezone": "UTC",
    "log_timezone": "UTC",
}
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

START_SECONDS = 300.0  # replaying the log of a crash takes its time, and giving up would not make it shorter
PREDECESSOR_SECONDS = 10.0
LOG_BYTES = 10 * 1024 * 1024
SOCKET_PATH_BYTES = 100  # the kernel allows 103 (macOS) or 107 (Linux)

# What PostgreSQL says while processes of a killed predecessor are still on their way out.
PREDECESSOR_SIGNS = ('lock file "postmaster.pid"', "pre-existing shared memory block")


class EmbeddedPostgres:
    """One PostgreSQL server on one data folder, owned by this process."""

    def __init__(
        self, data_dir: Path, *, durable: bool = True, options: Mapping[str, str] | None = None
    ) -> None:
        self.data_dir = data_dir.resolve()
        self.durable = durable
        self.cluster_dir = self.data_dir / "postgres"
        self.log_path = self.data_dir / "postgres.log"
        self.socket_dir = _socket_dir(self.data_dir)
        self._options = SETTINGS | (DURABLE if durable else FORGETFUL) | dict(options or {})
        self._options["unix_socket_directories"] = '"{}"'.format(str(self.socket_dir).replace('"', '""'))
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None

    @property
    def dsn(self) -> str:
        return self.dsn_for("foreman")

    def dsn_for(self, database: str) -> str:
        """For asyncpg as it is; for SQLAlchemy after `postgresql:` has become `postgresql+asyncpg:`."""
        host = quote(str(self.socket_dir), safe="/")
        return f"postgresql://foreman@/{quote(database, safe='')}?host={host}&port={self._options['port']}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The postmaster's, while it runs."""
        return self._process.pid if self._process is not None and self.running else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> str:
        """Have the server up and answering, whatever was here before, and return its DSN."""
        if self.running:
            return self.dsn
        try:
            # Started by root, `nobody` may have to pass through; what lies inside has modes of its own.
            self.data_dir.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
            self._take_lock()
            identity = choose_identity((BINARIES / "postgres", self.data_dir, self.socket_dir.parent))
            self._end_predecessor()
            self._make_socket_dir(identity)
            make_cluster(self.cluster_dir, identity, durable=self.durable)
            self._launch(identity)
        except (OSError, subprocess.SubprocessError) as error:
            self.stop()
            raise EmbeddedPostgresError(f"cannot run PostgreSQL in {self.data_dir}: {error}") from error
        except BaseException:
            self.stop()
            raise
        return self.dsn

    def stop(self) -> None:
        """Fast shutdown: clients are cut off, what they had not committed is undone. Harmless twice."""
        if (process := self._process) is not None:
            if self.running:
                end(process.pid, lambda: process.poll() is None)
            with suppress(OSError):
                self.socket_dir.rmdir()
            self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_lock(self) -> None:
        """One owner a data folder. The kernel gives the lock back when the owner dies, however it dies:
        exec closes the file in the server, and `_let_go_of_locks` closes it in forked children."""
        if self._lock is not None:
            return
        lock = (self.data_dir / "postgres.lock").open("a+", encoding="utf-8")

        def locked() -> bool:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            return False

        # A second of patience: an owner that was killed just now may not have let go yet.
        if not wait_until(locked, 1.0):
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise EmbeddedPostgresError(f"another foreman serve is using {self.data_dir} (process {owner})")
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock
        _lock_holders.add(self)

    def _end_predecessor(self) -> None:
        """The owner is dead (we have its lock); its server may not be, or may have left its pid file."""
        pid_file = self.cluster_dir / "postmaster.pid"
        try:
            pid = int(pid_file.read_bytes().split()[0])
        except (FileNotFoundError, ValueError, IndexError):
            return
        if self._serves(pid):
            end(pid, lambda: self._serves(pid))
        elif "postgres" not in command_line(pid) and can_be_signalled(pid):
            # After a reboot, or in a restarted container, the number belongs to somebody else (or to a
            # zombie, which has no command line), and PostgreSQL would take it for a rival for ever.
            pid_file.unlink(missing_ok=True)

    def _serves(self, pid: int) -> bool:
        command = command_line(pid)
        return "postgres" in command and f"-D {self.cluster_dir}" in command

    def _make_socket_dir(self, identity: Identity) -> None:
        """Trust authentication rests on nobody else getting in here, so a folder of somebody else's making,
        in a directory where all may write, is not taken."""
        with suppress(FileExistsError):
            self.socket_dir.mkdir(mode=0o700)
        found = self.socket_dir.lstat()
        ours = found.st_uid in {os.geteuid(), identity.uid}
        if not (stat.S_ISDIR(found.st_mode) and ours and found.st_mode & 0o077 == 0):
            raise EmbeddedPostgresError(
                f"{self.socket_dir} must be our own folder with mode 0700 but is "
                f"{stat.filemode(found.st_mode)} of uid {found.st_uid}: remove it, or point TMPDIR elsewhere"
            )
        if found.st_uid != identity.uid:
            os.chown(self.socket_dir, identity.uid, identity.gid)
        # We hold the lock, so these are leftovers, and a recycled pid in them would keep us out.
        for leftover in self.socket_dir.glob(".s.PGSQL.*"):
            leftover.unlink(missing_ok=True)

    def _launch(self, identity: Identity) -> None:
        command: Command = [BINARIES / "postgres", "-D", self.cluster_dir]
        for name, value in self._options.items():
            command += ["-c", f"{name}={value}"]
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        self.log_path.touch(mode=0o600)
        log_start = self.log_path.stat().st_size
        patience = time.monotonic() + PREDECESSOR_SECONDS
        while not self._came_up(command, identity):
            said = self.log_path.read_bytes()[log_start:].decode(errors="replace")
            predecessor = any(sign in said.rpartition("FATAL")[2] for sign in PREDECESSOR_SIGNS)
            if self.running or not predecessor or time.monotonic() > patience:
                trouble = f"was not ready within {START_SECONDS:.0f} s" if self.running else "did not start"
                raise EmbeddedPostgresError(
                    f"PostgreSQL {trouble}. The end of {self.log_path}:\n{said[-2000:].strip()}"
                )
            time.sleep(0.1)
            self._end_predecessor()

    def _came_up(self, command: Command, identity: Identity) -> bool:
        with self.log_path.open("ab") as log:
            # Code between fork and exec is risky when there are other threads, hence the advice at the top.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | NEUTRAL,
                cwd="/",
                start_new_session=True,  # Ctrl-C in the terminal is for us, who still need the server then
                preexec_fn=partial(in_child, identity, signal.SIGINT, os.getpid()),  # noqa: PLW1509
            )
        wait_until(lambda: self._ready() or not self.running, START_SECONDS)
        return self.running and self._ready()

    def _ready(self) -> bool:
        """By the status line that the postmaster keeps in its pid file: what pg_ctl goes by as well."""
        with suppress(FileNotFoundError):
            lines = (self.cluster_dir / "postmaster.pid").read_bytes().splitlines()
            return len(lines) >= 8 and lines[0] == b"%d" % (self.pid or 0) and lines[7].strip() == b"ready"
        return False


def _socket_dir(data_dir: Path) -> Path:
    """Short, as socket paths must be, whatever the data folder is called; and always the same for it."""
    name = f"foreman-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}"
    folder = Path(tempfile.gettempdir()).resolve() / name
    too_long = len(os.fsencode(folder / ".s.PGSQL.65535")) > SOCKET_PATH_BYTES
    return Path("/tmp", name) if too_long else folder  # noqa: S108 (owner and mode are checked before use)


_lock_holders: "weakref.WeakSet[EmbeddedPostgres]" = weakref.WeakSet()


def _let_go_of_locks() -> None:
    for server in _lock_holders:
        if server._lock is not None:
            server._lock.close()


os.register_at_fork(after_in_child=_let_go_of_locks)
