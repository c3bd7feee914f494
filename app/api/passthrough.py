"""Synchronous calls: a queued job whose HTTP response happens to wait.

One engine, one queue: the handler submits an interactive job and follows its output, here or wherever it
runs. Whoever hangs up cancels the job. Nothing is sent before there is something to say, so that an error
still has its status; after the first byte it comes in-band, and every stream ends with one honest last frame.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.api import surfaces
from app.api.body import release_body
from app.api.direct import read_body
from app.api.headers import idempotency_key, trace_of
from app.api.house import House, house_of, tenant_of
from app.api.jobs import cancel_job, fingerprint_of
from app.dialects import Dialect, Kind, asks_to_stream
from app.dialects.parts import PartFrames
from app.errors import ForemanError, InvalidRequest, Unavailable
from app.events.follow import Ended, Ending, Followed, Follower, Output, Restarted
from app.jobs import verbatim
from app.jobs.ids import new_id
from app.jobs.lanes import llm_lane
from app.jobs.states import LIVE
from app.jobs.submission import NAME, AnyObject, NewJob, RunnerOptions, options_key
from app.loops.off_loop import off_loop
from app.store.events import NewEvent, Want
from app.store.idempotency import Receipt, Submission
from app.targets.config import ECHO_NAME
from app.telemetry import PASSTHROUGH

log = structlog.get_logger()

# A caller who sends the same key again is expected back: its job is kept for a while after it hung up.
REATTACH_SECONDS = 15.0
# The event that a caller who came back leaves in the log.
ATTACHED = "attached"

_NAME = re.compile(NAME)
_WORDS = {
    "cancelled": (500, "the job was cancelled"),
    "expired": (504, "the job's deadline has passed"),
    "skipped": (503, "the job was replaced by a newer one"),
    "stale": (503, "the job lost its place to a newer one"),
    "dismissed": (500, "the job failed and was dismissed"),
}
RESTARTED = "the answer was interrupted and begun anew; ask again"
CLOSING = "the server is shutting down; ask again"


class _StreamOptions(msgspec.Struct, frozen=True, gc=False):
    include_usage: msgspec.Raw = msgspec.Raw(b"false")


class _Asked(msgspec.Struct, frozen=True, gc=False):
    """What Foreman itself needs to understand of a body; the rest is the target's business."""

    model: str = ""
    messages: list[AnyObject] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _AskedOllama(_Asked, frozen=True, gc=False):
    options: RunnerOptions | None = None


_DECODERS: dict[Dialect, msgspec.json.Decoder[Any]] = {
    "ollama": msgspec.json.Decoder(_AskedOllama),
    "openai": msgspec.json.Decoder(_Asked),
}


@dataclass(frozen=True, slots=True)
class Call:
    """A synchronous call that was read and found sound."""

    job: NewJob
    kind: Kind
    dialect: Dialect
    streams: bool
    include_usage: bool
    cancels: bool
    key: str | None
    fingerprint: bytes | None


async def answer(request: Request, kind: Kind, dialect: Dialect) -> Response:
    """The whole of a synchronous call."""
    house = house_of(request)
    try:
        call = await _read(request, house, kind, dialect)
        if not await _is_known(house, call.job.model or ""):
            return surfaces.unknown_model(dialect, call.job.model or "")
    except ForemanError as problem:
        return surfaces.refusal(dialect, problem)
    return Waiting(house, call, lambda: release_body(request))


async def _is_known(house: House, model: str) -> bool:
    if house.targets.is_empty:
        return model.removesuffix(":latest") == ECHO_NAME
    return not (await house.targets.serving_surely(model)).is_unknown


async def _read(request: Request, house: House, kind: Kind, dialect: Dialect) -> Call:
    body = await read_body(request)
    asked = await off_loop(len(body), _parse, body, dialect, house.settings.max_json_depth)
    if not asked.model or "\0" in asked.model or len(asked.model) > 512:
        raise InvalidRequest("model is required")
    if dialect == "openai" and kind == "chat" and not asked.messages:
        raise InvalidRequest("[] is too short - 'messages'")
    trace = trace_of(request)
    options = options_key(asked.options) if isinstance(asked, _AskedOllama) else ""
    job = NewJob(
        id=new_id(),
        tenant=tenant_of(request),
        queue=_queue(request),
        lane=llm_lane(asked.model, options),
        kind=kind,
        payload=body.decode(),
        model=asked.model,
        priority=_priority(request),
        interactive=True,
        deadline_seconds=_deadline(request),
        request_id=trace.request_id,
        traceparent=trace.traceparent,
        tracestate=trace.tracestate,
        dialect=dialect,
    )
    key = idempotency_key(request)
    return Call(
        job,
        kind,
        dialect,
        streams=asks_to_stream(kind, {"stream": asked.stream}, dialect),
        include_usage=asked.stream_options is not None
        and bytes(asked.stream_options.include_usage) == b"true",
        cancels=_cancels(request),
        key=key,
        fingerprint=None if key is None else await fingerprint_of(request, body),
    )


