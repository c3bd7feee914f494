"""Exit codes and messages when things are not as they should be."""

import subprocess
import sys

import pytest

from foreman_client import __version__
from tests.cli.conftest import Foreman
from tests.client.wire_stub import Answer, problem, running_stub
from tests.conftest import ROOT, free_port


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "hello"),
        ("submit", "--model", "echo"),
        ("submit", "--kind", "x", "prompt"),
        ("submit", "--kind", "x", "--payload", "{not json"),
        ("submit", "--kind", "x", "--payload", "[1]"),
        ("submit", "--kind", "x", "--payload", "@/no/such/file"),
        ("submit", "--kind", "x", "--delay", "soon"),
        ("submit", "--kind", "x", "--metadata", "novalue"),
        ("submit", "--kind", "x", "--priority", "1000"),
        ("list", "--state", "asleep"),
        ("list", "--limit", "1000"),
        ("queues", "set", "default"),
        ("dead", "replay"),
        ("dead", "replay", "01J", "--queue", "x"),
        ("no-such-command",),
        ("get",),
    ],
)
def test_wrong_usage_exits_with_two_and_one_clear_message(
    foreman: Foreman, arguments: tuple[str, ...]
) -> None:
    outcome = foreman(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err
    assert "Traceback" not in outcome.err


def test_an_unknown_job_exits_with_three(foreman: Foreman) -> None:
    for command in ("get", "why", "wait", "watch", "events", "logs", "retry", "delete", "webhooks"):
        outcome = foreman(command, "01J00000000000000000000000")
        assert outcome.code == 3, (command, outcome)
        assert "no such job" in outcome.err.lower()


def test_a_server_that_is_not_there_exits_with_four(foreman: Foreman) -> None:
    outcome = foreman("list", "--server", f"http://127.0.0.1:{free_port()}")
    assert outcome.code == 4
    assert "no answer from" in outcome.err


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (problem(401, "unauthorized"), 5),
        (problem(403, "forbidden"), 5),
        (problem(409, "key_busy", existing_job_id="01J"), 6),
        (problem(429, "queue_full", retry_after=60), 7),
        (problem(503, "unavailable", retry_after=60), 4),
        (problem(500, "internal_error"), 4),
        (Answer(200, b"<html>not a Foreman</html>"), 4),
    ],
)
def test_each_refusal_has_its_exit_code(foreman: Foreman, answer: Answer, code: int) -> None:
    with running_stub() as stub:
        stub.answers(answer)
        outcome = foreman("submit", "--kind", "x", "--server", stub.url)
    assert outcome.code == code
    assert outcome.err.startswith("foreman: ")
    assert outcome.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("targets",),
        ("workers",),
        ("usage",),
        ("queues", "list"),
        ("queues", "show", "x"),
        ("queues", "pause", "x"),
        ("dead", "list"),
        ("dead", "replay", "01J00000000000000000000000"),
        ("keys", "create", "ci"),
        ("schedules", "list"),
    ],
)
def test_a_server_without_a_route_is_told_apart_from_a_thing_that_is_not_there(
    foreman: Foreman, arguments: tuple[str, ...]
) -> None:
    with running_stub() as stub:
        stub.answers(problem(404, "not_found"))
        outcome = foreman(*arguments, "--server", stub.url)
    assert outcome.code == 3
    assert "this server has no /" in outcome.err


def test_the_doctor_finds_a_healthy_server_healthy(foreman: Foreman) -> None:
    outcome = foreman("doctor", "--json")
    assert outcome.code == 0
    findings = {each["check"]: each["outcome"] for each in outcome.json()["findings"]}
    assert findings["reachable"] == findings["database"] == findings["API key"] == "ok"
    assert findings["version"] == "ok"
    assert findings.keys() >= {"version", "clocks", "targets"}
    assert "reachable" in foreman("doctor").out


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        (("awake",), "ok"),
        (("awake", "unknown"), "ok"),
        (("awake", "asleep"), "warning"),
        ((), "ok"),
    ],
)
def test_the_doctor_warns_of_targets_that_are_asleep_and_of_no_others(
    foreman: Foreman, states: tuple[str, ...], outcome: str
) -> None:
    targets = [{"name": f"t{n}", "state": state} for n, state in enumerate(states)]
    with running_stub() as stub:
        stub.answers(Answer(200, {"version": "9.9", "jobs": [], "targets": targets}))
        findings = foreman("doctor", "--json", "--server", stub.url).json()["findings"]
    assert {each["check"]: each["outcome"] for each in findings}["targets"] == outcome


def test_a_password_in_the_address_is_not_shown(foreman: Foreman) -> None:
    server = f"http://me:topsec@127.0.0.1:{free_port()}"
    outcome = foreman("doctor", "--server", server)
    assert "me@127.0.0.1" in outcome.out
    assert "topsec" not in outcome.out + outcome.err
    assert "topsec" not in foreman("doctor", "--json", "--server", server).out
    for wrong in ("http://me:topsec/x@h", "ftp://me:topsec@h", "me:topsec@h"):
        outcome = foreman("list", "--server", wrong)
        assert outcome.code == 2
        assert "topsec" not in outcome.err


def test_the_doctor_says_what_is_wrong(foreman: Foreman) -> None:
    outcome = foreman("doctor", "--server", f"http://127.0.0.1:{free_port()}")
    assert outcome.code == 4
    assert "✗ reachable" in outcome.out
    with running_stub() as stub:
        stub.answers(
            Answer(200, {"version": "9.9"}), Answer(200, {"version": "9.9"}), problem(401, "unauthorized")
        )
        outcome = foreman("doctor", "--server", stub.url)
    assert outcome.code == 5
    assert "! version: server 9.9 and foreman-client" in outcome.out


def test_a_route_that_an_older_server_lacks_is_said_with_the_versions_in_one_sentence() -> None:
    with running_stub() as stub:
        stub.answers(problem(404, "not_found"), Answer(200, {"name": "foreman", "version": "0.0.1"}))
        done = subprocess.run(
            [sys.executable, "-m", "app", "list", "--server", stub.url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    warned, refused = done.stderr.splitlines()
    assert warned.startswith(f"foreman: server 0.0.1 and foreman-client {__version__} were not made for each")
    assert refused == "foreman: no"


def test_reading_commands_start_without_the_server_behind_them() -> None:
    script = (
        "import sys; from app.cli.root import build; build(['get']);sys.stdout.write(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"fastapi", "sqlalchemy", "asyncpg", "pydantic", "httpx", "app.config"}


COMMANDS = [
    "serve", "work", "migrate", "submit", "get", "list", "wait", "why", "watch", "cancel", "retry", "delete",
    "events", "logs", "queues", "dead", "workers", "targets", "keys", "schedules", "webhooks", "usage",
    "doctor", "secrets",
]  # fmt: skip


def test_all_commands_are_in_the_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert all(f"  {command} " in done.stdout for command in COMMANDS)


def test_the_version_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("foreman ")
