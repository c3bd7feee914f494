"""/ui: is everything all right, what is happening now, and what needs a person."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from fastapi import Query
from markupsafe import Markup
from starlette.responses import Response

from app.api import jobs
from app.api.job_documents import Job
from app.api.routes import Access, Reply, Routes
from app.api.services import Services
from app.dashboard import charts, words
from app.dashboard.attention import ATTENTION
from app.dashboard.charts import Series, Span
from app.dashboard.navigation import first_page
from app.dashboard.page import Page, Visit, html
from app.errors import NotFound
from app.identity.scopes import Scope
from app.jobs.states import RUNNING, State
from app.store.census import QueueCount
from app.store.read import Filter
from app.store.remembered import Remembered
from app.store.samples import History, Window, history
from app.store.tallies import ENQUEUED

routes = Routes("dashboard")

WINDOWS: dict[Window, str] = {"15m": "15 min", "6h": "6 h", "7d": "7 d"}
MAX_RUNNING = 12
# Of the whole page as it is for everybody who may see the same: fifty open ones cost as much as one.
KEPT_SECONDS = 1.5

# When each was begun. Open pages are nudged together: the first of them makes it for all.
_rendered: Remembered[tuple[object, ...], tuple[float, asyncio.Task[Response]]] = Remembered(200)


@routes.get(
    "/ui",
    # It is what the server's address leads to: who may not see it is led to what they may.
    Access.ANY_KEY,
    "Overview",
    Reply("The page", str, media_type="text/html"),
    documented=False,
)
async def overview_page(visit: Visit, window: Annotated[str, Query()] = "15m") -> Response:
    if not visit.may(Scope.ADMIN_READ):
        return visit.go(first_page(visit.account))
    if window not in WINDOWS:
        raise NotFound(f"There is no such window; there are {words.listed(WINDOWS)}.")
    if not visit.is_partial:
        return await _made(visit, window)
    place = (id(visit.services), visit.tenant, window, visit.account.scopes)
    known = _rendered.get(place)
    if known is None or time.monotonic() - known[0] >= KEPT_SECONDS:
        known = (time.monotonic(), asyncio.create_task(_made(visit, window)))
        # Perhaps nobody waits for it any more, nor for its trouble.
        known[1].add_done_callback(lambda made: made.cancelled() or made.exception())
        _rendered.put(place, known)
    page = await asyncio.shield(known[1])
    return html(bytes(page.body).decode())


async def _made(visit: Page, window: Window) -> Response:
    services = visit.services
    past = await history(services.database, window)
    counts = await services.queues.census.latest()
    return await visit.show(
        "overview.html",
        window=window,
        windows=WINDOWS,
        figures=_figures(counts, past),
        charts=_charts(past, WINDOWS[window]),
        attention=await ATTENTION.matters(services, visit.tenant),
        running=await _running(services, visit.tenant),
        is_new=not counts,
    )


class Progress(msgspec.Struct):
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    job: Job
    # None as long as nobody knows.
    fraction: float | None


async def _running(services: Services, tenant: str) -> list[Run]:
    found, _ = await jobs.page_of(services, Filter(states=sorted(map(str, RUNNING))), tenant, MAX_RUNNING)
    return [Run(job, _fraction(job)) for job in found]


def _fraction(job: Job) -> float | None:
    told = msgspec.json.decode(job.progress, type=Progress | None)
    return told.fraction if told else None


@dataclass(frozen=True, slots=True)
class Figure:
    label: str
    value: str
    address: str
    note: str = ""
    tone: str = ""
    spark: str = ""


def _figures(counts: dict[str, QueueCount], past: History) -> list[Figure]:
    """Numbers first: each with the list that explains it."""
    waiting = sum(each.states[State.QUEUED] for each in counts.values())
    held = waiting - sum(each.ready for each in counts.values())
    running = sum(each.running for each in counts.values())
    failed = _per_minute(counts, State.FAILED)
    oldest = max((each.oldest_queued_seconds or 0 for each in counts.values() if each.ready), default=0)
    lines = [*past.queues, past.other]
    return [
        Figure(
            "waiting",
            words.number(waiting),
            "/ui/jobs?state=queued",
            f"{words.number(held)} scheduled or held back" if held else "all of them could start",
            spark=_spark(_summed([line.waiting for line in lines]), "Waiting"),
        ),
        Figure(
            "running",
            words.number(running),
            "/ui/jobs?state=loading&state=working",
            f"{words.number(_per_minute(counts, ENQUEUED))} arrive a minute",
            spark=_spark(_summed([line.running for line in lines]), "Running"),
        ),
        Figure(
            "done / min",
            words.number(_per_minute(counts, State.DONE)),
            "/ui/jobs?state=done",
            spark=_spark([each.done for each in past.points], "Done per second"),
        ),
        Figure(
            "failed / min",
            words.number(failed),
            "/ui/jobs?state=failed",
            tone="bad" if failed else "",
            spark=_spark([each.failed for each in past.points], "Failed per second"),
        ),
        Figure("oldest waiting", words.duration(oldest) if oldest else "–", "/ui/queues"),
    ]


def _per_minute(counts: dict[str, QueueCount], what: str) -> int:
    return round(60 * sum(each.per_second.get(what, 0) for each in counts.values()))


def _summed(lines: Sequence[Sequence[int]]) -> list[int]:
    return [sum(each) for each in zip(*lines, strict=True)]


def _spark(values: charts.Values, label: str) -> str:
    return charts.sparkline(values, label) if any(values) else ""


def _charts(past: History, label: str) -> list[Markup]:
    points = past.points
    span = Span(points[0].at, past.step, label)
    queues = [Series(line.queue, line.waiting, f"series-{n}") for n, line in enumerate(past.queues, 1)]
    if any(past.other.waiting) or not queues:
        queues.append(Series("other queues" if queues else "waiting", past.other.waiting, "series-7"))
    return [
        charts.line_chart(
            "Arrivals and completions per second",
            [
                Series("arrived", [each.enqueued for each in points], "queued"),
                Series("done", [each.done for each in points], "done"),
                Series("failed", [each.failed for each in points], "failed"),
            ],
            span,
            words.number,
        ),
        charts.stacked_chart("Waiting by queue", queues, span, words.number),
        charts.line_chart(
            "Wait and run time",
            [
                Series("wait p50", [each.wait_p50 for each in points], "series-7"),
                Series("wait p95", [each.wait_p95 for each in points], "series-4"),
                Series("run p50", [each.run_p50 for each in points], "series-2"),
                Series("run p95", [each.run_p95 for each in points], "series-1"),
            ],
            span,
            words.duration,
        ),
        charts.line_chart(
            "Tokens per second",
            [
                Series("prompt", [each.prompt_tokens for each in points], "series-7"),
                Series("completion", [each.completion_tokens for each in points], "series-1"),
            ],
            span,
            words.number,
        ),
    ]
