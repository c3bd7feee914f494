"""What a message says, from a delivery as the store hands it out."""

from datetime import UTC, datetime
from typing import Any

import orjson

from app.store.outbox import DueDelivery
from app.webhooks.send import MAX_RESULT_BYTES, compose
from tests.rows import made_up

AT = datetime(2030, 1, 31, 12, 0, 0, 500, tzinfo=UTC)
JOB = "01JZ7Q0C3N8W9V5T4R2E1D6A7B"


def delivery(**changes: Any) -> DueDelivery:
    fields = {
        "job_id": JOB,
        "seq": 4,
        "type": "done",
        "state": "done",
        "previous_state": "working",
        "at": AT,
        "kind": "noop",
        "queue": "default",
        "model": None,
        "attempt": 1,
        "error": None,
        "data": None,
        "job_state": "done",
        "result": "null",
        "result_bytes": 4,
        "metadata": None,
        "stored_artifacts": None,
        **changes,
    }
    return made_up(DueDelivery, **fields)


def message(**changes: Any) -> dict[str, Any]:
    answered: dict[str, Any] = orjson.loads(compose(delivery(**changes)))
    return answered


def test_a_result_goes_out_as_it_came_in_to_the_last_digit() -> None:
    result = '{"b":1.10,"a":100000000000000000000000000001,"é":"\\u00e9"}'
    body = compose(delivery(result=result, result_bytes=len(result)))
    assert result.encode() in body


def test_timestamps_are_in_utc_with_a_z() -> None:
    assert message()["timestamp"] == "2030-01-31T12:00:00.000500Z"


def test_a_result_over_the_limit_is_a_reference_to_where_it_can_be_read() -> None:
    said = message(result=None, result_bytes=MAX_RESULT_BYTES + 1)["data"]
    assert said["result"] == {
        "artifact": {
            "name": "result",
            "content_type": "application/json",
            "size": MAX_RESULT_BYTES + 1,
            "url": f"/jobs/{JOB}/artifacts/result",
        }
    }


def test_the_completion_of_a_large_answer_is_named_with_its_size_but_not_repeated() -> None:
    text = "x" * (MAX_RESULT_BYTES + 5)
    result = orjson.dumps({"message": {"role": "assistant", "content": text}}).decode()
    body = compose(delivery(kind="chat", result=None, result_bytes=len(result)), large_result=result)
    said = orjson.loads(body)["data"]
    assert len(body) < 2000
    assert said["artifacts"] == [
        {
            "name": "completion",
            "content_type": "text/plain; charset=utf-8",
            "size": MAX_RESULT_BYTES + 5,
            "url": f"/jobs/{JOB}/artifacts/completion",
        }
    ]


def test_the_error_is_the_one_that_the_event_brought_not_a_later_one() -> None:
    said = message(
        type="queued",
        state="queued",
        job_state="failed",
        data='{"attempt":1,"error":{"code":"first","message":"m","retryable":true}}',
        error='{"code":"last","message":"m","retryable":false}',
        result_bytes=None,
        result=None,
    )["data"]
    assert said["error"]["code"] == "first"


def test_an_end_without_an_error_of_its_own_shows_the_one_the_job_has() -> None:
    said = message(type="expired", state="expired", job_state="expired", error='{"code":"late"}')["data"]
    assert said["error"] == {"code": "late"}


def test_an_event_that_is_no_state_brings_along_what_it_said() -> None:
    event = delivery(type="progress", state="working", previous_state="working")
    said = orjson.loads(compose(event, chatter='{"fraction":0.5}'))
    assert said["type"] == "job.progress"
    assert said["data"]["event"] == {"fraction": 0.5}
    assert said["data"]["state"] == "working"


def test_a_state_event_has_exactly_the_fields_of_the_contract() -> None:
    assert list(message()["data"]) == [
        "job_id", "seq", "state", "previous_state", "timestamp", "kind", "queue", "model", "attempt", "error",
        "result", "artifacts", "metadata",
    ]  # fmt: skip
