"""`foreman serve` as a stranger meets it: brings its own database, says how to try it, says why it cannot start."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from app.config import load_settings
from app.embedded import EmbeddedPostgresError
from app.server.postgres import RESTART_SECONDS, PostgresKeeper
from app.server.serve import greeting
from app.store.outage import Outage
from tests.conftest import ROOT, Server, free_port, wait_until


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FOREMAN_")}
    return {**clean, **more}


@contextmanager
def embedded(data_dir: Path, log: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server that brings its own PostgreSQL."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve"],
            cwd=ROOT,
            env=environment(FOREMAN_DATA_DIR=str(data_dir), **more),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def test_with_nothing_configured_it_brings_its_database_and_two_lines_that_work(tmp_path: Path) -> None:
    data_dir = tmp_path / "a folder with spaces"
    log = tmp_path / "log"
    port = str(free_port())
    with embedded(data_dir, log, FOREMAN_PORT=port) as process:
        wait_until(lambda: "Submit a job" in log.read_text() or process.poll() is not None, 60, log.read_text)
        submit, read = re.findall(r"^  (curl .+)$", log.read_text(), re.MULTILINE)
        assert (
            "job_id"
            in subprocess.run(["bash", "-c", submit], capture_output=True, text=True, check=True).stdout
        )
        shown = subprocess.run(["bash", "-c", read], capture_output=True, text=True, check=True).stdout
        assert '"state":"done"' in shown
        assert "Hello, Foreman!" in shown
        assert f"http://127.0.0.1:{port}" in log.read_text()
        assert "no authentication" in log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert (data_dir / "postgres").is_dir()

    # Started again, it finds what was there.
    with embedded(data_dir, log, FOREMAN_PORT=port) as process:
        wait_until(lambda: "Submit a job" in log.read_text() or process.poll() is not None, 60, log.read_text)
        [job] = httpx.get(f"http://127.0.0.1:{port}/jobs", timeout=10).json()["jobs"]
        assert job["state"] == "done"
        # The folder is taken: a second server says so and ends.
        second = subprocess.run(
            [sys.executable, "-m", "app", "serve"],
            cwd=ROOT,
            env=environment(FOREMAN_DATA_DIR=str(data_dir), FOREMAN_PORT="0"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 1
        assert "another foreman serve" in second.stderr
        assert "Traceback" not in second.stderr


def failing(**more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app", "serve"],
        cwd=ROOT,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_a_port_that_is_taken_is_said_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = failing(FOREMAN_PORT=str(port), FOREMAN_DATA_DIR=str(tmp_path / "data"))
    assert ended.returncode == 1
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("right", "wrong", "said", "processes"),
    [
        ("//foreman@", "//no_such_user@", "no_such_user", 1),
        ("/test_", "/no_such_database_", "no_such_database_", 1),
        (r"@/(.*)\?.*", r"@no-such-host.invalid/\1", "host of the database cannot be found", 1),
        ("//foreman@", "//no_such_user:secret@", "no_such_user", 2),
    ],
)
def test_a_database_that_does_not_let_us_in_is_said_in_a_sentence(
    database_url: str, right: str, wrong: str, said: str, processes: int
) -> None:
    ended = failing(
        FOREMAN_DATABASE_URL=re.sub(right, wrong, database_url),
        FOREMAN_DATABASE_PATIENCE_SECONDS="0.5",
        FOREMAN_PORT="0",
        FOREMAN_PROCESSES=str(processes),
    )
    assert ended.returncode == 1
    assert "FOREMAN_DATABASE_URL" in ended.stderr
    assert said in ended.stderr.splitlines()[-1]
    # Named from the first try on, not only in the end.
    first = next(line for line in ended.stderr.splitlines() if "serve.waiting_for_database" in line)
    assert said in first
    assert "secret" not in ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr


def test_any_loopback_address_may_be_bound(database_url: str, tmp_path: Path) -> None:
    server = Server(database_url, free_port(), {"FOREMAN_HOST": "::1"}, log_path=tmp_path / "log")
    try:
        server.launch()
        url = f"http://[::1]:{server.port}"

        def ready() -> bool:
            try:
                return httpx.get(f"{url}/readyz").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(ready, 30, server.log)
        assert f"Foreman listens on {url}" in server.log()
    finally:
        server.stop()


def test_port_0_takes_a_free_one_and_says_which() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        said = greeting(load_settings({}, database_url="postgresql://x/"), listener, embedded=False)
        assert f"http://127.0.0.1:{listener.getsockname()[1]}/jobs" in said
        worker = load_settings({}, database_url="postgresql://x/", role="worker")
        assert "curl" not in greeting(worker, listener, embedded=False)


def test_a_killed_server_leaves_no_database_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with embedded(tmp_path / "data", log, FOREMAN_PORT=str(free_port())) as process:
        wait_until(lambda: "Submit a job" in log.read_text() or process.poll() is not None, 60, log.read_text)
        postmaster = int((tmp_path / "data" / "postgres" / "postmaster.pid").read_text().split()[0])
        assert Path(f"/proc/{postmaster}").exists()
        process.kill()
        process.wait()
        wait_until(lambda: not Path(f"/proc/{postmaster}").exists(), 20)


def test_a_database_of_its_own_that_does_not_come_up_is_tried_ever_more_slowly_and_told_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Postgres:
        running = False
        starts = 0
        full = True

        def start(self) -> None:
            self.starts += 1
            if self.full:
                # As the real one: the end of a log, with times and process ids that are never the same.
                raise EmbeddedPostgresError(
                    f"PostgreSQL did not start. The end of postgres.log:\n{now} UTC [{self.starts}] "
                    'FATAL:  could not write to file "pg_wal/xlogtemp.7": No space left on device'
                )
            self.running = True

    now = 0.0
    monkeypatch.setattr("app.server.postgres.time.monotonic", lambda: now)
    postgres = Postgres()
    outage = Outage("database")
    keeper = PostgresKeeper(postgres, outage)  # type: ignore[arg-type]
    with capture_logs() as lines:
        while now < 60:
            keeper.look()
            now += 1
        assert len(RESTART_SECONDS) <= postgres.starts <= 2 * len(RESTART_SECONDS)
        # Told to those who wait as well, whose connections may have ended without a word.
        assert outage.is_full
        while now < 100:
            keeper.look()
            now += 1
        postgres.full = False
        while now < 130:
            keeper.look()
            now += 1
    assert postgres.running
    assert [line["event"] for line in lines if line["event"].startswith("serve.")] == [
        "serve.postgres_died",
        "serve.postgres_not_revived",
        "serve.postgres_not_revived",
        "serve.postgres_revived",
    ]
    assert "No space left" in lines[1]["problem"]
