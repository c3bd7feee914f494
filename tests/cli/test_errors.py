"""Exit codes and messages when things are not as they should be."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.output import has_colours
from foreman_client import __version__
from tests.cli.conftest import Foreman, Start
from tests.client.wire_stub import Answer, problem, running_stub
from tests.conftest import ROOT, Server, free_port


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


def test_a_worker_with_a_database_that_nobody_can_submit_to_is_refused(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREMAN_")}
    for command in (["work"], ["serve", "--role", "worker"]):
        done = subprocess.run(
            [sys.executable, "-m", "app", *command, "--data-dir", str(tmp_path / "data")],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "FOREMAN_DATABASE_URL is not set" in done.stderr
        assert "foreman serve" in done.stderr
        assert not (tmp_path / "data").exists()


def test_a_reader_that_is_gone_before_anything_was_written_is_no_error(start: Start) -> None:
    process = start("list", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert process.stderr.read() == ""


def test_a_terminal_without_the_letters_gets_others_and_no_traceback(shared_server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app", "doctor", "--server", shared_server.url],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "FOREMAN_DATA_DIR": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "? reachable: it answers" in done.stdout
    assert "Traceback" not in done.stderr


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_colours(Terminal())
    assert not has_colours(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colours(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colours(Terminal())
