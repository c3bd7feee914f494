"""GET /queues page by page, and GET /queues/{name}/keys: over HTTP, and their plans."""

from typing import Any

import pytest

from app.store.database import Database
from app.store.keys import EACH_HELD, busy_keys
from tests.patience import wait_until
from tests.queues.conftest import Caller, soon


def names(call: Caller, **query: Any) -> list[str]:
    answer = call.http.get("/queues", params=query)
    assert answer.status_code == 200, answer.text
    return [each["name"] for each in answer.json()["queues"]]


def test_queues_are_searched_by_name_and_the_busiest_come_first(call: Caller, queue: str) -> None:
    for name, jobs in (("a", 1), ("b", 0), ("c", 3)):
        call.configure(f"{queue}.{name}")
        for _ in range(jobs):
            call.submit(f"{queue}.{name}")
    assert call.http.post(f"/queues/{queue}.a/pause").is_success
    assert names(call, search=queue) == [f"{queue}.{name}" for name in "abc"]
    # Counts may be a moment old.
    soon(lambda: names(call, search=queue.upper(), order="busiest") == [f"{queue}.{name}" for name in "cab"])
    assert names(call, search=queue, busy=True) == [f"{queue}.a", f"{queue}.c"]
    assert names(call, search=queue, paused=True) == [f"{queue}.a"]
    assert names(call, search=queue, paused=False) == [f"{queue}.b", f"{queue}.c"]
    # An underscore or a per cent sign stands for nothing but itself.
    assert names(call, search=queue.replace("-", "_")) == []
    assert names(call, search="%") == []


def test_queues_are_listed_page_by_page(call: Caller, queue: str) -> None:
    for name in "abc":
        call.configure(f"{queue}.{name}")
    first = call.http.get("/queues", params={"search": queue, "limit": 2}).json()
    assert ([each["name"][-1] for each in first["queues"]], first["total"]) == (["a", "b"], 3)
    assert names(call, search=queue, limit=2, offset=2) == [f"{queue}.c"]
    assert names(call, search=queue, limit=2, offset=200) == []


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "offset=-1", "order=size", "paused=perhaps", "serach=x", "search=%00"]
)
def test_what_cannot_be_asked_of_queues_is_422(call: Caller, query: str) -> None:
    assert call.http.get(f"/queues?{query}").status_code == 422


def test_busy_keys_are_listed_with_what_holds_them(call: Caller, queue: str) -> None:
    call.configure(queue, key=["/k"], max_active=2, max_queued=10)
    jobs = {key: [call.submit(queue, {"k": key}) for _ in range(4)] for key in ("b", "a/x")}
    claimed = call.claim(queue, limit=3)
    assert {job["concurrency_key"] for job in claimed} == {"b", "a/x"}
    answer = call.http.get(f"/queues/{queue}/keys").json()
    found = {each["key"]: each for each in answer["keys"]}
    assert list(found) == ["a/x", "b"]
    assert answer["next_after"] is None
    assert (found["b"]["running"], found["b"]["waiting"]) == (2, 2)
    assert (found["a/x"]["running"], found["a/x"]["waiting"]) == (1, 3)
    assert found["b"]["longest_running"] == jobs["b"][0]
    assert found["b"]["running_since"] is not None
    for job in claimed:
        call.complete(job)
    # The places go to the next, a moment later: the keys are as busy as before.
    wait_until(lambda: {each["key"] for each in keys_of(call, queue)} == {"a/x", "b"})


def keys_of(call: Caller, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call.http.get(f"/queues/{queue}/keys").json()["keys"]
    return found


def test_busy_keys_are_listed_page_by_page(call: Caller, queue: str) -> None:
    call.configure(queue, key=["/k"])
    for key in "abcde":
        call.submit(queue, {"k": key})
    seen: list[str] = []
    after = ""
    while True:
        page = call.http.get(f"/queues/{queue}/keys", params={"limit": 2, "after": after}).json()
        seen += [each["key"] for each in page["keys"]]
        if page["next_after"] is None:
            break
        after = page["next_after"]
    assert seen == list("abcde")


def test_what_cannot_be_asked_of_keys_is_refused(call: Caller, queue: str) -> None:
    assert call.http.get(f"/queues/{queue}/keys").status_code == 404
    assert call.http.get("/queues/bad name/keys").status_code == 404
    call.configure(queue)
    assert call.http.get(f"/queues/{queue}/keys").json() == {"keys": [], "next_after": None}
    for query in ("limit=0", "limit=1001", "after=%00", "before=x"):
        assert call.http.get(f"/queues/{queue}/keys?{query}").status_code == 422


async def test_a_tenant_sees_its_own_keys_however_many_others_have(database: Database) -> None:
    await database.execute(
        """
        INSERT INTO running (id, claimed_at, queue, concurrency_key, key_number)
        SELECT 'r' || lpad(n::text, 25, '0'), now(), 'q', tenant || chr(31) || 'k' || n, n
        FROM generate_series(1, 1200) AS n CROSS JOIN unnest(ARRAY['early']) AS tenant
        UNION ALL SELECT 's' || lpad(n::text, 25, '0'), now(), 'q', 'plain' || n, n FROM generate_series(1, 3) AS n
        UNION ALL SELECT 't' || lpad(n::text, 25, '0'), now(), 'q', 'late' || chr(31) || 'k' || n, n
        FROM generate_series(1, 3) AS n
        """
    )
    own, more = await busy_keys(database, "q", "default", limit=2)
    assert ([each.key for each in own], more) == (["plain1", "plain2"], "plain2")
    own, more = await busy_keys(database, "q", "default", after="plain2", limit=2)
    assert ([each.key for each in own], more) == (["plain3"], None)
    own, more = await busy_keys(database, "q", "late", limit=10)
    assert ([each.key for each in own], more) == (["k1", "k2", "k3"], None)
    assert await busy_keys(database, "q", "nobody", limit=10) == ([], None)
    assert len((await busy_keys(database, "q", "early", limit=1000))[0]) == 1000


async def test_a_key_with_many_jobs_costs_one_probe(database: Database) -> None:
    await database.execute(
        """
        INSERT INTO running (id, claimed_at, queue, concurrency_key, key_number)
        SELECT 'r' || lpad(n::text, 25, '0'), now(), 'q', 'k' || n % 3, n FROM generate_series(1, 30000) AS n
        """
    )
    await database.execute("ANALYZE running")
    plan = await database.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT TEXT) {EACH_HELD}", "q", "", 500)
    text = "\n".join(row[0] for row in plan)
    assert "Seq Scan on running" not in text
    assert "running_key_places" in text
