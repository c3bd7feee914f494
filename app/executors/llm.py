"""Kinds chat, generate and embed on a target: load, start, stream, settle.

The answer is streamed inside even when the caller did not ask for it: so the log grows while the model
speaks, and a target that has fallen silent is noticed. But where a stream may say something else than a whole
answer, and the caller wants a whole one from a target that speaks alike, it is asked for that: body and
answer then pass as they are. Either way the connection is closed when the run is cancelled, which stops the
target.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from app.dialects import dialect_named
from app.dialects.framing import parse_frame
from app.dialects.protocol import Body, Dialect, IncompleteAnswer, Loading, TargetDialect
from app.dialects.runner import affinity_key, unloads
from app.dialects.shapes import Frame, GarbledAnswer, Kind, UntranslatableRequest, as_dict, error_message
from app.dialects.translate import CUT_SHORT, ResponseTranslator, translate_request
from app.errors import InvalidRequest
from app.executors.protocol import ClaimedJob, RunContext
from app.jobs import verbatim
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
# What came back has no end, or makes no sense.
CUT = "answer_cut_short"
GARBLED = "target_garbled"
UNREADABLE = "the target's answer could not be read: {}"
MAX_BUSY_SECONDS = 60.0
MAX_RETRY_AFTER = 300.0
# For a caller who waits: before a target that is busy or has crashed is asked again, and for how long in all.
QUICK_PAUSES = (0.25, 0.75)
QUICK_SECONDS = 2.0

_KINDS: dict[str, Kind] = {"chat": "chat", "generate": "generate", "embed": "embed"}


class TargetConnection(Protocol):
    """The target that the job was claimed for."""

    @property
    def name(self) -> str: ...

    @property
    def dialect(self) -> TargetDialect: ...

    @property
    def whole_seconds(self) -> float:
        """How long it may take for an answer that is not streamed."""

    def own_name(self, model: str) -> str: ...

    def without_token(self, text: str) -> str: ...

    def request(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        idle_seconds: float | None = None,
        *,
        replayable: bool = True,
    ) -> AbstractAsyncContextManager[OutboundStream]: ...

    def answered(self) -> None: ...

    def undecided(self) -> None: ...

    def answered_badly(self, problem: str) -> None: ...

    def failed(self, problem: str) -> None: ...

    def unreachable(self, problem: str) -> None: ...

    def is_resident(self, affinity: str) -> bool: ...

    def loaded(self, affinity: str) -> None: ...

    def unloaded(self, affinity: str) -> None: ...

    def out_of_date(self) -> None: ...


class _RefusedError(Exception):
    """The target answered with an error, or with a status that says so."""

    def __init__(
        self, status: int, message: str, retry_after: int | None = None, document: Frame | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
        # As it came.
        self.document = document

    @property
    def is_busy(self) -> bool:
        return self.status in (429, 503)


class LlmExecutor:
    """Runs jobs on one target."""

    def __init__(self, target: TargetConnection, dice: Callable[[], float] = random.random) -> None:
        self._target = target
        self._dice = dice

    async def run(self, job: ClaimedJob, context: RunContext) -> Outcome:
        try:
            if job.is_told_at_once:
                outcome = await self._run_for_who_waits(job, context)
            else:
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

    async def _run_for_who_waits(self, job: ClaimedJob, context: RunContext) -> Outcome:
        """A target that is busy, or crashed before its first word, is asked twice more, if that is soon."""
        heard = _Listener(context)
        tries, gives_up_at = 0, None
        while True:
            try:
                return await self._run(job, heard, replayable=not tries)
            except (_RefusedError, OutboundError, IncompleteAnswer) as problem:
                tries += _tries(problem)
                if heard.spoken or not _may_pass(problem) or tries > len(QUICK_PAUSES):
                    raise
                asked_for = problem.retry_after if isinstance(problem, _RefusedError) else None
                delay = QUICK_PAUSES[tries - 1] if asked_for is None else asked_for
                now = time.monotonic()
                gives_up_at = gives_up_at or now + QUICK_SECONDS
                if now + delay > gives_up_at:
                    raise
                said = self._target.without_token(str(problem))[:MAX_MESSAGE]
                await context.log("warn", f"{self._target.name}: {said}; asked again in {delay:g} s")
            await asyncio.sleep(delay)

    def _trouble(self, job: ClaimedJob, problem: Exception) -> Outcome:
        """A target that cannot be reached is nobody's fault; one that answers badly costs an attempt."""
        match problem:
            case UntranslatableRequest():
                self._target.undecided()
                return Failed(
                    JobError("untranslatable_request", str(problem), status=400, param=problem.param)
                )
            case _RefusedError():
                return self._refused(job, problem)
            case OutboundUnreachable() | ConnectionDropped():
                return self._unreached(job, problem)
            case OutboundTimeout():
                return self._broken("target_timeout", problem.reason, problem.reason, status=504)
            case AnswerCutError():
                return self._broken(CUT, str(problem))
            case IncompleteAnswer():
                return self._senseless(CUT, str(problem))
            case GarbledAnswer():
                return self._senseless(GARBLED, UNREADABLE.format(problem), problem.kind)
            case _:
                return self._broken(GARBLED, UNREADABLE.format(problem), str(problem))

    async def _run(self, job: ClaimedJob, context: RunContext, *, replayable: bool = True) -> Outcome:
        kind = _KINDS[job.kind]
        dialect, theirs = dialect_named(job.dialect), self._target.dialect
        body = msgspec.json.decode(job.payload, type=dict)
        model = job.model or ""
        loading = dialect.only_loads(kind, body)
        if loading is not None:
            return await self._only_load(job, kind, body, loading, context)
        answers_whole = _answers_whole(kind, body, dialect, theirs)
        if answers_whole:
            sent = theirs.own_request(body, self._target.own_name(model))
        else:
            translated = translate_request(kind, body, dialect, theirs)
            sent = theirs.streaming_request(kind, translated, self._target.own_name(model))
        affinity = affinity_key(model, as_dict(sent.get("options")))
        if not self._target.is_resident(affinity):
            load = theirs.load_request(kind, sent)
            if load is not None:
                await self._whole(theirs.endpoint(kind, load), load)
        self._target.loaded(affinity)
        answer = TargetAnswer(kind, theirs, job, body, context)
        if answers_whole:
            # As it was written, unless something in it had to be changed.
            content = job.payload.encode() if sent is body else msgspec.json.encode(sent)
            asking = self._ask(theirs.endpoint(kind, sent), content, answer, replayable)
        else:
            asking = self._stream(kind, sent, answer, replayable)
        if job.started:
            await asking
        else:
            await _start_meanwhile(asking, context)
        self._used(affinity, unloaded=unloads(sent.get("keep_alive")))
        if answer.error == CUT_SHORT:
            raise IncompleteAnswer(CUT_SHORT)
        if answer.error is not None:
            raise _RefusedError(500, answer.error, document=answer.error_document)
        return answer.outcome()

    async def _stream(self, kind: Kind, sent: Frame, answer: "TargetAnswer", replayable: bool) -> None:
        dialect = self._target.dialect
        path, content = dialect.endpoint(kind, sent), msgspec.json.encode(sent)
        async with self._target.request("POST", path, content, replayable=replayable) as response:
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

    async def _ask(self, path: str, content: bytes, answer: "TargetAnswer", replayable: bool) -> None:
        """For an answer in one piece. Nothing comes before it, so this may take longer than any silence."""
        seconds = self._target.whole_seconds
        async with self._target.request("POST", path, content, seconds, replayable=replayable) as response:
            await _raise_refusal(response)
            answer.take_whole(parse_frame(await response.read(MAX_WHOLE_BYTES)))

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
            raise _RefusedError(500, problem, document=whole)
        return whole

    def _refused(self, job: ClaimedJob, refused: _RefusedError) -> Outcome:
        """The target's own words are for the job; operators are told the status."""
        if refused.is_busy:
            self._target.undecided()
            return self._busy(job, refused)
        if refused.status >= 500:
            self._target.answered_badly(f"target_error: HTTP {refused.status}")
            return Retry(self._told(job, refused, "target_error", retryable=True))
        self._target.answered()
        if refused.status == 404 and "not found" in refused.message:
            self._target.out_of_date()
            return Failed(self._told(job, refused, "model_not_found"))
        return Failed(self._told(job, refused, "target_rejected"))

    def _busy(self, job: ClaimedJob, refused: _RefusedError) -> Outcome:
        """Batch work comes back as often as it takes; a caller who waits has only so many attempts."""
        error = self._told(job, refused, "target_busy", retryable=True)
        delay = None if refused.retry_after is None else min(refused.retry_after, MAX_RETRY_AFTER)
        if job.interactive:
            return Retry(error, delay)
        if delay is None:
            delay = min(MAX_BUSY_SECONDS, defer_delay(job.deferrals, self._dice()))
        return Deferred(delay, "target_busy", error)

    def _told(
        self, job: ClaimedJob, refused: _RefusedError, code: str, *, retryable: bool = False
    ) -> JobError:
        """What the target said, for the caller: as it came where it is in the caller's own shape."""
        hide = self._target.without_token
        message = hide(refused.message)[:MAX_MESSAGE]
        document = refused.document
        dialect = dialect_named(job.dialect)
        if document is not None and dialect is not self._target.dialect:
            document = document if _are_alike(document, dialect.error(refused.status, message)) else None
        body = None if document is None else _carried(document, hide)
        return JobError(
            code, message, retryable, status=refused.status, retry_after=refused.retry_after, body=body
        )

    def _unreached(self, job: ClaimedJob, problem: OutboundError) -> Outcome:
        self._target.unreachable(problem.reason)
        error = JobError("target_unreachable", f"{self._target.name}: {problem.reason}", retryable=True)
        if job.interactive and isinstance(problem, ConnectionDropped):
            # It is there, and hangs up on this very call.
            return Retry(replace(error, status=502))
        return Deferred(defer_delay(job.deferrals, self._dice()), TARGET_ASLEEP, error)

    def _broken(self, code: str, message: str, kind: str | None = None, status: int = 502) -> Retry:
        """`message` may hold the target's own words: they are for the job. Operators are told the kind."""
        self._target.failed(code if kind is None else f"{code}: {kind}")
        return self._retry(code, message, status)

    def _senseless(self, code: str, message: str, kind: str | None = None) -> Retry:
        """It came to its end as HTTP has it. Like an error, it may be for this very question, and the next
        one need not wait for it."""
        self._target.answered_badly(code if kind is None else f"{code}: {kind}")
        return self._retry(code, message)

    def _retry(self, code: str, message: str, status: int = 502) -> Retry:
        message = self._target.without_token(message)[:MAX_MESSAGE]
        return Retry(JobError(code, message, retryable=True, status=status))


