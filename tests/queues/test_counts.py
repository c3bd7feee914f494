"""Counts, ages, rates; retention; durations."""

from datetime import UTC, datetime, timedelta
from functools import partial

import httpx
from ulid import ULID

from tests.conftest import MakeServer
from tests.queues.conftest import QUICK, Caller, soon
from tests.queues.test_dead_letters import dead_letters, run


def test_every_state_is_counted(call: Caller, queue: str) -> None:
    counts = {}
    for n in range(3):
        call.submit(queue, deadline_seconds=600 if n else None)
    call.submit(queue, delay_seconds=3600)
    loading, working, done = call.claim(queue, limit=3)
    call.settle(working, "start")
    call.complete(done)
    dead_letters(call, queue, 2)
    call.http.post(f"/jobs/{call.submit(queue)}/cancel")
    counts = call.queue(queue)["counts"]
    assert counts == {
        "queued": 1,
        "loading": 1,
        "working": 1,
        "done": 1,
        "failed": 2,
        "cancelled": 1,
        "expired": 0,
        "skipped": 0,
        "stale": 0,
        "dismissed": 0,
    }
    assert call.queue(queue)["held"] == {"scheduled": 1, "key_busy": 0, "waiting_for": 0}
    run(call, "/bulk-operations", action="retry", filter={"queue": queue})
    assert call.queue(queue)["counts"]["failed"] == 0
    call.http.post(f"/jobs/{loading['job_id']}/cancel")
    soon(lambda: call.queue(queue)["counts"]["cancelled"] == 2)
    run(call, "/bulk-operations", action="delete", filter={"queue": queue})
    ended = call.queue(queue)["counts"]
    assert (ended["done"], ended["cancelled"]) == (0, 0)


def test_expired_and_rescued_to_failed_are_counted(call: Caller, queue: str) -> None:
    call.submit(queue, deadline_seconds=0.1)
    soon(lambda: call.queue(queue)["counts"]["expired"] == 1)
    call.submit(queue, max_attempts=1)
    call.claim(queue, lease_seconds=0.1)
    soon(lambda: call.queue(queue)["counts"]["failed"] == 1)


def test_ages_and_rates_are_shown(call: Caller, queue: str) -> None:
    call.submit(queue)
    call.submit(queue)
    call.complete(call.claim(queue)[0])
    soon(lambda: call.queue(queue)["rates"]["enqueued_per_second"] == round(2 / 60, 3))
    soon(lambda: call.queue(queue)["ages"]["oldest_queued_seconds"] > 0.3)
    shown = call.queue(queue)
    assert shown["rates"]["done_per_second"] == round(1 / 60, 3)
    assert shown["ages"]["oldest_running_seconds"] is None
    call.claim(queue)
    shown = call.queue(queue)
    assert shown["ages"]["oldest_running_seconds"] is not None
    assert shown["ages"]["oldest_queued_seconds"] is None


def test_counts_stay_right_when_tallies_are_folded(call: Caller, queue: str) -> None:
    dead_letters(call, queue, 3)
    call.sql("UPDATE queue_deltas SET at = at - interval '5 minutes' WHERE queue = $1", queue)
    left = "SELECT 1 FROM queue_deltas WHERE queue = $1 AND state = 'failed'"
    soon(lambda: not call.sql(left, queue), 10)
    assert call.queue(queue)["counts"]["failed"] == 3
    dead_letters(call, queue, 1)
    assert call.queue(queue)["counts"]["failed"] == 4


def test_metrics_tell_of_queues(call: Caller, queue: str) -> None:
    call.submit(queue)
    text = call.http.get("/metrics").text
    assert f'foreman_queue_jobs{{queue="{queue}",state="queued"}} 1.0' in text
    assert f'foreman_queue_oldest_queued_seconds{{queue="{queue}"}}' in text


def test_jobs_are_pruned_when_their_retention_is_over(call: Caller, queue: str) -> None:
    call.configure(queue, retention={"done": 3600, "cancelled": 3600})
    done = call.submit(queue)
    call.complete(call.claim(queue)[0])
    cancelled = call.submit(queue)
    call.http.post(f"/jobs/{cancelled}/cancel")
    [failed] = dead_letters(call, queue)
    assert call.state(done) == "done"
    call.configure(queue, retention={"done": 0.5, "cancelled": 3600})
    soon(lambda: call.http.get(f"/jobs/{done}").status_code == 404, 10)
    assert call.events(done) == []
    assert (call.state(cancelled), call.state(failed)) == ("cancelled", "failed")
    assert call.queue(queue)["counts"]["done"] == 0


