"""/ui/keys: who may call, and with what; a new key is shown once."""

from typing import Any

import orjson
from starlette.responses import Response

from app.api import keys
from app.api.keys import MadeKey, NewKey
from app.api.routes import Reply, Routes
from app.dashboard.page import Form, Page, Said, Visit
from app.errors import ForemanError, InvalidRequest
from app.identity.limits import Limits, usual_limits
from app.identity.scopes import USUAL_SCOPES, Scope
from app.jobs.shapes import decode

routes = Routes("dashboard")
PAGE = Reply("The page", str, media_type="text/html")
MOVED = {303: Reply("Done; the page to go on with")}

SCOPES = {
    Scope.JOBS_WRITE: "submit, cancel, retry and delete jobs",
    Scope.JOBS_READ: "read jobs, their events and artifacts",
    Scope.JOBS_WORK: "claim jobs and settle them",
    Scope.ADMIN_READ: "see queues, targets, workers, keys, usage and metrics of all tenants",
    Scope.ADMIN_WRITE: "change all of that: such a key may do everything",
}
LIFETIMES = {
    "": "never",
    "86400": "after a day",
    "604800": "after a week",
    "2592000": "after 30 days",
    "31536000": "after a year",
}
MAX_DEPTH = 8


@routes.get("/ui/keys", Scope.ADMIN_READ, "API keys", PAGE, documented=False)
async def keys_page(visit: Visit, tenant: str | None = None, cursor: str | None = None) -> Response:
    return await _show(visit, tenant, cursor)


async def _show(visit: Page, tenant: str | None = None, cursor: str | None = None, **more: Any) -> Response:
    found = await keys.list_keys(visit.services, None, tenant or None, cursor)
    usual = usual_limits(visit.services.settings)
    context = {"made": None, "typed": Form({}), "errors": {}, "problem": None} | more
    return await visit.show(
        "keys.html",
        keys=found.keys,
        next_cursor=found.next_cursor,
        tenant=tenant,
        all_scopes=SCOPES,
        usual_scopes=USUAL_SCOPES,
        lifetimes=LIFETIMES,
        limits={name: getattr(usual, name) for name in Limits.__struct_fields__},
        limit_fields=[f"limit-{name}" for name in Limits.__struct_fields__],
        **context,
    )


@routes.post("/ui/keys", Scope.ADMIN_WRITE, "Make an API key", PAGE, documented=False)
async def create(visit: Visit) -> Response:
    """Answered with the page itself, not by leading to one: the key is kept nowhere, not even in a cookie."""
    form = await visit.form()
    try:
        made: MadeKey = (
            await keys.create(visit.request, visit.services, visit.account, _wanted(form))
        ).document
    except InvalidRequest as refused:
        errors = {each["field"]: each["message"] for each in refused.extra.get("errors", [])}
        return await _show(visit, typed=form, errors=errors, problem=refused, status=422)
    return await _show(visit, made=made)


def _wanted(form: Form) -> NewKey:
    """By the very rules of POST /keys. All that is wrong is told at once, by the names of fields."""
    limits = {name: _number(form.text(f"limit-{name}")) for name in Limits.__struct_fields__}
    body = {
        "name": form.text("name"),
        "tenant": form.text("tenant") or None,
        "expires_in_seconds": _number(form.text("expires")),
    }
    wanted: NewKey
    wanted, errors = _read(body, NewKey)
    own, more = _read(limits, Limits)
    errors += [{**each, "field": f"limit-{each['field']}"} for each in more]
    scopes = form.all("scopes")
    if not scopes:
        errors.append({"field": "scopes", "message": "choose at least one"})
    if errors:
        named = "; ".join(f"{each['field']}: {each['message']}" for each in errors)
        raise InvalidRequest(f"{named}.", errors=errors)
    wanted.scopes, wanted.limits = scopes, own
    wanted.check()
    return wanted


def _read(fields: dict[str, Any], shape: Any) -> tuple[Any, list[dict[str, str]]]:
    """The shape that those fields make which were filled in, or what is wrong with them."""
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return decode(orjson.dumps(given), shape, MAX_DEPTH), []
    except InvalidRequest as refused:
        return None, refused.extra["errors"]


def _number(text: str) -> int | str | None:
    """What is no number goes on as it is, to be refused in the words of the API."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text or None


@routes.post("/ui/keys/{key_id}/revoke", Scope.ADMIN_WRITE, "Revoke an API key", MOVED, documented=False)
async def revoke(visit: Visit, key_id: str) -> Response:
    await visit.form()
    try:
        await keys.revoke(visit.request, visit.services, visit.account, key_id)
    except ForemanError as problem:
        return visit.failed("/ui/keys", problem)
    return visit.go("/ui/keys", Said("The key is revoked.", "Within a second it is refused everywhere."))
