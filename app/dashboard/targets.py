"""/ui/targets: a tile for each machine: how it is, what is in its memory, what waits for it."""

import re
from typing import Any

import orjson
from starlette.responses import Response

from app.api import targets
from app.api.operator_documents import Target
from app.api.parameters import NameInPath
from app.api.routes import Reply, Routes
from app.dashboard.page import Form, Page, Said, Undo, Visit
from app.dashboard.spans import number_in
from app.dashboard.undoing import undo_by
from app.dashboard.words import counted
from app.errors import Conflict, ForemanError, InvalidRequest, NotFound
from app.identity.scopes import Scope
from app.jobs.shapes import decode
from app.jobs.submission import is_name
from app.targets.config import ECHO_NAME, TargetFields, WakeAction

routes = Routes("dashboard")
PAGE = Reply("The page", str, media_type="text/html")
MOVED = {303: Reply("Done; the page to go on with")}
# As dots; more of them are a number.
MAX_DOTS = 32
TYPED = (
    "name",
    "url",
    "dialect",
    "slots",
    "tags",
    "token",
    "wake_mac",
    "wake_address",
    "wake_port",
    "wake_url",
    "wake_method",
)
NEW = {"dialect": "ollama", "slots": "4"}
BAD_NAME = "has 1 to 128 letters, digits and . _ : -, beginning with a letter or digit; not echo"
_HIDDEN = "…"
_WAKE = WakeAction()


@routes.get("/ui/targets", Scope.ADMIN_READ, "Targets", PAGE, documented=False)
async def targets_page(visit: Visit) -> Response:
    found = (await targets.list_targets(visit.services)).targets
    return await visit.show(
        "targets.html", targets=found, state_of=state_of, max_dots=MAX_DOTS, only_echo=_is_echo(found[0])
    )


def _is_echo(target: Target) -> bool:
    return target.origin == "builtin"


def state_of(target: Target) -> tuple[str, str, str]:
    """In a word, with the state whose look it has and a shape."""
    if target.state == "awake":
        if target.breaker == "open" or (target.warning and not _is_echo(target)):
            return "degraded", "loading", "▲"
        return "awake", "done", "●"
    if target.state == "asleep":
        return "asleep", "loading" if target.waiting else "dismissed", "◌"
    return "not asked yet", "queued", "○"


# Before those of a target: none can have this name.
@routes.get("/ui/targets/+new", Scope.ADMIN_WRITE, "A new target", PAGE, documented=False)
async def new_target_page(visit: Visit) -> Response:
    return await _show(visit, None, NEW)


@routes.post("/ui/targets/+new", Scope.ADMIN_WRITE, "Add a target", {**MOVED, 200: PAGE}, documented=False)
async def make_target(visit: Visit) -> Response:
    form = await visit.form()
    name = form.text("name")
    problem = ""
    if not is_name(name) or name == ECHO_NAME:
        problem = BAD_NAME
    elif await _found(visit, name) is not None:
        problem = "is the name of a target that there is"
    if problem:
        return await _show(visit, None, form.values, problems={"name": problem}, status=422)
    return await _take(visit, name, None, form)


@routes.get("/ui/targets/{name}", Scope.ADMIN_READ, "A target", PAGE, documented=False)
async def target_page(visit: Visit, name: NameInPath) -> Response:
    target = await targets.get_target(visit.services, name)
    return await _show(visit, target, _texts(target))


@routes.post(
    "/ui/targets/{name}", Scope.ADMIN_WRITE, "Change a target", {**MOVED, 200: PAGE}, documented=False
)
async def change_target(visit: Visit, name: NameInPath) -> Response:
    form = await visit.form()
    target = await _found(visit, name)
    if target is None and form.text("step") != "restore":
        raise NotFound("There is no such target.")
    return await _take(visit, name, target, form)


async def _found(visit: Page, name: str) -> Target | None:
    try:
        return await targets.get_target(visit.services, name)
    except NotFound:
        return None


def _texts(target: Target) -> dict[str, str]:
    wake = target.wake
    return {
        "name": target.name,
        "url": target.url,
        "dialect": target.dialect,
        "slots": str(target.slots),
        "tags": ", ".join(target.tags),
        "wake_mac": (wake and wake.mac) or "",
        "wake_address": wake.address if wake and wake.address != _WAKE.address else "",
        "wake_port": str(wake.port) if wake and wake.port != _WAKE.port else "",
        "wake_url": (wake and wake.url) or "",
        "wake_method": wake.method if wake and wake.method != _WAKE.method else "",
    }


