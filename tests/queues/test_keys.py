"""Keyed concurrency, over HTTP."""

from tests.queues.conftest import Caller, soon

KEY = ["zendesk", "/origin", "tickets"]


def test_a_job_carries_its_key_in_words(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY)
    job_id = call.submit(queue, {"origin": "acme"})
    assert call.job(job_id)["concurrency_key"] == "zendesk/acme/tickets"


def test_a_missing_pointer_is_422_with_the_pointer(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY)
    answer = call.post(queue, {})
    assert answer.status_code == 422
    assert answer.json()["pointer"] == "/origin"


def test_a_pointer_to_no_scalar_is_422_with_the_pointer(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY)
    values: tuple[object, ...] = ({}, [], None)
    for value in values:
        answer = call.post(queue, {"origin": value})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == "/origin"


def test_in_a_batch_the_refusal_names_the_entry(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY)
    entry = {"kind": "work", "queue": queue, "payload": {"origin": "acme"}}
    answer = call.http.post("/jobs/batch", json={"jobs": [entry, {**entry, "payload": {}}]})
    assert answer.status_code == 422
    assert answer.json()["index"] == 1
    assert call.queue(queue)["counts"]["queued"] == 0


def test_a_full_key_rejects_and_names_the_job_that_holds_it(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY)
    first = call.submit(queue, {"origin": "acme"})
    answer = call.post(queue, {"origin": "acme"})
    assert answer.status_code == 409
    assert answer.json()["code"] == "key_busy"
    assert answer.json()["existing_job_id"] == first
    call.submit(queue, {"origin": "other"})


def test_a_batch_with_one_job_too_many_of_a_key_leaves_nothing(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY)
    entry = {"kind": "work", "queue": queue, "payload": {"origin": "acme"}}
    answer = call.http.post("/jobs/batch", json={"jobs": [entry, entry]})
    assert answer.status_code == 409
    assert answer.json()["index"] == 1
    assert call.queue(queue)["counts"]["queued"] == 0
    call.submit(queue, {"origin": "acme"})


def test_coalesce_answers_200_with_the_existing_job_and_enqueues_nothing(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, when_full="coalesce")
    first = call.submit(queue, {"origin": "acme"})
    answer = call.post(queue, {"origin": "acme"})
    assert answer.status_code == 200
    assert answer.json() == {"job_id": first, "state": "queued", "outcome": "coalesced"}
    [job] = call.claim(queue)
    assert call.post(queue, {"origin": "acme"}).json() == {
        "job_id": first,
        "state": "loading",
        "outcome": "coalesced",
    }
    call.complete(job)
    assert call.post(queue, {"origin": "acme"}).json()["outcome"] == "accepted"
    assert call.queue(queue)["counts"]["queued"] == 1


def test_a_coalesced_answer_is_repeated_for_the_same_idempotency_key(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, when_full="coalesce")
    first = call.submit(queue, {"origin": "acme"})
    body = {"kind": "work", "queue": queue, "payload": {"origin": "acme"}}
    for replayed in (None, "true"):
        answer = call.http.post("/jobs", json=body, headers={"idempotency-key": f"twice-{queue}"})
        assert answer.status_code == 200
        assert answer.json() == {"job_id": first, "state": "queued", "outcome": "coalesced"}
        assert answer.headers.get("idempotency-replayed") == replayed


def test_a_refused_submission_does_not_use_up_its_idempotency_key(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY)
    call.submit(queue, {"origin": "acme"})
    body = {"kind": "work", "queue": queue, "payload": {"origin": "acme"}}
    headers = {"idempotency-key": f"again-{queue}"}
    assert call.http.post("/jobs", json=body, headers=headers).status_code == 409
    call.complete(call.claim(queue)[0])
    again = call.http.post("/jobs", json=body, headers=headers)
    assert again.status_code == 202
    assert call.http.post("/jobs", json=body, headers=headers).json() == again.json()


def test_replace_oldest_skips_the_oldest_queued_one(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_queued=1, when_full="replace-oldest")
    ids = [call.submit(queue, {"origin": "acme", "n": n}) for n in range(2)]
    answer = call.post(queue, {"origin": "acme", "n": 2})
    assert answer.status_code == 202
    assert answer.json()["outcome"] == "replaced"
    assert call.state(ids[0]) == "skipped"
    assert call.events(ids[0])[-1]["reason"] == "skip"
    assert call.events(ids[0])[-1]["data"] == {"replaced_by": answer.json()["job_id"]}
    assert call.claim(queue)[0]["job_id"] == ids[1]


