"""A job explains itself: each reason is told when it is there, and is right."""

import itertools
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.jobs.explanation import Code
from tests.api.conftest import Submit, problem_of
from tests.conftest import ROOT, wait_until

Explained = dict[str, Any]
Explain = Callable[[str], Explained]
HOUR = timedelta(hours=1)


@pytest.fixture
def explain(client: httpx.Client) -> Explain:
    def explain(job_id: str) -> Explained:
        answer = client.get(f"/jobs/{job_id}/explain")
        assert answer.status_code == 200, answer.text
        found: Explained = answer.json()
        for reason in found["because"]:
            assert re.match(r"[A-Z0-9].*[.!?…]$", reason["message"]), reason
        return found

    return explain


def codes(found: Explained) -> list[str]:
    return [reason["code"] for reason in found["because"]]


def reason_of(found: Explained, code: str) -> Explained:
    [reason] = [each for each in found["because"] if each["code"] == code]
    return dict(reason)


def is_known(explain: Explain, job_id: str) -> None:
    """Who asks for a kind is looked up every other second."""
    wait_until(lambda: "no_worker" not in codes(explain(job_id)))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


class Queue:
    """A queue of this test's own, and a worker over HTTP for it."""

    def __init__(self, client: httpx.Client, name: str) -> None:
        self.client, self.name = client, name
        self.kind = f"work-{uuid.uuid4().hex[:8]}"

    def set(self, **settings: Any) -> None:
        answer = self.client.put(f"/queues/{self.name}", json=settings)
        assert answer.status_code in {200, 201}, answer.text

    def submit(self, **fields: Any) -> str:
        body = {"kind": self.kind, "queue": self.name, "payload": {}, **fields}
        answer = self.client.post("/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    def claim(self, **fields: Any) -> list[dict[str, Any]]:
        body = {
            "worker": "tester",
            "queues": [self.name],
            "kinds": [self.kind],
            "lease_seconds": 60,
            **fields,
        }
        jobs: list[dict[str, Any]] = self.client.post("/claims", json=body).json()["jobs"]
        return jobs

    def settle(self, job: dict[str, Any], verb: str, **fields: Any) -> None:
        body = {"lease_token": job["lease_token"], **fields}
        answer = self.client.post(f"/jobs/{job['job_id']}/{verb}", json=body)
        assert answer.status_code == 200, answer.text

    def fail(self, job: dict[str, Any], *, retryable: bool, **fields: Any) -> None:
        error = {"code": "broken", "message": "It broke\nin two."}
        self.settle(job, "fail", error=error, retryable=retryable, **fields)


@pytest.fixture
def work(client: httpx.Client, queue: str) -> Queue:
    return Queue(client, queue)


# -- it waits ----------------------------------------------------------------------------------------


def test_the_next_in_line_says_so_and_the_others_how_many_are_ahead(work: Queue, explain: Explain) -> None:
    work.claim()
    second, third = (work.submit() for _ in range(2))
    urgent = work.submit(priority=5)
    is_known(explain, urgent)
    found = explain(urgent)
    assert (found["state"], found["position"], codes(found)) == ("queued", 1, ["next"])
    assert found["headline"].startswith("Waiting: it is next in line")
    assert [explain(each)["position"] for each in (second, third)] == [2, 3]
    found = explain(third)
    assert (codes(found), found["because"][0]["ahead"]) == (["jobs_ahead"], 2)
    assert found["headline"] == f"Waiting: 2 jobs of its kind are ahead of it in the queue {work.name}"
    assert explain(second)["headline"].endswith(f"1 job of its kind is ahead of it in the queue {work.name}")
    assert (found["next_at"], at(found["since"]) <= datetime.now(UTC)) == (None, True)


def test_a_scheduled_job_says_when_it_is_due(work: Queue, explain: Explain) -> None:
    run_at = datetime.now(UTC) + 48 * HOUR
    found = explain(work.submit(run_at=run_at.isoformat()))
    assert (codes(found), found["position"]) == (["scheduled"], None)
    assert at(found["next_at"]) == at(found["because"][0]["until"]) == run_at
    assert found["headline"].startswith(f"Waiting: it is not to run before {run_at:%Y-%m-%d %H:%M} UTC")


def test_a_job_that_backs_off_says_what_went_wrong_and_when_it_is_tried_again(
    work: Queue, explain: Explain
) -> None:
    job_id = work.submit(max_attempts=3, backoff_seconds=600)
    work.fail(work.claim()[0], retryable=True)
    found = explain(job_id)
    [reason] = found["because"]
    assert reason["code"] == "backing_off"
    assert (reason["attempt"], reason["max_attempts"]) == (1, 3)
    assert reason["error"] == {"code": "broken", "message": "It broke in two."}
    assert found["next_at"] == reason["until"] == work.client.get(f"/jobs/{job_id}").json()["run_at"]
    assert found["headline"].startswith(
        "Waiting: attempt 1 of 3 failed: It broke in two; it is tried again in "
    )


def test_a_job_that_failed_before_and_is_due_again_still_tells_it(work: Queue, explain: Explain) -> None:
    job_id = work.submit(max_attempts=3)
    work.fail(work.claim()[0], retryable=True, retry_in_seconds=0)
    is_known(explain, job_id)
    found = explain(job_id)
    assert codes(found) == ["next", "failed_before"]
    assert found["because"][1]["message"] == "Attempt 1 of 3 failed: It broke in two."


def test_a_deferred_job_says_why_and_that_it_cost_no_attempt(work: Queue, explain: Explain) -> None:
    job_id = work.submit()
    work.settle(work.claim()[0], "defer", delay_seconds=600, reason="printer is warming up")
    found = explain(job_id)
    [reason] = found["because"]
    assert (reason["code"], reason["deferrals"]) == ("deferred", 1)
    assert reason["reason"] == "printer is warming up"
    assert "costs no attempt: printer is warming up; it is tried again in " in reason["message"]
    assert found["next_at"] == reason["until"]


def test_a_job_that_was_given_back_says_until_when_it_rests(work: Queue, explain: Explain) -> None:
    job_id = work.submit()
    # In words that say nothing of the verb, or something wrong.
    work.settle(work.claim()[0], "release", delay_seconds=600, reason="retry")
    found = explain(job_id)
    assert (codes(found), found["because"][0]["reason"]) == (["released"], "retry")
    assert found["next_at"] == found["because"][0]["until"]


def test_a_paused_queue_is_the_first_reason_and_others_may_follow(
    work: Queue, submit: Submit, explain: Explain
) -> None:
    work.client.post(f"/queues/{work.name}/pause")
    ready, scheduled, second = submit(), submit(delay_seconds=600), submit()
    paused_at = work.client.get(f"/queues/{work.name}").json()["paused_at"]
    found = explain(ready)
    assert codes(found) == ["paused"]
    assert (found["because"][0]["since"], found["because"][0]["queue"]) == (paused_at, work.name)
    assert "by" not in found["because"][0], "nobody has a key here"
    assert found["position"] == 1
    assert codes(explain(scheduled)) == ["scheduled", "paused"], "what is not due yet does not wait for that"
    assert codes(explain(second)) == ["paused", "jobs_ahead"]
    assert explain(second)["headline"].endswith("; 1 job is ahead")
    work.client.post(f"/queues/{work.name}/resume")
    wait_until(lambda: codes(explain(second)) == ["done", "ledger"])


def test_a_queue_that_runs_all_it_may_is_told_with_its_limit(
    work: Queue, submit: Submit, explain: Explain
) -> None:
    work.set(max_running=1)
    work.submit()
    assert len(work.claim()) == 1
    found = explain(submit())
    assert codes(found) == ["max_running"]
    assert (found["because"][0]["limit"], found["because"][0]["running"]) == (1, 1)
    assert found["headline"] == f"Waiting: the queue {work.name} runs 1 job, as many as it may at once"


def test_a_queue_that_used_up_its_rate_says_when_the_next_one_goes(
    work: Queue, submit: Submit, explain: Explain
) -> None:
    work.set(rate={"limit": 1, "per_seconds": 3600})
    work.submit()
    assert len(work.claim()) == 1
    found = explain(submit())
    assert codes(found) == ["rate"]
    reason = found["because"][0]
    assert (reason["limit"], reason["per_seconds"]) == (1, 3600)
    assert found["next_at"] == reason["until"]
    assert datetime.now(UTC) < at(reason["until"]) <= datetime.now(UTC) + HOUR
    assert "has used up its rate of 1 per 1 h" in reason["message"]


def test_in_a_fair_queue_those_of_the_same_turn_count(work: Queue, submit: Submit, explain: Explain) -> None:
    work.set(fair_by="customer")
    work.client.post(f"/queues/{work.name}/pause")
    busy = [submit(metadata={"customer": "busy"}) for _ in range(4)]
    calm = submit(metadata={"customer": "calm"})
    assert [reason_of(explain(each), "fair_by")["ahead"] for each in (*busy, calm)] == [0, 1, 2, 3, 0]
    message = reason_of(explain(busy[3]), "fair_by")["message"]
    assert message.endswith("takes turns by customer: 3 jobs of its turn are ahead of it.")


def test_a_busy_key_is_told_with_its_holder_and_those_ahead(work: Queue, explain: Explain) -> None:
    work.set(key=["k", "/n"], max_queued=5)
    first, second, third = (work.submit(payload={"n": 1}) for _ in range(3))
    [held] = work.claim(limit=5)
    found = explain(second)
    assert codes(found) == ["key_busy"]
    reason = found["because"][0]
    assert (reason["key"], reason["limit"], reason["running"], reason["others"]) == ("k/1", 1, 1, 0)
    [holder] = reason["jobs"]
    assert (holder["job_id"], holder["state"], holder["worker"]) == (first, "loading", "tester")
    assert holder["lease_expires_at"] == held["lease_expires_at"]
    assert found["headline"] == f"Waiting: its key k/1 is held by {first} (loading on tester)"
    assert explain(third)["because"][0]["ahead"] == 1
    work.settle(held, "complete", result=None)
    wait_until(lambda: codes(explain(second)) == ["next"])
    # One that could be claimed holds the place as well.
    assert explain(third)["because"][0]["jobs"][0]["state"] == "queued"


def test_a_key_that_is_blocked_by_a_lost_lease_says_what_has_to_be_done(
    work: Queue, explain: Explain
) -> None:
    work.set(key=["k"], max_queued=5, stale_policy="block")
    first, second = (work.submit() for _ in range(2))
    work.claim(lease_seconds=0.2)
    wait_until(lambda: codes(explain(second))[0] == "key_blocked")
    found = explain(second)
    assert codes(found) == ["key_blocked", "key_busy"]
    assert [each["job_id"] for each in found["because"][0]["jobs"]] == [first]
    assert "has to be cancelled" in found["headline"]
    assert codes(explain(first)) == ["loading", "lease_expired"]
    assert "stale_policy block" in explain(first)["because"][1]["message"]


def test_a_job_that_depends_on_others_names_them_and_their_states(work: Queue, explain: Explain) -> None:
    first, second = work.submit(priority=1), work.submit()
    job_id = work.submit(depends_on=[first, second], delay_seconds=600)
    [running] = work.claim()
    found = explain(job_id)
    assert codes(found) == ["waiting_for", "scheduled"]
    reason = found["because"][0]
    assert {each["job_id"]: each["state"] for each in reason["jobs"]} == {first: "loading", second: "queued"}
    assert reason["others"] == 0
    assert f"{first} (loading)" in found["headline"]
    work.settle(running, "complete", result=None)
    wait_until(lambda: len(explain(job_id)["because"][0]["jobs"]) == 1)
    assert explain(job_id)["headline"] == f"Waiting: 1 job has to be done first: {second} (queued)"


def test_of_a_hundred_jobs_that_are_waited_for_some_are_named_and_all_counted(
    work: Queue, explain: Explain
) -> None:
    awaited = [work.submit() for _ in range(100)]
    reason = explain(work.submit(depends_on=awaited))["because"][0]
    assert (len(reason["jobs"]), reason["others"]) == (20, 80)
    assert reason["message"].startswith("100 jobs have to be done first: ")
    assert reason["message"].endswith("and 97 others.")


def test_a_kind_that_nobody_asks_for_is_told_since_when(work: Queue, explain: Explain) -> None:
    job_id = work.submit()
    found = explain(job_id)
    assert codes(found) == ["no_worker"]
    reason = found["because"][0]
    assert (reason["kind"], reason["queue"]) == (work.kind, work.name)
    assert reason["since"] == work.client.get(f"/jobs/{job_id}").json()["created_at"]
    assert f"no worker has asked for jobs of kind {work.kind}" in found["headline"]


def test_a_deadline_is_told_last_and_is_the_next_thing_to_happen(work: Queue, explain: Explain) -> None:
    work.claim()
    far, near = work.submit(deadline_seconds=7200, delay_seconds=10_000), work.submit(deadline_seconds=50)
    found = explain(far)
    assert codes(found) == ["scheduled", "deadline"]
    assert found["next_at"] == found["because"][1]["until"] < found["because"][0]["until"]
    assert "its deadline is near" in explain(near)["because"][-1]["message"].lower()


# -- it runs -----------------------------------------------------------------------------------------


def test_a_running_job_says_where_since_when_and_until_when_its_lease_holds(
    work: Queue, explain: Explain
) -> None:
    job_id = work.submit(max_duration_seconds=300, deadline_seconds=600, max_attempts=4)
    [job] = work.claim()
    found = explain(job_id)
    assert (found["state"], codes(found)) == ("loading", ["loading", "max_duration", "deadline"])
    reason = found["because"][0]
    assert (reason["worker"], reason["lease_expires_at"]) == ("tester", job["lease_expires_at"])
    assert (reason["attempt"], reason["max_attempts"]) == (1, 4)
    work.settle(job, "start")
    found = explain(job_id)
    assert (found["state"], found["since"]) == ("working", found["because"][0]["since"])
    assert re.fullmatch(r"Working for [\d.]+ m?s on tester, attempt 1 of 4", found["headline"])
    assert found["next_at"] == reason_of(found, "max_duration")["until"]
    assert found["position"] is None


def test_a_job_that_was_asked_to_stop_says_so_and_until_when(work: Queue, explain: Explain) -> None:
    job_id = work.submit()
    work.claim()
    # A server that sweeps now and then; the grace may be over before we look.
    work.client.post(f"/jobs/{job_id}/cancel", json={"reason": "no longer needed"})
    found = explain(job_id)
    if found["state"] == "loading":
        reason = reason_of(found, "cancel_requested")
        assert reason["reason"] == "no longer needed"
        assert found["next_at"] in {reason["until"], None}
    wait_until(lambda: explain(job_id)["state"] == "cancelled")
    found = explain(job_id)
    assert codes(found) == ["cancelled", "ledger"]
    assert found["headline"] == (
        "Cancelled at attempt 1 of 5: no longer needed; its worker did not confirm it in time"
    )


# -- it has ended ------------------------------------------------------------------------------------


def test_a_job_that_is_done_tells_what_it_took(client: httpx.Client, queue: str, explain: Explain) -> None:
    chat = {"model": "echo", "queue": queue, "messages": [{"role": "user", "content": "one two three"}]}
    job = client.post("/jobs", json=chat, headers={"Prefer": "wait=60"}).json()
    found = explain(job["job_id"])
    assert (found["state"], codes(found), found["next_at"]) == ("done", ["done", "ledger"], None)
    assert found["since"] == job["completed_at"]
    ledger = found["because"][1]["ledger"]
    assert ledger["working_seconds"] == job["timings"]["working_seconds"]
    assert ledger["completion_tokens"] == job["usage"]["completion_tokens"] > 0
    assert re.fullmatch(r"Done [\d.]+ m?s after it came in, at attempt 1 of 5", found["headline"])
    assert "tokens: " in found["because"][1]["message"]


def test_a_failed_job_tells_whether_it_had_attempts_left(work: Queue, explain: Explain) -> None:
    permanent, exhausted = work.submit(priority=1), work.submit(max_attempts=1)
    for job in work.claim(limit=2):
        work.fail(job, retryable=job["job_id"] == exhausted)
    found = explain(permanent)
    assert codes(found) == ["failed", "ledger"]
    assert found["headline"] == "Failed for good at attempt 1 of 5: It broke in two"
    assert found["because"][0]["error"]["code"] == "broken"
    found = explain(exhausted)
    assert codes(found) == ["attempts_exhausted", "ledger"]
    assert found["headline"] == "Failed after 1 attempt: It broke in two"
    work.client.post(f"/dead-letters/{permanent}/dismiss")
    found = explain(permanent)
    assert codes(found) == ["dismissed", "ledger"]
    assert "It broke in two" in found["headline"]


def test_a_job_cancelled_while_it_waited_tells_why_and_with_which_parent(
    work: Queue, explain: Explain
) -> None:
    parent = work.submit()
    child = work.submit(parent_id=parent)
    alone = work.submit()
    work.client.post(f"/jobs/{parent}/cancel", json={"reason": "wrong month"})
    work.client.post(f"/jobs/{alone}/cancel")
    assert codes(explain(parent)) == ["cancelled", "ledger"]
    assert explain(parent)["headline"] == "Cancelled while it waited: wrong month"
    found = explain(child)
    assert codes(found) == ["cancelled", "parent_cancelled", "ledger"]
    assert found["because"][1]["jobs"][0]["job_id"] == parent
    assert explain(alone)["headline"] == "Cancelled while it waited"


def test_a_job_whose_dependency_failed_names_it(work: Queue, explain: Explain) -> None:
    good, bad = work.submit(priority=1), work.submit()
    job_id = work.submit(depends_on=[good, bad])
    for job in work.claim(limit=2):
        if job["job_id"] == bad:
            work.fail(job, retryable=False)
        else:
            work.settle(job, "complete", result=None)
    wait_until(lambda: explain(job_id)["state"] == "cancelled")
    found = explain(job_id)
    assert codes(found) == ["dependency_failed", "ledger"]
    assert [each["job_id"] for each in found["because"][0]["jobs"]] == [bad]
    assert f"{bad} (failed)" in found["headline"]


def test_an_expired_job_tells_its_deadline_and_its_last_real_error(work: Queue, explain: Explain) -> None:
    job_id, untried = work.submit(deadline_seconds=2, priority=1), work.submit(deadline_seconds=0.1)
    work.fail(work.claim()[0], retryable=True, retry_in_seconds=600)
    for each in (job_id, untried):
        wait_until(lambda each=each: explain(each)["state"] == "expired")  # type: ignore[misc]
    found = explain(job_id)
    assert codes(found) == ["expired", "ledger"]
    assert found["because"][0]["error"]["message"] == "It broke in two."
    assert "its last error was: It broke in two" in found["headline"]
    assert explain(untried)["headline"].startswith("Expired before it was tried: its deadline passed at ")


def test_a_skipped_job_names_the_one_that_replaced_it(work: Queue, explain: Explain) -> None:
    work.set(key=["k"], when_full="replace-oldest")
    old = work.submit()
    new = work.submit()
    found = explain(old)
    assert codes(found) == ["skipped", "ledger"]
    assert [each["job_id"] for each in found["because"][0]["jobs"]] == [new]
    assert new in found["headline"]


def test_a_stale_job_names_its_worker_and_who_has_its_key_now(work: Queue, explain: Explain) -> None:
    work.set(key=["k"], max_queued=5)
    old, new = work.submit(), work.submit()
    work.claim(lease_seconds=0.2)
    wait_until(lambda: explain(old)["state"] == "stale")
    wait_until(lambda: explain(old)["because"][0]["jobs"])
    found = explain(old)
    assert codes(found) == ["stale", "last_error", "ledger"]
    assert (found["because"][0]["worker"], found["because"][0]["key"]) == ("tester", "k")
    assert [each["job_id"] for each in found["because"][0]["jobs"]] == [new]


# -- all of it ---------------------------------------------------------------------------------------


def test_what_is_not_there_is_not_found(client: httpx.Client) -> None:
    for job_id in ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "nothing", "%00", "x" * 5000):
        problem_of(client.get(f"/jobs/{job_id}/explain"), 404, "not_found")


def test_every_code_is_documented() -> None:
    text = Path(ROOT / "docs" / "callers.md").read_text()
    table = re.findall(r"^\| `([a-z_]+)`(?:, `([a-z_]+)`)?", text[text.index("/explain") :], re.MULTILINE)
    assert set(itertools.chain(*table)) - {""} >= set(Code)
