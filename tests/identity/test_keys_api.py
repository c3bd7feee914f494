"""Making, reading, using and revoking keys on a real server; and on two."""

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.identity.scopes import ALL_SCOPES
from tests.conftest import MakeServer, Server
from tests.patience import wait_until

ADMIN = ("admin:read", "admin:write")


def status(server: Server, key: str, path: str = "/jobs") -> int:
    return httpx.get(server.url + path, headers={"Authorization": f"Bearer {key}"}, timeout=60).status_code


def test_a_key_is_shown_once_and_described_ever_after(guarded: Server, tenant: str) -> None:
    with guarded.client() as admin:
        body = {
            "name": "reports",
            "tenant": tenant,
            "scopes": ["jobs:read", "jobs:read"],
            "limits": {"streams": 3},
        }
        made = admin.post("/keys", json=body)
        assert made.status_code == 201
        assert made.headers["cache-control"] == "no-store"
        document = made.json()
        key = document.pop("key")
        assert document["scopes"] == ["jobs:read"]
        assert document["last_used_at"] is None
        assert document["expires_at"] is None
        assert admin.get(f"/keys/{document['key_id']}").json() == document
        listed = admin.get("/keys", params={"tenant": tenant}).json()["keys"]
        assert listed == [document]
        assert key not in admin.get("/keys").text
        assert status(guarded, key) == 200
        [used] = admin.get("/keys", params={"tenant": tenant}).json()["keys"]
        assert used["last_used_at"] is not None


def test_without_a_word_it_is_for_the_jobs_of_whoever_made_it(guarded: Server, tenant: str) -> None:
    with guarded.client(guarded.key(tenant, *ADMIN)) as admin:
        made = admin.post("/keys", json={"name": "x"}).json()
    assert made["tenant"] == tenant
    assert made["scopes"] == ["jobs:write", "jobs:read", "jobs:work"]


def test_the_list_comes_in_pages(guarded: Server, tenant: str) -> None:
    for _ in range(5):
        guarded.key(tenant)
    with guarded.client() as admin:
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = admin.get("/keys", params={"tenant": tenant, "limit": "2", **cursor}).json()
            seen += [each["key_id"] for each in page["keys"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
    assert len(seen) == 5
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"name": "x", "tenant": "a/b"}, "tenant"),
        ({"name": "x", "tenant": ""}, "tenant"),
        ({"name": "x", "scopes": ["jobs:delete"]}, "scopes"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": "jobs:read"}, "scopes"),
        ({"name": "x", "expires_in_seconds": 0}, "expires_in_seconds"),
        ({"name": "x", "expires_in_seconds": 1e300}, "expires_in_seconds"),
        ({"name": "x", "limits": {"streams": 0}}, "limits"),
        ({"name": "x", "limits": {"strems": 1}}, "limits"),
        ({"name": "x", "key": "fmn_mine"}, "key"),
    ],
)
def test_what_is_wrong_with_a_new_key_is_said(guarded: Server, wrong: dict[str, Any], field: str) -> None:
    with guarded.client() as admin:
        refused = admin.post("/keys", json=wrong)
    assert refused.status_code == 422
    assert field in refused.json()["detail"]


def test_a_revoked_key_is_refused_at_once_and_what_it_listens_to_ends(guarded: Server, tenant: str) -> None:
    with guarded.client() as admin:
        made = admin.post("/keys", json={"name": "x", "tenant": tenant, "scopes": list(ALL_SCOPES)}).json()
        heard, ended = threading.Event(), threading.Event()

        def listen() -> None:
            headers = {"Authorization": f"Bearer {made['key']}", "Accept": "text/event-stream"}
            try:
                with httpx.stream("GET", f"{guarded.url}/events", headers=headers, timeout=60) as stream:
                    heard.set()
                    for _ in stream.iter_bytes():
                        pass
            except httpx.HTTPError:
                pass
            ended.set()

        listener = threading.Thread(target=listen)
        listener.start()
        assert heard.wait(30)
        assert admin.delete(f"/keys/{made['key_id']}").status_code == 204
        assert status(guarded, made["key"]) == 401
        assert ended.wait(30)
        listener.join()
        assert admin.delete(f"/keys/{made['key_id']}").status_code == 404
        assert admin.get(f"/keys/{made['key_id']}").status_code == 404