def test_replace_oldest_never_touches_an_active_job(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, when_full="replace-oldest")
    first = call.submit(queue, {"origin": "acme"})
    call.claim(queue)
    answer = call.post(queue, {"origin": "acme"})
    assert answer.status_code == 409
    assert answer.json()["existing_job_id"] == first
    assert call.state(first) == "loading"


def test_no_more_than_max_active_of_a_key_are_given_out(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_active=2, max_queued=10)
    ids = [call.submit(queue, {"origin": "acme"}) for _ in range(5)]
    claimed = call.claim(queue, limit=10)
    assert [job["job_id"] for job in claimed] == ids[:2]
    assert call.claim(queue, limit=10) == []
    waiting = call.job(ids[2])
    assert (waiting["state"], waiting["reason"]) == ("queued", "key_busy")
    call.complete(claimed[0])
    assert [job["job_id"] for job in call.claim(queue, limit=10, wait=5)] == [ids[2]]


def test_the_next_of_a_key_is_the_one_with_the_best_priority(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_queued=10)
    call.submit(queue, {"origin": "acme"})
    low = call.submit(queue, {"origin": "acme"})
    high = call.submit(queue, {"origin": "acme"}, priority=5)
    [first] = call.claim(queue)
    call.complete(first)
    [second] = call.claim(queue, wait=5)
    assert second["job_id"] == high
    call.complete(second)
    assert call.claim(queue, wait=5)[0]["job_id"] == low


def test_whatever_ends_a_job_lets_the_next_one_in(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_queued=10)
    for leave in ("fail", "cancel", "cancel queued", "retry", "release late", "expire"):
        if leave == "expire":
            first = call.submit(queue, {"origin": leave}, deadline_seconds=0.3)
        else:
            first = call.submit(queue, {"origin": leave})
        second = call.submit(queue, {"origin": leave})
        if leave not in {"cancel queued", "expire"}:
            [job] = call.claim(queue)
            assert job["job_id"] == first
        if leave == "fail":
            call.fail(job)
        elif leave in {"cancel", "cancel queued"}:
            call.http.post(f"/jobs/{first}/cancel")
        elif leave == "retry":
            call.fail(job, retryable=True, retry_in_seconds=60)
        elif leave == "release late":
            call.settle(job, "release", delay_seconds=60)
        elif leave == "expire":
            soon(lambda: call.state(first) == "expired")  # noqa: B023 - called within this round
        claimed = call.claim(queue, wait=5)
        assert [each["job_id"] for each in claimed] == [second], leave
        call.complete(claimed[0])


def test_a_job_that_comes_back_from_its_backoff_waits_for_its_key(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_queued=10)
    first = call.submit(queue, {"origin": "acme"})
    second = call.submit(queue, {"origin": "acme"})
    [job] = call.claim(queue)
    call.fail(job, retryable=True, retry_in_seconds=0.1)
    [other] = call.claim(queue, wait=5)
    assert other["job_id"] == second
    soon(lambda: call.job(first)["reason"] == "key_busy")
    assert call.claim(queue) == []
    call.complete(other)
    assert call.claim(queue, wait=5)[0]["job_id"] == first


def test_a_revived_job_waits_for_its_key(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_queued=1)
    first = call.submit(queue, {"origin": "acme"})
    call.fail(call.claim(queue)[0])
    call.submit(queue, {"origin": "acme"})
    [holder] = call.claim(queue)
    assert call.http.post(f"/jobs/{first}/retry").status_code == 200
    assert call.claim(queue) == []
    call.complete(holder)
    assert call.claim(queue, wait=5)[0]["job_id"] == first


def test_a_job_scheduled_for_later_takes_no_place_until_then(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_queued=5)
    later = call.submit(queue, {"origin": "acme"}, delay_seconds=0.5)
    now = call.submit(queue, {"origin": "acme"})
    [job] = call.claim(queue)
    assert job["job_id"] == now
    soon(lambda: call.job(later)["reason"] == "key_busy")
    call.complete(job)
    assert call.claim(queue, wait=5)[0]["job_id"] == later


def test_a_job_whose_run_at_has_passed_gets_its_place_at_once(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY)
    job_id = call.submit(queue, {"origin": "acme"}, run_at="2020-01-01T00:00:00Z")
    assert call.claim(queue)[0]["job_id"] == job_id


