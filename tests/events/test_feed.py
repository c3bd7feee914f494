"""GET /events: the events of all jobs, each once, in the order of commits, from any cursor."""

import asyncio
import threading
import uuid
from typing import Any

import asyncpg
import httpx
import pytest

from tests.conftest import Server, wait_until
from tests.events.conftest import Pair
from tests.events.helpers import chat, held, job, post_event, running, settle, words
from tests.events.sse import STREAM, Parser, blocks
from tests.events.test_streaming import Listener


def feed(server: Server, **query: Any) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/events", params=query, timeout=30)
    assert answer.status_code == 200, answer.text
    page = answer.json()
    assert isinstance(page, dict)
    return page


def drain(server: Server, after: str, want: int, **query: Any) -> list[dict[str, Any]]:
    """Read on from that cursor until so many events came."""
    found: list[dict[str, Any]] = []

    def enough() -> bool:
        nonlocal after
        page = feed(server, after=after, **query)
        found.extend(page["events"])
        after = page["next_after"]
        return len(found) >= want

    wait_until(enough, 15, lambda: f"only {len(found)} of {want}")
    return found


def named_queue() -> str:
    return f"q-{uuid.uuid4().hex[:10]}"


def test_the_feed_begins_now_and_tells_of_all_jobs(shared: Server) -> None:
    start = feed(shared)
    assert start["events"] == []
    queue = named_queue()
    first, second = held(shared, queue=queue), held(shared, queue=queue)
    post_event(shared, first, "approve", {"by": "ann"})
    told = drain(shared, start["next_after"], 3, queue=queue)
    assert [(event["job_id"], event["seq"], event["type"]) for event in told] == [
        (first, 1, "queued"),
        (second, 1, "queued"),
        (first, 2, "approve"),
    ]
    assert set(told[0]) == {"job_id", "queue", "seq", "type", "state", "reason", "data", "at"}
    assert told[0]["queue"] == queue
    assert told[2]["data"] == {"by": "ann"}


def test_the_feed_is_filtered_by_queue_and_type(shared: Server) -> None:
    start = feed(shared)["next_after"]
    mine, other = named_queue(), named_queue()
    a, b = held(shared, queue=mine), held(shared, queue=other)
    for job_id in (a, b):
        post_event(shared, job_id, "note")
        post_event(shared, job_id, "approve")
    assert len(drain(shared, start, 2, queue=[mine, other], types="approve")) == 2
    told = drain(shared, start, 2, queue=mine, types="queued,approve")
    assert [(event["job_id"], event["type"]) for event in told] == [(a, "queued"), (a, "approve")]
    told = drain(shared, start, 1, queue=other, type="note")
    assert [(event["job_id"], event["type"]) for event in told] == [(b, "note")]


def test_what_runs_say_is_in_the_feed_too(shared: Server) -> None:
    start = feed(shared)["next_after"]
    queue = named_queue()
    job_id = chat(shared, words(10), delay_ms=20, queue=queue)
    done = job(shared, job_id, wait=20)
    told = drain(shared, start, done["seq"], queue=queue)
    assert [event["seq"] for event in told] == list(range(1, done["seq"] + 1))
    said = "".join(event["data"]["text"] for event in told if event["type"] == "output")
    assert said == words(10)


def test_the_feed_waits_for_what_is_wanted(shared: Server) -> None:
    start = feed(shared)["next_after"]
    queue = named_queue()
    threading.Timer(0.5, lambda: held(shared, queue=queue)).start()
    page = feed(shared, after=start, queue=queue, wait=15)
    assert [event["type"] for event in page["events"]] == ["queued"]
    assert feed(shared, after=page["next_after"], queue=queue, wait=0.3)["events"] == []


def test_the_feed_is_followed_live_on_any_replica_and_resumed(pair: Pair) -> None:
    queue = named_queue()
    parser = Parser()
    listener = Listener(blocks(f"{pair.b.url}/events", params={"queue": queue}, parser=parser))
    wait_until(lambda: parser.comments > 0)
    claimed = running(pair.a)
    job_id = held(pair.a, queue=queue)
    post_event(pair.a, job_id, "approve")
    listener.until(2)
    assert [(block.json["job_id"], block.event) for block in listener.blocks] == [
        (job_id, "queued"),
        (job_id, "approve"),
    ]
    resumed = Listener(
        blocks(
            f"{pair.a.url}/events",
            params={"queue": queue},
            headers={"Last-Event-ID": listener.blocks[0].id or ""},
        )
    )
    resumed.until(1)
    assert resumed.blocks[0] == listener.blocks[1]
    settle(pair.a, claimed, "complete", result=1)


