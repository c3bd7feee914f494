"""/ui/queues: how each is doing, what it is set to and how to change that; its keys, and who holds them."""

import hashlib
from typing import Any

import orjson
from markupsafe import Markup
from starlette.responses import Response

from app.api import jobs, queues
from app.api.job_parameters import existing_id
from app.api.operator_documents import Counts, Queue
from app.api.queues import ExistingName
from app.api.routes import Reply, Routes
from app.dashboard import queue_form, queue_sentences
from app.dashboard.charts import sparkline
from app.dashboard.lists import PAGE_SIZE, asked_of
from app.dashboard.page import Form, Page, Said, Undo, Visit
from app.dashboard.undoing import undo_by
from app.dashboard.words import counted
from app.errors import ForemanError, InvalidRequest, NotFound
from app.identity.scopes import Scope
from app.jobs.queue_settings import parse_settings
from app.jobs.submission import is_name
from app.loops.off_loop import off_loop
from app.store.keys import MAX_SHOWN
from app.store.samples import Window, queue_history

routes = Routes("dashboard")
PAGE = Reply("The page", str, media_type="text/html")
MOVED = {303: Reply("Done; the page to go on with")}
SHOWS = ("busy", "paused")
WINDOW: Window = "15m"
# On a queue's own page, and on the page of all of them.
FEW_KEYS, MANY_KEYS = 20, 100
SHOWN_WAITERS = 100
BAD_NAME = "has 1 to 128 letters, digits and . _ : -, beginning with a letter or digit"


@routes.get("/ui/queues", Scope.ADMIN_READ, "Queues", PAGE, documented=False)
async def queues_page(visit: Visit) -> Response:
    asked = asked_of(visit, SHOWS)
    wanted = queues.Wanted(
        asked.search,
        paused=True if asked.show == "paused" else None,
        busy=asked.show == "busy",
        order="busiest",
        limit=PAGE_SIZE,
        offset=asked.offset,
    )
    found = await queues.page_of(visit.services, wanted, await visit.services.queues.census.latest())
    return await visit.show(
        "queues.html",
        asked=asked,
        found=found,
        page_size=PAGE_SIZE,
        settings={each.name: _sentence(visit, each) for each in found.queues},
        gates=queue_sentences.GATES,
        sparks=await _sparks(visit, [each.name for each in found.queues]),
    )


async def _sparks(visit: Page, names: list[str]) -> dict[str, Markup]:
    """How many waited lately, for the eye; nothing where nobody did."""
    lines = await queue_history(visit.services.database, names, WINDOW)
    return {
        name: sparkline(line.waiting, f"{name}: waiting in the last 15 minutes, now {line.waiting[-1]}")
        if any(line.waiting)
        else Markup("")
        for name, line in lines.items()
    }


def _sentence(visit: Page, queue: Queue) -> Markup:
    usual = visit.services.queues.usual_retention
    return queue_sentences.summary(queue_sentences.settings_of(queue, usual))


# Before those of a queue: no queue can have this name.
@routes.get("/ui/queues/+new", Scope.ADMIN_WRITE, "A new queue", PAGE, documented=False)
async def new_queue_page(visit: Visit) -> Response:
    return await _form(visit, None, queue_form.texts({}), {})


@routes.post("/ui/queues/+new", Scope.ADMIN_WRITE, "Make a queue", {**MOVED, 200: PAGE}, documented=False)
async def make_queue(visit: Visit) -> Response:
    form = await visit.form()
    name = form.text("name")
    problems = {}
    if not is_name(name):
        problems["name"] = BAD_NAME
    elif await queues.stored_settings(visit.services, name):
        problems["name"] = "is the name of a queue that has settings: change those"
    if problems:
        return await _form(visit, None, form.values, {}, status=422, problems=problems)
    return await _take_settings(visit, name, form, is_new=True)


@routes.get("/ui/queues/{name}", Scope.ADMIN_READ, "A queue", PAGE, documented=False)
async def queue_page(visit: Visit, name: ExistingName) -> Response:
    queue = await queues.read_queue(visit.services, name, await visit.services.queues.census.latest())
    settings = queue_sentences.settings_of(queue, visit.services.queues.usual_retention)
    keys = await queues.list_keys(visit.services, visit.tenant, name, None, limit=FEW_KEYS)
    return await visit.show(
        "queue.html",
        queue=queue,
        sentences=queue_sentences.sentences(settings),
        gates=queue_sentences.GATES,
        keys=keys,
        spark=(await _sparks(visit, [name]))[name],
    )


