"""Synchronous calls: a queued job whose HTTP response happens to wait.

One engine, one queue: the handler submits an interactive job and follows its output, here or wherever it
runs. Whoever hangs up cancels the job. Nothing is sent before there is something to say, so that an error
still has its status; after the first byte it comes in-band, and every stream ends with one honest last frame.
An answer that comes as a whole has no place for an error any more once it has begun: it is broken off.
"""

import asyncio
import contextlib
import math
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import orjson
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api import admission, surfaces
from app.api.direct import read_body, release_body
from app.api.job_parameters import idempotency_key, trace_of
from app.api.jobs import cancel_job, fingerprint_of
from app.api.open_streams import OpenStream, answering, long_poll
from app.api.services import Services, account_of, services_of
from app.dialects.protocol import AnswerWriter, Body, Dialect, StreamEncoder
from app.dialects.shapes import Kind
from app.errors import ForemanError, InvalidRequest, Unavailable
from app.events.follow import Ended, Followed, Follower, Output, Restarted
from app.events.frames import Failure
from app.events.live_output import Part
from app.identity.account import Account
from app.jobs import verbatim
from app.jobs.retry import NO_BACKOFF
from app.jobs.states import LIVE
from app.jobs.submission import TEN_YEARS, Extensions, NewJob, is_name, new_job
from app.loops.off_loop import off_loop
from app.store.events import NewEvent, Want
from app.store.idempotency import Submission
from app.store.job import Job
from app.targets.config import ECHO_NAME
from app.telemetry import PASSTHROUGH

log = structlog.get_logger()

# A caller who sends the same key again is expected back: its job is kept for a while after it hung up.
REATTACH_SECONDS = 15.0
# The event that a caller who came back leaves in the log.
ATTACHED = "attached"
MAX_ATTEMPTS = 100

JSON = "application/json"
RESTARTED = "the answer was interrupted and begun anew; ask again"
CLOSING = "the server is shutting down; ask again"


async def answer(request: Request, kind: Kind, dialect: Dialect) -> Response:
    """The whole of a synchronous call."""
    services = services_of(request)
    try:
        call, _ = await read_call(request, services, kind, dialect)
        if not await is_known(services, call.job.model or ""):
            return surfaces.unknown_model(dialect, call.job.model or "")
    except ForemanError as problem:
        return surfaces.refusal(dialect, problem)
    return Waiting(services, call, lambda: release_body(request))


async def is_known(services: Services, model: str) -> bool:
    if services.targets.is_empty:
        return model.removesuffix(":latest") == ECHO_NAME
    return not (await services.targets.serving_surely(model)).is_unknown


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
    account: Account


async def read_call(request: Request, services: Services, kind: Kind, dialect: Dialect) -> tuple[Call, Body]:
    """And what it asks for. Not in the call itself: that is held until the answer is given."""
    body = await read_body(request)
    asked = await off_loop(len(body), _parse, body, kind, dialect, services.settings.max_json_depth)
    fields = Extensions(
        kind=kind,
        queue=_queue(request),
        priority=_priority(request),
        deadline_seconds=_deadline(request),
        max_attempts=_max_attempts(request),
    )
    account = account_of(request)
    job = new_job(account.tenant, fields, body.decode(), asked.model, asked.runner_options)
    trace = trace_of(request)
    job.request_id, job.traceparent, job.tracestate = trace.request_id, trace.traceparent, trace.tracestate
    job.interactive = True
    if job.max_attempts is None:
        job.backoff_seconds = list(NO_BACKOFF)
    job.dialect = dialect.name
    key = idempotency_key(request)
    call = Call(
        job,
        kind,
        dialect,
        streams=dialect.asks_to_stream(kind, asked),
        include_usage=asked.wants_usage,
        cancels=_cancels(request),
        key=key,
        fingerprint=None if key is None else await fingerprint_of(request, body),
        account=account,
    )
    return call, asked


def _parse(body: bytes, kind: Kind, dialect: Dialect, max_depth: int) -> Body:
    verbatim.members(body, max_depth)
    return dialect.read_body(kind, body)


def _priority(request: Request) -> int:
    given = request.headers.get("x-foreman-priority")
    if given is None:
        return 0
    if not re.fullmatch(r"[+-]?[0-9]{1,3}", given.strip()) or not -100 <= int(given) <= 100:
        raise InvalidRequest("X-Foreman-Priority must be a number from -100 to 100")
    return int(given)


def _queue(request: Request) -> str:
    given = request.headers.get("x-foreman-queue", "default")
    if not is_name(given):
        raise InvalidRequest("X-Foreman-Queue is not the name of a queue")
    return given


