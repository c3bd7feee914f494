"""Attach: a job's token stream, from the start or from where it was dropped, on any replica."""

import contextlib
import re
from collections.abc import Iterable
from typing import Annotated, Any

import orjson
from fastapi import Header, Path, Query
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from app.api.events import EVENT_STREAM, check_query, wants_stream
from app.api.job_parameters import job_id_of
from app.api.jobs import existing_job
from app.api.open_streams import OpenStream, is_stream, open_stream
from app.api.parameters import query_names
from app.api.routes import AnswerHeader, Reply, Routes
from app.api.services import Services, services_of, tenant_of
from app.dialects import DEFAULT_DIALECT, TARGET_DIALECTS, TargetDialectName
from app.dialects.framing import NDJSON
from app.dialects.protocol import Dialect
from app.errors import ForemanError, NotFound, Unavailable
from app.events.follow import Ended, Followed, Follower, Output, Quiet, Restarted
from app.events.frames import GONE, RESTARTED, Frames
from app.events.sse import COMMENT, frame
from app.identity.scopes import Scope
from app.jobs.submission import invalid
from app.store.job import Job

routes = Routes("events")

_ID = re.compile(r"([0-9]{1,9})\.([0-9]{1,12})\Z")


def _of_stream(
    job_id: Annotated[str, Path()],
    dialect: Annotated[TargetDialectName, Query(description="Whose frames.")] = DEFAULT_DIALECT.name,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            description="The id of the last frame that was received: go on right behind it.",
        ),
    ] = None,
) -> None:
    """Read by `stream`."""


_QUERY = query_names(_of_stream)


@routes.get(
    "/jobs/{job_id}/stream",
    Scope.JOBS_READ,
    "Attach to a job's token stream",
    Reply(
        "What the job has said so far, then live, and one last frame that tells how it ended. Ollama "
        "frames as NDJSON, or as server-sent events when asked for; OpenAI chunks as server-sent events "
        "that end with `[DONE]`.",
        str,
        (AnswerHeader("X-Foreman-Job-Id", "The job behind this answer."),),
        media_type=NDJSON,
        streams_as=(EVENT_STREAM,),
    ),
    errors=(404, 422, 429),
    parameters=_of_stream,
    stream=True,
)
async def stream(request: Request) -> ASGIApp:
    services = services_of(request)
    check_query(request, _QUERY)
    dialect = TARGET_DIALECTS.get(request.query_params.get("dialect", DEFAULT_DIALECT.name))
    if dialect is None:
        raise invalid("dialect", f"must be {' or '.join(TARGET_DIALECTS)}")
    tenant = tenant_of(request)
    job = await existing_job(services, job_id_of(request), tenant)
    if job.kind not in {"chat", "generate"}:
        raise invalid("job_id", f"a job of kind {job.kind} has no tokens to stream; read its events")
    follower = Follower(services.database, services.hub, services.live, job.id, tenant)
    resumed = request.headers.get("last-event-id")
    if resumed is not None:
        await follower.resume(*_place(resumed))
    tokens = TokenFrames(job, dialect, sse=wants_stream(request))
    return TokenStream(services, job.id, follower, tokens)


def _place(given: str) -> tuple[int, int]:
    found = _ID.match(given)
    if found is None:
        raise invalid("Last-Event-ID", "must be an id of this stream")
    return int(found[1]), int(found[2])


class TokenFrames:
    """What one reader gets: frames, their ids where the framing has them, and the silence between."""

    def __init__(self, job: Job, dialect: Dialect, *, sse: bool) -> None:
        self._dialect = dialect
        self.frames = Frames(job, dialect)
        self.sse = sse or dialect.sse
        self.id: str | None = None

    def at(self, run: int, position: int) -> None:
        self.id = f"{run}.{position}"

    def render(self, frames: Iterable[dict[str, Any]]) -> bytes:
        bodies = [orjson.dumps(each, option=orjson.OPT_UTC_Z) for each in frames]
        if self.sse:
            return b"".join([frame(self.id, None, body) for body in bodies])
        return b"".join([body + b"\n" for body in bodies])

    def told(self, each: Followed) -> bytes:
        match each:
            case Output(run, position, part):
                self.at(run, position)
                return self.render(self.frames.part(part))
            case Quiet():
                return self.silence()
            case Restarted():
                return self.render(self.frames.error(RESTARTED))
            case Ended():
                return self.ended(each)

    def silence(self) -> bytes:
        return COMMENT if self.sse else self.render([self.frames.silence()])

    def ended(self, job: Ended) -> bytes:
        frames = self.frames.ended(job)
        # An error is the end by itself; `[DONE]` behind it would say that all went well.
        is_error = any("error" in each for each in frames)
        return self.render(frames) + (b"" if is_error else self._dialect.end_of_stream)


class TokenStream:
    """What the job says, and exactly one frame that tells how it ended."""

    def __init__(self, services: Services, job_id: str, follower: Follower, tokens: TokenFrames) -> None:
        self._services = services
        self._job_id = job_id
        self._follower = follower
        self._tokens = tokens

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        is_stream(scope)
        media_type = EVENT_STREAM if self._tokens.sse else NDJSON
        headers = [(b"x-foreman-job-id", self._job_id.encode())]
        with self._services.streams.place("tokens", scope):
            async with open_stream(receive, send, media_type, self._follower.abandon, headers) as answer:
                try:
                    await self._relay(answer)
                except (NotFound, Unavailable) as problem:
                    await answer.say(self._error(problem))

    async def _relay(self, answer: OpenStream) -> None:
        tokens = self._tokens
        quiet = self._services.streams.keep_alive_seconds
        async with contextlib.aclosing(self._follower.follow(quiet)) as following:
            async for told in following:
                if isinstance(told[-1], Ended):
                    tokens.frames.foresee(told[-1])
                said = b"".join([tokens.told(each) for each in told])
                if said:
                    await answer.say(said)
                if answer.gone:
                    return

    def _error(self, problem: ForemanError) -> bytes:
        message = GONE if isinstance(problem, NotFound) else problem.detail
        return self._tokens.render(self._tokens.frames.error(message))
