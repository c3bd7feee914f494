"""The embedded server survives being killed at every stage, and says clearly why it cannot run.

Killed are only processes these tests started, by pid. kill -9 proves that nothing acknowledged is lost with a
process; that nothing is lost with the machine's power is PostgreSQL's fsync, which stays on.
"""

import asyncio
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from app.embedded import EmbeddedPostgres, EmbeddedPostgresError, identity, processes
from tests.patience import wait_until

ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not ROOT, reason="needs root")

# Starts a server, says how many rows it finds, then adds rows and says the number of each once committed.
OWNER = """
import asyncio, os, sys, time
from pathlib import Path
import asyncpg
from app.embedded import EmbeddedPostgres, identity, processes

def tell(*words):
    print(*words, flush=True)

async def write(dsn):
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE IF NOT EXISTS rows (number bigint PRIMARY KEY)")
    number = await connection.fetchval("SELECT count(*) FROM rows")
    tell("found", number)
    while True:
        number += 1
        await connection.execute("INSERT INTO rows VALUES ($1)", number)
        tell(number)

{before}
server = EmbeddedPostgres(Path(sys.argv[1]), durable={durable})
dsn = server.start()
{after}
tell("postmaster", server.pid)
asyncio.run(write(dsn))
"""

NO_NAMESPACES = "identity.enter_user_namespace = lambda *_: 1 / 0"
# The death of its owner is told the server by SIGINT, which a shell without job control has children ignore.
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


