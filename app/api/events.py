"""The event log of a job over HTTP: read, wait, follow as server-sent events, post."""

import time
from dataclasses import replace
from typing import Annotated

import msgspec
from fastapi import Depends, Header, Path, Query
from msgspec import Meta, Raw
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from app.api.direct import json_response
from app.api.job_documents import EventPage, Posted
from app.api.job_parameters import JobIdInPath, job_id_of, query_wait, waiting
from app.api.open_streams import OpenStream, is_stream, long_poll, open_stream
from app.api.parameters import JsonBody, Server, Tenant, query_names
from app.api.routes import Reply, Routes
from app.api.services import Services, account_of, services_of
from app.errors import JobTerminal, NotFound, Unavailable
from app.events.hub import Watch
from app.events.sse import COMMENT, event_json, page_frames
from app.identity.scopes import Scope
from app.jobs.event_types import as_event_type, parse_types
from app.jobs.states import TERMINAL
from app.jobs.submission import EVENT_TYPE, invalid
from app.store.events import NewEvent, Page, Want

routes = Routes("events")

MAX_SEQ = 2**31 - 1
MAX_PAYLOAD_BYTES = 64 * 1024
PAGE_ROWS = 1000
PAGE_BYTES = 1024 * 1024
EVENT_STREAM = "text/event-stream"
# How long a stream waits before it asks a database that is away once more.
AWAY_SECONDS = 1.0


Types = Annotated[str | None, Query(description="Only these types, separated by commas.")]
WaitForEvents = Annotated[float | None, waiting("there is an event")]


def _of_read(
    job_id: Annotated[str, Path()],
    after: Annotated[int | None, Query(ge=0, description="Only events after this seq.")] = None,
    types: Types = None,
    wait: WaitForEvents = None,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            description="For streams: the last seq that was received; stronger than `after`.",
        ),
    ] = None,
) -> None:
    """Read by `read` and `stream_cursor`."""


@routes.get(
    "/jobs/{job_id}/events",
    Scope.JOBS_READ,
    "Read or follow a job's events",
    {
        200: Reply(
            "Events in order. As server-sent events: `id` is the seq, `event` the type, `data` the event; "
            "the stream goes on live and ends when the job has ended.",
            EventPage,
            streams_as=(EVENT_STREAM,),
        ),
        204: Reply("To a stream that resumes: the job has ended and there is nothing left to send"),
    },
    errors=(404, 422, 429),
    parameters=_of_read,
    stream=True,
)
async def read(request: Request) -> ASGIApp:
    services = services_of(request)
    check_query(request, _READ_QUERY)
    types = parse_types(request.query_params.get("types"))
    wait = query_wait(request)
    account = account_of(request)
    if wants_stream(request):
        after, resumes = stream_cursor(request)
        return EventStream(
            services, Want(job_id_of(request), after, types, tenant=account.tenant), resumes=resumes
        )
    want = Want(job_id_of(request), parse_after(request), types, PAGE_ROWS, PAGE_BYTES, account.tenant)
    with long_poll(request.scope, wait):
        page = await _wait_for_events(services, want, wait)
    events = b",".join([event_json(event) for event in page.events])
    return json_response(b'{"events":[%b],"next_after":%d}' % (events, page.next_after))


_READ_QUERY = query_names(_of_read)


async def _wait_for_events(services: Services, want: Want, seconds: float) -> Page:
    """The next page as soon as there is one, or an empty one when the time is over or nothing can come."""
    ends = time.monotonic() + seconds
    with services.hub.watch(want.job_id) as watch:
        while True:
            page = visible(await services.hub.log.read(want), want)
            left = ends - time.monotonic()
            if page.events or page.state in TERMINAL or left <= 0 or services.hub.closing:
                return page
            want = replace(want, after=page.next_after)
            await watch.changed(page.seq, left)


def visible(page: Page | None, want: Want) -> Page:
    if page is None:
        raise NotFound("There is no such job.")
    if want.after > page.seq:
        raise invalid("after", f"lies beyond the end of the log, which is at {page.seq}")
    return page