def test_the_feed_is_found_by_polling_alone(deaf_pair: Pair) -> None:
    queue = named_queue()
    parser = Parser()
    listener = Listener(blocks(f"{deaf_pair.b.url}/events", params={"queue": queue}, parser=parser))
    wait_until(lambda: parser.comments > 0)
    for count in range(1, 4):
        held(deaf_pair.a, queue=queue)
        listener.until(count)


def test_a_batch_cut_into_pages_is_told_completely_and_in_order(shared: Server) -> None:
    start = feed(shared)["next_after"]
    queue = named_queue()
    for _ in range(3):
        body = {"jobs": [{"kind": "batch-of-many", "queue": queue, "payload": {}}] * 800}
        assert httpx.post(f"{shared.url}/jobs/batch", json=body, timeout=30).status_code == 202
    told = drain(shared, start, 2400, queue=queue)
    assert len(told) == 2400
    assert len({event["job_id"] for event in told}) == 2400


async def test_nothing_is_lost_when_commits_come_out_of_order(shared: Server) -> None:
    """A transaction that began first and commits last must not be passed over."""
    start = feed(shared)["next_after"]
    queue = named_queue()
    early = held(shared, queue=queue)
    slow = await asyncpg.connect(shared.database_url)
    try:
        transaction = slow.transaction()
        await transaction.start()
        # Like any statement of ours, only that its commit is a long time coming.
        await slow.execute("INSERT INTO announcements (job_ids, seqs) VALUES (ARRAY[$1], ARRAY[1])", early)
        late = await asyncio.to_thread(held, shared, queue=queue)
        seen = await asyncio.to_thread(feed, shared, after=start, queue=queue, wait=0.5)
        assert late not in [event["job_id"] for event in seen["events"]]
        await transaction.commit()
    finally:
        await slow.close()
    rest = await asyncio.to_thread(drain, shared, seen["next_after"], 3 - len(seen["events"]), queue=queue)
    told = [event["job_id"] for event in [*seen["events"], *rest]]
    assert told == [early, early, late]


def test_events_of_a_deleted_job_are_left_out_and_the_cursor_stays_right(shared: Server) -> None:
    start = feed(shared)["next_after"]
    queue = named_queue()
    first, gone, last = (held(shared, queue=queue) for _ in range(3))
    httpx.post(f"{shared.url}/jobs/{gone}/cancel")
    assert httpx.delete(f"{shared.url}/jobs/{gone}").status_code == 204
    post_event(shared, last, "note")
    told = drain(shared, start, 3, queue=queue)
    assert [(event["job_id"], event["seq"]) for event in told] == [(first, 1), (last, 1), (last, 2)]


def test_large_data_is_left_out_of_the_feed(shared: Server) -> None:
    start = feed(shared)["next_after"]
    queue = named_queue()
    post_event(shared, held(shared, queue=queue), "large", "x" * 20_000)
    told = drain(shared, start, 2, queue=queue)
    assert told[1]["data"] is None
    assert told[1]["truncated"] is True


@pytest.mark.parametrize(
    "query",
    [
        {"after": "x"},
        {"after": "1"},
        {"after": "-1.0"},
        {"after": "1.0.0"},
        {"after": "9" * 30 + ".0"},
        {"types": "a b"},
        {"wait": "x"},
        {"job": "1"},
    ],
)
def test_a_wrong_question_is_refused_with_422(shared: Server, query: dict[str, str]) -> None:
    for headers in ({}, STREAM):
        answer = httpx.get(f"{shared.url}/events", params=query, headers=headers)
        assert answer.status_code == 422
        assert answer.json()["code"] == "invalid_request"


def test_a_cursor_from_another_time_line_leads_back_to_now(shared: Server) -> None:
    """After a failover or a restore the numbers of transactions may be smaller than they were."""
    page = feed(shared, after="999999999999.5")
    assert page["events"] == []
    queue = named_queue()
    held(shared, queue=queue)
    assert len(drain(shared, page["next_after"], 1, queue=queue)) == 1
