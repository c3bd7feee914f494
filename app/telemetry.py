"""Logs and metrics. Payloads, results, secrets and tokens never get in here."""

import logging
import re
import sys
from bisect import bisect_left
from collections import Counter as Counted
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, TextIO

import structlog
from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]

ENQUEUED = Counter("foreman_jobs_enqueued", "Jobs accepted.")
CLAIMED = Counter("foreman_jobs_claimed", "Jobs claimed by this process's workers.")
RUNNING = Gauge("foreman_jobs_running", "Jobs that this process is running now.")
SWEPT = Counter("foreman_jobs_swept", "Jobs moved by the sweeper.", ["verb"])
REQUESTS = Histogram(
    "foreman_request_seconds",
    "Time from a request's first byte to its answer's end.",
    ["method", "route", "status"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
# What the metrics call the route of a request that none was found for.
NO_ROUTE = "unmatched"
LIMITED = Counter(
    "foreman_key_limits_met", "Requests refused because their key had enough, by limit.", ["of"]
)
UNAUTHENTICATED = Counter(
    "foreman_requests_unauthenticated",
    "Requests refused for want of a valid API key, by what was wrong.",
    ["why"],
)
BODY_BYTES = Gauge("foreman_request_body_bytes", "Bytes of request bodies that this process holds now.")

# From a millisecond to a day. The charts of the dashboard are made of the same buckets (store/samples.py):
# what is kept there is read by their number, so they are never changed, only added to at the end.
DURATIONS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21_600.0, 86_400.0),
)
JOB_WAIT = Histogram(
    "foreman_job_wait_seconds",
    "Time from when a job could be claimed until it was, for each claim.",
    ["queue", "kind"],
    buckets=DURATIONS,
)
JOB_RUN = Histogram(
    "foreman_job_run_seconds",
    "Time from a claim to its settlement, by the verb that settled it.",
    ["queue", "kind", "verb"],
    buckets=DURATIONS,
)
ENDED = Counter("foreman_jobs_ended", "Jobs that ended, by how.", ["queue", "kind", "state"])
TOKENS = Counter(
    "foreman_tokens", "Tokens of jobs that ended, as their targets counted them.", ["model", "of"]
)

SETTLEMENTS = Counter(
    "foreman_settlements", "Settlements by verb and whether the lease still held.", ["verb", "ok"]
)

CONNECTIONS = Gauge("foreman_connections_open", "Connections of callers that this process has.")
CONNECTIONS_DROPPED = Counter(
    "foreman_connections_dropped",
    "Connections ended to make room: their callers had said nothing for longest.",
)
STREAMS = Gauge("foreman_streams_open", "Events, tokens and answers that this process streams now.", ["of"])
STREAMS_REFUSED = Counter("foreman_streams_refused", "Streams refused because there were too many.")
SLOW_READERS = Counter("foreman_slow_readers", "Connections ended because their reader did not read.")
WATCHED = Gauge("foreman_watches", "Requests and streams of this process that wait for a job to change.")
NOTICES = Counter("foreman_notices", "Hints sent to and heard from other processes.", ["way"])
LOG_READERS_PER_QUERY = Histogram(
    "foreman_log_readers_per_query",
    "How many readers of event logs one query served.",
    buckets=(1, 2, 5, 10, 20, 50, 100, 250),
)
EVENTS_APPENDED = Counter("foreman_events_appended", "Events written that are not transitions.", ["type"])
PARTITIONS_DROPPED = Counter(
    "foreman_partitions_dropped", "Days dropped from append-heavy tables.", ["table"]
)
ARTIFACT_BYTES = Counter("foreman_artifact_bytes", "Bytes of artifacts taken in and given out.", ["way"])
GATES_PASSED = Counter("foreman_gates_passed", "Times that waiting jobs were let through, by gate.", ["gate"])
REFUSED = Counter("foreman_submissions_refused", "Submissions that a queue's rules refused.", ["code"])
SKIPPED = Counter("foreman_jobs_skipped", "Queued jobs that were replaced by newer ones.")
TICKS = Counter("foreman_schedule_ticks", "Ticks of schedules, by what came of them.", ["outcome"])
BULK = Counter("foreman_bulk_jobs", "Jobs moved by bulk operations.", ["action"])
PRUNED = Counter("foreman_jobs_pruned", "Jobs removed because their retention was over.")
QUEUE_JOBS = Gauge("foreman_queue_jobs", "Jobs by queue and state.", ["queue", "state"])
QUEUE_OLDEST = Gauge(
    "foreman_queue_oldest_queued_seconds", "How long the oldest claimable job has waited.", ["queue"]
)
WEBHOOK_TRIES = Counter(
    "foreman_webhook_tries",
    "Tries to deliver a webhook: delivered, retried, given_up or refused.",
    ["outcome"],
)
WEBHOOK_SECONDS = Histogram(
    "foreman_webhook_seconds",
    "Time from the event to its delivery, tries that failed included.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 1800, 7200, 43_200),
)
WEBHOOKS_IN_FLIGHT = Gauge("foreman_webhooks_in_flight", "Webhooks that this process is sending now.")
WEBHOOK_CIRCUITS = Gauge("foreman_webhook_open_circuits", "Receivers that this process leaves alone for now.")

