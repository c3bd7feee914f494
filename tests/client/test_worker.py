"""Worker against a real server: outcomes, context, cancel, leases."""

import asyncio
import gc
import threading
import uuid
from datetime import timedelta
from typing import Any

import asyncpg
import pydantic
import pytest

import foreman_client as fc
from foreman_client import ActiveJob, AsyncForeman, BlockingActiveJob, Foreman, Worker
from foreman_client.worker import shift
from tests.client.conftest import working
from tests.conftest import Server
from tests.patience import for_ever, pace_of_thread, pretend_to_work, until


@pytest.fixture
def kind() -> str:
    """A kind of this test's own, so that no other worker takes its jobs."""
    return f"kind-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def worker(shared_server: Server) -> Worker:
    return Worker(shared_server.url, lease_seconds=10)


async def test_a_handler_gets_the_payload_and_its_return_is_the_result(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    @worker.task(kind)
    async def double(payload: Any, job: ActiveJob) -> Any:
        assert job.attempt == 1
        assert job.metadata == {"team": "a"}
        return {"doubled": payload["n"] * 2}

    async with working(worker):
        handle = await aforeman.submit(kind, {"n": 2**60}, metadata={"team": "a"})
        job = await handle.wait(20)
    assert job.result == {"doubled": 2**61}
    assert job.worker == worker.name


async def test_what_is_in_retry_on_is_tried_again_until_it_succeeds(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    @worker.task(kind, retry_on=(OSError,))
    async def flaky(payload: Any, job: ActiveJob) -> Any:
        if job.attempt < 3:
            raise ConnectionResetError("not yet")
        return job.attempt

    async with working(worker):
        handle = await aforeman.submit(kind, backoff_seconds=0.01)
        job = await handle.wait(20)
    assert job.result == 3
    assert job.attempt == 3


async def test_anything_else_fails_at_once_with_its_name_and_message_but_no_traceback(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    @worker.task(kind, retry_on=(OSError,))
    async def broken(payload: Any, job: ActiveJob) -> None:
        raise LookupError("the drawer is empty")

    async with working(worker):
        handle = await aforeman.submit(kind)
        with pytest.raises(fc.JobFailed, match="the drawer is empty") as failed:
            await handle.wait(20)
    error = failed.value.job.error
    assert error
    assert (error.code, error.message, error.retryable) == ("LookupError", "the drawer is empty", False)
    assert failed.value.job.attempt == 1


async def test_retries_end_when_the_attempts_are_used_up(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    @worker.task(kind, retry_on=OSError)
    async def always(payload: Any) -> None:
        raise OSError("again")

    async with working(worker):
        handle = await aforeman.submit(kind, max_attempts=2, backoff_seconds=0.01)
        with pytest.raises(fc.JobFailed) as failed:
            await handle.wait(20)
    assert failed.value.job.attempt == 2


async def test_a_handler_can_say_retry_defer_or_fail_itself(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    @worker.task(kind)
    async def deciding(payload: Any, job: ActiveJob) -> None:
        if job.data["deferrals"] == 0:
            raise fc.Defer(0.01)
        if job.attempt == 1:
            raise fc.Retry("once more", in_seconds=0.01)
        raise fc.Fail("no_paper", "the tray is empty")

    async with working(worker):
        handle = await aforeman.submit(kind)
        with pytest.raises(fc.JobFailed) as failed:
            await handle.wait(20)
    job = failed.value.job
    assert job.error == fc.JobError("no_paper", "the tray is empty", retryable=False)
    assert (job.deferrals, job.attempt) == (1, 2)


async def test_a_plain_function_runs_in_a_thread_and_reports_like_the_others(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    seen: dict[str, Any] = {}

    @worker.task(kind)
    def blocking(payload: Any, job: BlockingActiveJob) -> Any:
        seen["thread"] = threading.current_thread()
        job.progress(1, 2, message="half way")
        job.log("thinking", level="warn")
        seen["child"] = job.foreman.submit("someday").job_id
        return payload

    async with working(worker):
        handle = await aforeman.submit(kind, {"a": 1})
        job = await handle.wait(20)
    assert job.result == {"a": 1}
    assert seen["thread"] is not threading.main_thread()
    assert job.progress is not None
    assert (job.progress.current, job.progress.total, job.progress.message) == (1, 2, "half way")
    assert (await aforeman.get(seen["child"])).parent_id == job.job_id


async def test_progress_is_there_once_it_was_awaited(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    go_on = asyncio.Event()

    @worker.task(kind)
    async def reporting(payload: Any, job: ActiveJob) -> None:
        assert await job.progress(3, 4, step="print", message="page 3")
        assert await job.log("printed")
        go_on.set()
        await for_ever()

    async with working(worker):
        handle = await aforeman.submit(kind)
        async with asyncio.timeout(20):
            await go_on.wait()
        job = await handle.status()
        assert job.state == "working"
        assert job.progress == fc.Progress("print", "page 3", 3, 4, 0.75)
        await handle.cancel()


async def test_cancelling_a_job_cancels_its_handler(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    began, reasons = asyncio.Event(), []

    @worker.task(kind)
    async def endless(payload: Any, job: ActiveJob) -> None:
        began.set()
        try:
            await for_ever()
        except asyncio.CancelledError:
            reasons.append((job.cancelled, job.stop_reason))
            raise

    async with working(worker):
        handle = await aforeman.submit(kind)
        async with asyncio.timeout(20):
            await began.wait()
        await handle.cancel("enough")
        with pytest.raises(fc.JobCancelled):
            await handle.wait(9)
    assert reasons == [(True, "cancelled")]


async def test_a_blocking_handler_is_interrupted_where_it_reports(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    began, ended = threading.Event(), threading.Event()

    @worker.task(kind)
    def endless(payload: Any, job: BlockingActiveJob) -> None:
        began.set()
        try:
            while True:
                job.progress(message="still here")
                pace_of_thread(0.02)
        except fc.JobInterrupted:
            ended.set()
            raise

    async with working(worker):
        handle = await aforeman.submit(kind)
        assert await asyncio.to_thread(began.wait, 20)
        await handle.cancel()
        with pytest.raises(fc.JobCancelled):
            await handle.wait(9)
        assert ended.is_set()


async def give_up_on_the_lease(server: Server, handle: fc.AsyncJobHandle) -> None:
    """As if the lease had run out: the sweeper gives the job out again. The worker has said before that it began."""

    async def it_works() -> bool:
        return (await handle.status()).state == "working"

    await until(it_works)
    connection = await asyncpg.connect(server.database_url)
    await connection.execute(
        "UPDATE jobs SET lease_expires_at = now() - interval '1 minute', lease_token = 'x' WHERE id = $1",
        handle.job_id,
    )
    await connection.close()


@pytest.mark.parametrize("learns_by", ["heartbeat", "claim"])
async def test_a_lost_lease_cancels_the_handler_and_its_result_does_not_count(
    shared_server: Server, aforeman: AsyncForeman, kind: str, learns_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one slot the worker can only learn of it by a heartbeat; without heartbeats, by getting the job again."""
    if learns_by == "claim":
        monkeypatch.setattr(shift, "HEARTBEAT_SECONDS", 600.0)
        worker = Worker(shared_server.url, lease_seconds=3600, concurrency=2)
    else:
        worker = Worker(shared_server.url, lease_seconds=1.5, concurrency=1)
    runs: list[str | None] = []
    first_began = asyncio.Event()

    @worker.task(kind)
    async def stubborn(payload: Any, job: ActiveJob) -> Any:
        if job.attempt > 1:
            return "second"
        first_began.set()
        try:
            await for_ever()
        except asyncio.CancelledError:
            runs.append(job.stop_reason)
            return "first"

    async with working(worker):
        handle = await aforeman.submit(kind)
        async with asyncio.timeout(20):
            await first_began.wait()
        await give_up_on_the_lease(shared_server, handle)
        job = await handle.wait(20)
    assert job.result == "second"
    assert runs == ["lease_lost"]


async def test_a_former_run_that_ends_late_does_not_take_the_lease_of_the_next(
    shared_server: Server, aforeman: AsyncForeman, kind: str
) -> None:
    """The next run of the same job in the same worker still gets its heartbeats."""
    worker = Worker(shared_server.url, lease_seconds=1.5, concurrency=2)
    first_began, second_began = threading.Event(), asyncio.Event()
    first_may_end, second_may_end = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @worker.task(kind)
    def stubborn(payload: Any, job: BlockingActiveJob) -> Any:
        if job.attempt > 1:
            loop.call_soon_threadsafe(second_began.set)
            asyncio.run_coroutine_threadsafe(second_may_end.wait(), loop).result()
            return job.attempt
        first_began.set()
        return first_may_end.wait(60)

    async with working(worker):
        handle = await aforeman.submit(kind)
        assert await asyncio.to_thread(first_began.wait, 20)
        await give_up_on_the_lease(shared_server, handle)
        async with asyncio.timeout(20):
            await second_began.wait()
        first_may_end.set()
        leases: set[Any] = set()

        async def renewed_often() -> bool:
            leases.add((await handle.status()).lease_expires_at)
            return len(leases) >= 4

        await until(renewed_often)
        second_may_end.set()
        job = await handle.wait(20)
    assert job.result == 2


async def test_a_long_job_keeps_its_lease(shared_server: Server, aforeman: AsyncForeman, kind: str) -> None:
    worker = Worker(shared_server.url, lease_seconds=0.6)
    began, may_end = asyncio.Event(), asyncio.Event()

    @worker.task(kind)
    async def long(payload: Any, job: ActiveJob) -> Any:
        began.set()
        await may_end.wait()
        return job.attempt

    async with working(worker):
        handle = await aforeman.submit(kind)
        await asyncio.wait_for(began.wait(), 20)
        first = (await handle.status()).lease_expires_at
        assert first is not None

        async def kept_for_three_leases() -> bool:
            lease = (await handle.status()).lease_expires_at
            return lease is not None and lease - first > timedelta(seconds=3 * 0.6)

        await until(kept_for_three_leases)
        may_end.set()
        assert await handle.result(20) == 1


async def test_what_takes_longer_than_max_duration_is_tried_again(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    @worker.task(kind, max_duration=0.1)
    async def slow(payload: Any, job: ActiveJob) -> Any:
        if job.attempt == 1:
            await for_ever()
        return job.attempt

    async with working(worker):
        handle = await aforeman.submit(kind, backoff_seconds=0.01)
        assert await handle.result(20) == 2


def submit_blocking(url: str | None) -> str:
    with Foreman(url) as blocking:
        return blocking.submit("someday").job_id


async def test_nested_jobs_have_parent_trace_and_deadline_of_the_running_one(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    @worker.task(kind)
    async def parent(payload: Any, job: ActiveJob) -> Any:
        # Any client, not only the worker's own.
        async with AsyncForeman(worker.terms.url) as another:
            child = await another.submit("someday")
            orphan = await another.submit("someday", parent_id=None)
            batch = await another.submit_many([{"kind": "someday"}])
        in_thread = await asyncio.to_thread(submit_blocking, worker.terms.url)
        return [child.job_id, batch[0].job_id, in_thread, orphan.job_id]

    async with working(worker):
        handle = await aforeman.submit(kind, deadline_seconds=300)
        job = await handle.wait(20)
    *children, orphan = [await aforeman.get(job_id) for job_id in job.result]
    trace_id = job.trace["traceparent"].split("-")[1]
    for child in children:
        assert child.parent_id == job.job_id
        assert child.deadline == job.deadline
        assert child.trace["traceparent"].split("-")[1] == trace_id
    assert orphan.parent_id is None
    # And nothing of it is left behind.
    assert (await (await aforeman.submit("someday")).status()).parent_id is None


class Order(pydantic.BaseModel):
    amount: int


class Receipt(pydantic.BaseModel):
    total: int


async def test_models_in_the_signature_are_what_the_handler_gets_and_gives(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    @worker.task(kind)
    async def bill(order: Order) -> Receipt:
        return Receipt(total=order.amount * 2)

    async with working(worker):
        handle = await aforeman.submit(kind, Order(amount=21))
        assert await handle.result(20, as_type=Receipt) == Receipt(total=42)
        wrong = await aforeman.submit(kind, {"amount": "many"})
        with pytest.raises(fc.JobFailed) as failed:
            await wrong.wait(20)
    assert failed.value.code == "ValidationError"


@pytest.mark.parametrize("result", [float("nan"), {1, 2}, object(), "\ud800"])
async def test_a_result_that_is_no_json_is_the_handlers_failure(
    worker: Worker, aforeman: AsyncForeman, kind: str, result: object
) -> None:
    @worker.task(kind)
    async def odd(payload: Any) -> Any:
        return result

    async with working(worker):
        handle = await aforeman.submit(kind)
        with pytest.raises(fc.JobFailed):
            await handle.wait(20)


async def test_thousands_of_jobs_run_once_each_over_two_workers(
    shared_server: Server, aforeman: AsyncForeman, kind: str
) -> None:
    seen: list[int] = []
    workers = [Worker(shared_server.url, concurrency=200, name=f"{kind}-{n}") for n in range(2)]
    for worker in workers:

        @worker.task(kind)
        async def count(payload: Any) -> None:
            seen.append(payload["n"])

    entries = [{"kind": kind, "payload": {"n": n}} for n in range(3000)]
    for at in range(0, 3000, 1000):
        await aforeman.submit_many(entries[at : at + 1000])

    async def all_have_ended() -> bool:
        unfinished = ["queued", "loading", "working"]
        return not (await aforeman.list_jobs(kind=kind, state=unfinished, limit=1)).jobs

    async with working(workers[0]), working(workers[1]):
        await until(all_have_ended, 60)
    assert sorted(seen) == list(range(3000))


async def test_stopping_lets_short_jobs_finish_and_gives_long_ones_back(
    shared_server: Server, aforeman: AsyncForeman, kind: str
) -> None:
    both = asyncio.Barrier(3)
    worker = Worker(shared_server.url, drain_seconds=2)

    @worker.task(kind)
    async def sleeping(payload: Any) -> None:
        await both.wait()
        await pretend_to_work(payload["seconds"])

    short = await aforeman.submit(kind, {"seconds": 0.3})
    long = await aforeman.submit(kind, {"seconds": 600})
    async with working(worker), asyncio.timeout(20):
        await both.wait()
    assert (await short.status()).state == "done"
    given_back = await long.status()
    assert (given_back.state, given_back.attempt) == ("queued", 0)


async def test_a_second_stop_does_not_wait_for_handlers(
    shared_server: Server, aforeman: AsyncForeman, kind: str
) -> None:
    began = asyncio.Event()
    worker = Worker(shared_server.url, drain_seconds=600)

    @worker.task(kind)
    async def sleeping() -> None:
        began.set()
        await for_ever()

    handle = await aforeman.submit(kind)
    task = asyncio.create_task(worker.serve())
    async with asyncio.timeout(20):
        await began.wait()
        worker.stop()
        worker.stop()
        await task
    assert (await handle.status()).state == "queued"


async def test_a_worker_that_is_refused_says_so_instead_of_trying_for_ever(shared_server: Server) -> None:
    worker = Worker(shared_server.url, queues=["no such name!"])
    worker.task("x")(lambda: None)
    with pytest.raises(fc.InvalidRequest):
        async with asyncio.timeout(20):
            await worker.serve()


async def test_pythons_garbage_collector_is_as_before_once_the_worker_has_ended(
    worker: Worker, aforeman: AsyncForeman, kind: str
) -> None:
    before = gc.get_threshold()
    seen: list[tuple[int, int, int]] = []

    @worker.task(kind)
    async def look(_payload: Any) -> None:
        seen.append(gc.get_threshold())

    for set_by_somebody in (None, 1234):
        if set_by_somebody is not None:
            gc.set_threshold(set_by_somebody)
        try:
            async with working(worker):
                await (await aforeman.submit(kind)).wait(20)
            assert gc.get_threshold()[0] == (set_by_somebody or before[0])
        finally:
            gc.set_threshold(*before)
    assert seen[0][0] > before[0]
    assert seen[1][0] == 1234
