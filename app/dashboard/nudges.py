"""What an open page listens to: that something changed, never what. The page then fetches itself again.

However much happens, a page hears of it at most so often; and now and then it does although nothing was
heard, because hints may be lost and ages go on.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from app.api.events import EVENT_STREAM
from app.api.job_parameters import job_id_of
from app.api.jobs import existing_job
from app.api.open_streams import OpenStream, is_stream, open_stream
from app.api.routes import Access, Reply, Routes
from app.api.services import Services, services_of, tenant_of
from app.events.hub import Hub
from app.identity.scopes import Scope
from app.loops.alarm import Alarm

routes = Routes("dashboard")
STREAM = Reply("Server-sent events", str, media_type=EVENT_STREAM)

# At most so often, and at least.
PAUSE_SECONDS = 2.0
JOB_PAUSE_SECONDS = 0.25
AT_LEAST_SECONDS = 10.0
NUDGE = b"event: nudge\ndata: \n\n"
# A browser that lost the stream comes back after so many milliseconds.
RETRY = b"retry: 2000\n\n"

Hears = Callable[[], contextlib.AbstractContextManager[Alarm]]


@routes.get(
    "/ui/nudges", Access.ANY_KEY, "Something changed somewhere", STREAM, stream=True, documented=False
)
async def nudges(request: Request) -> ASGIApp:
    services = services_of(request)
    return Nudges(services, lambda: _hears_everything(services.hub), PAUSE_SECONDS)


@contextlib.contextmanager
def _hears_everything(hub: Hub) -> Iterator[Alarm]:
    alarm = Alarm()
    with hub.any_change(alarm.ring):
        yield alarm


@routes.get(
    "/ui/jobs/{job_id}/nudges",
    Scope.JOBS_READ,
    "Something changed about this job",
    STREAM,
    stream=True,
    documented=False,
)
async def job_nudges(request: Request) -> ASGIApp:
    services = services_of(request)
    job = await existing_job(services, job_id_of(request), tenant_of(request))
    return Nudges(services, lambda: services.hub.watch(job.id), JOB_PAUSE_SECONDS)


class Nudges:
    """For as long as the page is open."""

    def __init__(self, services: Services, hears: Hears, pause_seconds: float) -> None:
        self._services = services
        self._hears = hears
        self._pause = pause_seconds

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        is_stream(scope)
        with self._services.streams.place("nudges", scope), self._hears() as alarm:
            async with open_stream(receive, send, EVENT_STREAM, alarm.ring) as stream:
                await stream.say(RETRY)
                await self._follow(stream, alarm)

    async def _follow(self, stream: OpenStream, alarm: Alarm) -> None:
        while not stream.gone and not self._services.hub.closing:
            began = time.monotonic()
            rung = await alarm.wait(AT_LEAST_SECONDS)
            await stream.say(NUDGE)
            # What comes meanwhile is told together.
            await asyncio.sleep(max(0.0, self._pause - (time.monotonic() - began)) if rung else 0)
