"""GET /jobs: filters, pages, newest first."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import httpx
import pytest

from app.jobs.ids import new_id
from app.store.read import MAX_LOOKED
from tests.api.conftest import Submit, problem_of
from tests.conftest import Server

Listed = Callable[..., list[str]]


@pytest.fixture
def listed(client: httpx.Client, queue: str) -> Listed:
    def listed(query: Any = ()) -> list[str]:
        pairs = list(query.items()) if isinstance(query, dict) else list(query)
        answer = client.get("/jobs", params=[("queue", queue), *pairs])
        assert answer.status_code == 200, answer.text
        return [job["job_id"] for job in answer.json()["jobs"]]

    return listed


def test_newest_come_first_without_payload_result_and_artifacts(
    client: httpx.Client, submit: Submit, queue: str, listed: Listed
) -> None:
    ids = [submit(kind="own-kind", payload={"secret": 1}) for _ in range(3)]
    assert listed() == ids[::-1]
    [job] = client.get("/jobs", params={"queue": queue, "limit": 1}).json()["jobs"]
    assert not {"payload", "result", "artifacts"} & set(job)
    assert {"job_id", "state", "metadata", "seq", "timings", "trace", "error", "progress"} <= set(job)


def test_an_empty_list_is_a_list(client: httpx.Client, queue: str) -> None:
    answer = client.get("/jobs", params={"queue": queue})
    assert answer.json() == {"jobs": [], "next_cursor": None}
    assert "link" not in answer.headers


def test_pages_follow_each_other_by_cursor_and_by_link(
    client: httpx.Client, submit: Submit, queue: str
) -> None:
    ids = [submit(kind="own-kind", metadata={"a b": "c&d"}) for _ in range(7)][::-1]
    seen: list[str] = []
    answer = client.get("/jobs", params={"queue": queue, "limit": 3, "metadata.a b": "c&d"})
    for _ in range(3):
        seen += [job["job_id"] for job in answer.json()["jobs"]]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            break
        link = answer.headers["link"]
        assert link.endswith('>; rel="next"')
        following = link[1 : link.index(">")]
        assert parse_qs(urlsplit(following).query)["cursor"] == [cursor]
        answer = client.get(following)
    assert seen == ids
    assert "link" not in answer.headers


def test_a_page_that_is_exactly_full_is_the_last(client: httpx.Client, submit: Submit, queue: str) -> None:
    for _ in range(4):
        submit(kind="own-kind")
    assert client.get("/jobs", params={"queue": queue, "limit": 4}).json()["next_cursor"] is None


def test_jobs_submitted_while_paging_do_not_shift_the_pages(
    client: httpx.Client, submit: Submit, queue: str
) -> None:
    ids = [submit(kind="own-kind") for _ in range(4)][::-1]
    first = client.get("/jobs", params={"queue": queue, "limit": 2}).json()
    submit(kind="own-kind")
    second = client.get("/jobs", params={"queue": queue, "limit": 2, "cursor": first["next_cursor"]}).json()
    assert [job["job_id"] for page in (first, second) for job in page["jobs"]] == ids


def test_states_may_be_given_several_times(client: httpx.Client, submit: Submit, listed: Listed) -> None:
    queued, cancelled = submit(kind="own-kind"), submit(kind="own-kind")
    client.post(f"/jobs/{cancelled}/cancel")
    assert listed([("state", "queued")]) == [queued]
    assert listed([("state", "cancelled")]) == [cancelled]
    assert listed([("state", "cancelled"), ("state", "queued")]) == [cancelled, queued]
    assert listed([("state", "cancelled,queued")]) == [cancelled, queued]
    assert listed([("state", "done")]) == []


def test_kind_model_and_metadata_filter(submit: Submit, listed: Listed) -> None:
    a = submit(kind="kind-a", metadata={"user": "ann", "team": "x y"})
    b = submit(kind="kind-b", metadata={"user": "bob", "team": "x y"})
    chat = submit(kind="chat", model="m1:q4", messages=[], delay_seconds=60)
    assert listed({"kind": "kind-a"}) == [a]
    assert listed({"kind": "chat"}) == [chat]
    assert listed({"model": "m1:q4"}) == [chat]
    assert listed({"metadata.team": "x y"}) == [b, a]
    assert listed({"metadata.team": "x y", "metadata.user": "bob"}) == [b]
    assert listed({"metadata.user": "nobody"}) == []


def test_error_worker_and_the_beginning_of_the_id_filter(
    client: httpx.Client, claimed: Callable[..., dict[str, Any]], listed: Listed
) -> None:
    failed, running = claimed(), claimed()
    body = {
        "lease_token": failed["lease_token"],
        "error": {"code": "o'dd", "message": "x"},
        "retryable": False,
    }
    client.post(f"/jobs/{failed['job_id']}/fail", json=body)
    assert listed({"error": "o'dd"}) == [failed["job_id"]]
    assert listed({"error": "o'dd", "state": "failed"}) == [failed["job_id"]]
    assert listed({"error": "other"}) == []
    assert listed({"worker": "tester"}) == [running["job_id"], failed["job_id"]]
    assert listed({"worker": "tester", "state": "loading"}) == [running["job_id"]]
    assert listed({"id_prefix": failed["job_id"]}) == [failed["job_id"]]
    assert listed({"id_prefix": failed["job_id"][:6].lower()}) == [running["job_id"], failed["job_id"]]
    assert listed({"id_prefix": "0"}) == [running["job_id"], failed["job_id"]]
    assert listed({"id_prefix": "7"}) == []
    assert listed({"id_prefix": failed["job_id"], "since": "2999-01-01"}) == []


def test_since_and_until(client: httpx.Client, submit: Submit, listed: Listed) -> None:
    job_id = submit(kind="own-kind")
    made = datetime.fromisoformat(client.get(f"/jobs/{job_id}").json()["created_at"])
    before, after = (made - timedelta(seconds=5)).isoformat(), (made + timedelta(seconds=5)).isoformat()
    assert listed({"since": before}) == [job_id]
    assert listed({"since": after}) == []
    assert listed({"until": after}) == [job_id]
    assert listed({"until": before}) == []
    assert listed({"since": before, "until": after}) == [job_id]
    assert listed({"since": "2001-01-01"}) == [job_id]


def test_a_plus_in_a_timestamp_may_come_unescaped(client: httpx.Client, submit: Submit, queue: str) -> None:
    job_id = submit(kind="own-kind")
    answer = client.get(f"/jobs?queue={queue}&since=2001-01-01T00:00:00+01:00")
    assert [job["job_id"] for job in answer.json()["jobs"]] == [job_id]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "sleeping"),
        ("state", ""),
        ("limit", "0"),
        ("limit", "201"),
        ("limit", "-1"),
        ("limit", "abc"),
        ("limit", "1e2"),
        ("limit", "\u0663"),
        ("limit", "9" * 5000),
        ("since", "yesterday"),
        ("until", "2001-13-01"),
        ("since", "0001-01-01T00:00:00+14:00"),
        ("cursor", "nonsense"),
        ("cursor", ""),
        ("cursor", "MTp4"),
        ("cursor", "\u00fc"),
        ("color", "red"),
        ("metadata", "x"),
        ("id_prefix", ""),
        ("id_prefix", "hello"),
        ("id_prefix", "0" * 27),
        ("error", "\x00"),
        ("queue", "a\x00b"),
        ("model", "\x00"),
    ],
)
def test_a_wrong_filter_is_named(client: httpx.Client, field: str, value: str) -> None:
    document = problem_of(client.get("/jobs", params={field: value}), 422, "invalid_request")
    assert document["errors"][0]["field"] == field


def test_odd_but_possible_filters_find_nothing(client: httpx.Client) -> None:
    for params in (
        {"queue": "'; DROP TABLE jobs"},
        {"model": "\U0001f600" * 50},
        {"metadata.": ""},
        {"kind": "%"},
    ):
        assert client.get("/jobs", params=params).json()["jobs"] == []
    assert client.get("/jobs?queue=%ff%fe").json()["jobs"] == []


def test_limits_from_1_to_200_are_kept(client: httpx.Client, queue: str) -> None:
    client.post("/jobs/batch", json={"jobs": [{"kind": "own-kind", "queue": queue}] * 205})
    for limit in (1, 50, 200):
        assert len(client.get("/jobs", params={"queue": queue, "limit": limit}).json()["jobs"]) == limit
    assert len(client.get("/jobs", params={"queue": queue}).json()["jobs"]) == 50


def test_a_job_that_lies_behind_many_others_is_found_and_the_list_has_an_end(
    api: Server, client: httpx.Client, queue: str
) -> None:
    [rare] = client.post("/jobs/batch", json={"jobs": [{"kind": "rare", "queue": queue}]}).json()["jobs"]
    asyncio.run(fill(api.database_url, queue, MAX_LOOKED + 10))
    assert all_pages(client, {"queue": queue, "kind": "rare"}) == [rare["job_id"]]
    assert all_pages(client, {"queue": queue, "kind": "never-used"}) == []


def all_pages(client: httpx.Client, params: dict[str, str]) -> list[str]:
    """All pages. On a machine that is slow enough one of them may be empty and not the last."""
    answer = client.get("/jobs", params=params)
    found = answer.json()["jobs"]
    while answer.json()["next_cursor"] is not None:
        answer = client.get(answer.headers["link"][1:].partition(">")[0])
        found += answer.json()["jobs"]
    return [job["job_id"] for job in found]


async def fill(url: str, queue: str, number: int) -> None:
    """So many jobs that ended just now."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, completed_at, history) "
            "SELECT $1 || lpad(n::text, 16, '0'), 'default', $2, 'noop', 'noop', 'done', '{}', now(), '' "
            "FROM generate_series(1, $3::int) n",
            new_id()[:10],
            queue,
            number,
        )
    finally:
        await connection.close()