class _Listener:
    """The line back to the engine, for a run that may begin again as long as nothing was said."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._starting: asyncio.Future[None] | None = None
        self.spoken = False

    async def start(self) -> None:
        """Once, however often the target is asked."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._context.start())
        await self._starting

    def output(self, part: str | dict[str, Any]) -> None:
        self.spoken = True
        self._context.output(part)

    async def progress(self, **fields: Any) -> None:
        await self._context.progress(**fields)

    async def log(self, level: str, message: str) -> None:
        await self._context.log(level, message)


def _may_pass(problem: Exception) -> bool:
    """Whether another try may go better soon."""
    if isinstance(problem, _RefusedError):
        return problem.is_busy
    return isinstance(problem, ConnectionDropped | AnswerCutError | IncompleteAnswer)


def _tries(problem: Exception) -> int:
    """How often the target was asked."""
    return 2 if isinstance(problem, ConnectionDropped) and problem.was_sent_twice else 1


def _are_alike(document: Frame, ours: Frame) -> bool:
    """Whether a target's error has the shape of one of the caller's dialect, whatever else stands in it."""
    return ours.keys() <= document.keys() and type(document["error"]) is type(ours["error"])


def _carried(document: Frame, hide: Callable[[str], str]) -> str | None:
    """A target's error as JSON text without its token; None for what the database cannot carry."""
    try:
        text = hide(msgspec.json.encode(document).decode())
        verbatim.check_value(text.encode())
    except (InvalidRequest, RecursionError):
        return None
    return None if "\\u0000" in text else text


