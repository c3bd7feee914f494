"""submit --wait and wait: the id at once, why it waits, and the fields that a job can have."""

import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import waiting
from tests.cli.conftest import Foreman, Start
from tests.client.wire_stub import ACCEPTED, Answer, problem, running_stub
from tests.conftest import ROOT, Server, wait_until

JOB = {"job_id": "01J00000000000000000000001", "state": "queued", "reason": "waiting_for", "seq": 1}
DONE = {**JOB, "state": "done", "result": {"answer": 42}, "seq": 3}
EXPLAINED = {
    "state": "queued",
    "headline": "waits for another job",
    "because": [{"code": "waiting_for", "message": "it waits for another job"}],
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why is asked at once."""
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "AGAIN_SECONDS", 0.05)


def test_the_id_is_said_at_once_and_the_reason_while_it_waits(foreman: Foreman, start: Start) -> None:
    foreman("queues", "pause", "waited")
    process = start("submit", "--model", "echo", "--queue", "waited", "--wait", "hello")
    assert process.stderr is not None
    job_id = process.stderr.readline().split()[1]
    assert foreman("get", job_id, "--json").json()["state"] == "queued"
    assert process.stderr.readline().startswith("queued")
    foreman("queues", "resume", "waited")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "hello\n")
    assert "Traceback" not in err


def test_the_servers_explanation_is_said_once_for_each_reason(foreman: Foreman, impatient: None) -> None:
    with running_stub() as stub:
        stub.answers(
            ACCEPTED,
            Answer(200, JOB),
            Answer(200, JOB),
            Answer(200, EXPLAINED),
            Answer(200, JOB),
            Answer(200, EXPLAINED | {"headline": "still waits for another job"}),
            Answer(200, DONE),
        )
        outcome = foreman("submit", "--kind", "x", "--wait", "--server", stub.url)
        asked = [seen.path.partition("?")[0] for seen in stub.seen]
    assert outcome.code == 0
    assert json.loads(outcome.out) == {"answer": 42}
    assert outcome.err.splitlines() == [f"job {JOB['job_id']}", "queued: waits for another job"]
    assert asked.count(f"/jobs/{JOB['job_id']}/explain") == 2


def test_a_server_that_cannot_explain_is_asked_once_and_the_job_says_what_it_can(
    foreman: Foreman, impatient: None
) -> None:
    with running_stub() as stub:
        stub.answers(
            Answer(200, JOB),
            Answer(200, JOB),
            problem(404, "not_found"),
            Answer(200, {"name": "foreman", "version": "0.1.0"}),
            Answer(200, JOB | {"queue_position": 3}),
            Answer(200, DONE),
        )
        outcome = foreman("wait", str(JOB["job_id"]), "--server", stub.url)
        asked = [seen.path for seen in stub.seen]
    assert outcome.code == 0
    assert outcome.err == "queued: waiting_for\n"
    assert len([path for path in asked if "explain" in path]) == 1


def test_a_server_that_is_away_for_a_while_is_waited_for(foreman: Foreman, impatient: None) -> None:
    away = problem(503, "unavailable", retry_after=60)
    with running_stub() as stub:
        stub.answers(Answer(200, JOB), away, away, Answer(200, DONE))
        outcome = foreman("wait", str(JOB["job_id"]), "--server", stub.url)
    assert outcome.code == 0
    assert "trying again" in outcome.err
    with running_stub() as stub:
        stub.answers(away)
        assert foreman("wait", str(JOB["job_id"]), "--server", stub.url).code == 4


def test_on_a_terminal_one_line_changes_and_is_gone_in_the_end(
    foreman: Foreman, shared_server: Server
) -> None:
    """Its stderr is a terminal, as wide as it is; stdout is a pipe with the result and nothing else."""
    foreman("queues", "pause", "seen")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "submit", "--model", "echo", "--queue", "seen", "--wait", "hello"],
        cwd=ROOT,
        env={**os.environ, "FOREMAN_URL": shared_server.url, "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    said = b""

    def reason_is_shown() -> bool:
        nonlocal said
        if select.select([ours], [], [], 0.05)[0]:
            said += os.read(ours, 65_536)
        return b"\r\x1b[K\x1b[2mqueued" in said

    try:
        wait_until(reason_is_shown, 20)
        foreman("queues", "resume", "seen")
        out, _ = process.communicate(timeout=120)
        while select.select([ours], [], [], 0)[0]:
            try:
                said += os.read(ours, 65_536)
            except OSError:
                break
    finally:
        process.kill()
        process.communicate()
        os.close(ours)
    assert out == "hello\n"
    assert said.endswith(b"\r\x1b[K")


def test_follow_as_json_has_the_text(foreman: Foreman) -> None:
    slow = ("--payload", '{"options": {"echo_delay_ms": 150}}')
    for more in ((), slow):
        events = foreman(
            "submit", "--model", "echo", "--follow", "--json", "one two three four", *more
        ).lines()
        assert events[-1]["type"] == "done"
        assert events[-1]["text"] == "one two three four"
        assert events[-1]["result"]["message"]["content"] == "one two three four"
        pieces = [event["text"] for event in events if event["type"] == "output"]
        assert not more or "".join(pieces) == "one two three four"
    fail = ("--payload", '{"options": {"echo_fail": "permanent"}}')
    outcome = foreman("submit", "--model", "echo", "--follow", "--json", "x", *fail)
    assert outcome.code == 1
    assert outcome.lines()[-1]["error"]["code"] == "echo_permanent"


def test_every_other_field_reaches_the_job(
    foreman: Foreman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = foreman("submit", "--kind", "x").out.strip()
    with running_stub() as stub:
        stub.answers(ACCEPTED)
        secret = "whsec_" + "c2VjcmV0" * 4
        (tmp_path / "secret").write_text(secret + "\n")
        monkeypatch.setenv("HOOK", secret)
        common = ("submit", "--kind", "x", "--server", stub.url)
        outcome = foreman(
            *common, "--depends-on", first, "--depends-on", str(JOB["job_id"]), "--on-dependency-failure", "run",
            "--run-at", "2030-01-31T12:00:00Z", "--deadline", "2030-02-01T00:00:00+01:00", "--max-duration", "5m",
            "--backoff", "5s,1m", "--webhook", "https://example.com/", "--webhook-event", "done",
            "--webhook-event", "failed", "--webhook-secret", f"@{tmp_path / 'secret'}",
        )  # fmt: skip
        assert outcome.code == 0, outcome.err
        assert secret not in outcome.out + outcome.err
        assert stub.seen[-1].json() == {
            "kind": "x",
            "run_at": "2030-01-31T12:00:00Z",
            "deadline": "2030-01-31T23:00:00Z",
            "max_duration_seconds": 300,
            "backoff_seconds": [5, 60],
            "depends_on": [first, JOB["job_id"]],
            "on_dependency_failure": "run",
            "state_webhook_url": "https://example.com/",
            "webhook_events": ["done", "failed"],
            "webhook_secret": secret,
        }
        for run_at in ("in 5m", "+5m", "5m"):
            assert foreman(*common, "--run-at", run_at, "--deadline", "1h").code == 0
            sent = stub.seen[-1].json()
            assert (sent["delay_seconds"], sent["deadline_seconds"]) == (300, 3600)
        assert foreman(*common, "--webhook-secret", "env:HOOK").code == 0
        assert stub.seen[-1].json()["webhook_secret"] == secret
        assert foreman(*common, "--webhook-secret", "-", stdin=secret).code == 0
        assert stub.seen[-1].json()["webhook_secret"] == secret


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--webhook-secret", "whsec_hunter2"), "from a file"),
        (("--webhook-secret", "env:NO_SUCH_VARIABLE"), "nothing in env:NO_SUCH_VARIABLE"),
        (("--webhook-secret", "@/no/such/file"), "cannot read /no/such/file"),
        (("--run-at", "tomorrow"), "is not a time"),
        (("--run-at", "5m", "--delay", "5m"), "not both"),
        (("--deadline", "never"), "is not a time"),
        (("--max-duration", "long"), "is not a duration"),
        (("--backoff", "5s,,1m"), "is not a duration"),
        (("--depends-on", "nonsense"), "there is no job nonsense"),
        (("--timeout", "5s"), "goes with --wait"),
        (("--timeout", "5s", "--follow"), "goes with --wait"),
        (("--payload", "-", "--webhook-secret", "-"), "only one thing"),
        (("--on-dependency-failure", "explode"), "on_dependency_failure"),
    ],
)
def test_what_is_wrong_with_a_field_is_said_in_a_sentence(
    foreman: Foreman, arguments: tuple[str, ...], said: str
) -> None:
    outcome = foreman("submit", "--kind", "x", *arguments)
    assert outcome.code in {2, 3}
    assert said in outcome.err
    assert "hunter2" not in outcome.err
    assert outcome.out == ""


def test_lists_are_filtered_by_time(foreman: Foreman) -> None:
    job_id = foreman("submit", "--kind", "timed").out.strip()
    assert [
        job["job_id"] for job in foreman("list", "--kind", "timed", "--since", "1h", "--json").json()["jobs"]
    ] == [job_id]
    assert foreman("list", "--kind", "timed", "--until", "1h", "--json").json()["jobs"] == []
    assert foreman("list", "--since", "2030-13-01").code == 2
    assert foreman("dead", "--since", "1h", "--json").code == 0
    assert foreman("dead", "replay", "--since", "1h", "--dry-run", "--json").json()["dry_run"] is True
    assert foreman("dead", "--until", "soon").code == 2
    assert foreman("usage", "--since", "7d", "--until", "2030-01-31", "--json").code == 0
    assert foreman("usage", "--since", "recently").code == 2
