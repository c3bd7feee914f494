"""What is counted at once is counted as if one by one, under names that are not too many; what a log line looks like, how
many there are of them, and that no secret gets in."""

import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import pytest
import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from app.store.database import Database
from app.store.outage import words_of
from app.telemetry import (
    MAX_NAMES,
    OTHER,
    Names,
    SparingLog,
    child,
    configure_logging,
    counted,
    counted_by_bucket,
    observe_all,
    without_secrets,
)
from tests.patience import until

BUCKETS = (0.001, 0.5, 1, 30)


def test_many_observations_at_once_are_as_many_one_by_one() -> None:
    values = [0, 0.0005, 0.001, 0.0011, 0.5, 0.7, 1, 30, 30.5, 1e9]
    said = []
    for at_once in (True, False):
        registry = CollectorRegistry()
        timer = Histogram("seconds", "Time.", ["of"], buckets=BUCKETS, registry=registry).labels("a")
        if at_once:
            observe_all(timer, values)
        else:
            for value in values:
                timer.observe(value)
        said.append(generate_latest(registry))
    assert said[0] == said[1]
    assert b"seconds_count" in said[0]


def test_what_was_counted_is_read_as_it_is_collected() -> None:
    registry = CollectorRegistry()
    counter = Counter("things", "Things.", ["queue", "state"], registry=registry)
    plain = Counter("others", "Others.", registry=registry)
    timer = Histogram("seconds", "Time.", ["queue", "verb"], buckets=BUCKETS, registry=registry)
    assert (counted(counter, "state"), counted(plain)[""]) == ({}, 0)
    assert counted_by_bucket(timer) == [0] * (len(BUCKETS) + 1)
    plain.inc(3)
    for queue, state, number in (("a", "done", 2), ("b", "done", 3), ("a", "failed", 1)):
        counter.labels(queue, state).inc(number)
    # A queue may be called like a verb.
    for queue, verb, seconds in (("defer", "complete", 0.4), ("b", "complete", 0.6), ("b", "defer", 99)):
        timer.labels(queue, verb).observe(seconds)
    assert counted(counter, "state") == {"done": 5, "failed": 1}
    assert counted(plain) == {"": 3}
    collected: dict[float, int] = {}
    for sample in (each for metric in timer.collect() for each in metric.samples):
        if sample.name.endswith("_bucket"):
            bound = float(sample.labels["le"])
            collected[bound] = collected.get(bound, 0) + int(sample.value)
    assert list(accumulate(counted_by_bucket(timer))) == [collected[bound] for bound in sorted(collected)]
    assert counted_by_bucket(timer, "verb", {"defer"}) == [0, 1, 1, 0, 0]


def test_names_are_told_as_they_are_until_they_are_too_many() -> None:
    names = Names(2)
    told = [names.known("a", "x"), names.known("b", "y"), names.known("c", "z"), names.known("a", "x")]
    assert told == [("a", "x"), ("b", "y"), (OTHER, OTHER), ("a", "x")]


def test_metrics_with_names_that_callers_choose_are_bounded_and_the_others_are_not() -> None:
    registry = CollectorRegistry()
    chosen = Counter("chosen", "By name.", ["queue"], registry=registry)
    own = Counter("own", "By ours.", ["verb"], registry=registry)
    for n in range(MAX_NAMES + 100):
        child(chosen, (f"tested-{n}",)).inc()
        child(own, (f"verb-{n}",)).inc()
    said = generate_latest(registry).decode()
    assert said.count("chosen_total{") <= MAX_NAMES + 1
    assert said.count("own_total{") == MAX_NAMES + 100
    # Those that were named keep their names.
    assert child(chosen, ("tested-0",)) is chosen.labels("tested-0")
    assert child(chosen, ("never-seen",)) is chosen.labels(OTHER)


# -- how many lines, and what they look like ----------------------------------------------------------------


async def test_of_too_many_lines_the_last_says_how_many_more() -> None:
    with logging_to() as stream:
        sparing = SparingLog(structlog.get_logger(), lines=3, seconds=0.05)
        for n in range(10):
            sparing.warning("job.failed", n=n)
        sparing.warning("job.expired")

        def said() -> list[tuple[str, object]]:
            lines = [json.loads(line) for line in stream.getvalue().splitlines()]
            return [(each["event"], each.get("n", each.get("more"))) for each in lines]

        assert said() == [("job.failed", n) for n in range(3)]
        await until(lambda: len(said()) == 5)
        assert said()[3:] == [("log.and_more", 7), ("log.and_more", 1)]
        # And then as many again.
        sparing.warning("job.failed", n=11)
        assert said()[5:] == [("job.failed", 11)]
        sparing.tell_the_rest()
        assert len(said()) == 6


def test_a_person_sees_the_local_time_the_level_and_what_it_is_about() -> None:
    with logging_to("console") as stream:
        structlog.get_logger().warning("job.failed", job_id="J", attempt=2)
    line = re.sub(r" +", " ", stream.getvalue()).strip()
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[warning ?\] job\.failed attempt=2 job_id=J", line), line


def test_a_machine_sees_an_object_with_the_moment_in_utc() -> None:
    with logging_to("json") as stream:
        structlog.get_logger().warning("job.failed", job_id="J")
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line.pop("timestamp"))
    assert line == {"level": "warning", "event": "job.failed", "job_id": "J"}


