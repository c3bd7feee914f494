"""POST /jobs/{id}/events: callers tell running jobs something; the log takes it as it comes."""

import json
from typing import Any

import httpx
import pytest

from app.jobs.states import RESERVED_EVENT_TYPES
from tests.conftest import Server
from tests.events.helpers import held, job, post_event, read, running, settle


def test_a_posted_event_gets_the_next_seq(shared: Server) -> None:
    job_id = held(shared)
    answer = post_event(shared, job_id, "approve", {"by": "ann"})
    assert answer.status_code == 201
    assert set(answer.json()) == {"seq", "at"}
    assert answer.json()["seq"] == 2
    [event] = read(shared, job_id, after=1)["events"]
    assert event == {
        "seq": 2,
        "type": "approve",
        "state": "queued",
        "reason": None,
        "data": {"by": "ann"},
        "at": answer.json()["at"],
    }
    assert job(shared, job_id)["seq"] == 2


@pytest.mark.parametrize("payload", [None, True, 0, "text\n\u2028\u0000", [], {}, {"deep": [[{"x": 1}]]}])
def test_any_json_is_taken_and_given_back(shared: Server, payload: Any) -> None:
    job_id = held(shared)
    assert post_event(shared, job_id, "note", payload).status_code == 201
    assert read(shared, job_id, after=1)["events"][0]["data"] == payload


def test_a_payload_goes_out_as_it_came_in(shared: Server) -> None:
    job_id = held(shared)
    payload = '{ "b":1.0,\n "a":1e400, "b2": 0.10000000000000000001 }'
    body = f'{{"type":"note","payload":{payload}}}'
    assert httpx.post(f"{shared.url}/jobs/{job_id}/events", content=body).status_code == 201
    raw = httpx.get(f"{shared.url}/jobs/{job_id}/events", params={"after": 1}).text
    assert f'"data":{payload},' in raw


def test_a_payload_may_be_left_out(shared: Server) -> None:
    job_id = held(shared)
    assert httpx.post(f"{shared.url}/jobs/{job_id}/events", json={"type": "ping"}).status_code == 201
    assert read(shared, job_id, after=1)["events"][0]["data"] is None


def test_64_kilobytes_are_the_limit(shared: Server) -> None:
    job_id = held(shared)
    fits = json.dumps("x" * (64 * 1024 - 2))
    for payload, status in ((fits, 201), (fits[:-1] + 'x"', 422)):
        body = f'{{"type":"note","payload":{payload}}}'
        answer = httpx.post(f"{shared.url}/jobs/{job_id}/events", content=body)
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize("name", [*sorted(RESERVED_EVENT_TYPES), "Done", "PROGRESS"])
def test_names_of_foremans_own_are_refused(shared: Server, name: str) -> None:
    answer = post_event(shared, held(shared), name)
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"type":"1st"}', 422),
        (b'{"type":""}', 422),
        (b'{"type":"a b"}', 422),
        (b'{"type":"a\\u0000"}', 422),
        (b'{"type":"a\\n"}', 422),
        (b'{"type":"' + b"a" * 65 + b'"}', 422),
        (b'{"type":7}', 422),
        (b"{}", 422),
        (b'{"payload":1}', 422),
        (b'{"type":"a","more":1}', 422),
        (b'{"type":"a","payload":NaN}', 422),
        (b'{"type":"a","payload":"\\ud800"}', 422),
        (b"[]", 422),
        (b"", 400),
        (b"{", 400),
        (b'{"type":"a","payload":' + b"[" * 100 + b"]" * 100 + b"}", 422),
    ],
)
def test_a_wrong_body_is_refused(shared: Server, body: bytes, status: int) -> None:
    answer = httpx.post(f"{shared.url}/jobs/{held(shared)}/events", content=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["code"] == "invalid_request"


def test_a_finished_job_takes_no_events(shared: Server) -> None:
    claimed = running(shared)
    settle(shared, claimed, "complete", result=None)
    answer = post_event(shared, claimed["job_id"], "approve")
    assert answer.status_code == 409
    assert answer.json()["code"] == "job_terminal"
    assert job(shared, claimed["job_id"])["seq"] == 4


def test_an_unknown_job_takes_no_events(shared: Server) -> None:
    answer = post_event(shared, "01ARZ3NDEKTSV4RRFFQ69G5FAV", "approve")
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


def test_events_from_many_callers_at_once_have_no_gaps(shared: Server) -> None:
    job_id = held(shared)
    with httpx.Client(base_url=shared.url) as client:
        import concurrent.futures

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(
                pool.map(
                    lambda n: client.post(f"/jobs/{job_id}/events", json={"type": "note", "payload": n}),
                    range(200),
                )
            )
    assert sorted(answer.json()["seq"] for answer in answers) == list(range(2, 202))
    page = read(shared, job_id, after=1)
    by_seq = {event["seq"]: event["data"] for event in page["events"]}
    assert by_seq == {answer.json()["seq"]: n for n, answer in enumerate(answers)}
