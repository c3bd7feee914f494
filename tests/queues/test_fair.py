"""fair_by: values take turns, whoever has more jobs."""

from typing import Any

from tests.queues.conftest import Caller, soon


def submit_many(call: Caller, queue: str, number: int, *, who: str | None, **fields: object) -> list[str]:
    metadata = {"metadata": {"customer": who}} if who is not None else {}
    ids: list[str] = []
    while len(ids) < number:
        jobs = [{"kind": "work", "queue": queue, **metadata, **fields}] * min(1000, number - len(ids))
        answer = call.http.post("/jobs/batch", json={"jobs": jobs}, timeout=30)
        assert answer.status_code == 202, answer.text
        ids += [each["job_id"] for each in answer.json()["jobs"]]
    return ids


def customers(claimed: list[dict[str, Any]]) -> list[str | None]:
    return [job["metadata"].get("customer") for job in claimed]


def test_each_value_gets_its_turn(call: Caller, queue: str) -> None:
    call.configure(queue, fair_by="customer")
    submit_many(call, queue, 20, who="big")
    submit_many(call, queue, 3, who="small")
    submit_many(call, queue, 3, who="tiny")
    assert (
        sorted(map(str, customers(call.claim(queue, limit=9)))) == ["big"] * 3 + ["small"] * 3 + ["tiny"] * 3
    )
    assert customers(call.claim(queue, limit=30)) == ["big"] * 17


def test_one_at_a_time_they_take_turns_too(call: Caller, queue: str) -> None:
    call.configure(queue, fair_by="customer")
    for who in ("a", "b", "c"):
        submit_many(call, queue, 4, who=who)
    order = [customers(call.claim(queue))[0] for _ in range(12)]
    for start in range(0, 12, 3):
        assert sorted(str(each) for each in order[start : start + 3]) == ["a", "b", "c"]


def test_within_a_value_the_oldest_goes_first(call: Caller, queue: str) -> None:
    call.configure(queue, fair_by="customer")
    ids = submit_many(call, queue, 6, who="a")
    assert [job["job_id"] for job in call.claim(queue, limit=6)] == ids


def test_priority_comes_before_fairness(call: Caller, queue: str) -> None:
    call.configure(queue, fair_by="customer")
    submit_many(call, queue, 5, who="a")
    submit_many(call, queue, 5, who="b", priority=10)
    assert customers(call.claim(queue, limit=6)) == ["b"] * 5 + ["a"]


def test_jobs_without_the_metadata_share_one_turn(call: Caller, queue: str) -> None:
    call.configure(queue, fair_by="customer")
    submit_many(call, queue, 10, who=None)
    submit_many(call, queue, 2, who="a")
    assert customers(call.claim(queue, limit=4)).count("a") == 2


def test_more_values_than_are_claimed_at_once_all_get_their_turn(call: Caller, queue: str) -> None:
    call.configure(queue, fair_by="customer")
    for n in range(12):
        submit_many(call, queue, 2, who=f"c{n:02}")
    seen = [who for _ in range(3) for who in customers(call.claim(queue, limit=4))]
    assert len(set(seen)) == 12


def test_a_queue_that_becomes_fair_is_fair_to_what_it_has(call: Caller, queue: str) -> None:
    submit_many(call, queue, 30, who="big")
    submit_many(call, queue, 3, who="small")
    call.configure(queue, fair_by="customer")
    soon(
        lambda: (
            call.sql("SELECT count(*) FROM jobs WHERE queue = $1 AND fair_value IS NULL", queue)[0][0] == 0
        )
    )
    assert customers(call.claim(queue, limit=6)).count("small") == 3


def test_fairness_and_limits_together(call: Caller, queue: str) -> None:
    call.configure(queue, fair_by="customer", max_running=4)
    submit_many(call, queue, 20, who="big")
    submit_many(call, queue, 2, who="small")
    claimed = call.claim(queue, limit=20)
    assert sorted(str(each) for each in customers(claimed)) == ["big", "big", "small", "small"]


def test_a_value_of_any_length_is_a_value(call: Caller, queue: str) -> None:
    call.configure(queue, fair_by="customer")
    submit_many(call, queue, 3, who="x" * 2000)
    submit_many(call, queue, 3, who="x" * 1999 + "y")
    assert len(set(customers(call.claim(queue, limit=2)))) == 2


DONE_BY_THEN = """
SELECT count(*) FROM jobs WHERE queue = $1 AND state = 'done'
  AND completed_at <= (SELECT max(completed_at) FROM jobs WHERE id = ANY ($2::text[]))
"""


def test_nine_small_callers_are_done_long_before_a_big_one(call: Caller, queue: str) -> None:
    call.http.post(f"/queues/{queue}/pause")
    call.configure(queue, fair_by="customer")
    submit_many(call, queue, 10_000, who="big", kind="noop")
    small = [submit_many(call, queue, 10, who=f"small-{n}", kind="noop") for n in range(9)]
    call.http.post(f"/queues/{queue}/resume")
    ids = [job_id for each in small for job_id in each]
    soon(
        lambda: (
            call.sql("SELECT count(*) FROM jobs WHERE id = ANY ($1::text[]) AND state = 'done'", ids)[0][0]
            == 90
        ),
        10,
    )
    big = call.sql(DONE_BY_THEN, queue, ids)[0][0] - 90
    # On any machine the big one has its turns, and no more.
    assert big < 5_000
    call.http.post("/bulk-operations", json={"action": "cancel", "filter": {"queue": queue}})
