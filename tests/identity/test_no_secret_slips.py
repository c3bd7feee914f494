"""Secrets are planted wherever there is a place for them, and where there is none; then everything happens.

None of them may stand in the log (at its most talkative), in metrics, lists, errors, what other tenants see, or on a
command line: neither as it is, nor as its hash, nor in base64. What a caller gave is told to that caller alone.
"""

import asyncio
import base64
import hashlib
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import asyncpg
import httpx
import pytest

from app.embedded import EmbeddedPostgres
from app.identity.key import new_key
from app.identity.scopes import ALL_SCOPES
from tests.conftest import ROOT, Server, free_port
from tests.patience import wait_until
from tests.processes import children_of

MODEL = "parrot"
TARGET = "planted"


def planted(name: str) -> str:
    """Recognisable, and nothing that stands there by itself."""
    return f"{name}-{secrets.token_hex(12)}"


def signing_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


@dataclass
class Secrets:
    """What must not be seen, by what it is."""

    secret_key: str = field(default_factory=lambda: planted("passphrase"))
    server_signing: str = field(default_factory=signing_secret)
    job_signing: str = field(default_factory=signing_secret)
    database_password: str = field(default_factory=lambda: planted("password"))
    target_token: str = field(default_factory=lambda: planted("target"))
    wake_token: str = field(default_factory=lambda: planted("wake"))
    hook_token: str = field(default_factory=lambda: planted("hook"))
    http_authorization: str = field(default_factory=lambda: planted("http"))
    idempotency_key: str = field(default_factory=lambda: planted("idempotency"))
    payload: str = field(default_factory=lambda: planted("payload"))
    result: str = field(default_factory=lambda: planted("result"))
    prompt: str = field(default_factory=lambda: planted("prompt"))
    unknown_key: str = field(default_factory=new_key)
    tenant_key: str = ""
    revoked_key: str = ""
    lease_token: str = ""
    late_lease_token: str = ""

    def forms(self) -> dict[str, str]:
        """Each as it is, as its hash and in base64."""
        found = {}
        for name, value in vars(self).items():
            assert value, name
            found[name] = value
            found[f"{name}, its SHA-256"] = hashlib.sha256(value.encode()).hexdigest()
            # All but the last characters, which depend on what comes next.
            found[f"{name}, in base64"] = base64.b64encode(value.encode()).decode()[: len(value)]
            if value.startswith("whsec_"):
                found[f"{name}, without its prefix"] = value.removeprefix("whsec_")
            if value.startswith("fmn_"):
                found[f"{name}, without its prefix"] = value.removeprefix("fmn_")
        return found

    def within(self, text: str, *but: str) -> list[str]:
        return [name for name, form in self.forms().items() if form in text and name not in but]