def test_fail_stale_makes_the_lost_one_stale_and_lets_the_next_run(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_queued=1)
    first = call.submit(queue, {"origin": "acme"})
    second = call.submit(queue, {"origin": "acme"})
    [lost] = call.claim(queue, lease_seconds=0.2)
    [job] = call.claim(queue, wait=8)
    assert job["job_id"] == second
    assert call.state(first) == "stale"
    assert call.events(first)[-1]["reason"] == "supersede"
    late = call.settle(lost, "complete", result=None)
    assert (late.status_code, late.json()["code"]) == (409, "lease_lost")
    key = call.http.get(f"/queues/{queue}/keys/zendesk/acme/tickets").json()
    assert key["stale_takeovers"] == 1
    assert [each["job_id"] for each in key["active"]] == [second]


def test_block_keeps_the_key_until_the_worker_comes_back(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_queued=1, stale_policy="block")
    first = call.submit(queue, {"origin": "acme"})
    second = call.submit(queue, {"origin": "acme"})
    [job] = call.claim(queue, lease_seconds=0.2)
    # A lease that ran out after this one has been given up, and that job is given out again.
    elsewhere = call.submit(f"{queue}-elsewhere")
    call.claim(f"{queue}-elsewhere", lease_seconds=0.2)
    assert call.claim(f"{queue}-elsewhere", wait=8)[0]["job_id"] == elsewhere
    assert (call.state(first), call.job(second)["reason"]) == ("loading", "key_busy")
    assert call.settle(job, "heartbeat").status_code == 200
    call.complete(job)
    assert call.claim(queue, wait=5)[0]["job_id"] == second


def test_block_ends_when_an_operator_cancels(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_queued=1, stale_policy="block")
    first = call.submit(queue, {"origin": "acme"})
    second = call.submit(queue, {"origin": "acme"})
    call.claim(queue, lease_seconds=0.2)
    call.http.post(f"/jobs/{first}/cancel")
    assert call.claim(queue, wait=5)[0]["job_id"] == second
    assert call.state(first) == "cancelled"


def test_the_key_page_shows_who_holds_it_and_who_waits(call: Caller, queue: str) -> None:
    call.configure(queue, key=["a", "/url"], max_queued=2)
    first = call.submit(queue, {"url": "https://x/y"})
    second = call.submit(queue, {"url": "https://x/y"})
    call.claim(queue)
    for path in ("a/https://x/y", "a%2Fhttps%3A%2F%2Fx%2Fy"):
        key = call.http.get(f"/queues/{queue}/keys/{path}").json()
        assert key["key"] == "a/https://x/y"
        [active] = key["active"]
        assert active["job_id"] == first
        assert active["worker"] == "w"
        assert active["attempt"] == 1
        assert active["lease_expires_at"] > active["heartbeat_at"] >= active["started_at"]
        assert [each["job_id"] for each in key["queued"]] == [second]
        assert key["stale_takeovers"] == 0
    assert call.http.get("/queues/nobody-knows/keys/a").status_code == 404


def test_raising_max_active_lets_more_in_and_lowering_it_loses_nothing(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_active=3, max_queued=10)
    ids = [call.submit(queue, {"origin": "acme"}) for _ in range(6)]
    call.configure(queue, key=KEY, max_active=1, max_queued=10)
    soon(lambda: call.queue(queue)["ready"] == 1)
    seen: list[str] = []
    while len(seen) < 3:
        claimed = call.claim(queue, limit=10, wait=5)
        assert len(claimed) == 1
        seen.append(claimed[0]["job_id"])
        call.complete(claimed[0])
    call.configure(queue, key=KEY, max_active=5, max_queued=10)
    soon(lambda: call.queue(queue)["ready"] == 3)
    seen += [job["job_id"] for job in call.claim(queue, limit=10, wait=5)]
    assert sorted(seen) == sorted(ids)


def test_a_queue_that_has_no_key_any_more_lets_all_in(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_queued=50)
    for _ in range(20):
        call.submit(queue, {"origin": "acme"})
    call.configure(queue)
    soon(lambda: call.queue(queue)["ready"] == 20)
    assert call.queue(queue)["gated_by"] is None


def test_what_a_crash_left_behind_the_gate_is_let_in_by_the_repair(call: Caller, queue: str) -> None:
    call.configure(queue, key=KEY, max_queued=1)
    call.submit(queue, {"origin": "acme"})
    second = call.submit(queue, {"origin": "acme"})
    [job] = call.claim(queue)
    call.end_by_hand(job["job_id"])
    assert call.claim(queue, wait=5)[0]["job_id"] == second