def _answers_whole(kind: Kind, body: Frame, dialect: Dialect, theirs: TargetDialect) -> bool:
    """Whether the target's answer to the caller's very own request is what the caller gets."""
    if dialect is not theirs or theirs.streams_make_wholes:
        return False
    stream = body.get("stream")
    return not dialect.asks_to_stream(kind, Body(stream=stream if isinstance(stream, bool) else None))


async def _start_meanwhile(asking: Coroutine[None, None, None], context: RunContext) -> None:
    """The start is told at once, but not waited for: no caller's first word waits for a commit."""
    starting = asyncio.ensure_future(context.start())
    try:
        await asking
    except BaseException:
        # Settled in order: whatever becomes of the run comes after its start.
        await asyncio.gather(starting, return_exceptions=True)
        raise
    await starting


async def _raise_refusal(answer: OutboundStream) -> None:
    if answer.status < 300:
        return
    body = await answer.read(MAX_ERROR_BYTES)
    try:
        document = parse_frame(body)
    except GarbledAnswer:
        document = None
    text = body[:500].decode("utf-8", "replace").strip()
    # A redirect is a target that is set up wrongly; nobody follows it with a token in the hand.
    status = answer.status if 400 <= answer.status < 600 else 502
    message = error_message(document) or f"HTTP {answer.status}: {text}"
    raise _RefusedError(status, message, _seconds(answer.header("retry-after")), document)