class Owner:
    """A process that owns a server, and is there to be killed."""

    def __init__(self, data_dir: Path, *, durable: bool = True, before: str = "", after: str = "") -> None:
        self.data_dir = data_dir
        self.postmaster = 0
        self.acknowledged = 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER.format(durable=durable, before=before, after=after), str(data_dir)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )

    def __enter__(self) -> "Owner":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self.postmaster and alive(self.postmaster, self.data_dir):
            try:
                wait_until(lambda: not alive(self.postmaster, self.data_dir))
            except AssertionError:
                self.kill_postmaster()
                raise
        shutil.rmtree(EmbeddedPostgres(self.data_dir).socket_dir, ignore_errors=True)

    def words(self) -> list[str]:
        """The next line it says, or nothing when it has ended; a line cut short was not said."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        words = line.split() if line.endswith("\n") else []
        if len(words) == 1:
            self.acknowledged = int(words[0])
        return words

    def wait_for(self, first_word: str) -> int:
        while words := self.words():
            if words[0] == first_word:
                return int(words[-1])
        raise AssertionError(f"the owner ended before it said {first_word!r}")

    def write(self, rows: int) -> None:
        self.postmaster = self.wait_for("postmaster")
        last = self.wait_for("found") + rows
        assert self.wait_for(str(last)) == last

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_postmaster(self) -> None:
        os.kill(self.postmaster, signal.SIGKILL)

    def last_acknowledged(self) -> int:
        """With all that it could still say before it was killed."""
        while self.words():
            pass
        return self.acknowledged


def alive(pid: int, data_dir: Path) -> bool:
    """A server on that folder, not a stranger with a recycled pid."""
    return str(data_dir) in processes.command_line(pid)


def is_up(server: EmbeddedPostgres) -> tuple[bool, bool]:
    return server.running, server.pid is not None


def ask(dsn: str, query: str) -> Any:
    async def fetch(connection: asyncpg.Connection) -> Any:
        return await connection.fetchval(query)

    return connected(dsn, fetch)


def connected(dsn: str, work: Callable[[asyncpg.Connection], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def assert_nothing_lost(data_dir: Path, acknowledged: int) -> None:
    """All that was acknowledged is there, and at most the one row more that was on its way."""
    with EmbeddedPostgres(data_dir) as server:
        count = ask(server.dsn, "SELECT count(*) FROM rows")
        assert count == ask(server.dsn, "SELECT max(number) FROM rows")
        assert acknowledged <= count <= acknowledged + 1


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Unlike pytest's own, open to `nobody`, whom root may have to run the server as."""
    with tempfile.TemporaryDirectory(prefix="foreman-test-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """Initialised once, and then killed again and again: each crash has to keep the rows of all before it."""
    with temporary_folder() as folder:
        with EmbeddedPostgres(folder / "data", durable=False):
            pass
        yield folder / "data"


@pytest.fixture
def no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError("unshare")

    monkeypatch.setattr(identity, "enter_user_namespace", refuse)


def test_a_first_start_makes_role_and_database_and_a_second_is_quick(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = EmbeddedPostgres(folder / "made on the way" / 'it\'s "new" é')
    assert is_up(server) == (False, False)
    times = []
    for _ in ("cold", "warm"):
        began = time.perf_counter()
        assert server.start() == server.dsn
        times.append(time.perf_counter() - began)
        assert is_up(server) == (True, True)
        assert server.start() == server.dsn, "starting twice is harmless"
        server_pid = server.pid
        assert server_pid is not None
        assert os.getsid(server_pid) != os.getsid(0), "Ctrl-C would reach the server"

        async def look(connection: asyncpg.Connection) -> None:
            role = await connection.fetchrow(
                "SELECT rolname, rolsuper FROM pg_roles WHERE rolname = current_user"
            )
            assert dict(role) == {"rolname": "foreman", "rolsuper": True}
            database = await connection.fetchrow(
                "SELECT datname, pg_encoding_to_char(encoding) AS encoding, datcollate, datlocale "
                "FROM pg_database WHERE datname = current_database()"
            )
            assert tuple(database) == ("foreman", "UTF8", "C", "C.UTF-8")
            for name in ("fsync", "synchronous_commit", "full_page_writes"):
                assert await connection.fetchval("SELECT current_setting($1)", name) == "on"
            assert await connection.fetchval("SELECT current_setting('listen_addresses')") == ""

        connected(server.dsn, look)
        server.stop()
        assert is_up(server) == (False, False)
        assert not alive(server_pid, server.data_dir)
        assert not server.socket_dir.exists()
        server.stop()
    with capsys.disabled():
        print(f"\nembedded PostgreSQL: cold start {times[0]:.2f} s, warm {times[1]:.2f} s")  # noqa: T201


@pytest.mark.parametrize(
    "sign", ["PG_VERSION", "global/pg_control", "base/?????"], ids=["begun", "bootstrapping", "nearly done"]
)
def test_killed_during_initdb_the_next_start_begins_anew(folder: Path, sign: str) -> None:
    never_finish = "Path.rename = lambda *_: time.sleep(60)"
    with Owner(folder, durable=False, before=never_finish) as owner:
        wait_until(lambda: list(folder.glob(f"postgres.initdb-*/{sign}")), every=0.002)
        owner.kill()
        assert not (folder / "postgres").exists()
        with EmbeddedPostgres(folder, durable=False) as server:
            assert ask(server.dsn, "SELECT current_database()") == "foreman"
        names = sorted(path.name for path in folder.iterdir())
        assert names == ["postgres", "postgres.lock", "postgres.log"]


def test_killed_with_the_owner_the_server_ends_and_no_acknowledged_row_is_lost(data_dir: Path) -> None:
    with Owner(data_dir) as owner:
        owner.write(rows=200)
        owner.kill()
        assert_nothing_lost(data_dir, owner.last_acknowledged())
        assert not alive(owner.postmaster, data_dir)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize(
    "before",
    ["", DEAF, pytest.param(NO_NAMESPACES, marks=only_root)],
    ids=["", "in the background of a script", "as nobody"],
)
def test_the_server_does_not_outlive_a_killed_owner(data_dir: Path, before: str) -> None:
    with Owner(data_dir, before=before) as owner:
        owner.write(rows=1)
        owner.kill()
        wait_until(lambda: not alive(owner.postmaster, data_dir))


def test_killed_owner_and_postmaster_lose_no_acknowledged_row(data_dir: Path) -> None:
    with Owner(data_dir) as owner:
        owner.write(rows=200)
        owner.kill_postmaster()
        owner.kill()
        assert_nothing_lost(data_dir, owner.last_acknowledged())


def test_a_server_that_outlived_its_owner_is_ended_by_the_next_start(data_dir: Path) -> None:
    # prctl(0) is no request, so the server is not told of the owner's death: as on macOS.
    with Owner(data_dir, before="processes.PR_SET_PDEATHSIG = 0") as owner:
        owner.write(rows=200)
        owner.kill()
        assert alive(owner.postmaster, data_dir)
        assert_nothing_lost(data_dir, owner.last_acknowledged())
        assert not alive(owner.postmaster, data_dir)


def test_a_forked_child_of_a_killed_owner_does_not_keep_the_lock(data_dir: Path) -> None:
    fork = "child = os.fork() or (os.close(1), time.sleep(60), os._exit(0))\ntell('child', child)"
    with Owner(data_dir, after=fork) as owner:
        child = owner.wait_for("child")
        try:
            owner.write(rows=10)
            owner.kill()
            assert_nothing_lost(data_dir, owner.last_acknowledged())
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_stopping_in_a_forked_child_leaves_the_server_of_its_parent_alone(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, durable=False) as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert server.running
        assert ask(server.dsn, "SELECT 1") == 1


def test_a_postmaster_killed_under_its_owner_can_be_started_again(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server:
        ask(server.dsn, "CREATE TABLE kept_by_its_owner AS SELECT 7 AS number")
        first = server.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not server.running)
        assert server.pid is None
        server.start()
        assert server.pid != first
        assert ask(server.dsn, "SELECT number FROM kept_by_its_owner") == 7


def test_a_start_waits_for_processes_of_a_killed_postmaster(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, durable=False) as server:
        writer = ask(server.dsn, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'")
        os.kill(writer, signal.SIGSTOP)  # now it cannot see that its postmaster dies, and stays attached
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.running)
        server.log_path.write_text("")
        refused = 'until grep -q "pre-existing shared memory" "$1"; do sleep 0.05; done; kill -CONT "$2"'
        release = subprocess.Popen(["sh", "-c", refused, "sh", server.log_path, str(writer)])
        try:
            server.start()
            assert release.wait(10) == 0
        finally:
            release.kill()
            release.wait()
            with suppress(ProcessLookupError):
                os.kill(writer, signal.SIGCONT)
        assert ask(server.dsn, "SELECT 1") == 1


def test_a_pid_file_that_names_a_stranger_does_not_keep_the_server_out(data_dir: Path) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        pid_file = data_dir / "postgres" / "postmaster.pid"
        pid_file.write_text(f"{stranger.pid}\n{data_dir / 'postgres'}\n1\n5432\n/tmp\n\n0 0\nready\n")
        owner = (data_dir / "postgres").stat()
        os.chown(pid_file, owner.st_uid, owner.st_gid)
        with EmbeddedPostgres(data_dir, durable=False) as server:
            assert ask(server.dsn, "SELECT 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_two_servers_on_one_folder_are_refused_with_the_name_of_the_owner(data_dir: Path) -> None:
    second = EmbeddedPostgres(data_dir, durable=False)
    with EmbeddedPostgres(data_dir, durable=False) as first:
        with pytest.raises(EmbeddedPostgresError, match="another foreman serve is using") as refusal:
            second.start()
        assert str(data_dir) in str(refusal.value)
        assert str(os.getpid()) in str(refusal.value)
        assert ask(first.dsn, "SELECT 1") == 1
    with second:
        assert second.running


@pytest.mark.parametrize("name", ["with some spaces", 'it\'s "quoted", $HOME é 作業', "long " * 40])
def test_a_folder_may_be_moved_and_have_any_name(folder: Path, data_dir: Path, name: str) -> None:
    moved = folder / name / "data"
    moved.parent.mkdir()
    data_dir.rename(moved)
    try:
        with EmbeddedPostgres(moved, durable=False) as server:
            assert ask(server.dsn, "SELECT 1") == 1
    finally:
        moved.rename(data_dir)


def test_sqlalchemy_understands_the_dsn_too(data_dir: Path) -> None:
    async def through_sqlalchemy(dsn: str) -> str:
        engine = create_async_engine(dsn.replace("postgresql:", "postgresql+asyncpg:", 1))
        async with engine.connect() as connection:
            name = (await connection.execute(sa.text("SELECT current_database()"))).scalar_one()
        await engine.dispose()
        return str(name)

    with EmbeddedPostgres(data_dir, durable=False) as server:
        assert asyncio.run(through_sqlalchemy(server.dsn)) == "foreman"


def test_each_test_can_have_a_database_copied_from_a_template(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, durable=False) as server:
        assert ask(server.dsn, "SELECT current_setting('fsync')") == "off"
        ask(server.dsn, "CREATE DATABASE template_foreman")
        ask(server.dsn_for("template_foreman"), "CREATE TABLE things AS SELECT 42 AS number")
        ask(server.dsn, 'CREATE DATABASE "test 1" TEMPLATE template_foreman')
        assert ask(server.dsn_for("test 1"), "SELECT number FROM things") == 42


def test_settings_in_the_environment_do_not_lead_astray(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGPORT", "9999")
    monkeypatch.setenv("PGHOST", "example.invalid")
    monkeypatch.setenv("PGDATABASE", "other")
    with EmbeddedPostgres(data_dir, durable=False) as server:
        assert ask(server.dsn, "SELECT current_database()") == "foreman"


def test_a_server_that_does_not_come_up_says_why_and_lets_go_of_the_folder(data_dir: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match='invalid value for parameter "max_connections": "many"'):
        EmbeddedPostgres(data_dir, options={"max_connections": "many"}).start()
    with EmbeddedPostgres(data_dir, durable=False, options={"max_connections": "33"}) as server:
        assert ask(server.dsn, "SELECT current_setting('max_connections')") == "33"


def test_a_log_grown_large_is_put_aside(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.embedded.server.LOG_BYTES", 10)
    with EmbeddedPostgres(data_dir, durable=False) as server:
        before = server.log_path.stat().st_ino
        server.stop()
        server.start()
        assert server.log_path.with_name("postgres.log.1").stat().st_ino == before
        assert b"ready to accept connections" in server.log_path.read_bytes()


def test_a_folder_that_cannot_be_made_is_named(folder: Path) -> None:
    (folder / "file").write_text("in the way")
    with pytest.raises(EmbeddedPostgresError, match="file/data"):
        EmbeddedPostgres(folder / "file" / "data").start()


def test_a_socket_folder_open_to_others_is_not_used(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    server.socket_dir.mkdir()
    server.socket_dir.chmod(0o777)
    try:
        with pytest.raises(EmbeddedPostgresError, match="mode 0700"):
            server.start()
    finally:
        server.socket_dir.rmdir()


def test_a_socket_folder_that_is_a_link_is_not_used(data_dir: Path, folder: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    server.socket_dir.symlink_to(folder)
    try:
        with pytest.raises(EmbeddedPostgresError, match="mode 0700"):
            server.start()
    finally:
        server.socket_dir.unlink()


@only_root
def test_a_socket_folder_of_somebody_else_is_not_used(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    server.socket_dir.mkdir(mode=0o700)
    os.chown(server.socket_dir, 12345, 12345)
    try:
        with pytest.raises(EmbeddedPostgresError, match="uid 12345"):
            server.start()
    finally:
        server.socket_dir.rmdir()


def test_only_its_owner_can_reach_socket_data_and_log(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, durable=False) as server:
        for path in (server.socket_dir, server.cluster_dir, server.log_path):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@only_root
def test_root_runs_it_as_nobody_where_namespaces_are_forbidden_and_can_change_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = folder / "data with spaces"
    nobody = pwd.getpwnam("nobody").pw_uid

    def owners() -> set[int]:
        cluster = data_dir / "postgres"
        return {path.stat().st_uid for path in [cluster, *cluster.rglob("*")]}

    def refuse(*_: int) -> None:
        raise PermissionError("unshare")

    with monkeypatch.context() as patch:
        patch.setattr(identity, "enter_user_namespace", refuse)
        with EmbeddedPostgres(data_dir, durable=False) as server:
            assert Path(f"/proc/{server.pid}").stat().st_uid == nobody
            ask(server.dsn, "CREATE TABLE kept AS SELECT 7 AS number")
        assert owners() == {nobody}
    if identity.choose_identity(()).uid != 0:
        pytest.skip("namespaces are forbidden here: there is nothing to change back to")
    with EmbeddedPostgres(data_dir, durable=False) as server:
        assert Path(f"/proc/{server.pid}/ns/user").readlink() != Path("/proc/self/ns/user").readlink()
        assert ask(server.dsn, "SELECT number FROM kept") == 7
    assert owners() == {0}
    with monkeypatch.context() as patch:
        patch.setattr(identity, "enter_user_namespace", refuse)
        with EmbeddedPostgres(data_dir, durable=False) as server:
            assert ask(server.dsn, "SELECT number FROM kept") == 7
    assert owners() == {nobody}


@only_root
def test_root_is_told_what_to_do_when_nobody_cannot_reach_the_folder(
    folder: Path, no_namespaces: None
) -> None:
    (folder / "home").mkdir(mode=0o700)
    with pytest.raises(EmbeddedPostgresError) as refusal:
        EmbeddedPostgres(folder / "home" / "data").start()
    assert f"cannot reach {folder / 'home' / 'data'}" in str(refusal.value)
    assert "FOREMAN_DATA_DIR" in str(refusal.value)
    assert stat.S_IMODE((folder / "home").stat().st_mode) == 0o700, "folders of others are left as they are"


@only_root
def test_a_normal_user_gets_a_server_and_keeps_the_rows_through_a_kill(folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    data_dir = folder / "home of nobody"
    data_dir.mkdir(mode=0o700)
    os.chown(data_dir, nobody.pw_uid, nobody.pw_gid)
    # Everything is imported before: Python itself may live where a normal user cannot read.
    drop = f"import encodings.idna; os.setgroups([]); os.setgid({nobody.pw_gid}); os.setuid({nobody.pw_uid})"
    with Owner(data_dir, before=drop) as owner:
        owner.write(rows=200)
        assert (data_dir / "postgres").stat().st_uid == nobody.pw_uid
        owner.kill()
        acknowledged = owner.last_acknowledged()
    with Owner(data_dir, before=drop) as owner:
        owner.postmaster = owner.wait_for("postmaster")
        assert acknowledged <= owner.wait_for("found") <= acknowledged + 1
