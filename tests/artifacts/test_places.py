"""Where the bytes lie, that they go when nothing refers to them, and what happens when the place is away."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from app.artifacts.store import ArtifactStore
from app.engine.janitor import Janitor
from app.errors import NotFound, Unavailable
from app.store import artifacts
from app.store.artifacts import NewArtifact
from app.store.control import delete
from app.store.database import Database
from tests.artifacts.s3 import FakeS3
from tests.artifacts.test_artifacts import LARGE, get, put
from tests.conftest import MakeServer, Server
from tests.events.helpers import running, settle
from tests.live_tables import write
from tests.patience import until
from tests.store.making import TENANT
from tests.store.making import running as claimed_job


def files_of(folder: Path, job_id: str) -> list[Path]:
    return [path for path in (folder / job_id).rglob("*") if path.is_file()]


def test_in_a_folder_they_are_files(in_folder: Server, folder_of_artifacts: Path) -> None:
    claimed = running(in_folder)
    put(in_folder, claimed, "large.bin", LARGE, "application/octet-stream")
    put(in_folder, claimed, "small.txt", "small")
    found = {
        path.name.split("-", 1)[1]: path.read_bytes()
        for path in files_of(folder_of_artifacts, claimed["job_id"])
    }
    assert found == {"large.bin": LARGE, "small.txt": b"small"}


def test_in_a_folder_nobody_else_on_the_machine_can_read_them(
    in_folder: Server, folder_of_artifacts: Path
) -> None:
    claimed = running(in_folder)
    put(in_folder, claimed, "large.bin", LARGE * 4, "application/octet-stream")
    put(in_folder, claimed, "small.txt", "small")
    folder = folder_of_artifacts / claimed["job_id"]
    assert len(files_of(folder_of_artifacts, claimed["job_id"])) == 2
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


async def test_a_folder_that_is_made_for_them_is_private_too(database: Database, tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"x"

    store = ArtifactStore(database, f"file://{tmp_path}/made/here")
    await store.write(store.new_location("job", "name"), chunks())
    assert (tmp_path / "made" / "here").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "made" / "here" / "job").stat().st_mode & 0o777 == 0o700


def test_in_a_bucket_they_are_objects(in_bucket: Server, s3: FakeS3) -> None:
    claimed = running(in_bucket)
    put(in_bucket, claimed, "large.bin", LARGE * 4, "application/octet-stream")
    [(key, data)] = [(key, data) for key, data in s3.objects.items() if claimed["job_id"] in key]
    assert key.startswith(f"bucket/some/prefix/{claimed['job_id']}/")
    assert data == LARGE * 4


async def rows(server: Server, statement: str) -> list[Any]:
    connection = await asyncpg.connect(server.database_url)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()


def test_an_interrupted_upload_is_in_the_trash_and_due_at_once(in_postgres: Server) -> None:
    claimed = running(in_postgres)
    asyncio.run(_cut_off(in_postgres, claimed))
    due = asyncio.run(rows(in_postgres, "SELECT location FROM artifact_trash WHERE due_at <= now()"))
    assert due


async def _cut_off(server: Server, claimed: dict[str, Any]) -> None:
    before = await rows(server, "SELECT 1 FROM artifact_trash WHERE due_at <= now()")
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        f"PUT /jobs/{claimed['job_id']}/artifacts/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n"
        f"X-Foreman-Lease-Token: {claimed['lease_token']}\r\n\r\n".encode()
        + LARGE[:1_500_000]
    )
    await writer.drain()
    writer.close()

    async def thrown_away() -> bool:
        trash = await rows(server, "SELECT 1 FROM artifact_trash WHERE due_at <= now()")
        return len(trash) > len(before)

    await until(thrown_away)


def test_a_bucket_that_is_away_is_a_503_and_nothing_is_half_done(in_bucket: Server, s3: FakeS3) -> None:
    claimed = running(in_bucket)
    assert put(in_bucket, claimed, "kept", LARGE).status_code == 201
    s3.is_down = True
    try:
        answer = httpx.put(
            f"{in_bucket.url}/jobs/{claimed['job_id']}/artifacts/new",
            content=LARGE[:400_000],
            headers={"X-Foreman-Lease-Token": claimed["lease_token"]},
            timeout=200,
        )
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
    finally:
        s3.is_down = False
    assert get(in_bucket, claimed, "new").status_code == 404
    assert get(in_bucket, claimed, "kept").content == LARGE


def test_the_place_may_change_and_old_artifacts_stay_readable(
    make_server: MakeServer, tmp_path: Path
) -> None:
    first = make_server()
    claimed = running(first)
    put(first, claimed, "old.bin", LARGE)
    second = make_server(FOREMAN_ARTIFACTS_URL=(tmp_path / "new place").as_uri())
    put(second, claimed, "new.bin", LARGE[:1_000_000])
    for server in (first, second):
        assert get(server, claimed, "old.bin").content == LARGE
        assert get(server, claimed, "new.bin").content == LARGE[:1_000_000]
    assert len(files_of(tmp_path / "new place", claimed["job_id"])) == 1


def test_a_deleted_job_takes_its_artifacts_with_it(make_server: MakeServer, tmp_path: Path) -> None:
    place = tmp_path / "place"
    server = make_server(FOREMAN_ARTIFACTS_URL=place.as_uri())
    claimed = running(server)
    put(server, claimed, "a.bin", LARGE)
    put(server, claimed, "b.txt", "small")
    assert len(files_of(place, claimed["job_id"])) == 2
    settle(server, claimed, "complete", result=1)
    assert httpx.delete(f"{server.url}/jobs/{claimed['job_id']}").status_code == 204
    assert get(server, claimed, "a.bin").status_code == 404
    trash = asyncio.run(rows(server, "SELECT location FROM artifact_trash"))
    assert len(trash) == 2
    assert asyncio.run(rows(server, "SELECT 1 FROM artifacts")) == []


@pytest.fixture
async def store(database: Database, tmp_path: Path, place: str) -> ArtifactStore:
    return ArtifactStore(database, None if place == "postgres" else (tmp_path / "place").as_uri())


@pytest.fixture(params=["postgres", "folder"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 100_000):
        yield data[start : start + 100_000]


async def stored_bytes(database: Database, tmp_path: Path) -> int:
    chunks = await database.fetchval("SELECT coalesce(sum(octet_length(data)), 0) FROM artifact_chunks")
    return int(chunks) + sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())


async def test_the_janitor_removes_what_nothing_refers_to(
    database: Database, store: ArtifactStore, tmp_path: Path
) -> None:
    job_id, token = await claimed_job(database)
    for data in (os.urandom(700_000), os.urandom(600_000)):
        location = store.new_location(job_id, "a")
        await artifacts.begin_upload(database, location)
        await store.write(location, pieces(data))
        new = NewArtifact(job_id, "a", "application/octet-stream", len(data), '"x"', location=location)
        assert (await artifacts.put(database, new, token, 9)).answers
    abandoned = store.new_location(job_id, "b")
    await artifacts.begin_upload(database, abandoned)
    await store.write(abandoned, pieces(b"x" * 300_000))
    assert await stored_bytes(database, tmp_path) == 1_600_000
    janitor = Janitor(database, store, chatter_days=7)
    await janitor._run_once()
    # The replaced one is gone; the upload that might still be going on is not.
    assert await stored_bytes(database, tmp_path) == 900_000
    await artifacts.abandon_upload(database, abandoned)
    await janitor._run_once()
    assert await stored_bytes(database, tmp_path) == 600_000
    row = await artifacts.get(database, job_id, "a", TENANT)
    assert row is not None
    assert row.location is not None
    assert b"".join([piece async for piece in store.read(row.location, 0, 600_000)]) == data
    await write(database, "UPDATE jobs SET state = 'done', completed_at = now(), lease_token = NULL")
    assert (await delete(database, [job_id], TENANT)).answers
    await janitor._run_once()
    assert await stored_bytes(database, tmp_path) == 0
    assert await database.fetchval("SELECT count(*) FROM artifact_trash") == 0


async def test_trash_that_cannot_be_removed_does_not_stand_in_the_way(
    database: Database, tmp_path: Path
) -> None:
    store = ArtifactStore(database, None)
    good = store.new_location("j", "a")
    await artifacts.begin_upload(database, good)
    await store.write(good, pieces(b"x" * 300_000))
    # A folder where a file is expected: it can be neither read nor removed.
    blocked = tmp_path / "place" / "job" / "upload-a"
    (blocked / "inside").mkdir(parents=True)
    await artifacts.begin_upload(database, blocked.as_uri())
    await database.execute("UPDATE artifact_trash SET due_at = now() - interval '1 minute'")
    await Janitor(database, store, chatter_days=7)._run_once()
    left = await database.fetch("SELECT location, due_at > now() AS later FROM artifact_trash")
    assert [(row["location"], row["later"]) for row in left] == [(blocked.as_uri(), True)]
    assert await database.fetchval("SELECT count(*) FROM artifact_chunks") == 0


async def test_bytes_that_are_gone_are_not_found(database: Database, store: ArtifactStore) -> None:
    location = store.new_location("j", "a")
    with pytest.raises(NotFound):
        async for _ in store.read(location, 0, 10):
            pass
    assert await store.delete([location]) == [location]


async def test_a_place_that_cannot_be_written_to_is_unavailable(database: Database, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = ArtifactStore(database, (tmp_path / "file" / "place").as_uri())
    with pytest.raises(Unavailable):
        await store.write(store.new_location("j", "a"), pieces(b"x"))
