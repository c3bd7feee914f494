"""webhooks: deliveries of a job and of all jobs, and the receiver for trying things out."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from app.cli.webhook_listener import Listener, _address_towards
from app.embedded import EmbeddedPostgres
from app.jobs.signing import new_secret, sign
from tests.cli.conftest import Foreman
from tests.conftest import ROOT, Server, free_port, wait_until
from tests.serving import serving


@pytest.fixture(scope="module")
def shared_server(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    allowed = {
        "FOREMAN_OUTBOUND_ALLOW": "127.0.0.0/8",
        "FOREMAN_SECRET_KEY": "a passphrase that is long enough",
    }
    with serving(postgres, tmp_path_factory.mktemp("cli"), **allowed) as server:
        yield server


class Listening:
    """`foreman webhooks listen --json` in a process of its own."""

    def __init__(self, *arguments: str, secret: str | None = None) -> None:
        self.port = free_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREMAN_")}
        if secret is not None:
            environment["FOREMAN_WEBHOOK_SECRET"] = secret
        command = [sys.executable, "-m", "app", "webhooks", "listen", "--port", str(self.port), *arguments]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.greeting = self._line_of_stderr()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def _line_of_stderr(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def shown(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        return self._process.returncode


@pytest.fixture
def listening() -> Iterator[type[Listening]]:
    started: list[Listening] = []

    class Remembered(Listening):
        def __init__(self, *arguments: str, secret: str | None = None) -> None:
            started.append(self)
            super().__init__(*arguments, secret=secret)

    yield Remembered
    for each in started:
        each.stop()


def signed(secret: str, body: bytes, message_id: str = "job-1", at: int | None = None) -> dict[str, str]:
    at = int(time.time()) if at is None else at
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": sign([secret], message_id, at, body),
    }


def test_the_listener_verifies_shows_and_answers(listening: type[Listening]) -> None:
    secret = new_secret()
    listener = listening("--json", secret=secret)
    assert listener.url in listener.greeting
    body = b'{"type":"job.done","data":{"state":"done"}}'
    assert httpx.post(listener.url, content=body, headers=signed(secret, body)).status_code == 204
    shown = json.loads(listener.shown())
    assert shown == {
        "webhook_id": "job-1",
        "verified": True,
        "problem": None,
        "repeated": False,
        "message": json.loads(body),
    }
    assert httpx.post(listener.url, content=body, headers=signed(secret, body)).status_code == 204
    assert json.loads(listener.shown())["repeated"] is True


def test_the_listener_does_not_trust_what_it_cannot_verify(listening: type[Listening]) -> None:
    secret = new_secret()
    listener = listening("--json", "--status", "200", secret=secret)
    body = b"{}"
    wrong: tuple[tuple[dict[str, str], str], ...] = (
        (signed(new_secret(), body), "no signature matches"),
        (signed(secret, body, at=1), "the timestamp is too far from the present"),
        ({"webhook-id": "a", "webhook-timestamp": "1"}, "it is not signed"),
        ({}, "there is no webhook-id header"),
    )
    for headers, problem in wrong:
        assert httpx.post(listener.url, content=body, headers=headers).status_code == 401
        shown = json.loads(listener.shown())
        assert (shown["verified"], shown["problem"]) == (False, problem)
    assert httpx.post(listener.url, content=body, headers=signed(secret, body)).status_code == 200


def test_the_listener_ends_on_an_interrupt(listening: type[Listening]) -> None:
    assert listening().stop() == 130


def test_a_listener_with_a_secret_that_is_none_says_so() -> None:
    environment = {**os.environ, "FOREMAN_WEBHOOK_SECRET": "hunter2"}
    ended = subprocess.run(
        [sys.executable, "-m", "app", "webhooks", "listen", "--port", "0"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 2
    assert "whsec_" in ended.stderr
    assert "hunter2" not in ended.stderr


def test_deliveries_are_listed_and_sent_again(
    foreman: Foreman, shared_server: Server, listening: type[Listening]
) -> None:
    listener = listening("--json", "--status", "410")
    job = {"kind": "noop", "state_webhook_url": listener.url, "webhook_events": ["done"]}
    job_id = httpx.post(f"{shared_server.url}/jobs", json=job).json()["job_id"]

    def states() -> list[str]:
        answer = foreman("webhooks", job_id, "--json")
        return [each["state"] for each in answer.json()["deliveries"]]

    # Not signed, and the listener made itself a secret: not trusted.
    wait_until(lambda: states() != [] and json.loads(listener.shown())["verified"] is False)
    again = foreman("webhooks", job_id, "--redeliver", f"{job_id}-4", "--json")
    assert (again.code, again.json()["delivery_id"]) == (0, f"{job_id}-4")
    assert json.loads(listener.shown())["repeated"] is True
    listed = foreman("webhooks", "list", "--host", f"127.0.0.1:{listener.port}", "--json")
    assert [each["job_id"] for each in listed.json()["deliveries"]] == [job_id]
    table = foreman("webhooks", job_id)
    assert table.code == 0
    assert f"{job_id}-4" in table.out


def test_a_job_that_is_not_there_is_said(foreman: Foreman) -> None:
    assert foreman("webhooks", "01ARZ3NDEKTSV4RRFFQ69G5FAV").code == 3


def test_the_listener_says_the_address_that_the_server_can_call(listening: type[Listening]) -> None:
    everywhere = listening("--json", "--host", "0.0.0.0")
    # Seen from a server on this machine, that is this machine.
    assert f"http://127.0.0.1:{everywhere.port}/" in everywhere.greeting
    six = listening("--json", "--host", "::1")
    assert f"http://[::1]:{six.port}/" in six.greeting
    assert httpx.post(f"http://[::1]:{six.port}/", content=b"{}").status_code == 401


def test_a_server_elsewhere_cannot_call_a_listener_that_listens_here_alone() -> None:
    elsewhere = "http://192.0.2.7:8080"
    with Listener("127.0.0.1", 0, [], 204, lambda _: None) as here:
        assert here.url_for(elsewhere).startswith("http://127.0.0.1:")
        assert not here.cannot_be_reached_by("http://127.0.0.1:8080")
        assert not here.cannot_be_reached_by("http://[::1]:8080")
        assert not here.cannot_be_reached_by("nonsense")
        # Unless this machine has no way there at all, and nobody knows.
        assert here.cannot_be_reached_by(elsewhere) is (
            _address_towards(elsewhere, socket.AF_INET) is not None
        )
    with Listener("0.0.0.0", 0, [], 204, lambda _: None) as everywhere:
        assert "0.0.0.0" not in everywhere.url_for(elsewhere)
        assert "0.0.0.0" not in everywhere.url_for("nonsense")


def test_the_line_that_the_listener_prints_makes_a_job_whose_webhooks_are_trusted(
    foreman: Foreman, shared_server: Server, listening: type[Listening], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREMAN_URL", shared_server.url)
    listener = listening("--json")
    printed = next(line for line in iter(listener._line_of_stderr, "") if "foreman submit" in line)
    secret, _, command = printed.strip().removeprefix("echo ").partition(" | foreman ")
    assert foreman(*command.split(), stdin=secret).code == 0
    shown = json.loads(listener.shown())
    assert (shown["verified"], shown["message"]["type"]) == (True, "job.queued")
