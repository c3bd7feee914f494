"""The request headers that mean something to a job, as tables."""

import pytest
from starlette.requests import Request

from app.api.job_parameters import idempotency_key, not_modified, prefer_wait, query_wait, trace_of
from app.errors import InvalidRequest

TRACE = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def request(*headers: tuple[str, str], query: str = "") -> Request:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    return Request(
        {"type": "http", "headers": raw, "query_string": query.encode(), "state": {"request_id": "r"}}
    )


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("k", "k"),
        (" k ", "k"),
        ('"k"', "k"),
        ('"a b"', "a b"),
        ('"a\\"b\\\\c"', 'a"b\\c'),
        ('"', '"'),
        ('half"', 'half"'),
        ("x" * 255, "x" * 255),
        ('"' + "x" * 255 + '"', "x" * 255),
    ],
)
def test_a_key_is_taken_quoted_or_bare(given: str, key: str) -> None:
    assert idempotency_key(request(("Idempotency-Key", given))) == key


def test_no_key_is_none() -> None:
    assert idempotency_key(request()) is None


@pytest.mark.parametrize("given", ["", "  ", '""', "x" * 256, "a\tb", "\x7f", "gr\u00fc\u00df"])
def test_a_key_that_cannot_be_one_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        idempotency_key(request(("Idempotency-Key", given)))


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("wait=10", 10),
        ("Wait=10", 10),
        ('wait="10"', 10),
        ("wait = 10", 10),
        ("respond-async, wait=10", 10),
        ("respond-async;wait=10", 10),
        ("wait=0", 0),
        ("wait=300", 300),
        ("wait=301", 300),
        ("wait=" + "9" * 4000, 300),
        ("wait=1.5", 1),
        ("", None),
        ("wait", None),
        ("wait=", None),
        ("wait=x", None),
        ("wait=-1", None),
        ("await=10", None),
        ("respond-async", None),
    ],
)
def test_prefer_wait(given: str, seconds: int | None) -> None:
    assert prefer_wait(request(("Prefer", given))) == seconds


def test_a_preference_may_stand_on_a_line_of_its_own() -> None:
    assert prefer_wait(request(("Prefer", "respond-async"), ("Prefer", "wait=7"))) == 7
    assert prefer_wait(request()) is None


@pytest.mark.parametrize(("given", "seconds"), [("0", 0), ("1.5", 1.5), ("300", 300), ("1e1", 10)])
def test_query_wait(given: str, seconds: float) -> None:
    assert query_wait(request(query=f"wait={given}")) == seconds


@pytest.mark.parametrize("given", ["-0.1", "300.1", "nan", "inf", "x", "", "1,5"])
def test_a_query_wait_out_of_range_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequest, match="0 to 300"):
        query_wait(request(query=f"wait={given}"))


def test_no_query_wait_is_no_waiting() -> None:
    assert query_wait(request()) == 0


@pytest.mark.parametrize("given", [f"00-{TRACE}", f"01-{TRACE}", f"01-{TRACE}-more", f"cc-{TRACE}-x.y=z"])
def test_a_trace_context_is_kept(given: str) -> None:
    trace = trace_of(request(("traceparent", given), ("tracestate", "a=1")))
    assert (trace.request_id, trace.traceparent, trace.tracestate) == ("r", given, "a=1")


@pytest.mark.parametrize(
    "given",
    [
        "",
        "x",
        f"ff-{TRACE}",
        f"00-{TRACE}-more",  # version 00 has four fields
        f"00-{TRACE.upper()}",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        f"00-{TRACE} ",
        f"01-{TRACE}-{'x' * 300}",
        f"01-{TRACE}-\xe9",
    ],
)
def test_a_trace_context_that_is_none_is_dropped_with_its_state(given: str) -> None:
    """The intake begins another: see test_submitting.py."""
    trace = trace_of(request(("traceparent", given), ("tracestate", "a=1")))
    assert (trace.traceparent, trace.tracestate) == (None, None)


@pytest.mark.parametrize("state", ["x" * 513, "\xe9", ""])
def test_a_trace_state_that_is_too_odd_is_dropped_alone(state: str) -> None:
    trace = trace_of(request(("traceparent", f"00-{TRACE}"), ("tracestate", state)))
    assert (trace.traceparent, trace.tracestate) == (f"00-{TRACE}", None)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (['"3"'], True),
        (['W/"3"'], True),
        (['"1", "3"'], True),
        (['"1"', 'W/"3"'], True),
        (["*"], True),
        (['"33"'], False),
        (["3"], False),
        ([""], False),
        ([], False),
    ],
)
def test_if_none_match(given: list[str], same: bool) -> None:
    assert not_modified(request(*(("If-None-Match", each) for each in given)), '"3"') is same
