"""/ui/webhooks: receivers, those in trouble first; what was given up on; and sending it again."""

from typing import Annotated, cast
from urllib.parse import urlencode

import orjson
from fastapi import Depends, Query
from starlette.responses import Response

from app.api import webhooks
from app.api.job_documents import DeliveryState, ListedDelivery, Redelivery
from app.api.job_parameters import DEFAULT_LIMIT, encode_cursor, existing_id
from app.api.parameters import KnownFilters
from app.api.routes import Reply, Routes
from app.api.webhooks import TROUBLED, RedeliveryRequest
from app.dashboard.page import Page, Said, Undo, Visit
from app.dashboard.words import counted
from app.errors import ForemanError, NotFound
from app.identity.scopes import Scope
from app.jobs.shapes import decode
from app.jobs.submission import invalid

routes = Routes("dashboard")
PAGE = Reply("The page", str, media_type="text/html")
MOVED = {303: Reply("Done; the page to go on with")}

# What is shown unless something else is asked for: all that was not delivered and will not be.
IN_TROUBLE = "trouble"
ALL = "all"
CHOICES = {
    IN_TROUBLE: "given up or refused",
    "given_up": "given up",
    "refused": "refused",
    "pending": "pending",
    "delivered": "delivered",
    ALL: "all",
}
# The look of each: shape and colour of the state of a job that it is most like.
LOOKS = {"pending": "queued", "delivered": "done", "given_up": "failed", "refused": "cancelled"}
EXAMPLE = (
    "curl {server}/jobs{key} "
    """-d '{{"kind": "noop", "state_webhook_url": "https://example.com/hook"}}'"""
)
MAX_DEPTH = 4
# More than these are shown on being asked for.
MOST_RECEIVERS = 25


@routes.get("/ui/webhooks", Scope.ADMIN_READ, "Webhooks", PAGE, documented=False)
async def webhooks_page(
    visit: Visit,
    _known: Annotated[None, Depends(KnownFilters())],
    host: Annotated[str, Query(max_length=2048)] = "",
    state: str = "",
    cursor: str | None = None,
    all: str | None = None,
) -> Response:
    chosen = state or IN_TROUBLE
    if chosen not in CHOICES:
        raise invalid("state", f"must be one of {', '.join(CHOICES)}")
    host = host.strip().lower()
    receivers = (await webhooks.list_receivers(visit.services)).receivers
    if host:
        receivers = [each for each in receivers if each.host.split(":")[0] == host or each.host == host]
    found, following = await _deliveries(visit, chosen, host or None, cursor)
    return await visit.show(
        "webhooks.html",
        receivers=receivers if all is not None else receivers[:MOST_RECEIVERS],
        receiver_count=len(receivers),
        deliveries=found,
        next_cursor=following,
        host=host,
        chosen=chosen,
        first_choice=IN_TROUBLE,
        choices=CHOICES,
        looks=LOOKS,
        troubled=TROUBLED,
        # One receiver, and not all ports of a host.
        is_receiver=host in {each.host for each in receivers} | {each.host for each in found},
        has_cursor=cursor is not None,
        here=address(host, chosen, cursor),
        link=address,
        redeliver_link=redeliver_address,
        example=EXAMPLE.format(
            server=str(visit.request.base_url).rstrip("/"),
            key=""
            if visit.services.authenticator is None
            else ' -H "Authorization: Bearer $FOREMAN_API_KEY"',
        ),
    )