class Parrot(BaseHTTPRequestHandler):
    """A target and a receiver in one, of the worst kind: it answers what it was told, and repeats what it was sent."""

    protocol_version = "HTTP/1.1"
    chat_status = 401
    tags_status = 200

    def do_GET(self) -> None:
        if self.path == "/api/tags" and self.tags_status == 200:
            self._answer(200, {"models": [{"name": f"{MODEL}:latest", "model": f"{MODEL}:latest"}]})
        elif self.path in ("/api/ps", "/api/version") and self.tags_status == 200:
            self._answer(200, {"models": [], "version": "0.12.0"})
        else:
            self._answer(self.tags_status if self.path.startswith("/api") else 500, self._repeated())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        status = self.chat_status if self.path.startswith("/api") else 500
        self._answer(status, self._repeated() | {"body": body})

    def _repeated(self) -> dict[str, str]:
        sent = f"{self.path} {dict(self.headers)}"
        return {"error": f"refused: {sent}"}

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("x-repeated", str(self.headers.get("authorization")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@dataclass
class Story:
    """What was planted, and what was seen of the server meanwhile."""

    server: Server
    parrot: str
    secrets: Secrets
    postgres: EmbeddedPostgres
    lists: dict[str, str] = field(default_factory=dict)
    errors: list[tuple[str, str, str]] = field(default_factory=list)
    for_others: dict[str, str] = field(default_factory=dict)
    commands: dict[int, bytes] = field(default_factory=dict)

    def call(self, client: httpx.Client, method: str, path: str, **more: Any) -> httpx.Response:
        answer = client.request(method, path, **more)
        if answer.status_code >= 400:
            asked = answer.request
            sent = f"{unquote(str(asked.url))} {asked.headers.raw} {asked.content.decode('utf-8', 'replace')}"
            self.errors.append((f"{method} {path}", sent, f"{answer.headers} {answer.text}"))
        return answer

    def slipped(self, seen: dict[str, str]) -> dict[str, list[str]]:
        """What was seen where it should not be."""
        found = {}
        for place, text in seen.items():
            if names := self.secrets.within(text):
                found[place] = names
        return found

    # -- one chapter each ----------------------------------------------------------------------------

    def jobs(self, client: httpx.Client) -> None:
        """Of a worker: one that ends well, one that fails, one that is settled too late."""
        s = self.secrets
        job = {
            "kind": "planted",
            "payload": {"marker": s.payload},
            "webhook_secret": s.job_signing,
            "state_webhook_url": f"{self.parrot}/hook?token={s.hook_token}",
        }
        headers = {"Idempotency-Key": s.idempotency_key}
        done = self.call(client, "POST", "/jobs", json=job, headers=headers).json()["job_id"]
        other = self.call(client, "POST", "/jobs", json=job | {"payload": {}}, headers=headers)
        assert other.json()["code"] == "idempotency_mismatch", other.text
        late = client.post("/jobs", json=job).json()["job_id"]
        claim = {"worker": "w", "kinds": ["planted"], "limit": 10, "lease_seconds": 60, "wait_seconds": 30}
        tokens = {
            each["job_id"]: each["lease_token"] for each in client.post("/claims", json=claim).json()["jobs"]
        }
        s.lease_token, s.late_lease_token = tokens[done], tokens[late]
        self.call(client, "POST", f"/jobs/{done}/fail", json={"lease_token": s.late_lease_token, "error": {}})
        settled = {"lease_token": s.lease_token, "result": {"marker": s.result}}
        assert client.post(f"/jobs/{done}/complete", json=settled).status_code == 200
        assert (
            client.post(f"/jobs/{late}/release", json={"lease_token": s.late_lease_token}).status_code == 200
        )
        for verb in ("start", "complete", "heartbeat", "logs", "fail", "defer"):
            body = {
                "lease_token": s.late_lease_token,
                "result": s.result,
                "entries": [],
                "error": {"code": "x"},
            }
            self.call(client, "POST", f"/jobs/{late}/{verb}", json=body)
        self.call(
            client,
            "POST",
            f"/jobs/{late}/complete",
            json={"lease_token": s.late_lease_token, "result": s.result},
        )
        wait_until(lambda: "500" in client.get(f"/jobs/{done}/webhooks").text)
        self.lists["deliveries"] = client.get(f"/jobs/{done}/webhooks").text

    def calls(self, client: httpx.Client) -> None:
        """Kind http, to one who repeats what he was sent, and to nobody."""
        headers = {"Authorization": f"Bearer {self.secrets.http_authorization}"}
        for url in (f"{self.parrot}/call", "http://127.0.0.1:9/", "http://10.0.0.1/"):
            payload = {"url": url, "method": "POST", "headers": headers, "body": {"m": self.secrets.payload}}
            job = {"kind": "http", "payload": payload, "max_attempts": 1}
            self.call(client, "POST", "/jobs", json=job, headers={"Prefer": "wait=1"})

    def chats(self, client: httpx.Client) -> None:
        body = {"model": "echo", "messages": [{"role": "user", "content": self.secrets.prompt}]}
        assert self.secrets.prompt.split("-")[0] in client.post("/api/chat", json=body).text
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        self.call(client, "POST", "/api/chat", json=body | {"model": self.secrets.prompt})

    def targets(self, client: httpx.Client, admin: httpx.Client) -> None:
        s = self.secrets
        target = {
            "url": self.parrot,
            "token": s.target_token,
            "wake": {"url": f"{self.parrot}/wake?token={s.wake_token}"},
        }
        put = admin.put(f"/targets/{TARGET}", json=target)
        assert put.status_code == 201, put.text
        self.lists["the target, as it was put"] = put.text
        wait_until(lambda: admin.get(f"/targets/{TARGET}").json()["state"] == "awake")
        body = {"model": MODEL, "messages": [{"role": "user", "content": s.prompt}], "stream": False}
        for status in (401, 500):
            Parrot.chat_status = status
            soon = {"X-Foreman-Deadline-Seconds": "5"}
            self.call(client, "POST", "/api/chat", json=body, headers=soon)
            self.call(client, "POST", "/v1/chat/completions", json=body, headers=soon)
            job = body | {"max_attempts": 1, "deadline_seconds": 10}
            assert client.post("/jobs", json=job, headers={"Prefer": "wait=60"}).json()["state"] in (
                "failed",
                "expired",
            )
        Parrot.tags_status = 500
        client.post("/jobs", json=body)
        wait_until(lambda: admin.get(f"/targets/{TARGET}").json()["warning"])
        self.lists["the target, with its warning"] = admin.get(f"/targets/{TARGET}").text
        # Another one is asleep, and woken in vain.
        assert admin.put("/targets/asleep", json=target | {"url": "http://127.0.0.1:9"}).status_code == 201
        client.post("/jobs", json=body | {"target": "asleep"})
        wait_until(lambda: "target.wake_failed" in self.server.log())
        self.lists["the target that is asleep"] = admin.get("/targets/asleep").text
        for wrong in (
            {"url": f"http://user:{s.target_token}@127.0.0.1/"},
            {"url": s.target_token},
            {"url": self.parrot, "token": f"{s.target_token}\n"},
            {"url": self.parrot, "tokn": s.target_token},
            {"url": self.parrot, "wake": {"url": f"ftp://x/?token={s.wake_token}"}},
            {"url": self.parrot, "slots": s.target_token},
        ):
            assert self.call(admin, "PUT", "/targets/wrong", json=wrong).status_code == 422, wrong

    def misplaced(self, client: httpx.Client, admin: httpx.Client) -> None:
        for value in [*vars(self.secrets).values(), self.server.admin_key]:
            quoted = quote(value, safe="/")
            for path in (
                f"/jobs/{quoted}",
                f"/{quoted}",
                f"/jobs/{quoted}/events",
                f"/queues/{quoted}",
                f"/keys/{quoted}",
                f"/jobs?limit={quoted}",
                f"/jobs?state={quoted}",
                f"/jobs?cursor={quoted}",
                f"/jobs?api_key={quoted}",
                f"/jobs?since={quoted}",
                f"/api/{quoted}",
                f"/v1/models/{quoted}",
            ):
                self.call(admin, "GET", path)
                self.call(client, "DELETE", path)
            for body in (
                {"kind": "noop", "priority": value},
                {"kind": "noop", "run_at": value},
                {"kind": "noop", "parent_id": value},
                {"kind": "noop", "state_webhook_url": value},
                {"kind": "noop", "state_webhook_url": f"http://{value[:20].replace('_', '-')}/"},
                {"kind": "noop", "webhook_secret": value + "!"},
                {"kind": "noop", "metadata": value},
                {"kind": "noop", "metadata": {"a": [value]}},
                {"kind": "http", "payload": {"url": value}},
                {"kind": "chat", "messages": value},
                [value],
                value,
            ):
                self.call(client, "POST", "/jobs", json=body)
                self.call(client, "POST", "/jobs/batch", json={"jobs": [body]})
                self.call(client, "POST", "/claims", json={"worker": "w", "limit": body})
                self.call(admin, "PUT", "/queues/x", json={"max_depth": body})
                self.call(admin, "POST", "/keys", json={"name": "x", "scopes": [value]})
            self.call(client, "POST", "/jobs", content=value.encode())
            for name in (
                "Prefer",
                "traceparent",
                "If-None-Match",
                "Range",
                "Content-Type",
                "X-Foreman-Priority",
            ):
                self.call(client, "POST", "/jobs", content=b"{", headers={name: value})
                self.call(client, "POST", "/api/chat", content=b"{", headers={name: value})
        typos = [self.secrets.tenant_key[:-1] + "0", self.secrets.tenant_key[:-3], self.secrets.unknown_key]
        for key in (*typos, self.secrets.revoked_key, self.secrets.target_token):
            with self.server.client(key) as stranger:
                assert self.call(stranger, "POST", "/jobs", json={"kind": "noop"}).status_code == 401
                assert self.call(stranger, "GET", f"/jobs/{key}?key={key}").status_code == 401
        with self.server.client("") as stranger:
            stranger.cookies.set("key", self.secrets.tenant_key)
            for header in ("Proxy-Authorization", "X-Authorization"):
                more = {header: self.secrets.tenant_key}
                path = f"/jobs?api_key={self.secrets.tenant_key}"
                assert self.call(stranger, "GET", path, headers=more).status_code == 401
            for key in (*typos, self.secrets.revoked_key, self.secrets.target_token):
                assert self.call(stranger, "GET", "/jobs", headers={"X-Api-Key": key}).status_code == 401
            known = {"X-Api-Key": self.secrets.tenant_key}
            assert self.call(stranger, "GET", "/jobs", headers=known).status_code == 200
        with self.server.client() as twice:
            assert self.call(twice, "GET", "/jobs", headers=known).status_code == 401

    def crash(self, client: httpx.Client, admin: httpx.Client) -> None:
        """Statements fail as nobody has foreseen, and PostgreSQL repeats the row that it would not take."""
        self._execute("ALTER TABLE jobs ADD CONSTRAINT planted_1 CHECK (kind <> 'crash') NOT VALID")
        self._execute("ALTER TABLE api_keys ADD CONSTRAINT planted_2 CHECK (name <> 'crash') NOT VALID")
        job = {
            "kind": "crash",
            "payload": {"m": self.secrets.payload},
            "webhook_secret": self.secrets.job_signing,
        }
        headers = {"Idempotency-Key": self.secrets.idempotency_key + "-2"}
        hook = {"state_webhook_url": f"{self.parrot}/hook?token={self.secrets.hook_token}"}
        assert (
            self.call(client, "POST", "/jobs", json={k: job[k] for k in ("kind", "payload")}).status_code
            == 500
        )
        assert self.call(client, "POST", "/jobs", json=job | hook, headers=headers).status_code == 500
        assert self.call(client, "POST", "/jobs/batch", json={"jobs": [job | hook]}).status_code == 500
        assert self.call(admin, "POST", "/keys", json={"name": "crash"}).status_code == 500
        self._execute(
            "ALTER TABLE jobs ADD CONSTRAINT planted_3 CHECK (kind <> 'late' OR state <> 'done') NOT VALID"
        )
        client.post("/jobs", json={"kind": "late", "payload": {"m": self.secrets.payload}})
        claim = {"worker": "w", "kinds": ["late"], "limit": 1, "wait_seconds": 30}
        claimed = client.post("/claims", json=claim).json()["jobs"][0]
        settled = {"lease_token": claimed["lease_token"], "result": {"m": self.secrets.result}}
        answer = self.call(client, "POST", f"/jobs/{claimed['job_id']}/complete", json=settled)
        assert answer.status_code == 500, answer.text
        self._execute("ALTER TABLE jobs DROP CONSTRAINT planted_1")

    def outage(self, client: httpx.Client) -> None:
        self.postgres.stop()
        try:
            job = {"kind": "planted", "payload": {"m": self.secrets.payload}}
            for _ in range(3):
                self.call(
                    client,
                    "POST",
                    "/jobs",
                    json=job,
                    headers={"Idempotency-Key": self.secrets.idempotency_key},
                )
                self.call(client, "GET", f"/jobs?api_key={self.secrets.tenant_key}")
            wait_until(lambda: "database.unavailable" in self.server.log())
        finally:
            self.postgres.start()
        wait_until(lambda: client.get("/jobs").status_code == 200 and "database.back" in self.server.log())

    def look_around(self, admin: httpx.Client) -> None:
        places = (
            "jobs",
            "dead-letters",
            "targets",
            "keys",
            "queues",
            "workers",
            "webhooks",
            "schedules",
            "version",
            "metrics",
            "usage",
            "healthz",
            "readyz",
            "api/tags",
            "api/ps",
            "v1/models",
            "bulk-operations",
        )
        for place in places:
            self.lists[place] = admin.get(f"/{place}").text
        with self.server.client(self.secrets.tenant_key) as owner:
            self.lists["the owner's jobs"] = owner.get("/jobs?limit=200").text
        other = self.server.key("other", *ALL_SCOPES)
        with self.server.client(other) as stranger:
            for place in (*places, "events?after=0"):
                self.for_others[place] = stranger.get(f"/{place}").text
        found = {self.server.pid, *children_of(self.server.pid)}
        self.commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found}

    def _execute(self, statement: str) -> None:
        async def execute() -> None:
            connection = await asyncpg.connect(self.server.database_url)
            try:
                await connection.execute(statement)
            finally:
                await connection.close()

        asyncio.run(execute())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("story")
    parrot = ThreadingHTTPServer(("127.0.0.1", 0), Parrot)
    threading.Thread(target=parrot.serve_forever, daemon=True).start()
    try:
        with EmbeddedPostgres(folder / "postgres", durable=False) as postgres:
            story = told(folder, postgres, f"http://127.0.0.1:{parrot.server_port}")
            yield story
    finally:
        parrot.shutdown()
        parrot.server_close()


def told(folder: Path, postgres: EmbeddedPostgres, parrot: str) -> Story:
    kept = Secrets()
    url = postgres.dsn.replace("foreman@", f"foreman:{kept.database_password}@")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREMAN_")} | {
        "FOREMAN_DATABASE_URL": url,
        "FOREMAN_AUTH": "on",
        "FOREMAN_PORT": str(free_port()),
        "FOREMAN_LOG_LEVEL": "debug",
        "FOREMAN_OUTBOUND_ALLOW": "127.0.0.1",
        "FOREMAN_SECRET_KEY": kept.secret_key,
        "FOREMAN_WEBHOOK_SECRET": kept.server_signing,
        "FOREMAN_POLL_SECONDS": "0.2",
        "FOREMAN_SWEEP_SECONDS": "0.2",
        "FOREMAN_SHUTDOWN_GRACE_SECONDS": "1",
    }
    server = Server(url, int(environment["FOREMAN_PORT"]), log_path=folder / "server.log")
    # Not by the fork server, whose children do not have a command line of their own.
    with server.log_path.open("ab") as log:
        command = [sys.executable, "-m", "app", "serve"]
        server.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        wait_until(server._answers, 30, server.log)
        story = Story(server, parrot, kept, postgres)
        kept.tenant_key = server.key("acme", *ALL_SCOPES[:3])
        with server.client(kept.tenant_key) as client, server.client() as admin:
            doomed = admin.post("/keys", json={"name": "doomed"}).json()
            kept.revoked_key = doomed["key"]
            admin.delete(f"/keys/{doomed['key_id']}")
            story.jobs(client)
            story.calls(client)
            story.chats(client)
            story.targets(client, admin)
            story.misplaced(client, admin)
            story.crash(client, admin)
            story.outage(client)
            story.look_around(admin)
        assert server.stop() == 0
    finally:
        if server.process.poll() is None:
            server.kill()
    return story


