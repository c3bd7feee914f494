"""Events and text as they happen, against a real server."""

import asyncio
import uuid
from decimal import Decimal
from typing import Any

import httpx
import pytest

import foreman_client as fc
from foreman_client import ActiveJob, AsyncForeman, Foreman, Worker
from tests.client.conftest import working
from tests.conftest import MakeServer, Server

WORDS = "one two three four five six seven eight nine ten"


def slow_chat(foreman: Foreman) -> fc.JobHandle:
    return foreman.submit(
        model="echo", messages=[{"role": "user", "content": WORDS}], options={"echo_delay_ms": 60}
    )


@pytest.fixture
def kind() -> str:
    return f"kind-{uuid.uuid4().hex[:10]}"


def test_text_comes_in_pieces_and_is_whole_in_the_end(foreman: Foreman) -> None:
    pieces = list(slow_chat(foreman).stream())
    assert "".join(pieces) == WORDS
    assert len(pieces) > 1


def test_a_stream_of_a_finished_job_is_there_too(foreman: Foreman) -> None:
    handle = foreman.submit(model="echo", messages=[{"role": "user", "content": "quick"}])
    handle.wait(20)
    assert "".join(handle.stream()) == "quick"


def test_a_stream_ends_with_the_jobs_error(foreman: Foreman) -> None:
    handle = foreman.submit(
        model="echo", messages=[{"role": "user", "content": "x"}], options={"echo_fail": "permanent"}
    )
    with pytest.raises(fc.JobFailed):
        list(handle.stream())


def test_events_are_gapless_and_end_with_the_end(foreman: Foreman) -> None:
    handle = slow_chat(foreman)
    live = list(handle.events())
    assert [event.seq for event in live] == list(range(1, len(live) + 1))
    states = [event.type for event in live if event.type == event.state]
    assert states == ["queued", "loading", "working", "done"]
    assert list(handle.events(follow=False)) == live
    assert [event.type for event in handle.events(types=["queued", "done"])] == ["queued", "done"]
    assert [event.type for event in handle.events(types=["output"], follow=True)][:1] == ["output"]
    assert [event.seq for event in handle.events(after=2)] == [event.seq for event in live[2:]]


async def test_a_dropped_stream_is_picked_up_where_it_broke_off(make_server: MakeServer) -> None:
    server = await asyncio.to_thread(make_server)
    seen: list[fc.Event] = []
    async with AsyncForeman(server.url, retry_seconds=60) as foreman, asyncio.timeout(90):
        handle = await foreman.submit("someday")
        events = handle.events()
        seen.append(await anext(events))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await handle.cancel()
        async for event in events:
            seen.append(event)  # noqa: PERF401  # the list must hold what came before a failure
    assert [(event.seq, event.type) for event in seen] == [(1, "queued"), (2, "cancelled")]


async def test_a_running_job_receives_what_it_is_sent_by_type_and_once(
    shared_server: Server, aforeman: AsyncForeman, kind: str
) -> None:
    worker = Worker(shared_server.url)

    @worker.task(kind)
    async def asking(payload: Any, job: ActiveJob) -> Any:
        # Its own noise does not wake it.
        await job.progress(1, 2)
        await job.log("asking")
        nothing = await job.recv_event(["never"], timeout=0.1)
        second = await job.recv_event("second", timeout=20)
        first = await job.recv_event(timeout=20)
        again = await job.recv_event(["first", "second"], timeout=0.1)
        assert first
        assert second
        return [nothing, second.payload, first.payload, again]

    handle = await aforeman.submit(kind)
    await handle.send_event("first", {"n": 1})
    seq = await handle.send_event("second", {"n": 2})
    assert seq == 3
    async with working(worker):
        assert await handle.result(30) == [None, {"n": 2}, {"n": 1}, None]
    with pytest.raises(fc.JobTerminal):
        await handle.send_event("too-late")


