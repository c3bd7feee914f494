"""Kinds chat, generate and embed on a target: load, start, stream, settle.

The answer is streamed inside even when the caller did not ask for it: so a cancel takes effect at once, the
log grows while the model speaks, and a target that has fallen silent is noticed.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from app.dialects import dialect_named
from app.dialects.framing import parse_frame
from app.dialects.protocol import Dialect, IncompleteAnswer, Loading
from app.dialects.runner import affinity_key, unloads
from app.dialects.shapes import Frame, GarbledAnswer, Kind, UntranslatableRequest, as_dict, error_message
from app.dialects.translate import CUT_SHORT, ResponseTranslator, translate_request
from app.executors.protocol import ClaimedJob, RunContext
from app.jobs.lanes import TARGET_ASLEEP
from app.jobs.outcomes import Deferred, Failed, JobError, Outcome, Retry, Succeeded
from app.jobs.retry import defer_delay
from app.outbound.errors import (
    AnswerCutError,
    ConnectionDropped,
    OutboundError,
    OutboundTimeout,
    OutboundUnreachable,
)
from app.outbound.stream import OutboundStream

MAX_ERROR_BYTES = 64 * 1024
MAX_WHOLE_BYTES = 256 * 1024 * 1024
MAX_MESSAGE = 2000
MAX_BUSY_SECONDS = 60.0

_KINDS: dict[str, Kind] = {"chat": "chat", "generate": "generate", "embed": "embed"}


class TargetConnection(Protocol):
    """The target that the job was claimed for."""

    @property
    def name(self) -> str: ...

    @property
    def dialect(self) -> Dialect: ...

    def own_name(self, model: str) -> str: ...

    def without_token(self, text: str) -> str: ...

    def request(
        self, method: str, path: str, content: bytes = b"", idle_seconds: float | None = None
    ) -> AbstractAsyncContextManager[OutboundStream]: ...

    def answered(self) -> None: ...

    def undecided(self) -> None: ...

    def failed(self, problem: str) -> None: ...

    def unreachable(self, problem: str) -> None: ...

    def is_resident(self, affinity: str) -> bool: ...

    def loaded(self, affinity: str) -> None: ...

    def unloaded(self, affinity: str) -> None: ...

    def out_of_date(self) -> None: ...


class _RefusedError(Exception):
    """The target answered with an error status."""

    def __init__(self, status: int, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


class LlmExecutor:
    """Runs jobs on one target."""

    def __init__(self, target: TargetConnection, dice: Callable[[], float] = random.random) -> None:
        self._target = target
        self._dice = dice

    async def run(self, job: ClaimedJob, context: RunContext) -> Outcome:
        try:
            outcome = await self._run(job, context)
        except (
            UntranslatableRequest,
            _RefusedError,
            OutboundError,
            GarbledAnswer,
            IncompleteAnswer,
        ) as problem:
            return self._trouble(job, problem)
        except BaseException:
            self._target.undecided()
            raise
        if isinstance(outcome, Succeeded):
            self._target.answered()
        return outcome

    def _trouble(self, job: ClaimedJob, problem: Exception) -> Outcome:
        """A target that cannot be reached is nobody's fault; one that answers badly costs an attempt."""
        match problem:
            case UntranslatableRequest():
                self._target.undecided()
                return Failed(JobError("untranslatable_request", str(problem), status=400))
            case _RefusedError():
                return self._refused(job, problem)
            case OutboundUnreachable() | ConnectionDropped():
                self._target.unreachable(problem.reason)
                return Deferred(
                    defer_delay(job.deferrals, self._dice()),
                    TARGET_ASLEEP,
                    JobError("target_unreachable", f"{self._target.name}: {problem.reason}", retryable=True),
                )
            case OutboundTimeout():
                return self._bad_answer("target_timeout", problem.reason, problem.reason)
            case AnswerCutError() | IncompleteAnswer():
                return self._bad_answer("answer_cut_short", str(problem))
            case _:
                kind = problem.kind if isinstance(problem, GarbledAnswer) else str(problem)
                message = f"the target's answer could not be read: {problem}"
                return self._bad_answer("target_garbled", message, kind)

    async def _run(self, job: ClaimedJob, context: RunContext) -> Outcome:
        kind = _KINDS[job.kind]
        dialect, theirs = dialect_named(job.dialect), self._target.dialect
        body = msgspec.json.decode(job.payload, type=dict)
        model = job.model or ""
        loading = dialect.only_loads(kind, body)
        if loading is not None:
            return await self._only_load(job, kind, body, loading, context)
        translated = translate_request(kind, body, dialect, theirs)
        sent = theirs.streaming_request(kind, translated, self._target.own_name(model))
        affinity = affinity_key(model, as_dict(sent.get("options")))
        if not self._target.is_resident(affinity):
            load = theirs.load_request(kind, sent)
            if load is not None:
                await self._whole(theirs.endpoint(kind, load), load)
        self._target.loaded(affinity)
        answer = TargetAnswer(kind, theirs, job, body, context)
        if job.started:
            await self._stream(kind, sent, answer)
        else:
            await self._start_and_stream(kind, sent, answer, context)
        self._used(affinity, unloaded=unloads(sent.get("keep_alive")))
        if answer.error is not None:
            code = "answer_cut_short" if answer.error == CUT_SHORT else "target_error"
            return self._bad_answer(code, answer.error)
        return answer.outcome()

    async def _start_and_stream(
        self, kind: Kind, sent: Frame, answer: "TargetAnswer", context: RunContext
    ) -> None:
        """The start is told at once, but not waited for: no caller's first word waits for a commit."""
        starting = asyncio.ensure_future(context.start())
        try:
            await self._stream(kind, sent, answer)
        except BaseException:
            # Settled in order: whatever becomes of the run comes after its start.
            await asyncio.gather(starting, return_exceptions=True)
            raise
        await starting

    async def _stream(self, kind: Kind, sent: Frame, answer: "TargetAnswer") -> None:
        dialect = self._target.dialect
        path = dialect.endpoint(kind, sent)
        async with self._target.request("POST", path, msgspec.json.encode(sent)) as response:
            await _raise_refusal(response)
            if kind == "embed":
                answer.take(parse_frame(await response.read(MAX_WHOLE_BYTES)))
                return
            decoder = dialect.text_decoder(kind)

            def take(chunk: bytes) -> None:
                for heard in decoder.hear(chunk):
                    if isinstance(heard, str):
                        answer.repeat(heard)
                    else:
                        answer.take(heard)

            await response.pour(take)
            for frame in decoder.finish():
                answer.take(frame)
        answer.end()

    async def _only_load(
        self, job: ClaimedJob, kind: Kind, body: Frame, loading: Loading, context: RunContext
    ) -> Outcome:
        """An empty request loads or unloads the model, and that is all."""
        dialect = dialect_named(job.dialect)
        model = job.model or ""
        if self._target.dialect is dialect:
            answer = await self._whole(dialect.endpoint(kind, body), {**body, "stream": False})
        else:
            answer = dialect.loading_answer(kind, model, datetime.now(UTC), loading)
        affinity = affinity_key(model, as_dict(body.get("options")))
        self._used(affinity, unloaded=loading == "unload")
        await context.start()
        return Succeeded(msgspec.json.encode(answer).decode())

    def _used(self, affinity: str, *, unloaded: bool) -> None:
        if unloaded:
            self._target.unloaded(affinity)
        else:
            self._target.loaded(affinity)

    async def _whole(self, path: str, body: Frame) -> Frame:
        async with self._target.request("POST", path, msgspec.json.encode(body)) as answer:
            await _raise_refusal(answer)
            whole = parse_frame(await answer.read(MAX_WHOLE_BYTES))
        problem = error_message(whole)
        if problem is not None:
            raise _RefusedError(500, problem, None)
        return whole

    def _refused(self, job: ClaimedJob, refused: _RefusedError) -> Outcome:
        message = self._target.without_token(refused.message)[:MAX_MESSAGE]
        if refused.status in (429, 503):
            self._target.undecided()
            delay = refused.retry_after
            if delay is None:
                delay = min(MAX_BUSY_SECONDS, defer_delay(job.deferrals, self._dice()))
            return Deferred(delay, "target_busy", JobError("target_busy", message, retryable=True))
        if refused.status >= 500:
            return self._bad_answer("target_error", message, f"HTTP {refused.status}")
        self._target.answered()
        if refused.status == 404 and "not found" in message:
            self._target.out_of_date()
            return Failed(JobError("model_not_found", message, status=404))
        return Failed(JobError("target_rejected", message, status=refused.status))

    def _bad_answer(self, code: str, message: str, kind: str | None = None) -> Retry:
        """`message` may be the target's own words: those are for the job, and operators are told the kind."""
        self._target.failed(code if kind is None else f"{code}: {kind}")
        return Retry(JobError(code, self._target.without_token(message)[:MAX_MESSAGE], retryable=True))


