"""Logs and metrics. Payloads, results, secrets and tokens never get in here."""

import logging
import sys
from bisect import bisect_left
from collections import Counter as Counted
from collections.abc import Sequence
from functools import partial
from typing import TextIO

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
BODY_BYTES = Gauge("foreman_request_body_bytes", "Bytes of request bodies that this process holds now.")

SETTLEMENTS = Counter(
    "foreman_settlements", "Settlements by verb and whether the lease still held.", ["verb", "ok"]
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


def configure_logging(level: str, style: str, stream: TextIO | None = None) -> None:
    """JSON lines, or coloured ones for a person at a terminal."""
    stream = stream or sys.stderr
    for_people = style == "console" or (style == "auto" and stream.isatty())
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty())
        if for_people
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
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
