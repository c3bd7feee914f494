"""/ui/jobs/{job_id}: one job, which explains itself; what it said, what it left behind, and how it got there.

While it runs the page fetches itself up to four times a second. What is asked then is bounded, and what does
not change any more (the payload, the forms) is not asked for at all. What can be done is in job_actions.py.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from app.api import family, jobs, webhooks
from app.api.job_documents import Delivery
from app.api.job_parameters import JobIdInPath
from app.api.render import job_document
from app.api.routes import Reply, Routes
from app.dashboard import markdown, recipes
from app.dashboard.family import picture, summary
from app.dashboard.output import WINDOW_BYTES, Output, of_result, of_rows
from app.dashboard.page import Page, Visit
from app.dashboard.texts import LAID_OUT_BYTES, SHOWN_CHARACTERS, Shown, shown, visible
from app.dashboard.timeline import Timeline, Usage, outcome, timeline
from app.dialects.shapes import as_dict
from app.errors import NotFound
from app.identity.scopes import Scope
from app.jobs.artifacts import artifact_list
from app.jobs.lanes import LLM_KINDS
from app.jobs.states import TERMINAL, State, Verb
from app.store import job_view
from app.store.events import Event
from app.store.job_view import Piece, ViewedJob

routes = Routes("dashboard")
PAGE = Reply("The page", str, media_type="text/html")

# A result of up to so many bytes is read, to find the answer in it; a larger one is given as a file.
RESULT_BYTES = 1024 * 1024
# Of the log: state changes and what others posted, for the drawing; and what a page of the table has.
STATE_EVENTS = 100
OTHER_EVENTS = 40
EVENTS_A_PAGE = 50
DELIVERIES_SHOWN = 50
MAX_SEQ = 2**31 - 1

_CHOICES = {
    "output": ("markdown", "raw"),
    "payload": ("raw",),
    "result": ("raw",),
    "events": ("all",),
    "order": ("oldest",),
}


@dataclass(frozen=True, slots=True)
class View:
    """What of the job is looked at: all of it stands in the address."""

    job_id: str
    output: str = ""
    payload: str = ""
    result: str = ""
    events: str = ""
    order: str = ""
    cursor: int | None = None
    # What the address asks for and cannot be had.
    unknown: tuple[str, ...] = ()

    def link(self, anchor: str, **changes: str | int | None) -> str:
        """The same page with something else to be seen."""
        query = {name: getattr(self, name) for name in (*_CHOICES, "cursor")} | changes
        given = urlencode({name: value for name, value in query.items() if value not in {"", None}})
        return f"/ui/jobs/{self.job_id}{'?' if given else ''}{given}#{anchor}"


def view_of(visit: Page, job_id: str) -> View:
    """What it cannot ask for is said on the page, and otherwise left alone."""
    chosen: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in visit.request.query_params.items():
        if value in _CHOICES.get(name, ()):
            chosen[name] = value
        elif name == "cursor" and value.isascii() and value.isdigit() and len(value) <= 10:
            chosen[name] = min(int(value), MAX_SEQ)
        else:
            unknown.append(visible(f"{name}={value}"[:80]))
    return View(job_id, **chosen, unknown=tuple(unknown[:5]))


@dataclass(frozen=True, slots=True)
class Typed:
    """What stands in the forms, and what was wrong with it."""

    reason: str = ""
    type: str = ""
    payload: str = ""
    problem: str = ""


@routes.get("/ui/jobs/{job_id}", Scope.JOBS_READ, "A job", PAGE, documented=False)
async def job_page(visit: Visit, job_id: JobIdInPath) -> Response:
    return await show_job(visit, view_of(visit, job_id))


async def show_job(visit: Page, view: View, *, status: int = 200, typed: Typed | None = None) -> Response:
    job, now = await _read(visit, view.job_id), datetime.now(UTC)
    changes = await job_view.transitions(visit.services.database, job.id, STATE_EVENTS, OTHER_EVENTS)
    has_ended = job.state in TERMINAL
    said = await _output(visit, job, changes)
    relatives = await family.of_job(visit.services, visit.tenant, job.id)
    answer = job.result if _is_whole(job) else None
    return await visit.show(
        "job.html",
        status=status,
        nudges="" if has_ended else f"/ui/jobs/{job.id}/nudges",
        job=job,
        view=view,
        has_ended=has_ended,
        document=job_document(job),
        explanation=await jobs.explain(visit.services, visit.account, job.id),
        timeline=_timeline(job, changes, now),
        outcome=outcome,
        output=said,
        rendered=await _rendered(said, view, has_ended=has_ended),
        result=_result(job, view),
        progress=_progress(job),
        ledger=_ledger(job, now),
        log=await _log(visit, view),
        deliveries=await _deliveries(visit, job),
        artifacts=artifact_list(job.id, job.kind, answer, job.stored_artifacts),
        family=relatives,
        children=summary(relatives.children.states),
        picture=picture(job.model or job.kind, job.state, relatives),
        visible=visible,
        typed=typed or Typed(),
        **_fixed(visit, job, view),
    )


async def _read(visit: Page, job_id: str) -> ViewedJob:
    job = await job_view.get(
        visit.services.database,
        job_id,
        visit.tenant,
        # It stands in the open page already.
        payload=0 if visit.is_partial else LAID_OUT_BYTES,
        result=RESULT_BYTES,
        head=SHOWN_CHARACTERS,
    )
    if job is None:
        raise NotFound("There is no such job.")
    return job


def _fixed(visit: Page, job: ViewedJob, view: View) -> dict[str, Any]:
    """What is shown once: a page that is open asks for none of it again."""
    if visit.is_partial:
        return {"payload": None, "metadata": {}, "curl": "", "python": "", "long": 0}
    is_whole = job.payload_bytes <= LAID_OUT_BYTES
    address, with_key = str(visit.request.base_url).rstrip("/"), visit.services.authenticator is not None
    return {
        "payload": shown(job.payload, job.payload_bytes, is_whole=is_whole, laid_out=view.payload != "raw"),
        "metadata": _decoded(job.metadata),
        "curl": recipes.as_curl(job, address, with_key=with_key),
        "python": recipes.as_python(job, address, with_key=with_key),
        "long": recipes.MAX_PAYLOAD,
    }


# -- what it said ------------------------------------------------------------------------------------------


async def _output(visit: Page, job: ViewedJob, changes: Sequence[Event]) -> Output | None:
    """None of a job that says nothing: then there is no such section."""
    found = of_result(job)
    if found is not None:
        return found
    if job.kind not in LLM_KINDS:
        return None
    run = max((event.seq for event in changes if event.type == State.LOADING), default=0)
    if not run:
        return Output()
    return of_rows(await job_view.last_output(visit.services.database, job.id, run, WINDOW_BYTES))


async def _rendered(said: Output | None, view: View, *, has_ended: bool) -> Markup | None:
    """As Markdown, unless it is asked for as it is, or still being written."""
    if said is None or not has_ended or view.output == "raw":
        return None
    # In a thread: a long answer takes a while.
    return await asyncio.to_thread(markdown.render, said.text)


# -- how it went -------------------------------------------------------------------------------------------


def _timeline(job: ViewedJob, changes: Sequence[Event], now: datetime) -> Timeline:
    used = _decoded(job.usage)
    usage = Usage(_seconds(used.get("prefill_seconds")), _seconds(used.get("decode_seconds")))
    # Of one that was put off or tried again this is not when it was to begin. (Infinity has no time zone.)
    is_first = not any(each.type == State.QUEUED and each.reason != Verb.ENQUEUE for each in changes)
    run_at = job.run_at if is_first and job.run_at.tzinfo is not None else None
    return timeline(changes, now, run_at=run_at, usage=usage)


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where its time went, over all attempts, and what its last one used of its model."""

    queued: float
    loading: float
    working: float
    load: float
    prefill: float
    decode: float
    prompt_tokens: int | None
    completion_tokens: int | None

    @property
    def tokens_per_second(self) -> float | None:
        return self.completion_tokens / self.decode if self.completion_tokens and self.decode else None


