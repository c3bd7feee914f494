"""submit, get, list, wait, cancel, retry, delete against a real server."""

import asyncio
import json
import signal
from pathlib import Path

from app.store.read import MAX_LOOKED
from tests.api.test_listing import fill
from tests.cli.conftest import Foreman, Start
from tests.conftest import Server, wait_until

ECHO = ("submit", "--model", "echo")
SLOW = ("--payload", '{"options": {"echo_delay_ms": 200}}')


def submitted(foreman: Foreman, *arguments: str) -> str:
    outcome = foreman("submit", *arguments)
    assert outcome.code == 0, outcome.err
    return outcome.out.strip()


def test_submit_prints_the_id_and_nothing_else_on_stdout(foreman: Foreman) -> None:
    job_id = submitted(foreman, "--model", "echo", "hello")
    assert len(job_id) == 26
    assert foreman("wait", job_id, "--timeout", "20s").out == "hello\n"


def test_submit_as_json_is_a_receipt(foreman: Foreman) -> None:
    receipt = foreman(*ECHO, "hello", "--json").json()
    assert receipt.keys() == {"job_id", "outcome", "replayed"}
    assert receipt["outcome"] == "accepted"


def test_submit_and_wait_prints_the_answer_and_exits_with_zero(foreman: Foreman) -> None:
    outcome = foreman(*ECHO, "--wait", "good morning")
    assert (outcome.code, outcome.out) == (0, "good morning\n")


def test_submit_and_wait_exits_with_one_when_the_job_failed(foreman: Foreman) -> None:
    fail = ("--payload", '{"options": {"echo_fail": "permanent"}}')
    outcome = foreman(*ECHO, "--wait", "x", *fail)
    assert outcome.code == 1
    assert outcome.out == ""
    assert "on purpose" in outcome.err
    outcome = foreman(*ECHO, "--wait", "--json", "x", *fail)
    assert outcome.code == 1
    assert outcome.json()["state"] == "failed"


def test_a_wait_that_takes_too_long_exits_with_eight(foreman: Foreman) -> None:
    job_id = submitted(foreman, "--model", "echo", "--delay", "1h", "later")
    assert foreman("wait", job_id, "--timeout", "0.2").code == 8
    assert foreman("cancel", job_id).out == f"{job_id} cancelled\n"
    outcome = foreman("wait", job_id)
    assert outcome.code == 1
    assert "cancelled" in outcome.err


def test_follow_streams_the_answer(foreman: Foreman) -> None:
    outcome = foreman(*ECHO, "--follow", "one two three")
    assert (outcome.code, outcome.out) == (0, "one two three\n")


def test_follow_as_json_is_one_line_per_event_up_to_the_last(foreman: Foreman) -> None:
    outcome = foreman(*ECHO, "--follow", "--json", "one two")
    events = outcome.lines()
    assert events[-1]["type"] == "done"
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)


def test_interrupting_follow_detaches_and_says_how_to_come_back(foreman: Foreman, start: Start) -> None:
    process = start(*ECHO, "--follow", "--deadline", "1h", "word " * 500, *SLOW)
    # The id is announced before anything else.
    assert process.stderr is not None
    job_id = process.stderr.readline().split()[1]
    wait_until(lambda: foreman("get", job_id, "--json").json()["state"] == "working")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"foreman watch {job_id}" in err
    assert "Traceback" not in err
    assert foreman("get", job_id, "--json").json()["state"] == "working"
    assert foreman("cancel", job_id).code == 0


def test_every_field_reaches_the_job(foreman: Foreman) -> None:
    job_id = submitted(
        foreman, "--kind", "cli-fields", "--payload", '{"a": [1, 2.50]}', "--queue", "cli", "--priority", "7",
        "--delay", "1h", "--deadline", "2h", "--max-attempts", "3", "--metadata", "team=a",
        "--metadata", "env=b=c",
    )  # fmt: skip
    job = foreman("get", job_id, "--json").json()
    assert job["kind"] == "cli-fields"
    assert job["payload"] == {"a": [1, 2.5]}
    assert (job["queue"], job["priority"], job["max_attempts"]) == ("cli", 7, 3)
    assert job["metadata"] == {"team": "a", "env": "b=c"}
    assert job["run_at"] > job["created_at"]
    assert job["deadline"] > job["run_at"]
    shown = foreman("get", job_id).out
    assert job_id in shown
    assert "team=a" in shown


def test_payloads_come_from_files_and_stdin(foreman: Foreman, tmp_path: Path) -> None:
    (tmp_path / "work.json").write_text('{"from": "file"}')
    job_id = submitted(foreman, "--kind", "x", "--payload", f"@{tmp_path / 'work.json'}")
    assert foreman("get", job_id, "--json").json()["payload"] == {"from": "file"}
    job_id = foreman("submit", "--kind", "x", "--payload", "-", stdin='{"from": "stdin"}').out.strip()
    assert foreman("get", job_id, "--json").json()["payload"] == {"from": "stdin"}
    assert foreman(*ECHO, "--wait", "-", stdin="from stdin").out == "from stdin\n"


