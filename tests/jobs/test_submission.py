"""From the bytes of a submission to a row: defaults, lanes, the verbatim payload, and every wrong field named."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRequest
from app.jobs.ids import is_id, new_id
from app.jobs.submission import EXTENSION_FIELDS, NewJob, parse_job

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def parse(document: dict[str, Any] | bytes, tenant: str = "default") -> NewJob:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_job(body, tenant)


def refused(document: dict[str, Any] | bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(document)
    return caught.value


def wrong_fields(document: dict[str, Any] | bytes) -> list[str]:
    problem = refused(document)
    assert problem.status == 422
    errors = problem.extra["errors"]
    assert all(error["message"] for error in errors)
    assert all(error["field"] in problem.detail for error in errors)
    return [error["field"] for error in errors]


def test_a_chat_body_becomes_a_job_with_the_specified_defaults() -> None:
    job = parse(CHAT)
    assert is_id(job.id)
    assert (job.tenant, job.kind, job.queue, job.priority, job.model) == (
        "default",
        "chat",
        "default",
        0,
        "m",
    )
    assert json.loads(job.payload) == CHAT
    assert [job.run_at, job.delay_seconds, job.deadline, job.deadline_seconds] == [None] * 4
    assert [job.max_attempts, job.backoff_seconds, job.max_duration_seconds, job.parent_id] == [None] * 4
    assert [job.metadata, job.target, job.webhook_url, job.webhook_events, job.webhook_secret] == [None] * 5
    assert job.interactive is False


def test_every_extension_field_reaches_the_row() -> None:
    parent = new_id()
    job = parse(
        {
            "kind": "report",
            "payload": {"x": 1},
            "queue": "q.1:a_b-c",
            "priority": -100,
            "run_at": "2030-01-02T03:04:05+02:00",
            "deadline": "2030-01-03T00:00:00Z",
            "max_duration_seconds": 1.5,
            "max_attempts": 7,
            "backoff_seconds": [1, 2.5],
            "parent_id": parent,
            "state_webhook_url": "https://example.org/hook",
            "webhook_events": ["done", "progress", "my-own.event"],
            "metadata": {"user": "ann"},
            "target": "gpu-1",
        }
    )
    assert (job.kind, job.queue, job.lane, job.priority) == ("report", "q.1:a_b-c", "report", -100)
    assert job.run_at == datetime(2030, 1, 2, 1, 4, 5, tzinfo=UTC)
    assert job.deadline == datetime(2030, 1, 3, tzinfo=UTC)
    assert (job.max_duration_seconds, job.max_attempts, job.backoff_seconds) == (1.5, 7, [1, 2.5])
    assert (job.parent_id, job.target) == (parent, "gpu-1")
    assert (job.webhook_url, job.webhook_events) == (
        "https://example.org/hook",
        ["done", "progress", "my-own.event"],
    )
    assert json.loads(job.metadata or "") == {"user": "ann"}
    assert json.loads(job.payload) == {"x": 1}
    seconds = parse({"kind": "report", "delay_seconds": 3, "deadline_seconds": 9, "backoff_seconds": 4})
    assert (seconds.delay_seconds, seconds.deadline_seconds, seconds.backoff_seconds) == (3, 9, [4])


def test_an_explicit_null_is_the_default() -> None:
    nulls = dict.fromkeys(EXTENSION_FIELDS - {"kind", "queue", "priority"})
    assert json.loads(parse({**CHAT, **nulls}).payload) == CHAT
    assert wrong_fields({**CHAT, "kind": None, "queue": None, "priority": None}) == [
        "kind",
        "queue",
        "priority",
    ]


def test_the_payload_of_a_chat_is_everything_but_our_own_fields_verbatim() -> None:
    body = (
        b'{"stream":false ,"queue":"q","model":"m","options":{"temperature":0.10,"num_ctx":4096,"seed":1e2},'
        b'"messages":[{"content":"\\u00e9\\/","role":"user","content":"twice"}],"priority":3,"vendor":{"b":1,"a":-0}}'
    )
    assert parse(body).payload == (
        '{"stream":false,"model":"m","options":{"temperature":0.10,"num_ctx":4096,"seed":1e2},'
        '"messages":[{"content":"\\u00e9\\/","role":"user","content":"twice"}],"vendor":{"b":1,"a":-0}}'
    )


def test_the_payload_of_another_kind_is_kept_byte_for_byte() -> None:
    body = b'{"kind":"report","payload":  { "z" : 1.00, "a":[ ], "z": 1e999, "n":%b } }' % (b"9" * 4000)
    assert parse(body).payload == '{ "z" : 1.00, "a":[ ], "z": 1e999, "n":%s }' % ("9" * 4000)
    assert parse({"kind": "report"}).payload == "{}"


def test_metadata_of_no_entries_is_none() -> None:
    assert parse({**CHAT, "metadata": {}}).metadata is None


def test_unknown_fields_of_an_ollama_shaped_body_are_passed_on() -> None:
    for kind in ("chat", "generate", "embed"):
        payload = json.loads(parse({"kind": kind, "model": "m", "keep_alive": -1, "made_up": [1]}).payload)
        assert payload == {"model": "m", "keep_alive": -1, "made_up": [1]}


def test_unknown_fields_beside_the_payload_of_another_kind_are_refused_by_name() -> None:
    assert wrong_fields({"kind": "report", "payload": {}, "zebra": 1, "ant": 2}) == ["ant", "zebra"]
    assert wrong_fields({"kind": "noop", "model": "m"}) == ["model"]


@pytest.mark.parametrize("payload", [[], "x", 1, None, True])
def test_a_payload_must_be_an_object(payload: object) -> None:
    assert wrong_fields({"kind": "report", "payload": payload}) == ["payload"]


def test_lanes_follow_model_runner_options_and_target() -> None:
    assert parse(CHAT).lane == "llm|||m"
    assert parse({**CHAT, "target": "gpu"}).lane == "llm|gpu||m"
    options = {"num_thread": 2, "temperature": 1, "num_ctx": 10, "use_mmap": False, "num_gpu": None}
    assert parse({**CHAT, "options": options}).lane == "llm||num_ctx=10,use_mmap=False,num_thread=2|m"
    assert parse({**CHAT, "options": {"temperature": 0.5}}).lane == parse(CHAT).lane
    assert parse({"kind": "report"}, "acme").lane == "acme/report"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", ""),
        ("kind", "a b"),
        ("kind", "x" * 129),
        ("kind", "-x"),
        ("kind", "é"),
        ("kind", 1),
        ("kind", "x\n"),
        ("queue", ""),
        ("queue", "a/b"),
        ("queue", "a|b"),
        ("queue", "a\x00"),
        ("queue", ["q"]),
        ("priority", 101),
        ("priority", -101),
        ("priority", 1.5),
        ("priority", "1"),
        ("priority", True),
        ("priority", 10**30),
        ("run_at", "tomorrow"),
        ("run_at", "2030-01-01"),
        ("run_at", "2030-01-01T00:00:00"),  # no zone: nobody knows which moment is meant
        ("run_at", "2030-02-30T00:00:00Z"),
        ("run_at", "0001-01-01T00:00:00+10:00"),
        ("run_at", 1.0),
        ("delay_seconds", -1),
        ("delay_seconds", "5"),
        ("delay_seconds", 1e12),
        ("deadline", "soon"),
        ("deadline", "9999-12-31T23:59:59-10:00"),
        ("deadline_seconds", 0),
        ("deadline_seconds", -5),
        ("max_duration_seconds", 0),
        ("max_duration_seconds", "1"),
        ("max_attempts", 0),
        ("max_attempts", 1001),
        ("max_attempts", 2.5),
        ("backoff_seconds", -1),
        ("backoff_seconds", []),
        ("backoff_seconds", [1, -1]),
        ("backoff_seconds", [1] * 51),
        ("backoff_seconds", "5"),
        ("parent_id", "x"),
        ("parent_id", 5),
        ("state_webhook_url", 5),
        ("state_webhook_url", ""),
        ("state_webhook_url", "https://example.org/" + "x" * 2048),
        ("state_webhook_url", "https://example.org/\x00"),
        ("metadata", "x"),
        ("metadata", {"a": 1}),
        ("metadata", {"a": {"b": "c"}}),
        ("metadata", {"a": "x" * 2049}),
        ("metadata", {"a": "\x00"}),
        ("metadata", {"\x00": "a"}),
        ("metadata", {"": "a"}),
        ("metadata", {f"k{n}": "v" for n in range(65)}),
        ("target", "a b"),
        ("target", ""),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    assert wrong_fields({"kind": "noop", field: value}) == [field]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("webhook_events", ["a b"]),
        ("webhook_events", "done"),
        ("webhook_events", [""]),
        ("webhook_events", ["done"] * 51),
        ("webhook_secret", 5),
        ("webhook_secret", "x" * 513),
    ],
)
def test_a_wrong_webhook_field_is_named(field: str, value: object) -> None:
    assert wrong_fields({"kind": "noop", "state_webhook_url": "https://example.org/", field: value}) == [
        field
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("model", 5),
        ("model", "x" * 513),
        ("model", "x\x00"),
        ("messages", "hello"),
        ("messages", ["hello"]),
        ("messages", [1]),
        ("options", "x"),
        ("options", {"num_ctx": "4096"}),
        ("options", {"num_ctx": 1.5}),
        ("options", {"use_mmap": 1}),
        ("options", {"num_ctx": 10**30}),  # would be part of a lane, and lanes are indexed
    ],
)
def test_a_wrong_field_of_an_ollama_shaped_body_is_named(field: str, value: object) -> None:
    assert wrong_fields({**CHAT, field: value}) == [field]


def test_a_chat_without_a_model_is_told_so() -> None:
    assert wrong_fields({"messages": []}) == ["model"]


def test_all_wrong_fields_are_named_at_once() -> None:
    assert wrong_fields({"kind": "noop", "priority": 1000, "queue": "a b", "max_attempts": 0}) == [
        "queue",
        "priority",
        "max_attempts",
    ]


def test_what_excludes_each_other_is_refused_together() -> None:
    at = "2030-01-01T00:00:00Z"
    assert wrong_fields({"kind": "noop", "run_at": at, "delay_seconds": 1}) == ["delay_seconds"]
    assert wrong_fields({"kind": "noop", "deadline": at, "deadline_seconds": 1}) == ["deadline_seconds"]
    assert wrong_fields({"kind": "noop", "webhook_events": ["done"]}) == ["state_webhook_url"]
    assert wrong_fields({"kind": "noop", "webhook_secret": "s"}) == ["state_webhook_url"]


def test_the_ends_of_time_stay_moments_of_their_own() -> None:
    """The driver takes the very first and last moment for -infinity and infinity, which have no zone."""
    job = parse({"kind": "noop", "run_at": "0001-01-01T00:00:00Z", "deadline": "9999-12-31T23:59:59.999999Z"})
    assert job.run_at is not None
    assert job.deadline is not None
    assert job.run_at.replace(tzinfo=None) > datetime.min
    assert job.deadline.replace(tzinfo=None) < datetime.max
    assert job.run_at.year == 1
    assert job.deadline.year == 9999


def test_a_message_about_a_wrong_field_speaks_to_people() -> None:
    for document in ({"kind": "a b"}, {"kind": "noop", "priority": "1"}, {"kind": "noop", "run_at": "x"}):
        detail = refused(document).detail
        assert "`" not in detail.replace("`$", ""), detail
        assert "regex" not in detail


def test_very_long_names_are_shortened_in_the_message() -> None:
    problem = refused({"kind": "noop", "x" * 100_000: 1})
    assert len(problem.detail) < 500


field_names = st.sampled_from(sorted(EXTENSION_FIELDS | {"model", "messages", "options", "payload"}))
odd_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(field_names | st.text(max_size=5), odd_values, max_size=8))
def test_any_object_is_either_a_job_or_refused(document: dict[str, Any]) -> None:
    try:
        job = parse(document)
    except InvalidRequest as problem:
        assert problem.status in {400, 422}
        assert problem.detail
    else:
        json.loads(job.payload)
