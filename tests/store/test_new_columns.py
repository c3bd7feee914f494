"""Old and new version side by side: a column that a newer one adds changes nothing for statements that run already.

PostgreSQL refuses a prepared statement whose result has changed its type, and within a transaction nobody can
prepare it anew. So no statement of the store may return columns that it does not name.
"""

import asyncio

import asyncpg
import httpx

from app.store.database import Database
from app.store.tables import METADATA
from tests.conftest import Server
from tests.store.test_first_plans import statements


async def test_a_new_column_changes_the_result_of_no_statement(database: Database) -> None:
    async with database.connection() as connection:
        before = {name: await _result(connection, text) for name, text in statements()}
        for table in METADATA.tables:
            await connection.execute(f"ALTER TABLE {table} ADD COLUMN from_the_future int DEFAULT 0")
        after = {name: await _result(connection, text) for name, text in statements()}
    assert {name for name in before if before[name] != after[name]} == set()


async def _result(connection: asyncpg.pool.PoolConnectionProxy, statement: str) -> list[tuple[str, int]]:
    # A fresh name each time: what counts is what PostgreSQL would say now.
    prepared = await connection.prepare(statement, name="")
    return [(each.name, each.type.oid) for each in prepared.get_attributes()]


async def test_a_statement_whose_result_changed_all_the_same_is_prepared_anew(database: Database) -> None:
    await database.execute("CREATE TABLE things (id int)")
    await database.execute("INSERT INTO things VALUES (1)")
    every = "SELECT * FROM things"
    # On every connection of the pool.
    await asyncio.gather(*(database.fetch(f"{every} CROSS JOIN pg_sleep(0.05)") for _ in range(10)))
    await asyncio.gather(*(database.fetch_planned(every) for _ in range(10)))
    await database.execute("ALTER TABLE things ADD COLUMN x int DEFAULT 7")
    found = await asyncio.gather(
        *(database.fetch(every) for _ in range(10)), *(database.fetch_planned(every) for _ in range(10))
    )
    assert all(dict(rows[0]) == {"id": 1, "x": 7} for rows in found)


def test_every_kind_of_call_works_after_a_column_was_added_from_outside(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        _every_kind_of_call(client)
        asyncio.run(_add_columns(server.database_url))
        for _ in range(3):
            _every_kind_of_call(client)
    assert "request.failed" not in server.log()
    assert "loop.failed" not in server.log()


async def _add_columns(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for table in METADATA.tables:
            await connection.execute(f"ALTER TABLE {table} ADD COLUMN x int DEFAULT 0")
    finally:
        await connection.close()


def _every_kind_of_call(client: httpx.Client) -> None:
    def ask(method: str, path: str, **more: object) -> dict[str, object]:
        answer = client.request(method, path, **more)  # type: ignore[arg-type]
        assert answer.status_code < 300, (method, path, answer.status_code, answer.text)
        return dict(answer.json()) if answer.content else {}

    ask("PUT", "/queues/limited", json={"max_running": 50, "rate": {"limit": 1000}, "fair_by": "who"})
    ask("PUT", "/queues/keyed", json={"key": ["/k"], "max_queued": 5, "max_depth": 100})
    ask("PUT", "/schedules/s", json={"cron": "* * * * *", "job": {"kind": "noop"}})
    for queue in ("plain", "limited", "keyed"):
        ask("POST", "/jobs", json={"kind": "mine", "queue": queue, "payload": {"k": 1}})
        claim = {"worker": "w", "queues": [queue], "kinds": ["mine"], "wait_seconds": 10}
        job: dict[str, str] = ask("POST", "/claims", json=claim)["jobs"][0]  # type: ignore[index]
        path, token = f"/jobs/{job['job_id']}", {"lease_token": job["lease_token"]}
        ask("POST", f"{path}/start", json=token)
        ask("POST", f"{path}/heartbeat", json=token)
        ask("POST", f"{path}/progress", json={**token, "fraction": 0.5})
        ask("POST", f"{path}/complete", json={**token, "usage": {"prompt_tokens": 1}})
        ask("GET", path)
        ask("GET", f"{path}/events")
        ask("GET", f"{path}/webhooks")
        ask("DELETE", path)
    done = ask("POST", "/jobs", json={"kind": "noop"}, headers={"prefer": "wait=20"})
    assert done["state"] == "done"
    for path in (
        "/jobs?state=done",
        "/queues",
        "/queues/keyed",
        "/queues/keyed/keys/1",
        "/workers",
        "/usage",
    ):
        ask("GET", path)
    for path in ("/schedules", "/dead-letters", "/bulk-operations", "/targets", "/webhooks", "/events"):
        ask("GET", path)
    operation = ask("POST", "/bulk-operations", json={"action": "delete", "filter": {"queue": "plain"}})
    ask("GET", f"/bulk-operations/{operation['operation_id']}")
    ask("DELETE", "/schedules/s")
