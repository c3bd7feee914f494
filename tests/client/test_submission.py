"""The body that `submit` sends, and what a running job hands down."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pydantic
import pytest

from foreman_client.context import RunningJob
from foreman_client.submission import hand_down, job_body
from foreman_client.wire import encode

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
PARENT = RunningJob("01JPARENT", NOON, "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "vendor=1")


def test_a_chat_is_the_ollama_body_itself_with_extensions_beside_it() -> None:
    body = job_body("chat", {"model": "echo"}, {"messages": [], "queue": "night", "priority": None}, None)
    assert body == {"model": "echo", "messages": [], "queue": "night"}


def test_any_other_kind_has_a_payload() -> None:
    assert job_body("report", {"a": 1}, {}, None) == {"kind": "report", "payload": {"a": 1}}


def test_times_and_durations_are_written_for_the_wire() -> None:
    options = {"run_at": NOON, "deadline_seconds": timedelta(minutes=2)}
    assert job_body("noop", None, options, None) == {
        "kind": "noop",
        "run_at": "2030-01-01T12:00:00Z",
        "deadline_seconds": 120.0,
    }


def test_models_and_dataclasses_are_payloads_too() -> None:
    class Model(pydantic.BaseModel):
        at: datetime

    @dataclass
    class Plain:
        size: int

    assert job_body("a", Model(at=NOON), {}, None)["payload"] == {"at": "2030-01-01T12:00:00Z"}
    assert job_body("a", Plain(3), {}, None)["payload"] == {"size": 3}


def test_a_nested_job_has_its_parent_and_at_most_its_parents_time() -> None:
    assert hand_down({"kind": "a"}, PARENT) == {
        "kind": "a",
        "parent_id": "01JPARENT",
        "deadline": "2030-01-01T12:00:00Z",
    }
    sooner, later = NOON - timedelta(hours=1), NOON + timedelta(hours=1)
    assert job_body("a", None, {"deadline": sooner}, PARENT)["deadline"] == "2030-01-01T11:00:00Z"
    assert job_body("a", None, {"deadline": later}, PARENT)["deadline"] == "2030-01-01T12:00:00Z"


def test_deadline_seconds_are_left_to_the_server_to_cap() -> None:
    body = job_body("a", None, {"deadline_seconds": 5}, PARENT)
    assert body["deadline_seconds"] == 5
    assert "deadline" not in body


def test_a_job_can_be_submitted_without_a_parent_from_inside_another() -> None:
    assert job_body("a", None, {"parent_id": None}, PARENT) == {"kind": "a"}


def test_the_trace_goes_on_with_a_span_of_its_own() -> None:
    first, second = PARENT.trace_headers(), PARENT.trace_headers()
    assert first["traceparent"].startswith("00-" + "a" * 32)
    assert first["traceparent"] != second["traceparent"] != PARENT.traceparent
    assert first["tracestate"] == "vendor=1"
    assert RunningJob("x").trace_headers() == {}


@pytest.mark.parametrize("value", [float("nan"), "\ud800", {1, 2}, object()])
def test_what_json_does_not_have_is_refused_rather_than_bent(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode({"value": value})


def test_big_integers_stay_exact() -> None:
    assert encode({"n": 2**70}) == b'{"n":1180591620717411303424}'