# -- what a log line must not say --------------------------------------------------------------------------

KEY = "fmn_0123456789abcdefghijABCDEFGHIJ012345"
WEBHOOK = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@contextmanager
def logging_to(style: str = "json") -> Iterator[io.StringIO]:
    """The logs of a server, as they are written; what was configured before is so afterwards."""
    root = logging.getLogger()
    before, handlers, level = structlog.get_config(), root.handlers[:], root.level
    stream = io.StringIO()
    try:
        configure_logging("debug", style, stream)
        yield stream
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_value_that_is_called_a_secret_is_not_logged(style: str) -> None:
    with logging_to(style) as stream:
        structlog.get_logger().warning(
            "x",
            webhook_secret="geheim-1",
            token="geheim-2",
            headers={"Authorization": "geheim-3", "x-api-key": "geheim-4", "accept": "text/html"},
            nested=[{"db_password": "geheim-5"}, ("a", {"cookie": ["geheim-6"]})],
            sealed=b"\x01geheim-7",
            prompt_tokens=17,
        )
    assert "geheim" not in stream.getvalue()
    assert "text/html" in stream.getvalue()
    assert "17" in stream.getvalue()
    assert "<9 bytes>" in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"the key {KEY} was refused", "the key fmn_[hidden] was refused"),
        (f"signed with {WEBHOOK}, {WEBHOOK}", "signed with whsec_[hidden], whsec_[hidden]"),
        ("Authorization: Bearer geheim", "Authorization: [hidden]"),
        ("said Bearer geheim.geheim to it", "said Bearer [hidden] to it"),
        ("{'authorization': 'Basic Z2VoZWlt eA=='}", "{'authorization': '[hidden]'}"),
        ('{"webhook_secret": "geheim"}', '{"webhook_secret": "[hidden]"}'),
        ("Target(token='ge heim', slots=4)", "Target(token='[hidden]', slots=4)"),
        ("postgresql://me:geheim@db:5432/x?a=b", "postgresql://[hidden]@db:5432/x?a=b"),
        ("http://a:ge@heim@host/", "http://[hidden]@host/"),
        (
            "GET https://x/wake?a=1&access_token=geheim&b=2",
            "GET https://x/wake?a=1&access_token=[hidden]&b=2",
        ),
        ("https://x/?apikey=geheim", "https://x/?apikey=[hidden]"),
        ("no token here: 5 of 7 tokens are used", "no token here: 5 of 7 tokens are used"),
        ("https://x/jobs?limit=1&state=done", "https://x/jobs?limit=1&state=done"),
        ("job_01J0ABC", "job_01J0ABC"),
    ],
)
def test_a_secret_within_a_text_is_not_logged(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_texts_of_other_people_do_not_keep_it_busy() -> None:
    """Ten times as long takes some ten times as long; if it went by the square, this would not end."""
    for each in ("a", "?token", "://a", "token", "?a", "authorization:", "token='", "bearer "):
        without_secrets(each * (1_000_000 // len(each)))


@dataclass
class Config:
    name: str
    token: str


@pytest.mark.parametrize("style", ["json", "console"])
@pytest.mark.parametrize("logger", ["uvicorn.error", "asyncio", "some.library"])
def test_what_libraries_log_goes_the_same_way(logger: str, style: str) -> None:
    with logging_to(style) as stream:
        library = logging.getLogger(logger)
        try:
            # Not as words of this very line, which the trace shows.
            hidden = "ge" + "heim"
            local = f"{hidden} {WEBHOOK}"
            raise ValueError(f"{Config('x', hidden)} cannot use {KEY} at http://u:{hidden}@h/")
        except ValueError as problem:
            library.exception("Exception in ASGI application %s", {"authorization": local})
            structlog.get_logger().error("x", config=Config("x", hidden), problem=problem)
    said = stream.getvalue()
    assert said.count("Traceback") == 1
    assert "cannot use fmn_[hidden]" in said
    assert "geheim" not in said
    assert KEY not in said
    assert WEBHOOK not in said


async def test_the_row_that_the_database_would_not_take_is_not_logged(database: Database) -> None:
    secret = "line one\nHINT:  of geheim\n\nline geheim three"
    with logging_to() as stream:
        try:
            try:
                await database.execute(
                    "INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, history) "
                    "VALUES ('x', 'default', 'q', 'l', 'k', 'no such state', $1, '')",
                    secret,
                )
            except Exception as problem:
                raise RuntimeError("it did not work") from problem
        except RuntimeError as problem:
            structlog.get_logger().exception("x", beneath=problem.__cause__, said=str(problem.__cause__))
    said = stream.getvalue()
    assert said.count("jobs_state_is_known") == 3
    assert "it did not work" in said
    assert "geheim" not in said
    assert "line one" not in said


async def test_a_value_that_cannot_be_sent_to_the_database_is_not_logged(database: Database) -> None:
    with logging_to() as stream:
        try:
            await database.execute("UPDATE targets SET token = $1", "geheim")
        except Exception as problem:
            structlog.get_logger().exception("x", problem=words_of(problem))
    assert stream.getvalue().count("query argument $1") == 2
    assert "geheim'" not in stream.getvalue()
