"""The events of all jobs, for operators: read on from a place, or follow as server-sent events."""

import re
import time
from typing import Annotated

from fastapi import Header, Query
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from app.api.direct import json_response
from app.api.events import AWAY_SECONDS, EVENT_STREAM, Types, WaitForEvents, check_query, wants_stream
from app.api.job_documents import FeedPage
from app.api.job_parameters import query_wait
from app.api.open_streams import OpenStream, is_stream, open_stream
from app.api.parameters import query_names
from app.api.routes import Reply, Routes
from app.api.services import Services, services_of, tenant_of
from app.errors import Unavailable
from app.events.shared_feed import SharedFeedReader
from app.events.sse import COMMENT, event_json, frame
from app.identity.scopes import Scope
from app.jobs.event_types import parse_types
from app.jobs.submission import invalid
from app.store.announcements import FeedEvent, Place

routes = Routes("operators")

_PLACE = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})\Z")


class Wanted:
    """Which events of the feed a reader wants."""

    def __init__(self, request: Request) -> None:
        query = request.query_params
        named = [*query.getlist("types"), *query.getlist("type")]
        self._types = parse_types(",".join(named) if named else None)
        self._queues = frozenset(query.getlist("queue"))
        self._tenant = tenant_of(request)

    def __call__(self, event: FeedEvent) -> bool:
        return (
            event.tenant == self._tenant
            and (self._types is None or event.type in self._types)
            and (not self._queues or event.queue in self._queues)
        )


def _of_feed(
    after: Annotated[str | None, Query(description="A next_after or an id of this feed.")] = None,
    queue: Annotated[list[str] | None, Query(description="Only jobs of this queue. Repeatable.")] = None,
    types: Types = None,
    type_: Annotated[str | None, Query(alias="type", include_in_schema=False)] = None,
    wait: WaitForEvents = None,
    last_event_id: Annotated[
        str | None,
        Header(alias="Last-Event-ID", description="For streams: the last id that was received."),
    ] = None,
) -> None:
    """Read by `feed` and `Wanted`."""


_QUERY = query_names(_of_feed)


@routes.get(
    "/events",
    Scope.ADMIN_READ,
    "Follow the events of all jobs",
    Reply(
        "Events in the order in which they were committed, each once. Without a cursor: from now on.",
        FeedPage,
        streams_as=(EVENT_STREAM,),
    ),
    errors=(422, 429),
    parameters=_of_feed,
    stream=True,
)
async def feed(request: Request) -> ASGIApp:
    services = services_of(request)
    check_query(request, _QUERY)
    wanted = Wanted(request)
    wait = query_wait(request)
    streams = wants_stream(request)
    given = (request.headers.get("last-event-id") if streams else None) or request.query_params.get("after")
    place = await services.shared_feed.newest() if given is None else _place(given)
    reader = SharedFeedReader(services.shared_feed, place)
    if streams:
        return FeedStream(services, reader, wanted)
    events = await _read(services, reader, wanted, wait)
    documents = b",".join([_json(event) for event in events])
    return json_response(b'{"events":[%b],"next_after":"%b"}' % (documents, _text(reader.place).encode()))


async def _read(
    services: Services, reader: SharedFeedReader, wanted: Wanted, seconds: float
) -> list[FeedEvent]:
    ends = time.monotonic() + seconds
    with services.hub.any_change(reader.alarm.ring):
        while True:
            left = ends - time.monotonic()
            found = await reader.next(max(0.0, left))
            events = [event for event in found.events if wanted(event)] if found else []
            if events or (found is None and (left <= 0 or services.hub.closing)):
                return events


class FeedStream:
    """The feed as server-sent events, for as long as the reader stays."""

    def __init__(self, services: Services, reader: SharedFeedReader, wanted: Wanted) -> None:
        self._services = services
        self._reader = reader
        self._wanted = wanted

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        is_stream(scope)
        alarm = self._reader.alarm
        with self._services.streams.place("feed", scope), self._services.hub.any_change(alarm.ring):
            async with open_stream(receive, send, EVENT_STREAM, alarm.ring) as stream:
                await self._follow(stream)

    async def _follow(self, stream: OpenStream) -> None:
        spoke = time.monotonic()
        keep_alive = self._services.streams.keep_alive_seconds
        while not stream.gone and not self._services.hub.closing:
            try:
                found = await self._reader.next(keep_alive)
            except Unavailable:
                found = None
                await self._reader.alarm.wait(AWAY_SECONDS)
            frames = [_frame(event) for event in found.events if self._wanted(event)] if found else []
            if not frames and time.monotonic() - spoke >= keep_alive:
                frames = [COMMENT]
            if frames:
                await stream.say(b"".join(frames))
                spoke = time.monotonic()


def _frame(event: FeedEvent) -> bytes:
    return frame(_text(Place(event.xid, event.position)), event.type, _json(event))


def _json(event: FeedEvent) -> bytes:
    more = {"truncated": True} if event.data_is_cut else {}
    return event_json(event, job_id=event.job_id, queue=event.queue, **more)


def _text(place: Place) -> str:
    return f"{place.xid}.{place.position}"


def _place(given: str) -> Place:
    found = _PLACE.match(given)
    if found is None:
        raise invalid("after", "must be a next_after or an id of this feed")
    return Place(int(found[1]), int(found[2]))