async def test_a_blocking_handler_receives_events_and_stops_waiting_when_cancelled(
    shared_server: Server, aforeman: AsyncForeman, kind: str
) -> None:
    worker = Worker(shared_server.url)
    waiting = asyncio.Event()
    loop = asyncio.get_running_loop()

    @worker.task(kind)
    def asking(payload: Any, job: Any) -> Any:
        event = job.recv_event(["go"], timeout=30)
        loop.call_soon_threadsafe(waiting.set)
        job.recv_event(["never"])
        return event.payload

    async with working(worker), asyncio.timeout(60):
        handle = await aforeman.submit(kind)
        await handle.send_event("go", 1)
        await waiting.wait()
        await handle.cancel()
        with pytest.raises(fc.JobCancelled):
            await handle.wait(9)


async def test_logs_and_progress_are_in_the_log_in_the_order_they_were_said(
    shared_server: Server, aforeman: AsyncForeman, kind: str
) -> None:
    worker = Worker(shared_server.url)

    @worker.task(kind)
    async def talking(payload: Any, job: ActiveJob) -> None:
        job.log("first", level="warn")
        job.log("second")
        job.progress(fraction=0.5)
        job.log("third", level="error")

    async with working(worker):
        handle = await aforeman.submit(kind)
        await handle.wait(20)
    events = [event async for event in handle.events(follow=False)]
    said = [
        (e.type, e.data.get("level"), e.data.get("message")) for e in events if e.type in {"log", "progress"}
    ]
    assert said == [
        ("log", "warn", "first"),
        ("log", "info", "second"),
        ("progress", None, None),
        ("log", "error", "third"),
    ]
    assert events[-1].type == "done"


async def test_an_artifact_is_kept_with_the_job(
    shared_server: Server, aforeman: AsyncForeman, kind: str
) -> None:
    worker = Worker(shared_server.url)

    @worker.task(kind)
    async def making(payload: Any, job: ActiveJob) -> None:
        await job.artifact("report.csv", "a,b\n1,2\n")
        await job.artifact("blob", b"\x00\x01")

    async with working(worker):
        handle = await aforeman.submit(kind)
        job = await handle.wait(20)
    artifacts = {each["name"]: each for each in job.artifacts}
    assert artifacts["report.csv"]["content_type"].startswith("text/csv")
    assert artifacts["report.csv"]["size"] == 8
    reply = await aforeman.request("GET", f"/jobs/{job.job_id}/artifacts/blob")
    assert reply.content == b"\x00\x01"


def test_a_number_of_any_length_breaks_neither_reader_nor_worker(
    foreman: Foreman, shared_server: Server, kind: str
) -> None:
    """The server keeps what came in; an answer with such a number in it was "not a Foreman server's"."""
    long = "-" + "123456789" * 1000
    body = f'{{"kind":"{kind}","payload":{{"n":{long},"m":[1,2.5,{2**64},1e400]}}}}'
    job_id = httpx.post(f"{shared_server.url}/jobs", content=body).json()["job_id"]
    payload = foreman.get(job_id).payload
    assert payload["n"] == Decimal(long)
    assert payload["m"] == [1, 2.5, 2**64, Decimal("1e400")]
    assert job_id in [job.job_id for job in foreman.list_jobs(kind=kind).jobs]

    seen = []
    worker = Worker(shared_server.url)

    @worker.task(kind)
    async def handle(payload: dict[str, Any], job: ActiveJob) -> dict[str, Any]:
        seen.append(payload["n"])
        return payload

    async def work() -> None:
        async with working(worker):
            await asyncio.to_thread(foreman.wait, job_id, 30)

    asyncio.run(work())
    assert seen == [Decimal(long)]
    # What was read can be written: by the worker as its result, and by whoever submits it again.
    assert foreman.get(job_id).result == payload
    assert f'"n":{long}' in httpx.get(f"{shared_server.url}/jobs/{job_id}").text
    assert foreman.submit(kind, payload).status().payload == payload