def _ledger(job: ViewedJob, now: datetime) -> Ledger:
    spent = {"queued": job.queued_seconds, "loading": job.loading_seconds, "working": job.working_seconds}
    if job.state in spent:
        spent[job.state] += max(0.0, (now - job.entered_at).total_seconds())
    used = _decoded(job.usage)
    return Ledger(
        **spent,
        load=_seconds(used.get("load_seconds")),
        prefill=_seconds(used.get("prefill_seconds")),
        decode=_seconds(used.get("decode_seconds")),
        prompt_tokens=used.get("prompt_tokens"),
        completion_tokens=used.get("completion_tokens"),
    )


@dataclass(frozen=True, slots=True)
class Progress:
    message: str
    fraction: float | None
    count: str


def _progress(job: ViewedJob) -> Progress | None:
    """Of a job that runs, or has stopped on the way: of one that is done there is no more to say."""
    told = _decoded(job.progress)
    if not told or job.state == State.DONE:
        return None
    fraction, current, total = (told.get(name) for name in ("fraction", "current", "total"))
    message = " · ".join(str(told[name]) for name in ("step", "message") if told.get(name))
    count = "" if current is None else f"{current}" if total is None else f"{current} of {total}"
    done = float(fraction) if isinstance(fraction, int | float) and 0 <= fraction <= 1 else None
    return Progress(visible(message[:500]), done, visible(count))


# -- what it left behind -----------------------------------------------------------------------------------


def _is_whole(job: ViewedJob) -> bool:
    return job.result is not None and job.result_bytes is not None and job.result_bytes <= RESULT_BYTES


def _result(job: ViewedJob, view: View) -> Shown | None:
    if job.result is None or job.result_bytes is None:
        return None
    return shown(job.result, job.result_bytes, is_whole=_is_whole(job), laid_out=view.result != "raw")


async def _log(visit: Page, view: View) -> Piece:
    is_newest_first = view.order != "oldest"
    cursor = view.cursor if view.cursor is not None else MAX_SEQ if is_newest_first else 0
    return await job_view.piece_of_log(
        visit.services.database,
        view.job_id,
        cursor,
        EVENTS_A_PAGE,
        newest_first=is_newest_first,
        with_output=view.events == "all",
    )


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The last ones, and how many others there are; more may not have been counted."""

    shown: list[Delivery]
    others: int
    is_counted: bool


async def _deliveries(visit: Page, job: ViewedJob) -> Deliveries | None:
    if job.webhook_url is None:
        return None
    found = await webhooks.of_job(visit.services, visit.tenant, job.id, 0)
    last = found.deliveries[-DELIVERIES_SHOWN:]
    return Deliveries(last, len(found.deliveries) - len(last), found.next_after is msgspec.UNSET)


def _decoded(text: str | None) -> dict[str, Any]:
    """JSON of ours, or of workers; whatever it is, an object or nothing."""
    try:
        return as_dict(msgspec.json.decode(text)) if text else {}
    except msgspec.MsgspecError:
        return {}
