"""Logs and metrics. Payloads, results, secrets and tokens never get in here."""

import asyncio
import logging
import re
import sys
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from typing import Any, TextIO

import structlog
from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

disable_created_metrics()  # type: ignore[no-untyped-call]

BUILD = Gauge("foreman_build_info", "1; which version this process is, and its part.", ["version", "role"])

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
RETRIED = Counter(
    "foreman_jobs_retried",
    "Attempts that failed and are followed by another, by the code of their error.",
    ["queue", "kind", "error"],
)
LEASES_LOST = Counter(
    "foreman_leases_lost", "Runs whose lease ran out: their worker died or stalled.", ["queue", "kind"]
)
CLAIM_SECONDS = Histogram(
    "foreman_claim_seconds",
    "How long a claim took, whether it found something or not.",
    ["queue"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
)
BATCH_SIZES = Histogram(
    "foreman_batch_size",
    "How many requests, or runs that ended, one flush of a batcher took along.",
    ["batcher"],
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
)
LOOP_FAILURES = Counter(
    "foreman_loop_failures",
    "Rounds of background loops that failed: database_away, unavailable, or bug.",
    ["loop", "why"],
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
FILE_BYTES = Counter("foreman_file_bytes", "Bytes of files taken in and given out.", ["way"])
BATCHES_ENDED = Counter("foreman_batches_ended", "Batches that have ended, by state.", ["state"])
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
WEBHOOKS_PENDING = Gauge(
    "foreman_webhooks_pending", "Webhooks still to be delivered, by the receivers with most.", ["receiver"]
)
WEBHOOKS_OLDEST = Gauge(
    "foreman_webhooks_oldest_pending_seconds",
    "Age of the oldest webhook still to be delivered, by the same receivers.",
    ["receiver"],
)

DATABASE_UP = Gauge(
    "foreman_database_up", "Whether the database could be used (and LISTENed to) when last needed.", ["of"]
)
DATABASE_CONNECTIONS = Gauge(
    "foreman_database_connections", "Connections of this process's pool: in_use or idle.", ["state"]
)
DATABASE_CONNECTIONS_MOST = Gauge(
    "foreman_database_connections_most", "How many connections this process's pool may have."
)
DATABASE_WAITING = Gauge(
    "foreman_database_waiting", "How many wait for a connection of this process's pool now."
)
DATABASE_WAIT_SECONDS = Histogram(
    "foreman_database_wait_seconds",
    "How long it took to get a connection when none was at hand.",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15),
)
TARGET_AWAKE = Gauge("foreman_target_awake", "Whether a target answered when it was last asked.", ["target"])
TARGET_BREAKER = Gauge(
    "foreman_target_breaker_open", "Whether a target is left alone because it kept failing.", ["target"]
)
TARGET_SLOTS = Gauge("foreman_target_slots", "Jobs that a target gets at the same time.", ["target"])
TARGET_SLOTS_USED = Gauge(
    "foreman_target_slots_used", "Jobs that this process runs on a target now.", ["target"]
)
TARGET_RESIDENT = Gauge(
    "foreman_target_resident", "1 for each model that a target says to have loaded.", ["target", "model"]
)
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


# -- labels that callers choose ----------------------------------------------------------------------------

OTHER = "other"
MAX_NAMES = 200
MAX_ERRORS = 20
MAX_RECEIVERS = 10


# How long readers of the metrics wait for what has to be looked up: Prometheus gives up after ten seconds.
LOOK_SECONDS = 4.0


class Names:
    """Labels that callers choose: so many are told as they are, and all that come after them as `other`."""

    def __init__(self, most: int = MAX_NAMES) -> None:
        self._most = most
        self._known: set[tuple[str, ...]] = set()

    def known(self, *names: str) -> tuple[str, ...]:
        if names not in self._known:
            if len(self._known) >= self._most:
                return (OTHER,) * len(names)
            self._known.add(names)
        return names


# A metric and its labels.
Counted = tuple[Any, tuple[str, ...]]
# For the life of a process: what was counted under a name stays there.
_PLACES, _QUEUES, _MODELS, _LOOPS, _ERRORS = Names(), Names(), Names(), Names(), Names(MAX_ERRORS)
_children: dict[Counted, Any] = {}


def child(metric: Any, labels: tuple[str, ...]) -> Any:
    """What is counted with, looked up once: `labels()` on the hot path would cost more than the rest."""
    found = _children.get((metric, labels))
    if found is None:
        kept = _bounded(metric, labels)
        found = _children.get((metric, kept))
        if found is None:
            found = _children[metric, kept] = metric.labels(*kept) if kept else metric
    return found


def _bounded(metric: MetricWrapperBase, labels: tuple[str, ...]) -> tuple[str, ...]:
    """With `other` in the place of names that are too many: what is that in one metric is so in all."""
    match metric._labelnames:
        case ("queue", "kind", "error"):
            return (*_PLACES.known(*labels[:2]), *_ERRORS.known(labels[2]))
        case ("queue", "kind", *_):
            return (*_PLACES.known(*labels[:2]), *labels[2:])
        case ("queue",):
            return _QUEUES.known(*labels)
        case ("loop", *_):
            # Each target has one.
            return (*_LOOPS.known(labels[0]), *labels[1:])
        case ("model", *_):
            return (*_MODELS.known(labels[0]), *labels[1:])
        case _:
            return labels


def observe_all(histogram: Histogram, values: Sequence[float]) -> None:
    """All of them at once: one by one, each would take two locks and look for its bucket in Python."""
    if len(values) == 1:
        histogram.observe(values[0])
        return
    # Not public, but there is no other way in; a test compares it with `observe`.
    histogram._sum.inc(sum(values))
    for bucket, number in Tally(map(partial(bisect_left, histogram._upper_bounds), values)).items():
        histogram._buckets[bucket].inc(number)


# What has been counted so far, read as it is kept: not public either, but `collect` makes an object of each
# bucket of each series, and takes thirty times as long: half a second where there are some hundred queues. A
# test compares the two.


def counted(counter: Counter, label: str | None = None) -> Tally[str]:
    """How many of all series, by the value of one of their labels; all of them under '' without one."""
    sums: Tally[str] = Tally()
    for labels, series in _series(counter):
        sums["" if label is None else labels[label]] += int(series._value.get())
    return sums


def counted_by_bucket(histogram: Histogram, label: str = "", without: Collection[str] = ()) -> list[int]:
    """How many of all series there are in each bucket; without those whose label has one of these values."""
    sums = [0.0] * len(histogram._upper_bounds)
    for labels, series in _series(histogram):
        if labels.get(label) not in without:
            sums = [total + bucket.get() for total, bucket in zip(sums, series._buckets, strict=True)]
    return [int(total) for total in sums]


def _series(metric: Any) -> list[tuple[dict[str, str], Any]]:
    """Each series with its labels."""
    if not metric._labelnames:
        return [({}, metric)]
    with metric._lock:
        children = list(metric._metrics.items())
    return [(dict(zip(metric._labelnames, values, strict=True)), child) for values, child in children]


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
            # People look at their own clock.
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
            if for_people
            else structlog.processors.TimeStamper(fmt="iso", utc=True),
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


class SparingLog:
    """For what may happen to thousands at once: so many lines a second, then one that says how many more."""

    def __init__(self, logger: Any, lines: int = 50, seconds: float = 1.0) -> None:
        self._log = logger
        self._lines = lines
        self._seconds = seconds
        self._left = lines
        self._left_out: Tally[str] = Tally()
        self._timer: asyncio.TimerHandle | None = None

    def warning(self, event: str, **fields: Any) -> None:
        if self._timer is None:
            self._left = self._lines
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.tell_the_rest)
        if self._left > 0:
            self._left -= 1
            self._log.warning(event, **fields)
        else:
            self._left_out[event] += 1

    def tell_the_rest(self) -> None:
        """At the end of each such second; and when there will be none any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for event, more in self._left_out.items():
            self._log.warning("log.and_more", of=event, more=more)
        self._left_out.clear()


class _Bridge(logging.Handler):
    """What libraries have to say goes the same way: one object a line, or one line for a person."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info
        )