def test_the_log_has_no_secret(story: Story) -> None:
    said = story.server.log()
    assert "request.failed" in said
    assert "database.back" in said
    assert "foreman.stopped" in said
    assert not story.secrets.within(said)


def test_the_first_key_is_printed_once(story: Story) -> None:
    said, key = story.server.log(), story.server.admin_key
    assert said.count(key) == 1
    assert said.count(key.removeprefix("fmn_")) == 1
    assert hashlib.sha256(key.encode()).hexdigest() not in said


def test_no_list_and_no_metric_has_one(story: Story) -> None:
    assert not story.slipped(story.lists)
    assert not [place for place, text in story.lists.items() if story.server.admin_key in text]


def test_other_tenants_see_none(story: Story) -> None:
    assert not story.slipped(story.for_others)


def test_no_error_repeats_one(story: Story) -> None:
    """But for the paths and models that clients of the surfaces are told that there are not, as they know it."""
    assert len(story.errors) > 1000
    forms = story.secrets.forms() | {"admin_key": story.server.admin_key}
    for call, sent, answered in story.errors:
        is_of_surface = call.split(" ")[1].startswith(("/api/", "/v1/"))
        told = [
            name for name, form in forms.items() if form in answered and not (is_of_surface and form in sent)
        ]
        assert not told, (call, answered)


def test_no_command_line_has_one(story: Story) -> None:
    assert story.commands
    for command in story.commands.values():
        assert not story.secrets.within(command.decode())