def test_a_key_that_revokes_itself_is_told_so_and_is_gone(guarded: Server, tenant: str) -> None:
    key = guarded.key(tenant, *ADMIN)
    with guarded.client(key) as itself:
        [known] = itself.get("/keys", params={"tenant": tenant}).json()["keys"]
        assert itself.delete(f"/keys/{known['key_id']}").status_code == 204
        assert itself.get("/keys").status_code == 401


def test_the_other_replica_knows_within_a_second(make_server: MakeServer) -> None:
    first = make_server(FOREMAN_AUTH="on")
    second = make_server(FOREMAN_AUTH="on")
    with pytest.raises(AssertionError):
        assert second.admin_key, "there is one first key"
    with first.client() as admin, httpx.Client(base_url=second.url, timeout=60) as claim:
        _revoke_while_it_is_used(first, second, admin, claim)


def _revoke_while_it_is_used(first: Server, second: Server, admin: httpx.Client, claim: httpx.Client) -> None:
    made = admin.post("/keys", json={"name": "x", "scopes": ["jobs:read", "jobs:work"]}).json()
    claim.headers["Authorization"] = f"Bearer {made['key']}"
    answers: list[tuple[float, int]] = []
    stopping = threading.Event()

    def ask() -> None:
        with second.client(made["key"]) as client:
            while not stopping.is_set():
                began = time.monotonic()
                try:
                    answers.append((began, client.get("/jobs").status_code))
                except httpx.HTTPError:
                    # Hung up on: just what is to be seen.
                    answers.append((began, 0))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        wait_until(lambda: len(answers) > 20)
        body = {"worker": "w", "queues": ["q"], "limit": 1, "wait_seconds": 60}
        polled: list[Any] = []

        def poll() -> None:
            try:
                polled.append(claim.post("/claims", json=body).status_code)
            except httpx.HTTPError as problem:
                polled.append(problem)

        polling = threading.Thread(target=poll)
        polling.start()
        wait_until(lambda: second_polls(second, first.admin_key) > 0)
        assert admin.delete(f"/keys/{made['key_id']}").status_code == 204
        revoked_at = time.monotonic()
        wait_until(lambda: answers[-1][1] == 401)
    finally:
        stopping.set()
        asking.join()
    polling.join(30)
    assert isinstance(polled[0], httpx.HTTPError), "a claim that waits is hung up on"
    late = [began - revoked_at for began, answered in answers if answered == 200]
    # Of the requests that began later than a second after it was revoked, none was answered: a busy machine
    # makes requests slow, but none that is too late right.
    assert max(late, default=0) < 1.0


def second_polls(server: Server, admin: str) -> int:
    """Whether somebody is being waited with: known by his name."""
    with server.client(admin) as client:
        return len(client.get("/workers").json()["workers"])


def test_an_expired_key_says_that_it_has_expired(guarded: Server) -> None:
    key = guarded.key("default", expires_in_seconds=1.0)
    assert status(guarded, key) == 200

    def says_so() -> bool:
        answer = httpx.get(f"{guarded.url}/jobs", headers={"Authorization": f"Bearer {key}"})
        return answer.status_code == 401 and "expired" in answer.json()["detail"]

    wait_until(says_so)


def test_odd_authorizations_are_refused_and_odd_spellings_are_not(guarded: Server) -> None:
    key = guarded.key("default")
    for good in (f"Bearer {key}", f"bearer {key}", f"BEARER   {key}"):
        assert httpx.get(f"{guarded.url}/jobs", headers={"Authorization": good}).status_code == 200, good
    for bad in (
        f"Basic {key}",
        key,
        f"Bearer{key}",
        f"Bearer {key}, Bearer {key}",
        f"Bearer {key[:-1]}",
        "Bearer",
    ):
        answer = httpx.get(f"{guarded.url}/jobs", headers={"Authorization": bad})
        assert answer.status_code == 401, bad
    twice = [("Authorization", f"Bearer {key}"), ("Authorization", f"Bearer {key}")]
    assert httpx.get(f"{guarded.url}/jobs", headers=twice).status_code == 401


@pytest.mark.parametrize("body", [b'{"kind":"noop"}', b'{"kind":"noop","payload":{"a":1},"priority":1}'])
def test_a_key_in_a_trailer_is_no_key(guarded: Server, body: bytes) -> None:
    key = guarded.key("default").encode()
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=30) as wire:
        wire.sendall(
            b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\ntrailer: authorization\r\n\r\n"
            b"%x\r\n%b\r\n0\r\nauthorization: Bearer %b\r\n\r\n" % (len(body), body, key)
        )
        assert wire.recv(1000).startswith(b"HTTP/1.1 401 ")