DATABASE_UP = Gauge(
    "foreman_database_up", "Whether the database could be used (and LISTENed to) when last needed.", ["of"]
)
TARGET_AWAKE = Gauge("foreman_target_awake", "Whether a target answered when it was last asked.", ["target"])
SWAPS = Counter("foreman_model_swaps", "Claims that made a target load another model.", ["target"])
SWAPS_AVOIDED = Counter(
    "foreman_model_swaps_avoided",
    "Claims that stayed with the resident model where first come, first served would have swapped.",
    ["target"],
)
SPANS = Counter(
    "foreman_spans", "Spans of traces: exported, or dropped because the collector took none.", ["outcome"]
)
PASSTHROUGH = Counter(
    "foreman_passthrough_requests", "Synchronous calls by surface and how they ended.", ["surface", "ending"]
)


def observe_all(histogram: Histogram, values: Sequence[float]) -> None:
    """All of them at once: one by one, each would take two locks and look for its bucket in Python."""
    if len(values) == 1:
        histogram.observe(values[0])
        return
    # Not public, but there is no other way in; a test compares it with `observe`.
    histogram._sum.inc(sum(values))
    for bucket, number in Counted(map(partial(bisect_left, histogram._upper_bounds), values)).items():
        histogram._buckets[bucket].inc(number)


# -- what a log line must not say --------------------------------------------------------------------------

HIDDEN = "[hidden]"
_NAMES = "secret|token|passw(?:or)?d|passphrase|authorization|api[_-]?key|cookie|signature|credential"
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
# Each has what is kept of it, and then what is not: as in a dictionary, a struct or a call; as a header on
# the wire, or a part of one; in the query of a URL, and before its host; our own, wherever they stand; and
# what the database's driver could not send. No part of it may run on without an end: texts of other people
# come by here.
_SECRETS = re.compile(
    rf"""
      ((?:{_NAMES})\w{{0,20}}["']?\s{{0,3}}[:=]\s{{0,3}}b?["'])[^"'\n]+
    | (\bauthorization:\s{{0,3}})[^\s"'][^"'\n]*
    | (\b(?:bearer|basic)[ ]{{1,3}})[^\s"'<>)]+
    | ([?&;][^\s=&?\#]{{0,40}}?(?:{_NAMES}|key|sig|auth|code)[^\s=&?\#]{{0,40}}=)[^\s"'&\#<>]+
    | (://)[^\s/?\#"'<>]{{1,500}}(?=@)
    | (\b(?:fmn_|whsec_))[\w+/=-]+
    | (\bquery[ ]argument[ ]\$\d{{1,5}}[^:\n]{{0,60}}:[ ])[^\n]+
    """,
    re.IGNORECASE | re.VERBOSE,
)
# One of these is in every text that the pattern can find something in; most texts are names and ids.
_MARKS = (":", "=", " ", "fmn_", "whsec_")
# PostgreSQL repeats the row that it would not take, over as many lines as its texts have: to the end of the
# error, or of what a `repr` made of it.
_DETAIL = "DETAIL:  "
_DETAILS = re.compile(
    rf"({_DETAIL}).*?(?=^[ |+]*\n[ |+]*(?:The above|During handling)|\Z)", re.MULTILINE | re.DOTALL
)
_DEEPEST = 6
# Ours, in every line.
_PLAIN = frozenset({"level", "timestamp"})


def hide_secrets(
    _logger: object, _method: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    """The last to see a line before it is written: nobody has to think of it where a line is made."""
    for name, value in event.items():
        if name not in _PLAIN:
            event[name] = _shown(name, value)
    return event


def without_secrets(text: str) -> str:
    """A text as it may be logged: what looks like a secret is left out of it."""
    if not any(mark in text for mark in _MARKS):
        return text
    if _DETAIL in text:
        text = _DETAILS.sub(rf"\g<1>{HIDDEN}\n", text)
    return _SECRETS.sub(lambda found: f"{found[found.lastindex or 0]}{HIDDEN}", text)


def _shown(name: str, value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, (int, float)):
        return value
    if _is_secret(name):
        return HIDDEN
    match value:
        case str():
            return without_secrets(value)
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case dict() if depth < _DEEPEST:
            return {key: _shown(str(key), each, depth + 1) for key, each in value.items()}
        case list() | tuple() | set() | frozenset() if depth < _DEEPEST:
            return [_shown("", each, depth + 1) for each in value]
    # As the renderer would have it.
    return without_secrets(repr(value))


@lru_cache(maxsize=1024)
def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def configure_logging(level: str, style: str, stream: TextIO | None = None) -> None:
    """JSON lines, or coloured ones for a person at a terminal."""
    stream = stream or sys.stderr
    for_people = style == "console" or (style == "auto" and stream.isatty())
    renderer: structlog.types.Processor = (
        # Not rich's traces: they show the values of variables.
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        if for_people
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            hide_secrets,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Bridge()], level=logging.WARNING, force=True)
    # Its pool says with a trace, time and again, what app/store/outage.py says once.
    logging.getLogger("asyncpg").setLevel(logging.ERROR)


class _Bridge(logging.Handler):
    """What libraries have to say goes the same way: one object a line, or one line for a person."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info
        )