def _parse(body: bytes, dialect: Dialect, max_depth: int) -> Any:
    verbatim.members(body, max_depth)
    try:
        return _DECODERS[dialect].decode(body)
    except msgspec.ValidationError as problem:
        raise InvalidRequest(f"invalid request: {problem}") from problem


def _priority(request: Request) -> int:
    given = request.headers.get("x-foreman-priority")
    if given is None:
        return 0
    if not re.fullmatch(r"[+-]?[0-9]{1,3}", given.strip()) or not -100 <= int(given) <= 100:
        raise InvalidRequest("X-Foreman-Priority must be a number from -100 to 100")
    return int(given)


def _queue(request: Request) -> str:
    given = request.headers.get("x-foreman-queue", "default")
    if not _NAME.match(given):
        raise InvalidRequest("X-Foreman-Queue is not the name of a queue")
    return given


def _deadline(request: Request) -> float | None:
    given = request.headers.get("x-foreman-deadline-seconds")
    if given is None:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(given)
        if 0 < seconds <= 315_576_000:
            return seconds
    raise InvalidRequest("X-Foreman-Deadline-Seconds must be a number of seconds above 0")


def _cancels(request: Request) -> bool:
    given = request.headers.get("x-foreman-on-disconnect", "cancel").strip().lower()
    if given not in {"cancel", "continue"}:
        raise InvalidRequest("X-Foreman-On-Disconnect must be cancel or continue")
    return given == "cancel"


