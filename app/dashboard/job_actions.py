"""What can be done about one job from its page, and what can be saved of it."""

from collections.abc import Awaitable
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from fastapi import Path
from starlette.responses import Response

from app.api import artifacts, dead_letters, events, jobs, webhooks
from app.api.events import PostedEvent
from app.api.job_parameters import JobIdInPath
from app.api.jobs import CancelRequest, existing_job
from app.api.parameters import NameInPath
from app.api.routes import Reply, Routes
from app.dashboard import recipes
from app.dashboard.job import Typed, View, show_job
from app.dashboard.output import of_rows
from app.dashboard.page import Page, Said, Visit
from app.errors import ForemanError, InvalidRequest
from app.identity.scopes import Scope
from app.jobs.shapes import decode
from app.jobs.states import State
from app.jobs.submission import invalid
from app.store import job_view

routes = Routes("dashboard")
MOVED = {303: Reply("Done; the page to go on with")}
FILE = Reply("The file", bytes, media_type="*/*")

# What a worker left behind, or a caller sent, never becomes a page of ours: it is saved, not shown.
SEALED = {"content-security-policy": "sandbox; default-src 'none'", "cache-control": "private, no-store"}
# Of a running job's output no more than this is put into a file; the API's stream has all of it.
MAX_OUTPUT_BYTES = 8 * 1024 * 1024
MAX_OUTPUT_ROWS = 200_000


def _address(job_id: str) -> str:
    return f"/ui/jobs/{job_id}"


async def _do(visit: Page, job_id: str, work: Awaitable[Any], said: Said, to: str | None = None) -> Response:
    """Back to the job, which says what was done, or why not."""
    try:
        await work
    except ForemanError as problem:
        if problem.status >= 500 or problem.status == 404:
            raise
        return visit.failed(_address(job_id), problem)
    return visit.go(to or _address(job_id), said)


@routes.post("/ui/jobs/{job_id}/cancel", Scope.JOBS_WRITE, "Cancel a job", MOVED, documented=False)
async def cancel(visit: Visit, job_id: JobIdInPath) -> Response:
    form = await visit.form()
    reason = form.text("reason")
    try:
        given = decode(msgspec.json.encode({"reason": reason or None}), CancelRequest)
        answer = await jobs.cancel(visit.services, visit.tenant, job_id, given)
    except InvalidRequest as problem:
        typed = Typed(reason=reason, problem=problem.detail)
        return await show_job(visit, View(job_id), status=422, typed=typed)
    return visit.go(_address(job_id), _cancelled(is_asked=answer.status == 202, state=answer.document.state))


def _cancelled(*, is_asked: bool, state: State) -> Said:
    if is_asked:
        return Said(
            "Its worker was asked to stop.", "It is cancelled when that confirms, or the grace is over."
        )
    if state == State.CANCELLED:
        return Said("The job is cancelled.")
    return Said("It had ended already.", f"It is {state}.")


@routes.post("/ui/jobs/{job_id}/retry", Scope.JOBS_WRITE, "Revive a job", MOVED, documented=False)
async def retry(visit: Visit, job_id: JobIdInPath) -> Response:
    await visit.form()
    work = jobs.retry(visit.services, visit.tenant, job_id)
    return await _do(visit, job_id, work, Said("The job is queued again.", "Its attempts start over."))


@routes.post("/ui/jobs/{job_id}/replay", Scope.ADMIN_WRITE, "Replay a dead letter", MOVED, documented=False)
async def replay(visit: Visit, job_id: JobIdInPath) -> Response:
    await visit.form()
    work = dead_letters.replay(visit.services, visit.tenant, job_id)
    return await _do(
        visit, job_id, work, Said("The dead letter is queued again.", "Its attempts start over.")
    )


@routes.post("/ui/jobs/{job_id}/dismiss", Scope.ADMIN_WRITE, "Dismiss a dead letter", MOVED, documented=False)
async def dismiss(visit: Visit, job_id: JobIdInPath) -> Response:
    await visit.form()
    work = dead_letters.dismiss(visit.services, visit.tenant, job_id)
    return await _do(visit, job_id, work, Said("The dead letter is dismissed."))


