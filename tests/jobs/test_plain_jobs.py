"""A job whose work is its payload is read in one go: as the thorough way reads it, or not at all."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from app.errors import InvalidRequest
from app.jobs import submission
from app.jobs.shapes import parse_batch
from app.jobs.submission import EXTENSION_FIELDS, NewJob, parse_job, parse_plain_jobs

DEEP = b'{"kind":"noop","payload":' + b'{"a":' * 70 + b"1" + b"}" * 71


def outcome(parse: Any, body: bytes) -> Any:
    """What became of it, but for the id, which is another one each time."""
    try:
        job = parse(body, "default", 64)
    except InvalidRequest as problem:
        return type(problem), problem.detail, problem.extra
    return {**asdict(job), "id": ""}


ODD = [
    b'{"kind":"noop"}',
    b'{"kind":"noop","payload":{}}',
    b'{"kind":"noop","payload": \n {"b":1e999,"a":1.0, "a":2}\t }',
    b'{"kind":"noop","payload":null}',
    b'{"kind":"noop","payload":[1]}',
    b'{"kind":"noop","payload":"{"}',
    b'{"kind":"noop","payload":1,"payload":{"last":true}}',
    b'{"kind":"noop","payload":{"last":true},"payload":1}',
    b'{"kind":"noop","kind":"own"}',
    b'{"kind":1,"kind":"own"}',
    b'{"kind":"chat","kind":"own","model":"m"}',
    b'{"kind":"own","kind":"chat","model":"m"}',
    b'{"kind":"chat","model":"m","payload":{}}',
    b'{"kind":"generate"}',
    b'{"\\u006bind":"noop"}',
    b'{"kind":"noop","metadata":{"a": "b"}}',
    b'{"kind":"noop","metadata":{"b":"1","a":"2","b":"3"}}',
    b'{"kind":"noop","metadata":{"a":1}}',
    b'{"kind":"noop","metadata":{"a":"1"},"metadata":{}}',
    b'{"kind":"noop","metadata":{},"metadata":{"a":"1"}}',
    b'{"kind":"noop","metadata":null}',
    b'{"kind":"noop","metadata":{}}',
    b'{"kind":"noop","unknown":1}',
    b'{"kind":"noop","priority":1e2}',
    b'{"kind":"noop","priority":101}',
    b'{"kind":"noop","priority":true}',
    b'{"kind":"noop","run_at":"2030-01-01T00:00:00+02:00"}',
    b'{"kind":"noop","run_at":"0001-01-01T00:00:00+02:00"}',
    b'{"kind":"noop","run_at":"2030-01-01T00:00:00Z","delay_seconds":1}',
    b'{"kind":"noop","backoff_seconds":3}',
    b'{"kind":"noop","backoff_seconds":[3,4]}',
    b'{"kind":"noop","parent_id":"x"}',
    b'{"kind":"noop","depends_on":["01ARZ3NDEKTSV4RRFFQ69G5FAV","01ARZ3NDEKTSV4RRFFQ69G5FAV"]}',
    b'{"kind":"noop","webhook_events":["done"]}',
    b'{"kind":"noop","payload":{"a":"\\ud800"}}',
    b'{"kind":"noop","payload":{"a":"\\u0000"}}',
    b'{"kind":"noop","payload":{"a":NaN}}',
    b'{"kind":"noop","payload":{"a":"\xff"}}',
    b'{"kind":"noop","payload":{"a":01}}',
    b'{"kind":"noop","payload":{"a":"\n"}}',
    b'{"kind":"noop"} ',
    b' {"kind":"noop"}',
    b'{"kind":"noop"}x',
    b'{"kind":"noop",}',
    b'\xef\xbb\xbf{"kind":"noop"}',
    b'["kind"]',
    b'"kind"',
    b"",
    DEEP,
]


@pytest.mark.parametrize("body", ODD)
def test_what_is_odd_is_read_alike(body: bytes) -> None:
    assert outcome(parse_job, body) == outcome(submission._parse_any, body)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(
    st.sampled_from([*sorted(EXTENSION_FIELDS), "payload", "model", "x"]), VALUES, max_size=6
)


@given(FIELDS, st.sampled_from(["noop", "http", "own", "chat"]), st.booleans())
def test_whatever_the_fields_hold_is_read_alike(fields: dict[str, Any], kind: str, escaped: bool) -> None:
    body = json.dumps({"kind": kind, **fields}, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    assert outcome(parse_job, body) == outcome(submission._parse_any, body)


def test_a_plain_job_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above would compare the thorough way with itself."""
    monkeypatch.setattr(submission, "_parse_any", None)
    job = parse_job(b'{"kind":"own","queue":"q","metadata":{"a": "1"},"payload":{"b": 1.0}}', "default")
    assert (job.kind, job.queue, job.metadata, job.payload) == ("own", "q", '{"a": "1"}', '{"b": 1.0}')


