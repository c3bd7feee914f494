"""max_running, rate, max_depth: over the whole fleet, and said when they hold a queue back."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.conftest import MakeServer, Server
from tests.queues.conftest import QUICK, Caller, soon


def noops(call: Caller, queue: str, number: int, **fields: object) -> list[str]:
    jobs = [{"kind": "noop", "queue": queue, **fields}] * number
    answer = call.http.post("/jobs/batch", json={"jobs": jobs})
    assert answer.status_code == 202, answer.text
    return [each["job_id"] for each in answer.json()["jobs"]]


def test_no_more_than_max_running_are_given_out(call: Caller, queue: str) -> None:
    call.configure(queue, max_running=3)
    ids = [call.submit(queue) for _ in range(5)]
    claimed = call.claim(queue, limit=10)
    assert [job["job_id"] for job in claimed] == ids[:3]
    assert call.claim(queue, limit=10) == []
    shown = call.queue(queue)
    assert (shown["gated_by"], shown["ready"]) == ("max_running", 2)
    call.complete(claimed[0])
    call.complete(claimed[1])
    assert [job["job_id"] for job in call.claim(queue, limit=10, wait=5)] == ids[3:]


def test_a_freed_place_is_given_to_who_waits_at_once(call: Caller, queue: str) -> None:
    call.configure(queue, max_running=1)
    call.submit(queue)
    call.submit(queue)
    [first] = call.claim(queue)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call.claim, queue, 1, 60)
        soon(waiting.running)
        call.complete(first)
        # An empty answer is what it would get when its wait is over.
        assert len(waiting.result()) == 1


def test_max_running_holds_over_two_replicas(make_server: MakeServer, queue: str) -> None:
    servers: list[Server] = [make_server(**QUICK)]
    with httpx.Client(timeout=30) as http:
        http.put(f"{servers[0].url}/queues/{queue}", json={"max_running": 2})
        # Started later, so that it knows; a change takes a moment to reach a replica that runs.
        servers.append(make_server(**QUICK))
        body = {
            "model": "echo",
            "queue": queue,
            "messages": [{"role": "user", "content": "a b c"}],
            "options": {"echo_delay_ms": 30},
        }
        answer = http.post(f"{servers[1].url}/jobs/batch", json={"jobs": [body] * 30})
        ids = [each["job_id"] for each in answer.json()["jobs"]]
        most = 0

        def all_done() -> bool:
            nonlocal most
            counts = http.get(f"{servers[0].url}/queues/{queue}").json()["counts"]
            most = max(most, counts["loading"] + counts["working"])
            return bool(counts["done"] == len(ids))

        soon(all_done, seconds=20)
        assert 1 <= most <= 2


def test_a_rate_is_held_and_said(call: Caller, queue: str) -> None:
    call.configure(queue, rate={"limit": 1, "per_seconds": 3600})
    noops(call, queue, 60)
    soon(lambda: call.queue(queue)["gated_by"] == "rate")
    began = time.monotonic()
    call.configure(queue, rate={"limit": 20, "per_seconds": 1})
    soon(lambda: call.queue(queue)["counts"]["done"] == 60, 10)
    # 59 jobs at 20 a second, of which a burst of 4 may come at once.
    assert time.monotonic() - began >= 2.2


def test_a_slow_rate_is_paced_and_raising_it_counts_at_once(call: Caller, queue: str) -> None:
    call.configure(queue, rate={"limit": 1, "per_seconds": 3600})
    noops(call, queue, 3)
    soon(lambda: call.queue(queue)["counts"]["done"] == 1)
    assert call.queue(queue)["gated_by"] == "rate"
    call.configure(queue, rate={"limit": 1000, "per_seconds": 1})
    soon(lambda: call.queue(queue)["counts"]["done"] == 3, 3)


def test_burst_is_what_may_come_at_once(call: Caller, queue: str) -> None:
    call.configure(queue, rate={"limit": 10, "per_seconds": 3600, "burst": 10})
    noops(call, queue, 15)
    soon(lambda: call.queue(queue)["counts"]["done"] == 10)
    assert call.queue(queue)["counts"]["queued"] == 5


def test_rate_and_max_running_together(call: Caller, queue: str) -> None:
    call.configure(queue, max_running=2, rate={"limit": 3, "per_seconds": 3600, "burst": 3})
    for _ in range(5):
        call.submit(queue)
    first = call.claim(queue, limit=10)
    assert len(first) == 2
    assert call.queue(queue)["gated_by"] == "max_running"
    for job in first:
        call.complete(job)
    [last] = call.claim(queue, limit=10, wait=5)
    call.complete(last)
    assert call.claim(queue, limit=10, wait=0.5) == []
    assert call.queue(queue)["gated_by"] == "rate"


def test_a_full_queue_is_429_with_retry_after_and_takes_jobs_again_when_there_is_room(
    call: Caller, queue: str
) -> None:
    call.configure(queue, max_depth=2)
    call.submit(queue)
    call.submit(queue, delay_seconds=3600)
    full = call.post(queue)
    assert (full.status_code, full.json()["code"]) == (429, "queue_full")
    assert int(full.headers["retry-after"]) >= 1
    call.claim(queue)
    call.submit(queue)


def test_a_batch_that_does_not_fit_leaves_nothing(call: Caller, queue: str) -> None:
    call.configure(queue, max_depth=5)
    entry = {"kind": "work", "queue": queue}
    answer = call.http.post("/jobs/batch", json={"jobs": [entry] * 6})
    assert (answer.status_code, answer.json()["index"]) == (429, 5)
    assert call.queue(queue)["counts"]["queued"] == 0
    assert call.http.post("/jobs/batch", json={"jobs": [entry] * 5}).status_code == 202


def test_max_depth_is_exact_under_concurrent_submits(call: Caller, queue: str) -> None:
    call.configure(queue, max_depth=25)
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda _: call.post(queue).status_code, range(80)))
    assert sorted(set(statuses)) == [202, 429]
    assert statuses.count(202) == 25


def test_lowering_max_depth_loses_no_job(call: Caller, queue: str) -> None:
    ids = [call.submit(queue) for _ in range(5)]
    call.configure(queue, max_depth=2)
    assert call.post(queue).status_code == 429
    assert [job["job_id"] for job in call.claim(queue, limit=10)] == ids


def test_a_gated_queue_does_not_hold_up_another(call: Caller, queue: str) -> None:
    call.configure(queue, rate={"limit": 1, "per_seconds": 3600})
    noops(call, queue, 50)
    soon(lambda: call.queue(queue)["counts"]["done"] == 1)
    other = f"{queue}-free"
    noops(call, other, 200)
    soon(lambda: call.queue(other)["counts"]["done"] == 200)
