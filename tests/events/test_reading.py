"""GET /jobs/{id}/events as JSON: in order, by cursor and type, waiting, and what bad questions get."""

import threading
import time
from typing import Any

import httpx
import pytest

from tests.conftest import Server
from tests.events.helpers import chat, held, job, post_event, read, running, settle, types, words
from tests.patience import AT_ONCE, LONG_WAIT


def test_the_log_of_a_job_is_gapless_from_one_and_tells_its_life(shared: Server) -> None:
    job_id = chat(shared, words(20), delay_ms=10)
    done = job(shared, job_id, wait=20)
    page = read(shared, job_id)
    assert [event["seq"] for event in page["events"]] == list(range(1, done["seq"] + 1))
    assert page["next_after"] == done["seq"]
    story = types(page)
    assert story[:3] == ["queued", "loading", "working"]
    assert story[-1] == "done"
    assert set(story[3:-1]) == {"output"}
    for event in page["events"]:
        assert set(event) == {"seq", "type", "state", "reason", "data", "at"}
    said = "".join(event["data"]["text"] for event in page["events"] if event["type"] == "output")
    assert said == words(20)


def test_events_after_a_cursor_are_read_in_pages(shared: Server) -> None:
    job_id = held(shared)
    for number in range(5):
        post_event(shared, job_id, "note", {"n": number})
    first = read(shared, job_id, after=2)
    assert [event["seq"] for event in first["events"]] == [3, 4, 5, 6]
    assert read(shared, job_id, after=first["next_after"]) == {"events": [], "next_after": 6}


def test_the_watermark_moves_when_the_filter_matches_nothing(shared: Server) -> None:
    job_id = held(shared)
    for _ in range(3):
        post_event(shared, job_id, "note")
    assert read(shared, job_id, types="approve,done") == {"events": [], "next_after": 4}
    post_event(shared, job_id, "approve", "yes")
    page = read(shared, job_id, after=4, types="approve,done")
    assert [(event["seq"], event["data"]) for event in page["events"]] == [(5, "yes")]


def test_a_log_larger_than_a_page_is_read_in_several(shared: Server) -> None:
    """Pages are bounded by bytes as well: no reader makes the server hold a whole log in memory."""
    job_id = held(shared)
    large = "x" * 60_000
    for number in range(40):
        assert post_event(shared, job_id, "large", [number, large]).status_code == 201
    seen: list[int] = []
    after = pages = 0
    while True:
        page = read(shared, job_id, after=after)
        pages += 1
        seen += [event["seq"] for event in page["events"]]
        if page["next_after"] == after:
            break
        after = page["next_after"]
    assert seen == list(range(1, 42))
    assert pages > 2


def test_a_reader_waits_for_the_event_it_wants(shared: Server) -> None:
    job_id = held(shared)
    found: dict[str, Any] = {}

    def wait() -> None:
        found["page"] = read(shared, job_id, after=1, types="approve", wait=LONG_WAIT)

    reader = threading.Thread(target=wait)
    reader.start()
    post_event(shared, job_id, "note")
    # Whoever wants that one is told of it.
    assert [event["seq"] for event in read(shared, job_id, after=1, wait=LONG_WAIT)["events"]] == [2]
    assert not found
    post_event(shared, job_id, "approve", {"by": "ann"})
    reader.join(AT_ONCE)
    assert [(event["seq"], event["data"]) for event in found["page"]["events"]] == [(3, {"by": "ann"})]


def test_a_wait_ends_with_an_empty_page_and_a_watermark_that_moved(shared: Server) -> None:
    job_id = held(shared)
    post_event(shared, job_id, "note")
    began = time.monotonic()
    assert read(shared, job_id, types="approve", wait=0.4) == {"events": [], "next_after": 2}
    assert time.monotonic() - began >= 0.4


def test_nobody_waits_for_a_job_that_has_ended(shared: Server) -> None:
    claimed = running(shared)
    settle(shared, claimed, "complete", result=1)
    began = time.monotonic()
    page = read(shared, claimed["job_id"], after=4, wait=LONG_WAIT)
    assert page == {"events": [], "next_after": 4}
    assert time.monotonic() - began < AT_ONCE


def test_what_comes_after_the_end_can_still_be_read(shared: Server) -> None:
    claimed = running(shared)
    settle(shared, claimed, "complete", result=1)
    late = settle(shared, claimed, "fail", error={"code": "x", "message": "x"}, retryable=False)
    assert late.status_code == 409
    page = read(shared, claimed["job_id"], after=4)
    assert types(page) == ["late_settlement"]
    assert page["events"][0]["state"] == "done"
    assert page["events"][0]["data"] == {"verb": "fail"}


def test_the_synthetic_cancel_requested_stands_in_the_log(shared: Server) -> None:
    claimed = running(shared)
    httpx.post(f"{shared.url}/jobs/{claimed['job_id']}/cancel", json={"reason": "enough"})
    page = read(shared, claimed["job_id"], types="cancel_requested")
    assert [event["data"] for event in page["events"]] == [{"reason": "enough"}]
    assert page["events"][0]["state"] == "loading"


def test_progress_and_logs_of_a_worker_stand_in_the_log(shared: Server) -> None:
    claimed = running(shared)
    settle(shared, claimed, "progress", step="load", current=1, total=4)
    settle(shared, claimed, "logs", entries=[{"level": "warn", "message": "careful"}])
    page = read(shared, claimed["job_id"], after=2)
    assert types(page) == ["progress", "log"]
    assert page["events"][0]["data"]["total"] == 4
    assert page["events"][1]["data"]["message"] == "careful"


@pytest.mark.parametrize(
    "query",
    [
        {"after": "x"},
        {"after": "-1"},
        {"after": "1.5"},
        {"after": ""},
        {"after": "99999999999999999999"},
        {"after": "2"},
        {"after": "٣"},
        {"types": ""},
        {"types": "a,,b"},
        {"types": "has space"},
        {"types": "Done"},
        {"types": "OUTPUT"},
        {"types": "a" * 65},
        {"types": ",".join(f"t{n}" for n in range(51))},
        {"wait": "x"},
        {"wait": "-1"},
        {"wait": "301"},
        {"wait": "nan"},
        {"before": "1"},
    ],
)
def test_a_wrong_question_is_refused_with_422(shared: Server, query: dict[str, str]) -> None:
    job_id = held(shared)
    answer = httpx.get(f"{shared.url}/jobs/{job_id}/events", params=query)
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "invalid_request"
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("job_id", ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "nonsense", "%00", "x" * 300])
def test_an_unknown_job_has_no_log(shared: Server, job_id: str) -> None:
    for headers in ({}, {"Accept": "text/event-stream"}):
        answer = httpx.get(f"{shared.url}/jobs/{job_id}/events", headers=headers)
        assert answer.status_code == 404
        assert answer.json()["code"] == "not_found"