# -- pause and resume ---------------------------------------------------------------------------------------


@routes.post("/ui/queues/{name}/pause", Scope.ADMIN_WRITE, "Pause", MOVED, documented=False)
async def pause(visit: Visit, name: ExistingName) -> Response:
    back = (await visit.form()).back(f"/ui/queues/{name}")
    await queues.get_queue(visit.services, name)
    queue = await queues.pause(visit.services, visit.account, name)
    running = queue.counts.loading + queue.counts.working
    detail = f"Still running, to the end: {counted(running, 'job')}." if running else ""
    undo = Undo(f"/ui/queues/{name}/resume", "Resume it", {"back": back})
    return visit.go(back, Said(f"{name} is paused: none of its jobs is given out.", detail, undo=undo))


@routes.post("/ui/queues/{name}/resume", Scope.ADMIN_WRITE, "Resume", MOVED, documented=False)
async def resume(visit: Visit, name: ExistingName) -> Response:
    back = (await visit.form()).back(f"/ui/queues/{name}")
    await queues.get_queue(visit.services, name)
    await queues.resume(visit.services, name)
    undo = Undo(f"/ui/queues/{name}/pause", "Pause it again", {"back": back})
    return visit.go(back, Said(f"{name} gives out jobs again.", undo=undo))


# -- settings -----------------------------------------------------------------------------------------------


@routes.get("/ui/queues/{name}/settings", Scope.ADMIN_WRITE, "Settings of a queue", PAGE, documented=False)
async def settings_page(visit: Visit, name: ExistingName) -> Response:
    await queues.get_queue(visit.services, name)
    stored = await queues.stored_settings(visit.services, name)
    return await _form(visit, name, queue_form.texts(stored), stored)


@routes.post(
    "/ui/queues/{name}/settings",
    Scope.ADMIN_WRITE,
    "Change the settings of a queue, after a look at what that changes",
    {**MOVED, 200: PAGE},
    documented=False,
)
async def change_settings(visit: Visit, name: ExistingName) -> Response:
    form = await visit.form()
    await queues.get_queue(visit.services, name)
    return await _take_settings(visit, name, form, is_new=False)


async def _take_settings(visit: Page, name: str, form: Form, *, is_new: bool) -> Response:
    """First what would change, then the change; back to the form whenever something is wrong."""
    stored = await queues.stored_settings(visit.services, name)
    typed, shown_name = form.values, None if is_new else name
    wanted, problems = queue_form.settings_in(typed, stored)
    refusal = None
    if not problems:
        try:
            await _check(visit, wanted)
        except InvalidRequest as refused:
            refusal, problems = refused, queue_form.problems_of(refused)
    if problems or refusal or form.text("step") == "edit":
        status = 422 if problems or refusal else 200
        return await _form(
            visit, shown_name, typed, stored, status=status, problems=problems, refusal=refusal
        )
    changes = queue_sentences.changes(stored, wanted)
    if not changes and not is_new:
        return await _form(visit, name, typed, stored, notice="It is like that already.")
    seen = _digest(stored)
    if form.text("step") != "apply" or form.text("seen") != seen:
        changed_meanwhile = form.text("step") == "apply"
        return await visit.show(
            "queue_review.html",
            name=name,
            is_new=is_new,
            changes=changes,
            typed={field: typed.get(field, "") for field in queue_form.FIELDS},
            seen=seen,
            changed_meanwhile=changed_meanwhile,
            running=(await _counts(visit, name)),
        )
    await queues.put_queue(visit.services, name, wanted)
    text = f"{name} is made." if is_new else f"The settings of {name} are changed."
    undo = None if is_new else _undo(name, stored, wanted)
    return visit.go(f"/ui/queues/{name}", Said(text, "They count everywhere within a second.", undo=undo))


async def _check(visit: Page, wanted: dict[str, Any]) -> None:
    """As the API does. Settings of a newer version, which it would refuse, stay as they are."""
    try:
        body = orjson.dumps({name: value for name, value in wanted.items() if name in queue_sentences.LABELS})
    except TypeError as problem:
        raise InvalidRequest("There is a number of more than 64 bits.") from problem
    await off_loop(len(body), parse_settings, body, visit.services.settings.max_json_depth)


async def _counts(visit: Page, name: str) -> Counts | None:
    try:
        return (await queues.get_queue(visit.services, name)).counts
    except NotFound:
        return None