def _deadline(request: Request) -> float | None:
    given = request.headers.get("x-foreman-deadline-seconds")
    if given is None:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(given)
        if 0 < seconds <= TEN_YEARS:
            return seconds
    raise InvalidRequest("X-Foreman-Deadline-Seconds must be a number of seconds above 0")


def _max_attempts(request: Request) -> int | None:
    given = request.headers.get("x-foreman-max-attempts")
    if given is None:
        return None
    if not re.fullmatch(r"[0-9]{1,3}", given.strip()) or not 1 <= int(given) <= MAX_ATTEMPTS:
        raise InvalidRequest(f"X-Foreman-Max-Attempts must be a number from 1 to {MAX_ATTEMPTS}")
    return int(given)


def _cancels(request: Request) -> bool:
    given = request.headers.get("x-foreman-on-disconnect", "cancel").strip().lower()
    if given not in {"cancel", "continue"}:
        raise InvalidRequest("X-Foreman-On-Disconnect must be cancel or continue")
    return given == "cancel"


class Waiting(Response):
    """The response that waits. It submits the job itself: a caller who is gone leaves nothing behind."""

    def __init__(self, services: Services, call: Call, release: Callable[[], None]) -> None:
        """`release` is called when the body is in the database and needed no more."""
        self._services = services
        self._call = call
        self._release = release
        self._stream: OpenStream
        self._follower: Follower | None = None
        self._job_id = ""
        self._encoder: StreamEncoder
        self._ended = False
        self.background = None
        settings = services.settings
        # How often it is looked whether a sign of life is due, and when that is.
        self._quiet_seconds, self._sign_due = settings.keep_alive_seconds, time.monotonic()
        if not call.streams:
            first = settings.plain_keep_alive_seconds
            looks = math.ceil(first / settings.keep_alive_seconds)
            self._quiet_seconds = first / looks if looks else settings.keep_alive_seconds
            # That of the looks which is nearest to the moment.
            self._sign_due += first - self._quiet_seconds / 2 if first else math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Refused before there is a job, when this process or its caller has its fill of streams.
        streams = self._services.streams
        with streams.place("answers", scope) if self._call.streams else long_poll(scope):
            async with answering(receive, send, self._caller_left, scope) as self._stream:
                try:
                    await self._talk()
                except Exception:
                    await self._leave()
                    raise
                await self._leave()

    def _caller_left(self) -> None:
        """What is on its way into the database gets there, and is cancelled there."""
        if self._follower is not None:
            self._follower.abandon()

    async def _leave(self) -> None:
        if not self._ended:
            PASSTHROUGH.labels(self._call.dialect.name, "disconnected").inc()
            await self._hung_up()

    async def _talk(self) -> None:
        services, call = self._services, self._call
        submission = Submission([call.job], call.job.tenant, call.key, call.fingerprint)
        try:
            receipt = await admission.submit(services, call.account, submission)
        except ForemanError as problem:
            self._ended = True
            await self._refuse(surfaces.refusal(call.dialect, problem))
            return
        self._job_id = receipt.job_ids[0]
        self._encoder = call.dialect.encoder(call.job.payload, self._job_id)
        # The answer may take its time.
        call.job.payload = ""
        self._release()
        try:
            if receipt.replayed:
                await services.event_writer.append(NewEvent(self._job_id, ATTACHED))
            await self._tell(fresh=not receipt.replayed)
        except Unavailable as problem:
            await self._fail(Failure(503, problem.detail, problem.code))

    def _follow(self, writer: AnswerWriter, *, fresh: bool) -> AsyncGenerator[Sequence[Followed], None]:
        services, tenant = self._services, self._call.job.tenant
        follower = Follower(services.database, services.hub, services.live, self._job_id, tenant)
        self._follower = follower
        if self._stream.gone:
            follower.abandon()
        return follower.follow(
            self._quiet_seconds,
            fresh=fresh,
            tell_now=partial(self._tell_now, writer),
            only_end=not self._call.streams,
        )

    async def _tell(self, *, fresh: bool = False) -> None:
        call = self._call
        opening = self._encoder.opening() if call.streams else b""
        if opening:
            await self._say(opening)
        model, now = call.job.model or "", datetime.now(UTC)
        writer = call.dialect.writer(call.kind, model, self._job_id, now, include_usage=call.include_usage)
        async with contextlib.aclosing(self._follow(writer, fresh=fresh)) as following:
            async for told in following:
                last = told[-1]
                if call.streams and isinstance(told[0], Output) and (said := self._frames(writer, told)):
                    await self._say(said)
                match last:
                    case Output():
                        if not call.streams:
                            await self._keep_alive(writer)
                    case Restarted():
                        if call.streams:
                            await self._fail(Failure(500, RESTARTED, "restarted"))
                        else:
                            # Nothing was sent yet: the new answer is as good.
                            await self._tell()
                        return
                    case Ended():
                        self._ended = True
                        await self._last_words(writer, last)
                        return
                    case _:
                        await self._keep_alive(writer)

    def _tell_now(self, writer: AnswerWriter, part: Part) -> bool:
        """From the target's socket to the caller's in one go, once the answer has begun."""
        if not self._call.streams:
            # The answer comes as a whole.
            return True
        at_once = self._stream.at_once
        if at_once is None or not at_once.is_ready():
            return False
        at_once.write(writer.on_wire(part, datetime.now(UTC), self._encoder.frame))
        return True

    def _frames(self, writer: AnswerWriter, told: Sequence[Followed]) -> bytes:
        """What came together leaves together, in one write."""
        frame, now = self._encoder.frame, datetime.now(UTC)
        if isinstance(told[-1], Ended) and told[-1].state == "done":
            writer.foresee(orjson.loads(told[-1].result or "{}"))
        said = [each.part for each in told if isinstance(each, Output)]
        return b"".join([writer.on_wire(part, now, frame) for part in said])

    async def _last_words(self, writer: AnswerWriter, job: Ended) -> None:
        call, encoder = self._call, self._encoder
        PASSTHROUGH.labels(call.dialect.name, job.state).inc()
        if job.state != "done":
            await self._fail(failure_of(job))
        elif call.streams:
            ending = writer.ending(orjson.loads(job.result or "{}"), datetime.now(UTC))
            frames = b"".join([encoder.frame(frame) for frame in ending])
            await self._say(frames + encoder.end(), last=True)
        else:
            await self._whole(200, (job.result or "{}").encode())

    # -- what is sent: the first of these decides how the answer begins ----------------------------------

    async def _say(self, data: bytes, *, last: bool = False) -> None:
        if not self._stream.begun:
            await self._begin(200, self._call.dialect.stream_type)
        await self._stream.say(data, last=last)

    async def _keep_alive(self, writer: AnswerWriter) -> None:
        if self._call.streams:
            await self._say(self._encoder.silence(writer.say("", datetime.now(UTC))))
            return
        if time.monotonic() < self._sign_due:
            return
        self._sign_due = time.monotonic() + self._quiet_seconds / 2
        # Spaces before a JSON document mean nothing.
        if not self._stream.begun:
            await self._begin(200, JSON)
        await self._stream.say(b" ")

    async def _whole(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        if not self._stream.begun:
            await self._begin(status, JSON, *headers, (b"content-length", str(len(body)).encode()))
        await self._stream.say(body, last=True)

    async def _fail(self, failure: Failure) -> None:
        dialect, status = self._call.dialect, failure.status
        if self._stream.begun and not self._call.streams:
            # It was called a success already.
            await self._stream.break_off()
            return
        if self._stream.begun:
            await self._say(self._encoder.error(failure.frame(dialect)), last=True)
            return
        advice = (b"x-should-retry", b"false")
        if status in (429, 503):
            after = 1 if failure.retry_after is None else failure.retry_after
            advice = (b"retry-after", str(after).encode())
        await self._whole(status, msgspec.json.encode(failure.body(dialect)), advice)

    async def _refuse(self, response: Response) -> None:
        await self._stream.begin(response.status_code, response.raw_headers)
        await self._stream.say(bytes(response.body), last=True)

    async def _begin(self, status: int, media_type: str, *headers: tuple[bytes, bytes]) -> None:
        common = [
            (b"content-type", media_type.encode()),
            (b"x-foreman-job-id", self._job_id.encode()),
            (b"cache-control", b"no-cache"),
        ]
        await self._stream.begin(status, [*common, *headers])

    # -- when the caller is gone -------------------------------------------------------------------------

    async def _hung_up(self) -> None:
        """The caller is gone, or was told that it must ask again."""
        if not self._job_id or not self._call.cancels:
            return
        if self._call.key is not None:
            _later(self._cancel_unless_attached(self._job_id))
        else:
            await self._cancel(self._job_id)

    async def _cancel_unless_attached(self, job_id: str) -> None:
        """Whoever comes back says so in the job's log: it may be to another replica."""
        log_reader = self._services.hub.log
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
            await cancel_job(self._services, job_id, self._call.job.tenant, "client_disconnected")
        except Unavailable:
            log.warning("passthrough.cancel_failed", job_id=job_id)


_TASKS: set["asyncio.Task[None]"] = set()


def _later(work: Any) -> None:
    task = asyncio.ensure_future(work)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)


def failure_of(job: Ended | Job) -> Failure:
    """Of a job that has no answer."""
    return Failure(503, CLOSING, "unavailable") if job.state in LIVE else Failure.of(job)
