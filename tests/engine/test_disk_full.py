"""The database's disk is full: the refusal, /readyz, the doctor and the log all name it, and say when it is over."""

import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import ROOT, TEMPLATE, MakeServer, Server, free_port, wait_until
from tests.engine.fleet import fetch

FULL = "The database's disk is full."
# What PostgreSQL raises, on any machine.
REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file "base/1/2": No space left on device' USING ERRCODE = '53100'; END $$
"""


def doctor(server: Server) -> str:
    environment = {**os.environ, "FOREMAN_URL": server.url}
    return subprocess.run(
        [sys.executable, "-m", "app", "doctor"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def is_told(server: Server, submit: Callable[[], httpx.Response]) -> None:
    refused: httpx.Response | None = None

    def is_refused() -> bool:
        nonlocal refused
        refused = submit()
        return refused.status_code != 202

    wait_until(is_refused)
    assert refused is not None
    assert (refused.status_code, refused.json()["detail"]) == (503, FULL)
    assert refused.headers["retry-after"]
    ready = httpx.get(f"{server.url}/readyz")
    assert (ready.status_code, ready.json()["detail"]) == (503, FULL)
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    assert FULL in server.log()
    assert "No space left on device" in server.log()
    assert "database.back" not in server.log()


def is_over(server: Server, submit: Callable[[], httpx.Response]) -> None:
    wait_until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200, 20)
    assert submit().status_code == 202
    wait_until(lambda: "database.back" in server.log())


def test_a_write_that_found_no_room_is_named_until_there_is_some(make_server: MakeServer) -> None:
    server = make_server()
    fetch(server.database_url, REFUSE)
    fetch(
        server.database_url,
        "CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION refuse()",
    )

    def submit() -> httpx.Response:
        return httpx.post(f"{server.url}/jobs", json={"kind": "noop"})

    is_told(server, submit)
    for _ in range(20):
        submit()
    assert server.log().count(FULL) == 1
    fetch(server.database_url, "DROP TRIGGER refuse ON jobs")
    is_over(server, submit)


@contextmanager
def mounted(place: Path, megabytes: int) -> Iterator[Path]:
    """A small disk; where none can be mounted, the test of the write that found no room has to do."""
    place.mkdir()
    options = f"size={megabytes}m,mode=755"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[Path]:
    """For tables."""
    with mounted(tmp_path / "small", megabytes=64) as place:
        owner = postgres.cluster_dir.stat()
        tables = place / "tables"
        tables.mkdir(mode=0o700)
        os.chown(tables, owner.st_uid, owner.st_gid)
        yield tables


@contextmanager
def database_on(disk: Path, postgres: EmbeddedPostgres) -> Iterator[str]:
    name = f"small_{uuid.uuid4().hex[:12]}"
    fetch(postgres.dsn, f"CREATE TABLESPACE {name} LOCATION '{disk}'")
    fetch(postgres.dsn, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} TABLESPACE {name}")
    try:
        yield postgres.dsn_for(name)
    finally:
        fetch(postgres.dsn, f"DROP DATABASE {name} WITH (FORCE)")
        fetch(postgres.dsn, f"DROP TABLESPACE {name}")


def test_a_disk_that_is_really_full_is_noticed_before_anybody_writes(
    small_disk: Path, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with database_on(small_disk, postgres) as url:
        server = Server(url, free_port(), log_path=tmp_path / "log").start()
        try:
            filler = small_disk.parent / "filler"
            subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], capture_output=True, check=False)
            wait_until(lambda: httpx.get(f"{server.url}/readyz").status_code == 503, 20)

            def submit() -> httpx.Response:
                payload = {"text": os.urandom(100_000).hex()}
                return httpx.post(f"{server.url}/jobs", json={"kind": "own-kind", "payload": payload})

            is_told(server, submit)
            told = doctor(server)
            assert "✗ database" in told
            assert FULL in told
            filler.unlink()
            is_over(server, submit)
            assert FULL not in doctor(server)
        finally:
            server.stop()


def test_a_database_of_its_own_that_stops_over_a_full_disk_says_so_and_comes_back_by_itself(
    tmp_path: Path,
) -> None:
    """Tables and write-ahead log on one disk, as in the default set-up: then PostgreSQL itself ends."""
    with mounted(tmp_path / "data", megabytes=160) as disk:
        environment = {"FOREMAN_DATA_DIR": str(disk)}
        server = Server("", free_port(), environment, log_path=tmp_path / "log").start(60)
        try:
            filler = disk / "filler"
            # Less than the 16 MB that the next piece of the write-ahead log takes.
            fill(filler, leave=10 << 20)
            acknowledged: set[str] = set()

            def is_refused() -> bool:
                payload = {"text": os.urandom(400_000).hex()}
                answer = httpx.post(f"{server.url}/jobs", json={"kind": "own-kind", "payload": payload})
                if answer.status_code == 202:
                    acknowledged.add(answer.json()["job_id"])
                return answer.status_code == 503 and "disk" in answer.json()["detail"]

            wait_until(is_refused, 60, server.log)
            told = doctor(server)
            ready = httpx.get(f"{server.url}/readyz")
            assert ready.status_code == 503
            assert re.search("disk (is|was) full", ready.json()["detail"])
            assert "✗ database" in told
            assert re.search("disk (is|was) full", told)
            assert FULL in server.log()
            assert "No space left on device" in server.log()
            filler.unlink()
            wait_until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200, 60, server.log)
            wait_until(lambda: "database.back" in server.log())
            for job_id in acknowledged:
                assert httpx.get(f"{server.url}/jobs/{job_id}").json()["state"] == "queued"
        finally:
            server.stop()


def fill(filler: Path, leave: int) -> None:
    free = shutil.disk_usage(filler.parent).free
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - leave)