def test_numbers_of_any_length_and_size_go_in_and_come_out_as_they_are(foreman: Foreman) -> None:
    long = "123456789" * 600
    job_id = submitted(foreman, "--kind", "x", "--payload", f'{{"n":{long},"m":-1e400,"text":"\\u009b"}}')
    shown = foreman("get", job_id, "--json").out
    assert f'"n": {long},' in shown
    assert '"m": -1E+400,' in shown
    assert '"text": "\\u009b"' in shown
    assert foreman("get", job_id).code == 0
    # Events and queues' settings are read by the same.
    assert foreman("send", job_id, "measured", f'{{"n":{long}}}').code == 0
    assert f'"n": {long}' in foreman("events", job_id, "--json").out
    assert f'"n": {long}' in foreman("events", job_id).out
    wrong = foreman("submit", "--kind", "x", "--payload", '{"n":NaN}')
    assert (wrong.code, "not JSON" in wrong.err) == (2, True)


def test_the_same_idempotency_key_is_the_same_job(foreman: Foreman) -> None:
    first = submitted(foreman, "--kind", "x", "--idempotency-key", "cli-1")
    again = foreman("submit", "--kind", "x", "--idempotency-key", "cli-1")
    assert again.out.strip() == first
    assert "used before" in again.err
    assert foreman("submit", "--kind", "y", "--idempotency-key", "cli-1").code == 2


def test_list_goes_on_until_it_has_found_what_was_asked_for(foreman: Foreman, shared_server: Server) -> None:
    old = submitted(foreman, "--kind", "rare", "--delay", "1h")
    # More than the server looks at for one request.
    asyncio.run(fill(shared_server.database_url, "crowd", MAX_LOOKED + 10))
    found = foreman("list", "--kind", "rare", "--json").json()
    assert ([job["job_id"] for job in found["jobs"]], found["next_cursor"]) == ([old], None)


def test_list_filters_and_pages(foreman: Foreman) -> None:
    ids = [submitted(foreman, "--kind", "listed", "--metadata", f"n={n}") for n in range(3)]
    found = foreman("list", "--kind", "listed", "--json").json()["jobs"]
    assert [job["job_id"] for job in found] == sorted(ids, reverse=True)
    found = foreman("list", "--kind", "listed", "--metadata", "n=1", "--json").json()["jobs"]
    assert [job["job_id"] for job in found] == [ids[1]]
    page = foreman("list", "--kind", "listed", "--limit", "2", "--json").json()
    rest = foreman("list", "--kind", "listed", "--cursor", page["next_cursor"], "--json").json()
    assert [job["job_id"] for job in rest["jobs"]] == [min(ids)]
    table = foreman("list", "--kind", "listed", "--state", "queued").out
    assert all(job_id in table for job_id in ids)
    assert foreman("list", "--kind", "nobody").out == ""


def test_a_failed_job_can_be_retried_and_a_finished_one_deleted(foreman: Foreman) -> None:
    fail = ("--payload", '{"options": {"echo_fail": "permanent"}}')
    job_id = foreman(*ECHO, "--wait", "--json", "x", *fail).json()["job_id"]
    assert foreman("retry", job_id).out == f"{job_id} queued\n"
    assert foreman("wait", job_id).code == 1
    done = foreman(*ECHO, "--wait", "--json", "x").json()["job_id"]
    outcome = foreman("retry", done)
    assert outcome.code == 6
    assert done in outcome.err
    assert foreman("delete", job_id, done, "--json").lines() == [
        {"job_id": job_id, "deleted": True},
        {"job_id": done, "deleted": True},
    ]
    assert foreman("get", done).code == 3


def test_one_unknown_id_does_not_keep_the_others_from_being_cancelled(foreman: Foreman) -> None:
    job_id = submitted(foreman, "--kind", "x")
    outcome = foreman("cancel", "01J00000000000000000000000", job_id)
    assert outcome.code == 3
    assert outcome.out == f"{job_id} cancelled\n"


def test_watch_shows_a_job_until_it_ends(foreman: Foreman) -> None:
    job_id = submitted(foreman, "--model", "echo", "look at me")
    outcome = foreman("watch", job_id)
    assert (outcome.code, outcome.out) == (0, "look at me\n")
    assert "done" in outcome.err


def test_watching_everything_tells_each_change_as_json(foreman: Foreman, start: Start) -> None:
    process = start("watch", "--json", "--queue", "watched")
    job_id = submitted(foreman, "--kind", "x", "--queue", "watched")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["job_id"] == job_id
    foreman("cancel", job_id)
    assert json.loads(process.stdout.readline())["state"] == "cancelled"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err == ""


def test_a_reader_that_leaves_early_is_no_error(foreman: Foreman, start: Start) -> None:
    process = start("watch", "--json", "--queue", "left")
    submitted(foreman, "--kind", "x", "--queue", "left")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    submitted(foreman, "--kind", "x", "--queue", "left")
    assert process.wait(timeout=120) == 0
    assert process.stderr.read() == ""