async def _deliveries(
    visit: Page, chosen: str, host: str | None, cursor: str | None
) -> tuple[list[ListedDelivery], str | None]:
    """A page of them, those of the newest jobs first, and where the next one begins."""
    states = cast(
        "tuple[DeliveryState | None, ...]",
        TROUBLED if chosen == IN_TROUBLE else (None if chosen == ALL else chosen,),
    )
    found: list[ListedDelivery] = []
    has_more = False
    for state in states:
        answer = await webhooks.list_all(
            visit.request, visit.services, visit.tenant, None, host, state, DEFAULT_LIMIT, cursor
        )
        found += answer.document.deliveries
        has_more = has_more or answer.document.next_cursor is not None
    found.sort(key=lambda each: (each.job_id, each.seq), reverse=True)
    has_more = has_more or len(found) > DEFAULT_LIMIT
    shown = found[:DEFAULT_LIMIT]
    return shown, encode_cursor(f"{shown[-1].job_id}:{shown[-1].seq}") if has_more else None


def address(host: str = "", state: str = "", cursor: str | None = None) -> str:
    given = {"host": host, "state": "" if state == IN_TROUBLE else state, "cursor": cursor}
    query = urlencode({name: value for name, value in given.items() if value})
    return f"/ui/webhooks?{query}" if query else "/ui/webhooks"


def redeliver_address(host: str, state: str) -> str:
    return f"/ui/webhooks/redeliver?{urlencode({'host': host, 'state': state})}"


# -- one ---------------------------------------------------------------------------------------------------


@routes.post(
    "/ui/webhooks/deliveries/{delivery_id}/redeliver",
    Scope.JOBS_WRITE,
    "Send a delivery again",
    MOVED,
    documented=False,
)
async def redeliver_one(visit: Visit, delivery_id: str) -> Response:
    to = (await visit.form()).back("/ui/webhooks")
    try:
        job_id = existing_id(delivery_id.partition("-")[0])
        sent = await webhooks.redeliver(visit.services, visit.tenant, job_id, delivery_id)
    except NotFound as problem:
        return visit.failed(to, problem)
    return visit.go(to, Said(f"The delivery of {sent.type} is due now.", "It keeps its id."))


# -- all of a receiver -------------------------------------------------------------------------------------


@routes.get(
    "/ui/webhooks/redeliver",
    Scope.ADMIN_WRITE,
    "How many deliveries of a receiver would be sent again",
    PAGE,
    documented=False,
)
async def redeliver_page(
    visit: Visit, _known: Annotated[None, Depends(KnownFilters())], host: str = "", state: str = "given_up"
) -> Response:
    wanted = _wanted(host, state, dry_run=True)
    counts = await webhooks.redeliver_all(visit.services, visit.tenant, wanted)
    return await visit.show("redeliver.html", counts=counts, word=CHOICES[state], back=address(host, state))


@routes.post(
    "/ui/webhooks/redeliver",
    Scope.ADMIN_WRITE,
    "Send all deliveries of a receiver again that were given up on, or refused",
    MOVED,
    documented=False,
)
async def redeliver_all(visit: Visit) -> Response:
    form = await visit.form()
    host, state = form.text("host"), form.text("state")
    try:
        wanted = _wanted(host, state, cursor=form.text("cursor") or None)
        moved = await webhooks.redeliver_all(visit.services, visit.tenant, wanted)
    except ForemanError as problem:
        return visit.failed("/ui/webhooks", problem)
    return visit.go(address(host), _told(moved))


def _wanted(host: str, state: str, *, cursor: str | None = None, dry_run: bool = False) -> RedeliveryRequest:
    """By the very rules of POST /webhooks/redeliver."""
    body = {"host": host, "state": state, "cursor": cursor, "dry_run": dry_run}
    wanted: RedeliveryRequest = decode(orjson.dumps(body), RedeliveryRequest, MAX_DEPTH)
    wanted.check()
    return wanted


def _told(moved: Redelivery) -> Said:
    """However many there are, a request only takes so long: the rest is one more step."""
    said = f"{counted(moved.redelivered, 'delivery is', 'deliveries are')} due now."
    if moved.next_cursor is None:
        return Said(said)
    fields = {"host": moved.host, "state": moved.state, "cursor": moved.next_cursor}
    return Said(said, "There are more.", undo=Undo("/ui/webhooks/redeliver", "Go on with the rest", fields))