async def _raise_refusal(answer: OutboundStream) -> None:
    if answer.status < 300:
        return
    body = await answer.read(MAX_ERROR_BYTES)
    try:
        message = error_message(parse_frame(body))
    except GarbledAnswer:
        message = None
    text = body[:500].decode("utf-8", "replace").strip()
    # A redirect is a target that is set up wrongly; nobody follows it with a token in the hand.
    status = answer.status if answer.status >= 400 else 502
    raise _RefusedError(
        status, message or f"HTTP {answer.status}: {text}", _seconds(answer.header("retry-after"))
    )


def _seconds(retry_after: str | None) -> float | None:
    if retry_after is None or not retry_after.isascii() or not retry_after.isdigit() or len(retry_after) > 6:
        return None
    return min(float(retry_after), 300.0)


class UnservedExecutor:
    """For models that no target has, once every target was asked."""

    async def run(self, job: ClaimedJob, context: RunContext) -> Outcome:
        if job.target is not None:
            return Failed(
                JobError(
                    "model_not_found", f"model '{job.model}' not found on target '{job.target}'", status=404
                )
            )
        return Failed(JobError("model_not_found", f"model '{job.model}' not found", status=404))


class TargetAnswer:
    """One answer of a target that speaks `source`, for a job in a dialect of its own."""

    def __init__(
        self, kind: Kind, source: Dialect, job: ClaimedJob, body: Frame, context: RunContext
    ) -> None:
        self._kind = kind
        self._dialect = dialect_named(job.dialect)
        self._job_id = job.id
        self._context = context
        self._translator = ResponseTranslator(
            kind, source, self._dialect, job.model or "", job.id, datetime.now(UTC), asked=body
        )
        self._fold = self._dialect.fold(kind)
        # Something was said already.
        self._begun = False

    def take(self, frame: Frame) -> None:
        """Raises GarbledAnswer for what is no answer."""
        now = datetime.now(UTC)
        text = self._translator.plain_text(frame, now) if self._begun else None
        if text is not None:
            self._fold.say(text)
            self._context.output(text)
            return
        for each in self._translator.feed(frame, now):
            self._tell(each)

    def repeat(self, text: str) -> None:
        """The last frame once more, but with this text."""
        if self._translator.repeats(text, datetime.now(UTC)):
            self._fold.say(text)
            self._context.output(text)

    def end(self) -> None:
        """The target has nothing more to say."""
        for each in self._translator.finish(datetime.now(UTC)):
            self._tell(each)

    @property
    def error(self) -> str | None:
        """What the target reported instead of the rest of its answer."""
        return self._translator.error

    def outcome(self) -> Succeeded:
        """Raises IncompleteAnswer when something is missing."""
        response = self._dialect.identified(self._kind, self._fold.response(), self._job_id)
        usage = msgspec.json.encode(self._translator.usage()).decode()
        return Succeeded(msgspec.json.encode(response).decode(), usage)

    def _tell(self, frame: Frame) -> None:
        if self._translator.error is not None:
            return
        self._fold.feed(frame)
        part = None if self._kind == "embed" else self._dialect.part_of(self._kind, frame)
        if part:
            self._begun = True
            self._context.output(part)