def test_a_request_without_a_key_behind_one_with_it_is_refused(guarded: Server) -> None:
    key = guarded.key("default").encode()
    job = b'{"kind":"noop"}'
    head = b"POST /jobs HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n%b"
    with_key = head % (b"authorization: Bearer %b\r\n" % key, len(job), job)
    without = head % (b"", len(job), job)
    for together in (with_key + without, with_key):
        with socket.create_connection(("127.0.0.1", guarded.port), timeout=30) as wire:
            wire.sendall(together)
            said = b""
            if together == with_key:
                said = wire.recv(10_000)
                wire.sendall(without)
            while True:
                more = wire.recv(10_000)
                if not more:
                    break
                said += more
        assert said.count(b"HTTP/1.1 202 ") == 1
        assert said.count(b"HTTP/1.1 401 ") == 1


def cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/usr/bin", **environment},
    )


def test_keys_on_the_command_line(guarded: Server, tenant: str) -> None:
    known = {"FOREMAN_URL": guarded.url, "FOREMAN_API_KEY": guarded.admin_key}
    limits = ("--limit", "streams=3", "--limit", "requests=9")
    made = cli(
        "keys",
        "create",
        "ci",
        "--tenant",
        tenant,
        "--scope",
        "jobs:read",
        "--expires",
        "1d",
        *limits,
        "--json",
        **known,
    )
    assert made.returncode == 0, made.stderr
    document = json.loads(made.stdout)
    assert document["limits"] == {"streams": 3, "requests": 9}
    assert document["tenant"] == tenant
    listed = cli("keys", **known)
    assert tenant in listed.stdout
    refused = cli("list", FOREMAN_URL=guarded.url)
    assert refused.returncode != 0
    assert "API key" in refused.stderr
    assert cli("keys", "revoke", document["key_id"], **known).returncode == 0
    assert status(guarded, document["key"]) == 401
    assert "is not a number" in cli("keys", "create", "x", "--limit", "streams=many", **known).stderr


def test_a_key_can_be_made_without_a_server(make_server: MakeServer) -> None:
    server = make_server(FOREMAN_AUTH="on")
    made = cli(
        "keys",
        "create",
        "rescue",
        "--scope",
        "admin:write",
        "--direct",
        FOREMAN_DATABASE_URL=server.database_url,
    )
    assert made.returncode == 0, made.stderr
    assert status(server, made.stdout.strip(), "/keys") == 403
    refused = cli(
        "keys", "create", "x", "--tenant", "a/b", "--direct", FOREMAN_DATABASE_URL=server.database_url
    )
    assert refused.returncode != 0
    assert "tenant" in refused.stderr


def test_the_first_key_is_made_once_and_its_file_is_believed(make_server: MakeServer, tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "admin.key"
    first = make_server(FOREMAN_AUTH="on", FOREMAN_ADMIN_KEY_FILE=str(path))
    assert "fmn_" not in first.log()
    key = path.read_text().strip()
    assert path.stat().st_mode & 0o777 == 0o600
    assert status(first, key, "/keys") == 200
    first.stop()
    again = make_server(FOREMAN_AUTH="on", FOREMAN_ADMIN_KEY_FILE=str(path))
    assert status(again, key, "/keys") == 200
    assert path.read_text().strip() == key
    with again.client(key) as admin:
        [known] = admin.get("/keys").json()["keys"]
        first_id = known["key_id"]
    again.stop()
    revived = make_server(FOREMAN_AUTH="on", FOREMAN_ADMIN_KEY_FILE=str(path))
    other = revived.key_by(key, "default", "admin:write", "jobs:read")
    with revived.client(other) as colleague:
        assert colleague.delete(f"/keys/{first_id}").status_code == 204
    revived.stop()
    still = make_server(FOREMAN_AUTH="on", FOREMAN_ADMIN_KEY_FILE=str(path))
    assert status(still, key) == 401, "its file is still there"
    assert status(still, other) == 200
    still.stop()
    third = make_server(FOREMAN_AUTH="on")
    assert "fmn_" not in third.log(), "there is a key already"
    third.stop()
    path.write_text("not a key")
    with pytest.raises(AssertionError, match="does not hold an API key"):
        make_server(FOREMAN_AUTH="on", FOREMAN_ADMIN_KEY_FILE=str(path))
