"""Foreman and AsyncForeman against a real server."""

import uuid
from datetime import UTC, datetime, timedelta

import pydantic
import pytest

import foreman_client as fc
from foreman_client import AsyncForeman, Foreman

HELLO = [{"role": "user", "content": "hello there"}]


def test_a_chat_comes_back_as_text(foreman: Foreman) -> None:
    handle = foreman.submit(model="echo", messages=HELLO)
    job = handle.wait(20)
    assert job.state == "done"
    assert job.text == "hello there"
    assert handle.result()["message"]["content"] == "hello there"
    assert job.seq >= 4
    assert job.created_at
    assert job.started_at
    assert job.completed_at
    assert job.created_at <= job.started_at <= job.completed_at


async def test_the_asynchronous_client_does_the_same(aforeman: AsyncForeman) -> None:
    handle = await aforeman.submit(model="echo", messages=HELLO)
    assert (await handle.wait(20)).text == "hello there"
    assert (await handle.status()).state == "done"
    page = await aforeman.list_jobs(state="done", limit=1)
    assert len(page.jobs) == 1


def test_failure_cancel_and_expiry_are_raised_by_name(foreman: Foreman) -> None:
    failing = foreman.submit(model="echo", messages=HELLO, options={"echo_fail": "permanent"})
    with pytest.raises(fc.JobFailed) as failed:
        failing.wait(20)
    assert failed.value.code == "echo_permanent"
    later = foreman.submit("someday", delay_seconds=timedelta(hours=1))
    assert later.cancel("changed my mind").state == "cancelled"
    with pytest.raises(fc.JobCancelled):
        later.wait(5)
    late = foreman.submit("someday", deadline_seconds=0.2)
    with pytest.raises(fc.JobExpired):
        late.result(20)


def test_a_wait_that_is_over_leaves_the_job_alone(foreman: Foreman) -> None:
    handle = foreman.submit("someday")
    with pytest.raises(fc.WaitTimeout):
        handle.wait(0.2)
    assert handle.status().state == "queued"
    handle.cancel()


def test_the_same_key_is_the_same_job_and_another_body_is_refused(foreman: Foreman) -> None:
    key = uuid.uuid4().hex
    first = foreman.submit("someday", {"n": 1}, idempotency_key=key)
    again = foreman.submit("someday", {"n": 1}, idempotency_key=key)
    assert again.job_id == first.job_id
    assert again.replayed
    assert not first.replayed
    with pytest.raises(fc.IdempotencyMismatch):
        foreman.submit("someday", {"n": 2}, idempotency_key=key)


def test_many_jobs_go_in_at_once_or_not_at_all(foreman: Foreman) -> None:
    kind = f"many-{uuid.uuid4().hex[:8]}"
    handles = foreman.submit_many([{"kind": kind, "payload": {"n": n}} for n in range(50)])
    assert [handle.status().payload["n"] for handle in handles[:3]] == [0, 1, 2]
    with pytest.raises(fc.InvalidRequest) as refused:
        foreman.submit_many([{"kind": kind}, {"kind": "not a kind"}])
    assert refused.value.problem["index"] == 1
    assert len(foreman.list_jobs(kind=kind, limit=200).jobs) == 50


def test_jobs_are_listed_by_filter_page_by_page(foreman: Foreman) -> None:
    kind = f"paged-{uuid.uuid4().hex[:8]}"
    began = datetime.now(UTC) - timedelta(seconds=5)
    # Two submits in the same millisecond have ids in either order.
    ids = [foreman.submit(kind, metadata={"n": str(n)}).job_id for n in range(5)]
    page = foreman.list_jobs(kind=kind, limit=3, since=began)
    rest = foreman.list_jobs(kind=kind, limit=3, cursor=page.next_cursor)
    assert [job.job_id for job in page.jobs + rest.jobs] == sorted(ids, reverse=True)
    assert rest.next_cursor is None
    assert [job.job_id for job in foreman.list_jobs(kind=kind, metadata={"n": "2"}).jobs] == [ids[2]]
    assert foreman.list_jobs(kind=kind, state=["done", "failed"]).jobs == []


def test_a_failed_job_is_revived_under_its_id_and_a_finished_one_deleted(foreman: Foreman) -> None:
    handle = foreman.submit(model="echo", messages=HELLO, options={"echo_fail": "permanent"})
    with pytest.raises(fc.JobFailed):
        handle.wait(20)
    assert handle.retry().state == "queued"
    with pytest.raises(fc.JobFailed):
        handle.wait(20)
    handle.delete()
    with pytest.raises(fc.JobNotFound):
        handle.status()
    with pytest.raises(fc.JobNotFound):
        foreman.job("01J00000000000000000000000").wait(1)


def test_a_wrong_request_names_the_field(foreman: Foreman) -> None:
    with pytest.raises(fc.InvalidRequest, match="priority"):
        foreman.submit("someday", priority=1000)


def test_any_route_can_be_called(foreman: Foreman) -> None:
    assert foreman.call("GET", "/version")["name"] == "foreman"


class Answer(pydantic.BaseModel):
    model: str
    done: bool


def test_a_result_comes_as_the_model_that_is_asked_for(foreman: Foreman) -> None:
    handle = foreman.submit(model="echo", messages=HELLO)
    assert handle.result(20, as_type=Answer) == Answer(model="echo", done=True)
    with pytest.raises(TypeError):
        handle.result(20, as_type=str)


def test_several_threads_share_one_client(foreman: Foreman) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        texts = list(
            pool.map(lambda _: foreman.submit(model="echo", messages=HELLO).wait(20).text, range(24))
        )
    assert texts == ["hello there"] * 24


def test_big_numbers_and_key_order_come_back_as_they_went(foreman: Foreman) -> None:
    payload = {"z": 2**70, "a": [1.5, None, "\u0000 \U0001f600"], "m": {"y": 1, "b": 2}}
    stored = foreman.submit("someday", payload).status().payload
    assert stored == payload
    assert list(stored) == ["z", "a", "m"]


async def test_the_blocking_client_may_be_used_where_a_loop_is_running(foreman: Foreman) -> None:
    assert foreman.submit(model="echo", messages=HELLO).wait(20).text == "hello there"


def test_a_job_explains_itself(foreman: Foreman) -> None:
    handle = foreman.submit("someday", delay_seconds=timedelta(hours=1))
    found = handle.explain()
    assert (found.state, [reason.code for reason in found.because]) == ("queued", ["scheduled"])
    assert found.headline.startswith("Waiting: it is not to run before ")
    assert found.next_at == found.because[0].until == handle.status().run_at
    assert found.because[0].raw["message"] == found.because[0].message
    handle.cancel("changed my mind")
    assert foreman.explain(handle.job_id).headline == "Cancelled while it waited: changed my mind"
    with pytest.raises(fc.JobNotFound):
        foreman.explain("01J00000000000000000000000")
