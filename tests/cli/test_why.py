"""why: a job explains itself on the command line."""

import json

from tests.cli.conftest import Foreman


def test_a_job_says_why_it_waits_with_a_line_for_each_reason(foreman: Foreman) -> None:
    assert foreman("queues", "pause", "why").code == 0
    job_id = foreman("submit", "--model", "echo", "--queue", "why", "--deadline", "1h", "hello").out.strip()
    outcome = foreman("why", job_id)
    assert outcome.code == 0
    headline, paused, deadline, following = outcome.out.splitlines()
    assert headline.startswith("Waiting: the queue why was paused at ")
    assert paused.startswith("  paused: The queue why was paused at ")
    assert deadline.startswith("  deadline: It expires ")
    assert following.startswith("  next: in ")
    found = foreman("why", job_id, "--json").json()
    assert [reason["code"] for reason in found["because"]] == ["paused", "deadline"]
    assert (found["headline"], found["position"]) == (headline, 1)
    foreman("queues", "resume", "why")
    assert foreman("wait", job_id).code == 0
    assert foreman("why", job_id).out.startswith("Done ")


def test_what_others_said_moves_nobodys_cursor(foreman: Foreman) -> None:
    job_id = foreman("submit", "--kind", "x", "--delay", "1h").out.strip()
    foreman("cancel", job_id, "--reason", "\x1b[2Jgone\x9b")
    shown = foreman("why", job_id).out
    assert "gone" in shown
    assert not {"\x1b", "\x9b"} & set(shown)
    assert json.loads(foreman("why", job_id, "--json").out)["because"][0]["reason"] == "\x1b[2Jgone\x9b"