@routes.post("/ui/jobs/{job_id}/delete", Scope.JOBS_WRITE, "Delete a job", MOVED, documented=False)
async def delete(visit: Visit, job_id: JobIdInPath) -> Response:
    await visit.form()
    work = jobs.delete(visit.services, visit.tenant, job_id)
    return await _do(visit, job_id, work, Said("The job is deleted, with all it owned."), "/ui/jobs")


@routes.post("/ui/jobs/{job_id}/events", Scope.JOBS_WRITE, "Post an event", MOVED, documented=False)
async def post_event(visit: Visit, job_id: JobIdInPath) -> Response:
    form = await visit.form()
    typed = Typed(type=form.text("type"), payload=form.raw("payload"))
    try:
        posted = await events.post(visit.services, visit.tenant, job_id, _event(visit, typed))
    except InvalidRequest as problem:
        return await show_job(visit, View(job_id), status=422, typed=replace(typed, problem=problem.detail))
    except ForemanError as problem:
        if problem.status != 409:
            raise
        return visit.failed(_address(job_id), problem)
    return visit.go(f"{_address(job_id)}#events", Said("The event is posted.", f"Its seq is {posted.seq}."))


def _event(visit: Page, typed: Typed) -> PostedEvent:
    """Checked as the API checks it: the payload is JSON, or there is none."""
    payload = typed.payload.strip() or "null"
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise invalid("payload", "must be JSON, such as {} or a text in quotation marks") from problem
    body = f'{{"type":{msgspec.json.encode(typed.type).decode()},"payload":{payload}}}'
    return decode(body.encode(), PostedEvent, visit.services.settings.max_json_depth)


@routes.post(
    "/ui/jobs/{job_id}/webhooks/{delivery_id}/redeliver",
    Scope.JOBS_WRITE,
    "Send a delivery again",
    MOVED,
    documented=False,
)
async def redeliver(visit: Visit, job_id: JobIdInPath, delivery_id: Annotated[str, Path()]) -> Response:
    await visit.form()
    work = webhooks.redeliver(visit.services, visit.tenant, job_id, delivery_id)
    said = Said("The webhook is sent again.", "Its receiver sees the same id.")
    return await _do(visit, job_id, work, said, f"{_address(job_id)}#deliveries")


# -- to be saved -------------------------------------------------------------------------------------------


@routes.get("/ui/jobs/{job_id}/artifacts/{name}", Scope.JOBS_READ, "Save an artifact", FILE, documented=False)
async def artifact(visit: Visit, job_id: JobIdInPath, name: NameInPath) -> Response:
    response = await artifacts.get(
        visit.services, visit.tenant, job_id, name, visit.request.headers.get("range"), None, None
    )
    return _sealed(response, name)


@routes.get("/ui/jobs/{job_id}/payload", Scope.JOBS_READ, "Save the payload", FILE, documented=False)
async def payload(visit: Visit, job_id: JobIdInPath) -> Response:
    job = await existing_job(visit.services, job_id, visit.tenant)
    return _sealed(Response(job.payload, media_type="application/json"), recipes.PAYLOAD_FILE)


@routes.get("/ui/jobs/{job_id}/body", Scope.JOBS_READ, "Save what submits it again", FILE, documented=False)
async def body(visit: Visit, job_id: JobIdInPath) -> Response:
    job = await existing_job(visit.services, job_id, visit.tenant)
    return _sealed(Response(recipes.body(job), media_type="application/json"), recipes.BODY_FILE)


@routes.get("/ui/jobs/{job_id}/output", Scope.JOBS_READ, "Save what it said", FILE, documented=False)
async def output(visit: Visit, job_id: JobIdInPath) -> Response:
    """As far as its log has it: of a job that is done the artifact `completion` has all of it."""
    job = await existing_job(visit.services, job_id, visit.tenant)
    database = visit.services.database
    changes = await job_view.transitions(database, job.id, 100, 0)
    run = max((event.seq for event in changes if event.type == State.LOADING), default=0)
    rows = await job_view.last_output(database, job.id, run, MAX_OUTPUT_BYTES, MAX_OUTPUT_ROWS)
    return _sealed(Response(of_rows(rows).text, media_type="text/plain"), f"{job_id}.txt")


def _sealed(response: Response, name: str) -> Response:
    response.headers.update(SEALED)
    response.headers["content-disposition"] = f'attachment; filename="{name}"'
    return response
