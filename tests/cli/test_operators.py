"""queues, dead, schedules, workers and events against a real server."""

from pathlib import Path

from tests.cli.conftest import Foreman

FAIL = ("--payload", '{"options": {"echo_fail": "permanent"}}')


def failed_job(foreman: Foreman, queue: str) -> str:
    outcome = foreman("submit", "--model", "echo", "--queue", queue, "--wait", "--json", "x", *FAIL)
    assert outcome.code == 1
    return str(outcome.json()["job_id"])


def test_a_queue_is_configured_setting_by_setting(foreman: Foreman) -> None:
    assert foreman("queues", "set", "q1", "max_depth=5", "rate.limit=10", "rate.per_seconds=60").code == 0
    assert foreman("queues", "set", "q1", "max_running=2", "rate.limit=20").code == 0
    queue = foreman("queues", "show", "q1", "--json").json()
    assert (queue["max_depth"], queue["max_running"]) == (5, 2)
    assert queue["rate"] == {"limit": 20, "per_seconds": 60}
    assert foreman("queues", "set", "q1", "max_depth=null").code == 0
    queue = foreman("queues", "show", "q1", "--json").json()
    assert (queue["max_depth"], queue["max_running"]) == (None, 2)
    assert foreman("queues", "set", "q1", "--config", '{"max_depth": 7}').code == 0
    queue = foreman("queues", "show", "q1", "--json").json()
    assert (queue["max_depth"], queue["max_running"]) == (7, None)
    assert "max depth" in foreman("queues", "show", "q1").out
    assert foreman("queues", "set", "q1", "no_such=1").code == 2


def test_a_full_queue_is_told_by_its_exit_code(foreman: Foreman) -> None:
    foreman("queues", "set", "tiny", "max_depth=1")
    assert foreman("submit", "--kind", "x", "--queue", "tiny").code == 0
    outcome = foreman("submit", "--kind", "x", "--queue", "tiny")
    assert outcome.code == 7
    assert outcome.out == ""


def test_a_paused_queue_gives_out_nothing_until_it_is_resumed(foreman: Foreman) -> None:
    assert foreman("queues", "pause", "q2").out == "q2 paused\n"
    job_id = foreman("submit", "--model", "echo", "--queue", "q2", "hello").out.strip()
    assert foreman("wait", job_id, "--timeout", "0.5").code == 8
    names = {queue["name"]: queue["paused"] for queue in foreman("queues", "list", "--json").json()["queues"]}
    assert names["q2"] is True
    assert "q2" in foreman("queues").out
    assert foreman("queues", "resume", "q2", "--json").json()["paused"] is False
    assert foreman("wait", job_id, "--timeout", "20").out == "hello\n"
    assert foreman("queues", "show", "no-such-queue").code == 3


def test_dead_letters_are_listed_replayed_and_dismissed(foreman: Foreman) -> None:
    one, two, three = (failed_job(foreman, "dead") for _ in range(3))
    listed = foreman("dead", "list", "--queue", "dead", "--json").json()["dead_letters"]
    assert {letter["job_id"] for letter in listed} == {one, two, three}
    assert "on purpose" in foreman("dead", "list", "--queue", "dead").out
    assert foreman("dead", "replay", one).out == f"{one} replayed\n"
    assert foreman("wait", one).code == 1
    assert foreman("dead", "dismiss", two).out == f"{two} dismissed\n"
    assert foreman("get", two, "--json").json()["state"] == "dismissed"
    assert foreman("dead", "replay", two).code == 6
    counted = foreman("dead", "dismiss", "--queue", "dead", "--dry-run", "--json").json()
    assert counted["matched"] == 2
    assert foreman("dead", "dismiss", "--queue", "dead").code == 0
    assert foreman("dead", "list", "--queue", "dead", "--json").json()["dead_letters"] == []


def test_schedules_are_made_listed_and_removed(foreman: Foreman) -> None:
    made = foreman(
        "schedules", "set", "nightly", "0 3 * * *", "--timezone", "Europe/Berlin", "--job", '{"kind": "x"}'
    )
    assert made.code == 0, made.err
    (schedule,) = foreman("schedules", "list", "--json").json()["schedules"]
    assert (schedule["cron"], schedule["timezone"]) == ("0 3 * * *", "Europe/Berlin")
    assert "nightly" in foreman("schedules").out
    assert foreman("schedules", "set", "bad", "whenever", "--job", '{"kind": "x"}').code == 2
    assert foreman("schedules", "remove", "nightly").out == "nightly removed\n"
    assert foreman("schedules", "remove", "nightly").code == 3


def test_events_and_logs_of_a_job_are_shown_and_it_can_be_told_something(foreman: Foreman) -> None:
    job_id = foreman("submit", "--kind", "talkative").out.strip()
    assert foreman("send", job_id, "approve", '{"by": "me"}').out == f"{job_id} event 2\n"
    assert foreman("send", job_id, "approve", "{no").code == 2
    assert foreman("cancel", job_id).code == 0
    events = foreman("events", job_id, "--json").lines()
    assert [(event["seq"], event["type"]) for event in events] == [
        (1, "queued"),
        (2, "approve"),
        (3, "cancelled"),
    ]
    assert events[1]["data"] == {"by": "me"}
    shown = foreman("events", job_id, "--types", "approve,queued", "--after", "1").out
    assert "approve" in shown
    assert "queued" not in shown
    assert foreman("events", job_id, "--follow").out.count("\n") == 3
    assert foreman("send", job_id, "approve").code == 6
    assert foreman("logs", job_id).out == ""


def test_workers_are_shown(foreman: Foreman) -> None:
    assert foreman("workers", "--json").json()["workers"]
    assert foreman("workers").code == 0


def test_targets_are_made_changed_shown_and_removed(foreman: Foreman, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("sesame")
    assert foreman("targets", "set", "laptop").code == 2
    made = foreman("targets", "set", "laptop", "http://127.0.0.1:9", "--slots", "2")
    assert (made.code, made.out) == (0, "laptop configured\n"), made.err
    # The server of these tests has no key to keep secrets with; it says so, and of the token nothing.
    refused = foreman("targets", "set", "laptop", "--token", f"@{secret}")
    assert refused.code == 2
    assert "FOREMAN_SECRET_KEY" in refused.err
    assert "sesame" not in refused.err
    wake = ("--wake-mac", "00:11:22:33:44:55", "--tag", "gpu")
    assert foreman("targets", "set", "laptop", "--dialect", "openai", *wake).code == 0
    target = foreman("targets", "show", "laptop", "--json").json()
    assert (target["url"], target["slots"], target["dialect"]) == ("http://127.0.0.1:9", 2, "openai")
    assert (target["tags"], target["wake"]["mac"]) == (["gpu"], "00:11:22:33:44:55")
    assert "laptop" in foreman("targets", "show", "laptop").out
    assert "laptop" in foreman("targets").out
    assert [each["name"] for each in foreman("targets", "--json").json()["targets"]] == ["laptop"]
    for given in ("sesame", "-sesame"):
        assert foreman("targets", "set", "laptop", f"--token={given}").code == 2
    assert foreman("targets", "set", "laptop", "--dialect", "latin").code == 2
    assert foreman("targets", "remove", "laptop").out == "laptop removed\n"
    assert foreman("targets", "remove", "laptop").code == 3
