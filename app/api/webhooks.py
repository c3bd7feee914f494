"""Webhook deliveries: those of a job, those of all jobs, sending one again; and the same by receiver."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Annotated, TypeVar, cast, get_args

import msgspec
from fastapi import Depends, Path, Query
from msgspec import UNSET, Meta, structs
from pydantic import BeforeValidator
from starlette.requests import Request

from app.api.job_documents import (
    DeliveriesOfJob,
    DeliveriesToday,
    DeliveryPage,
    DeliveryState,
    ListedDelivery,
    Redelivery,
    TroubledState,
    WebhookReceiver,
    WebhookReceivers,
)
from app.api.job_documents import Delivery as Document
from app.api.job_parameters import (
    DEFAULT_LIMIT,
    JobIdInPath,
    Limit,
    bad_cursor,
    decode_cursor,
    encode_cursor,
    next_link,
)
from app.api.parameters import JsonBody, KnownFilters, Server, Tenant
from app.api.routes import LINK, Answer, Reply, Routes
from app.errors import NotFound
from app.identity.scopes import Scope
from app.jobs.ids import ID_LENGTH, is_id
from app.jobs.submission import NO_NUL, invalid
from app.store import daily_counts, outbox, receivers
from app.store.outbox import Delivery, DeliveryFilter
from app.store.receivers import PendingOf
from app.webhooks.send import delivery_id

routes = Routes("webhooks")
Shape = TypeVar("Shape", bound=Document)

STATES: tuple[str, ...] = get_args(DeliveryState)
MAX_OF_JOB = 1000
MAX_SEQ = 2**31 - 1
TROUBLED: tuple[str, ...] = get_args(TroubledState)
MAX_RECEIVERS = 200


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    number = int(text)
    return number if number <= MAX_SEQ else None


def _seq(given: str) -> int:
    number = _number(given)
    if number is None:
        raise invalid("after", "must be a seq")
    return number


def _state(given: str) -> str:
    if given not in STATES:
        raise invalid("state", f"must be one of {', '.join(STATES)}")
    return given


@routes.get(
    "/jobs/{job_id}/webhooks",
    Scope.JOBS_READ,
    "The webhook deliveries of a job, in order",
    f"Up to {MAX_OF_JOB} deliveries; `next_after` when there are more",
    errors=(404, 422),
)
async def of_job(
    server: Server,
    tenant: Tenant,
    job_id: JobIdInPath,
    after: Annotated[
        int,
        BeforeValidator(_seq),
        Query(
            description="Only those with a greater seq.",
            json_schema_extra={"minimum": 0, "maximum": MAX_SEQ},
        ),
    ] = 0,
) -> DeliveriesOfJob:
    found = await outbox.deliveries_of(server.database, job_id, tenant, after, MAX_OF_JOB + 1)
    if not found and not await outbox.job_exists(server.database, job_id, tenant):
        raise NotFound("There is no such job.")
    shown = [_document(Document, each) for each in found[:MAX_OF_JOB]]
    return DeliveriesOfJob(shown, shown[-1].seq if len(found) > MAX_OF_JOB else UNSET)


@routes.post(
    "/jobs/{job_id}/webhooks/{delivery_id}/redeliver",
    Scope.JOBS_WRITE,
    "Send a delivery again, under the same id",
    {202: Reply("It is due now; its tries start over unless it was pending", Document)},
    errors=(404,),
)
async def redeliver(
    server: Server,
    tenant: Tenant,
    job_id: JobIdInPath,
    named: Annotated[str, Path(alias="delivery_id", description="The `webhook-id`: `<job_id>-<seq>`.")],
) -> Document:
    named_job, _, seq = named.partition("-")
    number = _number(seq)
    if named_job != job_id or number is None:
        raise NotFound("There is no such delivery.")
    changes = await outbox.redeliver(server.database, job_id, tenant, number)
    if not changes.answers:
        raise NotFound("There is no such delivery.")
    server.hub.announce(changes)
    return _document(Document, changes.answers[0])


@routes.get(
    "/webhooks",
    Scope.ADMIN_READ,
    "Webhook deliveries of all jobs, those of the newest jobs first",
    Reply("A page of deliveries", DeliveryPage, (LINK,)),
    errors=(422,),
)
async def list_all(
    request: Request,
    server: Server,
    tenant: Tenant,
    _known: Annotated[None, Depends(KnownFilters())],
    host: Annotated[
        str | None, Query(description="Only this receiver: `host`, or `host:port` for one of its ports.")
    ] = None,
    state: Annotated[
        DeliveryState | None, BeforeValidator(_state), Query(description="Only deliveries in this state.")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Annotated[str | None, Query(description="From next_cursor.")] = None,
) -> Answer[DeliveryPage]:
    wanted = DeliveryFilter(state, host, None if cursor is None else _place(cursor))
    found = await outbox.list_deliveries(server.database, wanted, tenant, limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else encode_cursor(f"{last.job_id}:{last.seq}")
    shown = [_document(ListedDelivery, each) for each in found[:limit]]
    return Answer(DeliveryPage(shown, following), headers=next_link(request, following))


@routes.get(
    "/webhooks/receivers",
    Scope.ADMIN_READ,
    "Receivers of webhooks, the most troubled first",
    f"Up to {MAX_RECEIVERS} of those that something waits for, or was sent to today",
)
async def list_receivers(server: Server) -> WebhookReceivers:
    due = await outbox.receivers(server.database)
    today = await daily_counts.of_today(server.database, "receiver")
    today.pop(daily_counts.OTHER, None)
    open_circuits = server.deliverer.open_circuits()
    hosts = _candidates(due, today, open_circuits)
    pending = await receivers.pending_of(server.database, [host for host in hosts if host in due])
    known = [pending.get(host) or PendingOf(host) for host in hosts]
    found = [_receiver(each, today.get(each.host), open_circuits) for each in known]
    return WebhookReceivers(sorted(found, key=_trouble)[:MAX_RECEIVERS])


def _candidates(
    due: Mapping[str, float], today: Mapping[str, Counter[str]], open_circuits: Collection[str]
) -> list[str]:
    """Those that may be among the most troubled, before much is known of them: left alone, then given up on,
    then with what waits or is put off for long (what is new is due at once), then all that got something."""

    def order(host: str) -> tuple[bool, int, float, int]:
        counts = today.get(host) or Counter()
        lost = counts["given_up"] + counts["refused"]
        return host not in open_circuits, -lost, -abs(due.get(host, 0.0)), -counts["delivered"]

    return sorted({*due, *today}, key=order)[: 2 * MAX_RECEIVERS]


def _receiver(
    pending: PendingOf, today: Mapping[str, int] | None, open_circuits: Collection[str]
) -> WebhookReceiver:
    counts = today or {}
    return WebhookReceiver(
        **structs.asdict(pending),
        circuit="open" if pending.host in open_circuits else "closed",
        today=DeliveriesToday(**{name: counts.get(name, 0) for name in DeliveriesToday.__struct_fields__}),
    )


def _trouble(receiver: WebhookReceiver) -> tuple[object, ...]:
    lost = receiver.today.given_up + receiver.today.refused
    return receiver.circuit != "open", -receiver.failing, -lost, -receiver.pending, receiver.host


class RedeliveryRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    host: Annotated[
        str,
        Meta(
            min_length=1, max_length=2048, pattern=NO_NUL, description="As `GET /webhooks/receivers` has it."
        ),
    ]
    # Described, and checked by hand: the error then names them all.
    state: Annotated[str, Meta(extra_json_schema={"enum": list(TROUBLED)})] = "given_up"
    dry_run: Annotated[bool, Meta(description="Only count.")] = False
    cursor: Annotated[str | None, Meta(description="From next_cursor.")] = None

    def check(self) -> None:
        if self.state not in TROUBLED:
            raise invalid("state", f"must be one of {', '.join(TROUBLED)}")


@routes.post(
    "/webhooks/redeliver",
    Scope.ADMIN_WRITE,
    "Send all deliveries of a receiver again that were given up on, or refused",
    "How many; `next_cursor` where a request's time was over before all of them were found",
)
async def redeliver_all(
    server: Server,
    tenant: Tenant,
    wanted: Annotated[RedeliveryRequest, Depends(JsonBody(RedeliveryRequest))],
) -> Redelivery:
    host, state = wanted.host.lower(), cast(TroubledState, wanted.state)
    after = receivers.THE_BEGINNING if wanted.cursor is None else _place(wanted.cursor)
    changes = await receivers.redeliver(server.database, tenant, host, state, after, dry_run=wanted.dry_run)
    server.hub.announce(changes)
    [walk] = changes.answers
    return Redelivery(
        host=host,
        state=state,
        dry_run=wanted.dry_run,
        matched=walk.matched,
        redelivered=walk.redelivered,
        next_cursor=None if walk.place is None else encode_cursor("{}:{}".format(*walk.place)),
    )


def _document(shape: type[Shape], delivery: Delivery) -> Shape:
    shown = {name: getattr(delivery, name) for name in shape.__struct_fields__ if name != "delivery_id"}
    return shape(delivery_id=delivery_id(delivery.job_id, delivery.seq), **shown)


def _place(cursor: str) -> tuple[str, int]:
    found = decode_cursor(cursor)
    job_id, seq = found[:ID_LENGTH], _number(found[ID_LENGTH + 1 :])
    if not is_id(job_id) or seq is None:
        raise bad_cursor()
    return job_id, seq