class Waiting(Response):
    """The response that waits. It submits the job itself: a caller who is gone leaves nothing behind."""

    def __init__(self, house: House, call: Call, release: Callable[[], None]) -> None:
        """`release` is called when the body is in the database and needed no more."""
        self._house = house
        self._call = call
        self._release = release
        self._job_id: str | None = None
        self._submitting: asyncio.Future[Receipt] | None = None
        self._ended = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._call
        line = _Line(send, call)
        talking = asyncio.ensure_future(self._talk(line))
        hanging_up = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({talking, hanging_up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hanging_up.cancel()
            if not talking.done():
                talking.cancel()
            await asyncio.gather(talking, hanging_up, return_exceptions=True)
        if talking.cancelled() or not self._ended:
            PASSTHROUGH.labels(call.dialect, "disconnected").inc()
            await self._hung_up()
        if not talking.cancelled():
            talking.result()

    async def _talk(self, line: "_Line") -> None:
        house, call = self._house, self._call
        submission = Submission([call.job], call.job.tenant, call.key, call.fingerprint)
        self._submitting = asyncio.ensure_future(house.intake.submit(submission))
        try:
            # Not cut off by a caller who hangs up: what is on its way into the database is cancelled there.
            receipt = await asyncio.shield(self._submitting)
        except ForemanError as problem:
            self._ended = True
            await line.refuse(surfaces.refusal(call.dialect, problem))
            return
        self._job_id = line.job_id = receipt.job_ids[0]
        # The answer may take its time.
        call.job.payload = ""
        self._release()
        try:
            if receipt.replayed:
                await house.scribe.append(NewEvent(self._job_id, ATTACHED))
            await self._tell(line, self._follow(self._job_id, fresh=not receipt.replayed))
        except Unavailable as problem:
            await line.error(503, problem.detail)

    def _follow(self, job_id: str, *, fresh: bool = False) -> AsyncIterator[Followed]:
        house = self._house
        follower = Follower(house.database, house.hub, house.feed, job_id, self._call.job.tenant)
        return follower.follow(house.settings.keep_alive_seconds, fresh=fresh)

    async def _tell(self, line: "_Line", following: AsyncIterator[Followed]) -> None:
        call = self._call
        frames = PartFrames(
            call.kind,
            call.dialect,
            model=call.job.model or "",
            answer_id=line.job_id,
            started_at=datetime.now(UTC),
            include_usage=call.include_usage,
        )
        async for each in following:
            match each:
                case Output(part=part):
                    if call.streams:
                        await line.say(
                            surfaces.frames_bytes(call.dialect, [frames.say(part, datetime.now(UTC))])
                        )
                case Restarted():
                    if call.streams:
                        await line.error(500, RESTARTED)
                    else:
                        # Nothing was sent yet: the new answer is as good.
                        await self._tell(line, self._follow(line.job_id))
                    return
                case Ended(job=job):
                    self._ended = True
                    await self._last_words(line, frames, job)
                    return
                case _:
                    await line.keep_alive(
                        surfaces.sign_of_life(call.dialect, frames.silence(datetime.now(UTC)))
                    )

    async def _last_words(self, line: "_Line", frames: PartFrames, job: Ending) -> None:
        call = self._call
        PASSTHROUGH.labels(call.dialect, job.state).inc()
        if job.state != "done":
            status, message, code = _what_went_wrong(job)
            await line.error(status, message, code)
        elif call.streams:
            ending = frames.ending(orjson.loads(job.result or "{}"), datetime.now(UTC))
            await line.say(
                surfaces.frames_bytes(call.dialect, ending) + surfaces.end_of_stream(call.dialect), last=True
            )
        else:
            await line.whole((job.result or "{}").encode())

    async def _hung_up(self) -> None:
        """The caller is gone, or was told that it must ask again."""
        if self._submitting is None or not self._call.cancels:
            return
        try:
            job_id = (await self._submitting).job_ids[0]
        except ForemanError:
            return
        if self._call.key is not None:
            _later(self._cancel_unless_attached(job_id))
        else:
            await self._cancel(job_id)

    async def _cancel_unless_attached(self, job_id: str) -> None:
        """Whoever comes back says so in the job's log: it may be to another replica."""
        log_reader = self._house.hub.log
        try:
            page = await log_reader.read(Want(job_id, 0, (ATTACHED,)))
            await asyncio.sleep(REATTACH_SECONDS)
            later = await log_reader.read(Want(job_id, page.seq if page else 0, (ATTACHED,)))
        except Unavailable:
            return
        if later is not None and not later.events:
            await self._cancel(job_id)

    async def _cancel(self, job_id: str) -> None:
        try:
            await cancel_job(self._house, job_id, self._call.job.tenant, "client_disconnected")
        except Unavailable:
            log.warning("passthrough.cancel_failed", job_id=job_id)


_TASKS: set["asyncio.Task[None]"] = set()


def _later(work: Any) -> None:
    task = asyncio.ensure_future(work)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _what_went_wrong(job: Ending) -> tuple[int, str, str | None]:
    if job.state in LIVE:
        return 503, CLOSING, "unavailable"
    if job.state != "failed":
        status, message = _WORDS.get(job.state, (500, "the job failed"))
        return status, message, job.state
    error = orjson.loads(job.error or "{}")
    return int(error.get("status") or 500), error.get("message") or "the job failed", error.get("code")


class _Line:
    """The wire: decides by what comes first how the answer begins."""

    def __init__(self, send: Send, call: Call) -> None:
        self._send = send
        self._call = call
        self._begun = False
        self.job_id = ""

    async def say(self, data: bytes, *, last: bool = False) -> None:
        if not self._begun:
            await self._begin(200, surfaces.stream_type(self._call.dialect))
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def keep_alive(self, sign: bytes) -> None:
        if self._call.streams:
            await self.say(sign)
            return
        # Spaces before a JSON document mean nothing.
        if not self._begun:
            await self._begin(200, b"application/json")
        await self._send({"type": "http.response.body", "body": b" ", "more_body": True})

    async def whole(self, body: bytes) -> None:
        if not self._begun:
            await self._begin(200, b"application/json", length=len(body))
        await self._send({"type": "http.response.body", "body": body})

    async def error(self, status: int, message: str, code: str | None = None) -> None:
        dialect = self._call.dialect
        if self._begun and self._call.streams:
            frame = surfaces.error_frame(dialect, status, message, code)
            await self.say(frame + surfaces.end_of_stream(dialect), last=True)
            return
        body = surfaces.json_bytes(surfaces.error_body(dialect, status, message, code))
        if not self._begun:
            more = [(b"x-should-retry", b"false")] if status not in (429, 503) else [(b"retry-after", b"1")]
            await self._begin(status, b"application/json", length=len(body), more=more)
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(self, response: Response) -> None:
        self._begun = True
        await self._send(
            {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await self._send({"type": "http.response.body", "body": bytes(response.body)})

    async def _begin(
        self,
        status: int,
        media_type: bytes,
        *,
        length: int | None = None,
        more: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self._begun = True
        headers = [
            (b"content-type", media_type),
            (b"x-foreman-job-id", self.job_id.encode()),
            (b"cache-control", b"no-cache"),
            *(more or ()),
        ]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        message: Message = {"type": "http.response.start", "status": status, "headers": headers}
        await self._send(message)
