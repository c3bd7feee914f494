"""How much of the server one key may have."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.errors import RateLimited
from app.identity.account import Account
from app.identity.job_limits import SHARED_FROM, JobLimits
from app.identity.limits import Limits
from app.identity.scopes import ALL_SCOPES
from app.jobs.ids import new_id
from app.store import api_keys
from app.store.database import Database
from tests.conftest import MakeServer, Server
from tests.patience import wait_until


def limited(server: Server, tenant: str, **limits: int) -> httpx.Client:
    return server.client(server.key(tenant, *ALL_SCOPES, limits=limits))


def assert_refused(answer: httpx.Response, words: str) -> None:
    assert answer.status_code == 429, answer.text
    assert answer.json()["code"] == "rate_limited"
    assert words in answer.json()["detail"]
    assert int(answer.headers["retry-after"]) >= 1


def test_every_answer_tells_what_is_left(guarded: Server, tenant: str) -> None:
    with limited(guarded, tenant, requests_per_second=1000) as client:
        for answer in (
            client.get("/jobs"),
            client.post("/jobs", json={"kind": "noop"}),
            client.get("/nothing"),
        ):
            assert answer.headers["ratelimit-policy"] == '"requests";q=1000;w=1'
            assert answer.headers["ratelimit"].startswith('"requests";r=')


@pytest.mark.parametrize("shape", ["short way", "ordinary way"])
def test_too_many_requests_are_refused_and_others_are_not(guarded: Server, tenant: str, shape: str) -> None:
    body = (
        {"kind": "noop"}
        if shape == "short way"
        else {"kind": "noop", "state_webhook_url": "http://127.0.0.1:9/"}
    )
    with limited(guarded, tenant, requests_per_second=1) as client, guarded.client() as other:
        answers = [client.post("/jobs", json=body) for _ in range(5)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert {answer.status_code for answer in answers} == {202, 429}
        assert_refused(refused[0], "1 requests per second")
        assert refused[0].headers["ratelimit"] == '"requests";r=0;t=1'
        assert other.post("/jobs", json=body).status_code == 202


@contextlib.contextmanager
def streaming(client: httpx.Client, path: str = "/events") -> Iterator[None]:
    with client.stream("GET", path, headers={"Accept": "text/event-stream"}) as stream:
        assert stream.status_code == 200, stream.read()
        yield


def test_streams_and_requests_at_the_same_time(guarded: Server, tenant: str) -> None:
    with limited(guarded, tenant, streams=2, requests=3) as client:
        with streaming(client), streaming(client):
            assert_refused(client.get("/events", headers={"Accept": "text/event-stream"}), "2 streams")
            with guarded.client() as other, streaming(other):
                assert_refused(
                    client.get(
                        "/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV/events", headers={"Accept": "text/event-stream"}
                    ),
                    "2 streams",
                )
        wait_until(lambda: client.get("/events", headers={"Accept": "application/json"}).status_code != 429)
    with limited(guarded, tenant, requests=2) as client, streaming(client), streaming(client):
        assert_refused(client.get("/jobs"), "2 requests")


def test_those_who_wait(guarded: Server, tenant: str) -> None:
    with limited(guarded, tenant, long_polls=1) as client:
        job_id = client.post("/jobs", json={"kind": "slow", "payload": {}}).json()["job_id"]
        claim = {"worker": "w", "queues": ["nothing"], "limit": 1, "wait_seconds": 60}
        with contextlib.ExitStack() as stack:
            wire = stack.enter_context(socket.create_connection(("127.0.0.1", guarded.port)))
            text = httpx.Request("POST", guarded.url, json=claim).content
            head = f"POST /claims HTTP/1.1\r\nhost: localhost\r\nauthorization: {client.headers['authorization']}\r\ncontent-length: {len(text)}\r\n\r\n"
            wire.sendall(head.encode() + text)
            # Not by waiting as well: whoever comes first has the only place.
            wait_until(lambda: client.get("/workers").json()["workers"])
            assert_refused(client.get(f"/jobs/{job_id}", params={"wait": "1"}), "1 long polls")
            assert_refused(
                client.get(f"/jobs/{job_id}/events", params={"after": "99", "wait": "1"}), "1 long polls"
            )
            assert_refused(client.post("/claims", json=claim), "1 long polls")
            # A wish is not refused: the job is there.
            wished = client.post("/jobs", json={"kind": "slow", "payload": {}}, headers={"Prefer": "wait=60"})
            assert wished.status_code == 202
            assert client.get(f"/jobs/{job_id}").status_code == 200
        wait_until(lambda: client.get(f"/jobs/{job_id}", params={"wait": "0.001"}).status_code == 200)


def test_connections(guarded: Server, tenant: str) -> None:
    key = guarded.key(tenant, limits={"connections": 2})
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(guarded.client(key)) for _ in range(3)]
        assert [client.get("/jobs").status_code for client in clients[:2]] == [200, 200]
        for path, body in (("/jobs", {"kind": "noop"}), ("/jobs/batch", {"jobs": [{"kind": "noop"}]})):
            assert_refused(clients[2].post(path, json=body), "2 connections")
        assert clients[0].get("/jobs").status_code == 200
        clients[1].close()
        wait_until(lambda: clients[2].get("/jobs").status_code == 200)


def test_bytes_of_bodies(guarded: Server, tenant: str) -> None:
    key = guarded.key(tenant, limits={"body_bytes": 200_000})
    half = b'{"kind":"own","payload":{"x":"' + b"x" * 190_000
    with socket.create_connection(("127.0.0.1", guarded.port)) as wire, guarded.client(key) as client:
        wire.sendall(
            f"POST /jobs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: 300000\r\n\r\n".encode()
            + half
        )
        large = {"kind": "own", "payload": {"x": "x" * 100_000}}
        wait_until(lambda: client.post("/jobs", json=large).status_code == 503)
        assert client.post("/jobs", json={"kind": "own", "payload": {"x": "x" * 1000}}).status_code == 202
        with guarded.client() as other:
            assert other.post("/jobs", json=large).status_code == 202
    with guarded.client(key) as client:
        wait_until(lambda: client.post("/jobs", json=large).status_code == 202)


def test_jobs_that_have_not_ended(guarded: Server, tenant: str) -> None:
    job: dict[str, Any] = {"kind": "own", "payload": {}, "queue": tenant}
    with (
        limited(guarded, tenant, jobs=3) as client,
        guarded.client(guarded.key(tenant, *ALL_SCOPES)) as other,
    ):
        first = client.post("/jobs", json=job).json()["job_id"]
        assert_refused(client.post("/jobs/batch", json={"jobs": [job] * 3}), "3 jobs that have not ended")
        assert client.post("/jobs/batch", json={"jobs": [job] * 2}).status_code == 202
        refused = client.post("/jobs", json=job)
        assert_refused(refused, "3 jobs that have not ended")
        assert '"jobs";r=0' in refused.headers["ratelimit"]
        assert client.post("/api/chat", json={"model": "echo", "messages": []}).status_code == 429
        assert other.post("/jobs", json=job).status_code == 202, "another key of the same tenant"
        assert client.post(f"/jobs/{first}/cancel").status_code == 200
        wait_until(lambda: client.post("/jobs", json=job).status_code == 202)


def test_a_submission_that_is_refused_takes_no_place(guarded: Server, tenant: str) -> None:
    with limited(guarded, tenant, jobs=2) as client:
        queue = f"keyed-{tenant}"
        assert client.put(f"/queues/{queue}", json={"key": ["k"]}).status_code in (200, 201)
        keyed = {"kind": "own", "payload": {}, "queue": queue}
        assert client.post("/jobs", json=keyed).status_code == 202
        for _ in range(5):
            assert client.post("/jobs", json=keyed).status_code == 409
        assert client.post("/jobs", json={"kind": "own", "payload": {}}).status_code == 202


def test_a_job_has_so_many_artifacts(make_server: MakeServer) -> None:
    server = make_server(FOREMAN_MAX_ARTIFACTS="2")
    with server.client("") as client:
        job_id = client.post("/jobs", json={"kind": "own", "payload": {}}).json()["job_id"]
        claimed = client.post("/claims", json={"worker": "w", "queues": ["default"], "limit": 1}).json()[
            "jobs"
        ]
        headers = {"X-Foreman-Lease-Token": claimed[0]["lease_token"]}

        def add(name: str, size: int) -> httpx.Response:
            return client.put(f"/jobs/{job_id}/artifacts/{name}", content=b"x" * size, headers=headers)

        assert [add(name, 10).status_code for name in ("a", "b", "a")] == [201, 201, 200]
        assert_refused(add("c", 10), "2 artifacts")
        assert_refused(add("c", 700_000), "2 artifacts")
        assert len(client.get(f"/jobs/{job_id}").json()["artifacts"]) == 2
        in_query = client.put(
            f"/jobs/{job_id}/artifacts/a?lease_token={claimed[0]['lease_token']}", content=b"x"
        )
        assert in_query.status_code == 422, "never in a URL"


async def made_key(database: Database, hash_: bytes) -> str:
    key = await api_keys.add(database, api_keys.NewKey("t", "k", hash_, ["jobs:write"]))
    assert key is not None
    return key.id


async def test_far_from_the_limit_nobody_is_counted_and_near_it_everybody(database: Database) -> None:
    key_id = await made_key(database, b"1")
    mine = Account(key_id, "t", ALL_SCOPES, Limits(jobs=4 * SHARED_FROM))
    limits = [JobLimits(database), JobLimits(database)]
    total = 0
    with pytest.raises(RateLimited):
        while True:
            for each in limits:
                await each.take(mine, [new_id() for _ in range(100)])
                total += 100
    assert 4 * SHARED_FROM - 100 < total <= 4 * SHARED_FROM * 1.2


async def test_what_never_came_and_what_has_ended_is_forgotten(database: Database) -> None:
    key_id = await made_key(database, b"2")
    mine = Account(key_id, "t", ALL_SCOPES, Limits(jobs=2))
    limits = JobLimits(database)
    # Ids of long ago, whose jobs there are not.
    await limits.take(mine, ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW"])
    waiting = new_id()
    await limits.take(mine, [waiting])
    await limits.take(mine, [new_id()])
    with pytest.raises(RateLimited):
        await limits.take(mine, [new_id()])
    await limits.give_back(mine, [waiting])
    await limits.take(mine, [new_id()])