def _seconds(retry_after: str | None) -> int | None:
    if retry_after is None or not retry_after.isascii() or not retry_after.isdigit() or len(retry_after) > 6:
        return None
    return int(retry_after)


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
        self, kind: Kind, source: TargetDialect, job: ClaimedJob, body: Frame, context: RunContext
    ) -> None:
        self._kind = kind
        self._source = source
        self._dialect = dialect_named(job.dialect)
        self._job_id = job.id
        self._asked = body
        self._context = context
        self._translator = ResponseTranslator(
            kind, source, self._dialect, job.model or "", job.id, datetime.now(UTC), asked=body
        )
        self._fold = self._dialect.fold(kind)
        # Within one dialect everything is kept as it comes.
        is_verbatim = self._dialect is source and kind != "embed"
        self._keeper = self._dialect.keeper(kind) if is_verbatim else None
        self._whole: Frame | None = None
        # Something was said already.
        self._begun = False

    def take(self, frame: Frame) -> None:
        """Raises GarbledAnswer for what is no answer."""
        now = datetime.now(UTC)
        text = self._translator.plain_text(frame, now) if self._begun and self._keeper is None else None
        if text is not None:
            self._fold.say(text)
            self._context.output(self._dialect.text_part(text))
            return
        for each in self._translator.feed(frame, now):
            self._tell(each)

    def repeat(self, text: str) -> None:
        """The last frame once more, but with this text."""
        if not self._translator.repeats(text, datetime.now(UTC)):
            return
        self._fold.say(text)
        part = self._dialect.text_part(text) if self._keeper is None else self._keeper.repeat(text)
        if part:
            self._context.output(part)

    def take_whole(self, answer: Frame) -> None:
        """An answer that was not streamed. Raises GarbledAnswer for what is none."""
        told = self._translator.feed(answer, datetime.now(UTC))
        if self._translator.error is None:
            [self._whole] = told
            if self._kind != "embed":
                self._source.check_whole(self._whole)

    def end(self) -> None:
        """The target has nothing more to say."""
        for each in self._translator.finish(datetime.now(UTC)):
            self._tell(each)

    @property
    def error(self) -> str | None:
        """What the target reported instead of the rest of its answer."""
        return self._translator.error

    @property
    def error_document(self) -> Frame | None:
        """The same as it came."""
        return self._translator.error_document

    def outcome(self) -> Succeeded:
        """Raises IncompleteAnswer when something is missing."""
        whole = self._fold.response() if self._whole is None else self._whole
        end = None if self._keeper is None else self._keeper.end()
        if end:
            self._context.output(end)
        response = self._dialect.identified(self._kind, whole, self._job_id, self._asked)
        usage = msgspec.json.encode(self._translator.usage()).decode()
        return Succeeded(msgspec.json.encode(response).decode(), usage)

    def _tell(self, frame: Frame) -> None:
        if self._translator.error is not None:
            return
        if self._keeper is not None:
            part = self._keeper.keep(frame)
        else:
            part = None if self._kind == "embed" else self._dialect.part_of(self._kind, frame)
        if isinstance(part, str) and self._keeper is not None:
            self._fold.say(part)
        else:
            self._fold.feed(frame)
        if part:
            self._begun = True
            self._context.output(part)