def test_a_job_s_text_and_secrets_do_not_show_where_it_is_printed() -> None:
    secret = "whsec_" + "A" * 32
    job = parse_job(
        b'{"kind":"own","payload":{"p":"private"},"state_webhook_url":"https://a.b","webhook_secret":"%b"}'
        % secret.encode(),
        "default",
    )
    assert job.webhook_secret == secret
    assert "private" not in repr(job)
    assert secret not in repr(job)


# -- a whole list of them --------------------------------------------------------------------------------


def batch_outcome(body: bytes, *, at_once: bool) -> Any:
    """What becomes of `{"jobs": […]}`; `at_once`: with the way that reads the whole list in one go."""

    def parse(entry: bytes) -> NewJob:
        return parse_job(entry, "default", 64)

    def parse_all(array: msgspec.Raw) -> list[NewJob] | None:
        return parse_plain_jobs(array, "default")

    try:
        jobs = parse_batch(
            body, "jobs", parse, most=3, max_depth=64, parse_all=parse_all if at_once else None
        )
    except InvalidRequest as problem:
        return type(problem), problem.detail, problem.extra
    return [{**asdict(job), "id": ""} for job in jobs]


PLAIN = b'{"kind":"noop","payload":{"a": 1.0}}'


@pytest.mark.parametrize("entry", ODD)
@pytest.mark.parametrize("shape", [b"%b", b"%b,%b", b"%b,1"])
def test_a_list_with_something_odd_in_it_is_read_alike(entry: bytes, shape: bytes) -> None:
    listed = shape % ((PLAIN, entry) if shape.count(b"%b") == 2 else entry)
    body = b'{"jobs":[%b]}' % listed
    assert batch_outcome(body, at_once=True) == batch_outcome(body, at_once=False)


@pytest.mark.parametrize(
    "array",
    [
        b"[]",
        b"[ %b ]" % PLAIN,
        b"[%b]" % b",".join([PLAIN] * 3),
        b"[%b]" % b",".join([PLAIN] * 4),
        b"{}",
        b"null",
        b"[%b,{}]" % PLAIN,
        b'[%b,{"kind":"noop","metadata":{"b": "1"}},{"kind":"noop","metadata":{}}]' % PLAIN,
    ],
)
def test_a_list_is_as_long_as_it_may_be_and_keeps_its_order(array: bytes) -> None:
    body = b'{"jobs": %b}' % array
    assert batch_outcome(body, at_once=True) == batch_outcome(body, at_once=False)


def test_a_list_of_plain_jobs_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "_parse_any", None)
    array = msgspec.Raw(b'[{"kind":"a"},{"kind":"b","metadata":{"x": "1"},"payload":{ "y":2}}]')
    jobs = parse_plain_jobs(array, "default")
    assert jobs is not None
    assert [(job.kind, job.metadata, job.payload) for job in jobs] == [
        ("a", None, "{}"),
        ("b", '{"x": "1"}', '{ "y":2}'),
    ]
    assert jobs[0].id < jobs[1].id