def _body(form: Form) -> dict[str, Any]:
    """As it would be sent to the API. A token that is not named stays."""
    body: dict[str, Any] = {"url": form.text("url"), "tags": _tags(form.text("tags"))}
    if form.text("dialect"):
        body["dialect"] = form.text("dialect")
    if form.text("slots"):
        body["slots"] = number_in(form.text("slots"))
    if form.text("token"):
        body["token"] = form.text("token")
    elif "token_remove" in form:
        body["token"] = None
    wake = {part: form.text(f"wake_{part}") for part in ("mac", "url")}
    if any(wake.values()):
        more = {part: form.text(f"wake_{part}") for part in ("address", "method")}
        given = {part: text for part, text in {**wake, **more}.items() if text}
        port = form.text("wake_port")
        body["wake"] = given | ({"port": number_in(port)} if port else {})
    return body


def _tags(text: str) -> list[str]:
    return [each for each in map(str.strip, text.split(",")) if each]


async def _take(visit: Page, name: str, known: Target | None, form: Form) -> Response:
    body = _body(form)
    try:
        fields = decode(orjson.dumps(body), TargetFields, visit.services.settings.max_json_depth)
        await targets.put_target(visit.services, name, (fields, "token" not in body))
    except (InvalidRequest, Conflict) as refused:
        return await _show(visit, known, form.values, problems=_told(refused), status=422)
    undo = None if known is None or "token" in body else _undo(known)
    said = "is as it was" if form.text("step") == "restore" else "is added" if known is None else "is changed"
    return visit.go(f"/ui/targets/{name}", Said(f"{name} {said}.", "It is asked at once.", undo=undo))


def _told(refused: ForemanError) -> dict[str, str]:
    """By field; what belongs to none of them is told at the first."""
    errors: list[dict[str, Any]] = refused.extra.get("errors", [])
    if not errors:
        return {"url": refused.detail}
    return {_field_of(str(each["field"]), str(each["message"])): str(each["message"]) for each in errors}


def _field_of(field: str, message: str) -> str:
    if field != "wake":
        return field if field in TYPED else "url"
    inner = re.search(r"`\$\.(\w+)`", message)
    named = f"wake_{inner[1]}" if inner else "wake_mac"
    return named if named in TYPED else "wake_mac"


def _undo(target: Target, label: str = "Undo") -> Undo | None:
    """As it was, but for the token, which nobody is shown."""
    return undo_by(f"/ui/targets/{target.name}", _texts(target) | {"step": "restore"}, label)


async def _show(
    visit: Page,
    target: Target | None,
    typed: dict[str, str],
    *,
    problems: dict[str, str] | None = None,
    status: int = 200,
) -> Response:
    return await visit.show(
        "target.html",
        status=status,
        target=target,
        # A token is shown to nobody, not even to who has just typed it.
        typed=dict.fromkeys(TYPED, "") | typed | {"token": ""},
        problems=problems or {},
        state_of=state_of,
        max_dots=MAX_DOTS,
    )


# -- actions ------------------------------------------------------------------------------------------------


@routes.post("/ui/targets/{name}/wake", Scope.ADMIN_WRITE, "Wake a target", MOVED, documented=False)
async def wake(visit: Visit, name: NameInPath) -> Response:
    back = (await visit.form()).back(f"/ui/targets/{name}")
    try:
        await targets.wake_target(visit.services, name)
    except Conflict as problem:
        return visit.go(back, Said(f"{name} was not woken.", problem.detail, failed=True))
    return visit.go(back, Said(f"{name} was called.", "It is asked every second until it answers."))


@routes.post("/ui/targets/{name}/probe", Scope.ADMIN_WRITE, "Ask a target now", MOVED, documented=False)
async def probe(visit: Visit, name: NameInPath) -> Response:
    back = (await visit.form()).back(f"/ui/targets/{name}")
    target = await targets.probe_target(visit.services, name)
    if target.state != "awake":
        return visit.go(back, Said(f"{name} does not answer.", _sentence(target.warning), failed=True))
    models = f"It has {counted(len(target.models), 'model')}, {len(target.resident)} of them in memory."
    return visit.go(back, Said(f"{name} answers.", models))


def _sentence(text: str | None) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


@routes.post("/ui/targets/{name}/delete", Scope.ADMIN_WRITE, "Remove a target", MOVED, documented=False)
async def delete(visit: Visit, name: NameInPath) -> Response:
    await visit.form()
    target = await targets.get_target(visit.services, name)
    try:
        await targets.delete_target(visit.services, name)
    except Conflict as problem:
        return visit.go(f"/ui/targets/{name}", Said(f"{name} stays.", problem.detail, failed=True))
    label = "Put it back without its token" if target.has_token else "Put it back"
    # A wake URL is shown to nobody, and so cannot be put back by a button.
    is_hidden = target.wake is not None and (target.wake.url or "").endswith(_HIDDEN)
    undo = None if is_hidden else _undo(target, label)
    return visit.go(
        "/ui/targets", Said(f"{name} is removed.", "Jobs that waited for it are looked at again.", undo=undo)
    )