def test_a_queue_that_nobody_configured_has_a_retention_too(call: Caller, queue: str) -> None:
    made = datetime.now(UTC) - timedelta(days=8)
    done, failed = str(ULID.from_datetime(made)), str(ULID.from_datetime(made))
    for job_id, state in ((done, "done"), (failed, "failed")):
        call.sql(
            "INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, completed_at, history) "
            "VALUES ($1, 'default', $2, 'work', 'work', $3, '{}', $4, '')",
            job_id,
            queue,
            state,
            made,
        )
    # As if the walk through all jobs were due just now.
    call.sql("UPDATE retention_walks SET after_id = '', due_at = now()")
    soon(lambda: call.http.get(f"/jobs/{done}").status_code == 404, 10)
    assert call.state(failed) == "failed"


def test_pruning_goes_through_many_batches(call: Caller, queue: str) -> None:
    call.configure(queue, retention={"done": 0.001})
    kept = dead_letters(call, queue, 600)
    for _ in range(2):
        call.http.post("/jobs/batch", json={"jobs": [{"kind": "noop", "queue": queue}] * 1000})
    soon(lambda: call.sql("SELECT count(*) FROM jobs WHERE queue = $1", queue)[0][0] == len(kept), 20)


def is_gone(call: Caller, job_id: str) -> bool:
    return call.http.get(f"/jobs/{job_id}").status_code == 404


def test_a_job_with_a_webhook_on_its_way_is_kept(call: Caller, queue: str) -> None:
    call.configure(queue, retention={"done": 0.001})
    job_id = call.submit(queue, state_webhook_url="http://nobody.invalid/hook")
    call.complete(call.claim(queue)[0])
    call.sql("UPDATE outbox SET next_try_at = now() + interval '1 day' WHERE job_id = $1", job_id)
    # Whoever ended later has been pruned, round after round.
    for _ in range(3):
        later = call.submit(queue)
        call.complete(call.claim(queue)[0])
        soon(partial(is_gone, call, later))
        assert call.state(job_id) == "done"


def test_an_attempt_that_takes_too_long_is_ended_though_its_worker_hangs(call: Caller, queue: str) -> None:
    job_id = call.submit(queue, max_duration_seconds=0.5, max_attempts=2)
    [job] = call.claim(queue, lease_seconds=300)
    [again] = call.claim(queue, wait=8)
    assert (again["job_id"], again["attempt"]) == (job_id, 2)
    assert call.job(job_id)["error"]["code"] == "attempt_timeout"
    assert call.settle(job).status_code == 409


def test_heartbeats_do_not_stretch_an_attempt(call: Caller, queue: str) -> None:
    job_id = call.submit(queue, max_duration_seconds=1, max_attempts=1)
    [job] = call.claim(queue, lease_seconds=300)
    soon(lambda: call.settle(job, "heartbeat").status_code == 409, 8)
    assert (call.state(job_id), call.job(job_id)["reason"]) == ("failed", "attempts_exhausted")


def test_a_deadline_ends_a_job_though_its_worker_hangs(call: Caller, queue: str) -> None:
    job_id = call.submit(queue, deadline_seconds=0.5)
    [job] = call.claim(queue, lease_seconds=300)
    soon(lambda: call.state(job_id) == "expired", 8)
    assert call.settle(job).status_code == 409


def test_a_child_is_capped_by_its_parents_deadline_and_cancelled_with_it(call: Caller, queue: str) -> None:
    parent = call.submit(queue, deadline_seconds=600)
    child = call.submit(queue, parent_id=parent, deadline_seconds=6000)
    assert call.job(child)["deadline"] == call.job(parent)["deadline"]
    call.configure(f"{queue}-keyed", key=["k"])
    keyed = call.submit(f"{queue}-keyed", parent_id=child)
    assert call.job(keyed)["deadline"] == call.job(parent)["deadline"]
    call.http.post(f"/jobs/{parent}/cancel")
    assert [call.state(each) for each in (parent, child, keyed)] == ["cancelled"] * 3


def test_counts_of_two_replicas_agree(make_server: MakeServer, queue: str) -> None:
    one, two = make_server(**QUICK), make_server(**QUICK)
    for server in (one, two):
        httpx.post(f"{server.url}/jobs/batch", json={"jobs": [{"kind": "noop", "queue": queue}] * 100})
    soon(lambda: httpx.get(f"{two.url}/queues/{queue}").json()["counts"]["done"] == 200)
    assert httpx.get(f"{one.url}/queues/{queue}").json()["counts"]["done"] == 200