class EventStream:
    """The log as server-sent events: all of it after the cursor, then live, until the job has ended."""

    def __init__(self, services: Services, want: Want, *, resumes: bool) -> None:
        self._services = services
        self._want = want
        self._resumes = resumes

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        is_stream(scope)
        hub, streams = self._services.hub, self._services.streams
        with streams.place("events", scope), hub.watch(self._want.job_id) as watch:
            page = visible(await hub.log.read(self._want), self._want)
            if self._resumes and page.state in TERMINAL and page.is_last and not page.events:
                # The standard's way to tell a browser not to come back.
                await Response(status_code=204)(scope, receive, send)
                return
            async with open_stream(receive, send, EVENT_STREAM, watch.ring) as stream:
                await self._follow(stream, watch, page)

    async def _follow(self, stream: OpenStream, watch: Watch, page: Page) -> None:
        hub, streams = self._services.hub, self._services.streams
        quiet = streams.first_quiet()
        while True:
            if page.events:
                await stream.say(page_frames(page))
            if page.is_last:
                # By the state, not by the event: a revived job's log goes on behind its `failed`.
                if page.state in TERMINAL or hub.closing:
                    return
                # Silence needs no look at the log: whatever happens to the job, the watch is rung.
                while not await watch.changed(page.seq, quiet):
                    await stream.say(COMMENT)
                    quiet = streams.keep_alive_seconds
            if stream.gone:
                return
            following = await self._next(stream, watch, page)
            if following is None:
                return
            page = following

    async def _next(self, stream: OpenStream, watch: Watch, page: Page) -> Page | None:
        """The following page; None when the job was deleted, or the reader or the server is leaving."""
        want = replace(self._want, after=page.next_after)
        while True:
            try:
                return await self._services.hub.log.read(want)
            except Unavailable:
                # The reader keeps its place; there is no reason to send it away.
                await watch.changed(page.seq, AWAY_SECONDS)
                if stream.gone or self._services.hub.closing:
                    return None
                await stream.say(COMMENT)


def wants_stream(request: Request) -> bool:
    return EVENT_STREAM in request.headers.get("accept", "").lower()


def stream_cursor(request: Request) -> tuple[int, bool]:
    """Where to begin, and whether this is a reconnect: Last-Event-ID is newer than the `after` of the URL."""
    given = request.headers.get("last-event-id")
    if given is None:
        return parse_after(request), False
    return _seq("Last-Event-ID", given), True


def parse_after(request: Request) -> int:
    given = request.query_params.get("after")
    return 0 if given is None else _seq("after", given)


def _seq(field: str, given: str) -> int:
    if not given.isascii() or not given.isdigit() or len(given) > 10 or int(given) > MAX_SEQ:
        raise invalid(field, "must be the seq of an event, or 0")
    return int(given)


def check_query(request: Request, known: frozenset[str]) -> None:
    for name in request.query_params:
        if name not in known:
            raise invalid(name, f"is not known here; there are {', '.join(sorted(known))}")


class PostedEvent(msgspec.Struct, forbid_unknown_fields=True):
    # Checked by `as_event_type`, in words that say more than a pattern does.
    type: Annotated[str, Meta(extra_json_schema={"pattern": EVENT_TYPE})]
    payload: Annotated[Raw, Meta(description="Any JSON of up to 64 KB.")] = msgspec.field(
        # Not as a plain default: msgspec cannot describe one that is raw.
        default_factory=lambda: Raw(b"null")
    )

    def check(self) -> None:
        if memoryview(self.payload).nbytes > MAX_PAYLOAD_BYTES:
            raise invalid("payload", f"may have at most {MAX_PAYLOAD_BYTES} bytes")
        as_event_type(self.type)


@routes.post(
    "/jobs/{job_id}/events",
    Scope.JOBS_WRITE,
    "Post an event to a job",
    {201: Reply("Written; whoever follows the job, its worker too, can read it", Posted)},
    errors=(404, 409),
)
async def post(
    server: Server,
    tenant: Tenant,
    job_id: JobIdInPath,
    given: Annotated[PostedEvent, Depends(JsonBody(PostedEvent))],
) -> Posted:
    page = await server.hub.log.read(Want(job_id, MAX_SEQ, (given.type,), tenant=tenant))
    if page is None:
        raise NotFound("There is no such job.")
    payload = bytes(given.payload)
    appended = await server.event_writer.append(
        NewEvent(job_id, given.type, None if payload == b"null" else payload.decode())
    )
    if appended is None:
        raise JobTerminal("The job has already ended: nobody would read this event.")
    return Posted(appended.seq, appended.at)
