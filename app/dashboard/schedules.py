"""/ui/schedules: when each runs next and what came of its last ticks; make, change, run and remove them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import orjson
from msgspec import Raw
from starlette.responses import Response

from app.api import schedules
from app.api.operator_documents import Schedule
from app.api.routes import Reply, Routes
from app.api.schedules import NEXT_TICKS, ExistingName, NewSchedule
from app.dashboard.cron_words import in_words
from app.dashboard.lists import PAGE_SIZE, asked_of
from app.dashboard.page import Form, Page, Said, Undo, Visit
from app.dashboard.undoing import undo_by
from app.dashboard.words import exact
from app.errors import ForemanError, InvalidRequest, NotFound
from app.identity.scopes import Scope
from app.jobs.cron import check_cron, check_timezone, next_tick, ticks_from
from app.jobs.submission import is_name

routes = Routes("dashboard")
PAGE = Reply("The page", str, media_type="text/html")
MOVED = {303: Reply("Done; the page to go on with")}
TYPED = ("name", "cron", "timezone", "job")
NEW_JOB = '{\n  "kind": "report",\n  "payload": {}\n}'
BAD_NAME = "has 1 to 128 letters, digits and . _ : -, beginning with a letter or digit"

# What came of a tick: the state whose look it has, its shape, its meaning.
OUTCOMES = {
    "accepted": ("done", "✓", "its job was submitted"),
    "coalesced": ("cancelled", "≈", "coalesced into a job that was there"),
    "replaced": ("skipped", "↷", "took the place of one that waited"),
}
REFUSED = ("failed", "✕", "no job was made")


@routes.get("/ui/schedules", Scope.ADMIN_READ, "Schedules", PAGE, documented=False)
async def schedules_page(visit: Visit) -> Response:
    asked = asked_of(visit)
    found = await schedules.list_schedules(
        visit.services, visit.tenant, None, asked.search, PAGE_SIZE, asked.offset
    )
    return await visit.show(
        "schedules.html",
        asked=asked,
        total=found.total,
        page_size=PAGE_SIZE,
        schedules=found.schedules,
        in_words=in_words,
        clock=clock,
        outcomes=OUTCOMES,
        refused=REFUSED,
        origin=str(visit.request.base_url).rstrip("/"),
    )


def clock(moment: datetime, timezone: str) -> str:
    """What the clock of the zone shows then; with the day where that is another."""
    try:
        local, today = (each.astimezone(ZoneInfo(timezone)) for each in (moment, datetime.now(UTC)))
    except (KeyError, ValueError, OSError, OverflowError):
        return exact(moment)
    time = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
    if local.date() == today.date():
        return time
    is_near = timedelta(0) < local.date() - today.date() < timedelta(days=7)
    return f"{local:%a} {time}" if is_near else f"{local:%a} {local.day} {local:%b %Y} {time}"


# Before those of a schedule: none can have this name.
@routes.get("/ui/schedules/+new", Scope.ADMIN_WRITE, "A new schedule", PAGE, documented=False)
async def new_schedule_page(visit: Visit) -> Response:
    return await _show(visit, None, {"cron": "0 3 * * *", "timezone": "UTC", "job": NEW_JOB})


@routes.post(
    "/ui/schedules/+new", Scope.ADMIN_WRITE, "Make a schedule", {**MOVED, 200: PAGE}, documented=False
)
async def make_schedule(visit: Visit) -> Response:
    form = await visit.form()
    name = form.text("name")
    if not is_name(name):
        return await _show(visit, None, form.values, problems={"name": BAD_NAME}, status=422)
    if await _found(visit, name) is not None:
        said = {"name": "is the name of a schedule that there is: change that one"}
        return await _show(visit, None, form.values, problems=said, status=422)
    return await _take(visit, name, None, form)


@routes.get("/ui/schedules/{name}", Scope.ADMIN_READ, "A schedule", PAGE, documented=False)
async def schedule_page(visit: Visit, name: ExistingName) -> Response:
    schedule = await schedules.get_schedule(visit.services, visit.tenant, name)
    return await _show(visit, schedule, _texts(schedule))


@routes.post(
    "/ui/schedules/{name}",
    Scope.ADMIN_WRITE,
    "Change a schedule, or see when it would run",
    {**MOVED, 200: PAGE},
    documented=False,
)
async def change_schedule(visit: Visit, name: ExistingName) -> Response:
    form = await visit.form()
    schedule = await _found(visit, name)
    if schedule is None and form.text("step") != "restore":
        raise NotFound("There is no such schedule.")
    return await _take(visit, name, schedule, form)


async def _found(visit: Page, name: str) -> Schedule | None:
    try:
        return await schedules.get_schedule(visit.services, visit.tenant, name)
    except NotFound:
        return None


def _texts(schedule: Schedule) -> dict[str, str]:
    job = bytes(schedule.job).decode()
    return {"name": schedule.name, "cron": schedule.cron, "timezone": schedule.timezone, "job": job}


async def _take(visit: Page, name: str, known: Schedule | None, form: Form) -> Response:
    typed = form.values | {"cron": form.text("cron"), "timezone": form.text("timezone") or "UTC"}
    problems = _problems(typed)
    if not problems and form.text("step") == "preview":
        return await _show(visit, known, typed, preview=_ticks(typed["cron"], typed["timezone"]))
    wanted = NewSchedule(typed["cron"], Raw(typed.get("job", "").strip().encode()), typed["timezone"])
    if not problems:
        try:
            await schedules.put_schedule(visit.services, visit.tenant, name, wanted)
        except InvalidRequest as refused:
            problems = _told(refused)
    if problems:
        return await _show(visit, known, typed, problems=problems, status=422)
    undo = None if known is None else _undo(known)
    if form.text("step") == "restore":
        said = Said(f"{name} is as it was.", undo=undo)
    else:
        said = Said(f"{name} is {'made' if known is None else 'changed'}.", undo=undo)
    return visit.go(f"/ui/schedules/{name}", said)


def _problems(typed: dict[str, str]) -> dict[str, str]:
    """What is wrong that can be told field by field before the API is asked."""
    problems: dict[str, str] = {}
    for field, check in (("cron", check_cron), ("timezone", check_timezone)):
        try:
            check(typed[field])
        except InvalidRequest as refused:
            problems |= _told(refused)
    try:
        if not isinstance(orjson.loads(typed.get("job", "")), dict):
            problems["job"] = "must be an object"
    except orjson.JSONDecodeError as problem:
        problems["job"] = f"is not JSON: {problem}"
    return problems


def _told(refused: ForemanError) -> dict[str, str]:
    """By field: whatever is wrong with the job is told beside it."""
    if refused.detail.startswith("job: "):
        return {"job": refused.detail.removeprefix("job: ")}
    errors: list[dict[str, Any]] = refused.extra.get("errors", [])
    told = {str(each["field"]): str(each["message"]) for each in errors if each.get("field") in TYPED}
    return told or {"job": refused.detail}


def _ticks(cron: str, timezone: str) -> list[datetime]:
    first = next_tick(cron, timezone, datetime.now(UTC))
    return [] if first is None else list(ticks_from(cron, timezone, first, NEXT_TICKS))


def _undo(schedule: Schedule, label: str = "Undo") -> Undo | None:
    """As it was; None where that is too much to remember."""
    return undo_by(f"/ui/schedules/{schedule.name}", _texts(schedule) | {"step": "restore"}, label)


async def _show(
    visit: Page,
    schedule: Schedule | None,
    typed: dict[str, str],
    *,
    preview: list[datetime] | None = None,
    problems: dict[str, str] | None = None,
    status: int = 200,
) -> Response:
    return await visit.show(
        "schedule.html",
        status=status,
        schedule=schedule,
        typed=dict.fromkeys(TYPED, "") | typed,
        preview=preview,
        problems=problems or {},
        words=in_words(schedule.cron) if schedule else None,
        typed_words=in_words(typed.get("cron", "")),
        clock=clock,
        outcomes=OUTCOMES,
        refused=REFUSED,
    )


# -- actions ------------------------------------------------------------------------------------------------


@routes.post("/ui/schedules/{name}/run", Scope.ADMIN_WRITE, "Run a schedule now", MOVED, documented=False)
async def run(visit: Visit, name: ExistingName) -> Response:
    back = (await visit.form()).back(f"/ui/schedules/{name}")
    try:
        answer = await schedules.run_schedule(visit.request, visit.services, visit.account, name)
    except NotFound:
        raise
    except ForemanError as problem:
        return visit.failed(back, problem)
    job = answer.document
    said = {
        "coalesced": f"Its queue has such a job already: {job.job_id}.",
        "replaced": f"Job {job.job_id} took the place of one that waited.",
    }.get(job.outcome, f"It is job {job.job_id}.")
    return visit.go(
        back, Said(f"The job of {name} was submitted once.", f"{said} Its ticks stay as they are.")
    )


@routes.post("/ui/schedules/{name}/delete", Scope.ADMIN_WRITE, "Remove a schedule", MOVED, documented=False)
async def delete(visit: Visit, name: ExistingName) -> Response:
    await visit.form()
    schedule = await schedules.get_schedule(visit.services, visit.tenant, name)
    await schedules.delete_schedule(visit.services, visit.tenant, name)
    undo = _undo(schedule, "Put it back")
    return visit.go("/ui/schedules", Said(f"{name} is removed.", "Jobs that it made stay.", undo=undo))
