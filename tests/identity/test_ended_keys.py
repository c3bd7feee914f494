"""What becomes of that which a key has open when it ends: who waits, listens or sends is hung up on, but what is
about to be answered is answered."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest

from app.api.open_streams import CONNECTION, OpenStreams, long_poll
from app.errors import Unauthorized
from app.identity.account import Account
from app.identity.limits import Limits
from app.identity.scopes import ALL_SCOPES
from tests.conftest import MakeServer, Server
from tests.patience import until, wait_until

BY_BOTH_WAYS = ('{"kind": "someday"}', '{"kind": "someday", "priority": 1, "webhook_events": []}')
WAITS_FOR_A_LOCK = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


def made_key(server: Server, tenant: str) -> dict[str, Any]:
    with server.client() as admin:
        made: dict[str, Any] = admin.post(
            "/keys", json={"name": "x", "tenant": tenant, "scopes": list(ALL_SCOPES)}
        ).json()
    return made


def revoke(server: Server, made: dict[str, Any]) -> None:
    with server.client() as admin:
        assert admin.delete(f"/keys/{made['key_id']}").status_code == 204


@contextlib.asynccontextmanager
async def nobody_writes_jobs(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Submissions wait until this is over; yields a connection to look with."""
    holder, observer = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    try:
        async with holder.transaction():
            await holder.execute("LOCK TABLE jobs IN EXCLUSIVE MODE")
            yield observer
    finally:
        await holder.close()
        await observer.close()


@pytest.mark.parametrize("body", BY_BOTH_WAYS)
async def test_what_is_being_written_when_its_key_ends_is_answered(
    make_server: MakeServer, database_url: str, body: str
) -> None:
    server = make_server(FOREMAN_AUTH="on", FOREMAN_ROLE="api")
    made = await asyncio.to_thread(made_key, server, "default")
    bearer = {"Authorization": f"Bearer {made['key']}"}
    async with httpx.AsyncClient(base_url=server.url, headers=bearer, timeout=120) as caller:
        assert (await caller.get("/jobs")).status_code == 200
        async with nobody_writes_jobs(database_url) as observer:
            submitting = asyncio.create_task(caller.post("/jobs", content=body))
            await until(lambda: observer.fetchval(WAITS_FOR_A_LOCK))
            await asyncio.to_thread(revoke, server, made)
            # By another connection, while the first one is busy.
            assert (await caller.get("/jobs")).status_code == 401
        answer = await submitting
        assert answer.status_code == 202
        # And the same connections are as good as before: it is the key that is not.
        again = await caller.post("/jobs", content=body)
        assert again.status_code == 401
        assert "revoked" in again.json()["detail"]


def test_a_connection_that_says_nothing_is_left_alone(guarded: Server, tenant: str) -> None:
    made, other = made_key(guarded, tenant), made_key(guarded, tenant)
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=60) as wire:

        def ask(key: str) -> bytes:
            wire.sendall(
                b"GET /jobs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\n\r\n" % key.encode()
            )
            return wire.recv(100_000)

        assert ask(made["key"]).startswith(b"HTTP/1.1 200 ")
        revoke(guarded, made)
        # Behind a proxy it is somebody else who comes next.
        assert ask(other["key"]).startswith(b"HTTP/1.1 200 ")
        assert ask(made["key"]).startswith(b"HTTP/1.1 401 ")


def test_a_body_that_is_still_coming_is_waited_for_no_longer(guarded: Server, tenant: str) -> None:
    made = made_key(guarded, tenant)
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=100) as wire:
        wire.sendall(
            b"POST /jobs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\n"
            b'content-length: 100000\r\n\r\n{"kind":"noop"' % made["key"].encode()
        )
        wait_until(lambda: used(guarded, made))
        revoke(guarded, made)
        with contextlib.suppress(ConnectionResetError):
            assert wire.recv(1000) == b""


def used(server: Server, made: dict[str, Any]) -> bool:
    with server.client() as admin:
        return (
            admin.get("/keys", params={"tenant": made["tenant"]}).json()["keys"][0]["last_used_at"]
            is not None
        )


def test_a_download_ends_with_its_key(guarded: Server, tenant: str) -> None:
    made = made_key(guarded, tenant)
    large = os.urandom(24_000_000)
    with guarded.client(made["key"]) as worker:
        worker.post("/jobs", json={"kind": "render"})
        [claimed] = worker.post(
            "/claims", json={"worker": "w", "queues": ["default"], "kinds": ["render"], "limit": 1}
        ).json()["jobs"]
        path = f"/jobs/{claimed['job_id']}/artifacts/film"
        token = {"X-Foreman-Lease-Token": claimed["lease_token"]}
        assert worker.put(path, content=large, headers=token).status_code < 300
    with socket.socket() as wire:
        # So that most of it is still to be sent.
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        wire.settimeout(100)
        wire.connect(("127.0.0.1", guarded.port))
        wire.sendall(
            b"GET %b HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\n\r\n"
            % (path.encode(), made["key"].encode())
        )
        got = len(wire.recv(1000))
        revoke(guarded, made)
        with contextlib.suppress(ConnectionResetError):
            while more := wire.recv(1_000_000):
                got += len(more)
    assert 0 < got < len(large)


def test_a_claim_that_waits_is_hung_up_on_and_nobody_claims_for_it(guarded: Server, tenant: str) -> None:
    made, other = made_key(guarded, tenant), made_key(guarded, tenant)
    wanted = {"worker": "w", "queues": ["default"], "kinds": ["render"], "limit": 1, "wait_seconds": 60}
    ended: list[Any] = []

    def claim() -> None:
        with guarded.client(made["key"]) as worker:
            try:
                ended.append(worker.post("/claims", json=wanted))
            except httpx.HTTPError as problem:
                ended.append(problem)

    claiming = threading.Thread(target=claim)
    claiming.start()
    with guarded.client(other["key"]) as colleague:
        wait_until(lambda: colleague.get("/workers").json()["workers"])
        revoke(guarded, made)
        claiming.join(60)
        assert isinstance(ended[0], httpx.HTTPError)
        job_id = colleague.post("/jobs", json={"kind": "render"}).json()["job_id"]
        [claimed] = colleague.post("/claims", json={**wanted, "worker": "v"}).json()["jobs"]
        assert (claimed["job_id"], claimed["attempt"]) == (job_id, 1)


# -- between being let in and beginning to wait ------------------------------------------------------------


class Wire:
    waits = 0

    def key_ended(self) -> None: ...


def scope_of(account: Account, wire: Wire) -> dict[str, Any]:
    return {"state": {"account": account}, "extensions": {CONNECTION: wire}}


def test_with_a_key_that_has_ended_nobody_begins_to_wait() -> None:
    account, wire = Account("k", "t", ALL_SCOPES, Limits()), Wire()
    scope = scope_of(account, wire)
    streams = OpenStreams(10, 15.0)
    with long_poll(scope, 1.0):
        assert wire.waits
    # The next one on the same connection begins before the last has quite ended.
    last = streams.place("events", scope)
    last.__enter__()
    with long_poll(scope, 1.0):
        last.__exit__(None, None, None)
        assert wire.waits
    assert not wire.waits
    account.end()
    with long_poll(scope, 0.0):
        assert not wire.waits
    with pytest.raises(Unauthorized), long_poll(scope, 1.0):
        pass
    with pytest.raises(Unauthorized), streams.place("events", scope):
        pass
    assert not wire.waits