def _digest(settings: dict[str, Any]) -> str:
    """What the review was about: should somebody else change it meanwhile, it is shown anew."""
    return hashlib.sha256(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _undo(name: str, before: dict[str, Any], after: dict[str, Any]) -> Undo | None:
    """What was changed, as it was; None where that is too much to remember."""
    changed = {
        setting: before.get(setting)
        for setting in {*before, *after}
        if before.get(setting) != after.get(setting)
    }
    return undo_by(f"/ui/queues/{name}/settings/undo", {"settings": orjson.dumps(changed).decode()})


@routes.post(
    "/ui/queues/{name}/settings/undo", Scope.ADMIN_WRITE, "Settings as before", MOVED, documented=False
)
async def undo_settings(visit: Visit, name: ExistingName) -> Response:
    form = await visit.form()
    await queues.get_queue(visit.services, name)
    stored = await queues.stored_settings(visit.services, name)
    try:
        earlier = orjson.loads(form.text("settings"))
        if not isinstance(earlier, dict):
            raise InvalidRequest("These are no settings.")
        both = stored | earlier
        wanted = {setting: value for setting, value in both.items() if value is not None}
        await _check(visit, wanted)
    except orjson.JSONDecodeError:
        return visit.failed(f"/ui/queues/{name}", InvalidRequest("These are no settings."))
    except InvalidRequest as refused:
        return visit.failed(f"/ui/queues/{name}", refused)
    kept = {setting: value for setting, value in wanted.items() if setting in stored or setting in _KNOWN}
    await queues.put_queue(visit.services, name, kept)
    return visit.go(
        f"/ui/queues/{name}",
        Said(f"The settings of {name} are as they were.", undo=_undo(name, stored, kept)),
    )


_KNOWN = frozenset(queue_sentences.LABELS)


async def _form(
    visit: Page,
    name: str | None,
    typed: dict[str, str],
    stored: dict[str, Any],
    *,
    status: int = 200,
    problems: dict[str, str] | None = None,
    refusal: ForemanError | None = None,
    notice: str = "",
) -> Response:
    problems = problems or {}
    return await visit.show(
        "queue_settings.html",
        status=status,
        name=name,
        groups=queue_form.GROUPS,
        typed=dict.fromkeys(queue_form.FIELDS, "") | {"name": ""} | typed,
        problems=problems,
        elsewhere=[f"{field}: {said}" for field, said in problems.items() if field not in _HAS_PLACE],
        refusal=refusal,
        notice=notice,
        unknown=queue_form.unknown_settings(stored),
    )


_HAS_PLACE = frozenset({*queue_form.FIELDS, "name"})


# -- keys ---------------------------------------------------------------------------------------------------


@routes.get("/ui/queues/{name}/keys", Scope.ADMIN_READ, "Keys of a queue, or one", PAGE, documented=False)
async def keys_page(visit: Visit, name: ExistingName, key: str = "", after: str = "") -> Response:
    """A key may be any text, so it stands in the query: no browser changes it there."""
    queue = await queues.get_queue(visit.services, name)
    after = after.replace("\0", "")
    if not key:
        found = await queues.list_keys(visit.services, visit.tenant, name, None, after=after, limit=MANY_KEYS)
        return await visit.show("queue_keys.html", queue=queue, keys=found, after=after)
    one = await queues.get_key(visit.services, visit.tenant, name, key)
    return await visit.show(
        "queue_key.html",
        queue=queue,
        key=one,
        waiters=one.queued[:SHOWN_WAITERS],
        more_than_known=len(one.queued) >= MAX_SHOWN,
    )


@routes.post(
    "/ui/queues/{name}/keys/cancel", Scope.JOBS_WRITE, "Cancel a job of a key", MOVED, documented=False
)
async def cancel_of_key(visit: Visit, name: ExistingName) -> Response:
    form = await visit.form()
    back = form.back(f"/ui/queues/{name}")
    try:
        job_id = existing_id(form.text("job_id"))
        reason = jobs.CancelRequest(reason="cancelled from the page of its key")
        answer = await jobs.cancel(visit.services, visit.tenant, job_id, reason)
    except NotFound as problem:
        return visit.failed(back, problem)
    said = (
        Said("Its worker was asked to stop.", "The key is free as soon as it has, or when the grace is over.")
        if answer.status == 202
        else Said(f"The job is {answer.document.state}.")
    )
    return visit.go(back, said)
