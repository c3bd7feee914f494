"""The second fence: PostgreSQL itself shows one tenant's rows only, whatever a statement forgot to ask."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from app.store import artifacts, bulk, family, job_view, outbox, read, schedules, usage, workers
from app.store.database import Database
from app.store.migrate import migrate
from tests.conftest import MakeServer
from tests.store.making import job, put


@pytest.fixture
async def fenced(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, fences=True)
    await database.open()
    assert database.fences
    yield database
    await database.close()


async def test_a_statement_that_forgets_the_tenant_sees_that_tenant_only(fenced: Database) -> None:
    mine, theirs = job(tenant="a"), job(tenant="b")
    await put(fenced, mine, theirs)
    for table, number in {"jobs": 1, "running": 0, "artifacts": 0, "schedules": 0}.items():
        assert await fenced.of("a").fetchval(f"SELECT count(*) FROM {table}") == number
    assert [row["id"] for row in await fenced.of("a").fetch("SELECT id FROM jobs")] == [mine.id]
    assert await fenced.of("nobody").fetch("SELECT id FROM jobs") == []
    assert await fenced.fetchval("SELECT count(*) FROM jobs") == 2, "the engine sees all"


async def test_nothing_can_be_changed_or_read_that_no_caller_is_shown(fenced: Database) -> None:
    await put(fenced, job(tenant="a"))
    for statement in (
        "UPDATE jobs SET tenant = 'b'",
        "DELETE FROM jobs",
        "SELECT * FROM api_keys",
        "SELECT * FROM targets",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await fenced.of("a").fetch(statement)
    assert await fenced.fetchval("SELECT current_user = session_user"), "and the connection is as before"
    assert await fenced.fetchval("SELECT current_setting('foreman.tenant', true)") in (None, "")


async def test_all_that_is_read_for_a_tenant_can_be_read_behind_the_fence(fenced: Database) -> None:
    mine, theirs = job(tenant="a"), job(tenant="b")
    await put(fenced, mine, theirs)
    await schedules.put(fenced, "s", "a", "0 3 * * *", "UTC", "{}")
    found = await read.get_job(fenced, mine.id, "a")
    assert found is not None
    assert await read.get_job(fenced, theirs.id, "a") is None
    page = await read.list_jobs(fenced, read.Filter(), "a", 10)
    assert [each.id for each in page.jobs] == [mine.id]
    assert await outbox.job_exists(fenced, mine.id, "a")
    assert await outbox.deliveries_of(fenced, mine.id, "a", 0, 10) == []
    assert await outbox.list_deliveries(fenced, outbox.DeliveryFilter(), "a", 10) == []
    assert await artifacts.get(fenced, mine.id, "x", "a") is None
    assert await job_view.get(fenced, mine.id, "a", payload=9, result=9, head=9) is not None
    assert await job_view.get(fenced, theirs.id, "a", payload=9, result=9, head=9) is None
    assert await family.get(fenced, theirs.id, "a") is None
    assert await family.named(fenced, [theirs.id], "a") == []
    assert (await family.children(fenced, mine.id, "a", 5)).total == 0
    assert [each.own_name for each in await schedules.list_schedules(fenced, "a")] == ["s"]
    assert await schedules.list_schedules(fenced, "b") == []
    assert await bulk.list_operations(fenced, "a", 10) == []
    assert await workers.list_workers(fenced, "a") == []
    day = found.created_at.date()
    assert await usage.sums(fenced, "a", day, day, None) == []
    assert await usage.sums_by_key(fenced, "a", day, day, None) == []


async def test_a_list_that_forgot_the_tenant_is_caught(
    fenced: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = job(tenant="a"), job(tenant="b")
    await put(fenced, mine, theirs)
    sound = read.list_statements

    def forgetful(*given: object, **more: object) -> list[tuple[str, list[object]]]:
        return [
            (statement.replace("tenant = $1", "$1::text IS NOT NULL"), arguments)
            for statement, arguments in sound(read.Filter(queue=mine.queue), "default", 10)
        ]

    monkeypatch.setattr(read, "list_statements", forgetful)
    assert [each.id for each in (await read.list_jobs(fenced, read.Filter(), "a", 10)).jobs] == [mine.id]
    fenced.fences = False
    assert len((await read.list_jobs(fenced, read.Filter(), "a", 10)).jobs) == 2, (
        "which is what the fence is for"
    )


async def test_an_owner_who_may_make_no_roles_does_without(database_url: str, postgres: object) -> None:
    admin = await asyncpg.connect(database_url)
    try:
        await admin.execute("DROP ROLE IF EXISTS plain_owner")
        await admin.execute("CREATE ROLE plain_owner LOGIN NOCREATEROLE")
        await admin.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public AUTHORIZATION plain_owner")
        await admin.execute("ALTER ROLE plain_owner SET search_path = public")
        plain = database_url.replace("postgresql://foreman@", "postgresql://plain_owner@")
        await migrate(plain)
        database = Database(plain, fences=True)
        await database.open()
        assert not database.fences
        assert await read.get_job(database, "01ARZ3NDEKTSV4RRFFQ69G5FAV", "a") is None
        await database.close()
    finally:
        await admin.execute("DROP OWNED BY plain_owner CASCADE; DROP ROLE plain_owner")
        await admin.close()


def test_a_server_behind_the_fence_serves_as_ever(make_server: MakeServer) -> None:
    server = make_server(FOREMAN_AUTH="on", FOREMAN_ROW_SECURITY="on")
    with server.client(server.key("acme")) as client, server.client(server.key("other")) as stranger:
        done = client.post("/jobs", json={"kind": "noop"}, headers={"Prefer": "wait=60"}).json()
        assert done["state"] == "done"
        assert len(client.get("/jobs").json()["jobs"]) == 1
        assert stranger.get(f"/jobs/{done['job_id']}").status_code == 404
        assert stranger.get("/jobs").json()["jobs"] == []
        assert len(client.get(f"/jobs/{done['job_id']}/events").json()["events"]) == 4
    assert "no_row_security" not in server.log()
