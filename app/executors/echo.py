"""The built-in target `echo`: a model that says the last message back, word by word.

It is there so that a new machine can run a whole job, and so that every path can be tried by hand:
`options.echo_delay_ms` is the pause before each word, `options.echo_fail` fails on purpose. It answers as an
Ollama would, also to callers who speak OpenAI's dialect.
"""

import asyncio
import hashlib
import re
import time
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from app.dialects import TARGET_DIALECTS, dialect_named
from app.dialects.shapes import Frame, Kind, UntranslatableRequest
from app.dialects.translate import translate_request
from app.executors.llm import TargetAnswer
from app.executors.protocol import ClaimedJob, RunContext
from app.jobs.outcomes import Failed, JobError, Outcome, Retry

MODEL = "echo"
SPOKEN = TARGET_DIALECTS["ollama"]
EMBEDDING_LENGTH = 8
_WORDS = re.compile(r"\S+\s*|\s+")
_KINDS: dict[str, Kind] = {"chat": "chat", "generate": "generate", "embed": "embed"}


class EchoOptions(msgspec.Struct, frozen=True):
    echo_delay_ms: float = 0.0
    echo_fail: Literal["permanent", "retryable", "crash"] | None = None


class EchoBody(msgspec.Struct, frozen=True):
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    input: str | list[str] | None = None
    options: EchoOptions | None = None


class EchoExecutor:
    """Serves the model `echo` for the kinds chat, generate and embed."""

    async def run(self, job: ClaimedJob, context: RunContext) -> Outcome:
        if (job.model or "").removesuffix(":latest") != MODEL:
            return Failed(JobError("model_not_found", f"model '{job.model}' not found", status=404))
        kind = _KINDS[job.kind]
        given = msgspec.json.decode(job.payload, type=dict)
        try:
            body = msgspec.convert(_as_spoken(job, kind, given), EchoBody)
        except (msgspec.ValidationError, UntranslatableRequest) as problem:
            return Failed(JobError("invalid_payload", str(problem), status=400))
        options = body.options or EchoOptions()
        await context.start()
        if options.echo_fail is not None:
            await asyncio.sleep(options.echo_delay_ms / 1000)
            return _failure(options.echo_fail)
        answer = TargetAnswer(kind, SPOKEN, job, given, context)
        if kind == "embed":
            answer.take(_embedded(job.model or MODEL, body))
            return answer.outcome()
        began = time.perf_counter_ns()
        writer = SPOKEN.writer(kind, job.model or MODEL, job.id, datetime.now(UTC))
        words = _WORDS.findall(_last_text(body))
        for word in words:
            await asyncio.sleep(options.echo_delay_ms / 1000)
            answer.take(writer.say(word, datetime.now(UTC)))
        answer.take(writer.say("", datetime.now(UTC)) | _figures(len(words), time.perf_counter_ns() - began))
        return answer.outcome()


def _as_spoken(job: ClaimedJob, kind: Kind, body: Frame) -> Frame:
    translated = translate_request(kind, body, dialect_named(job.dialect), SPOKEN)
    # Its own options pass through, so that every path can be tried from any side.
    options = body.get("options")
    return {**translated, "options": options} if options else translated


def _last_text(body: EchoBody) -> str:
    if body.messages is None:
        return body.prompt or ""
    said = [message for message in body.messages if message.get("role") == "user"] or body.messages
    return str(said[-1].get("content") or "") if said else ""


def _failure(how: Literal["permanent", "retryable", "crash"]) -> Outcome:
    match how:
        case "permanent":
            return Failed(JobError("echo_permanent", "Failed on purpose: options.echo_fail is permanent."))
        case "retryable":
            return Retry(
                JobError(
                    "echo_retryable", "Failed on purpose: options.echo_fail is retryable.", retryable=True
                )
            )
        case "crash":
            raise RuntimeError("crashed on purpose: options.echo_fail is crash")


def _figures(words: int, took: int) -> Frame:
    return {
        "done": True,
        "done_reason": "stop",
        "total_duration": took,
        "load_duration": 0,
        "prompt_eval_count": words,
        "prompt_eval_duration": 0,
        "eval_count": words,
        "eval_duration": took,
    }


def _embedded(model: str, body: EchoBody) -> Frame:
    if body.input is None and body.prompt is not None:
        return {"embedding": _vector(body.prompt)}
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    tokens = sum(len(text.split()) for text in texts)
    return {"model": model, "embeddings": [_vector(text) for text in texts], "prompt_eval_count": tokens}


def _vector(text: str) -> list[float]:
    """A unit vector that depends on the text alone."""
    raw = [byte / 127.5 - 1 for byte in hashlib.sha256(text.encode()).digest()[:EMBEDDING_LENGTH]]
    length = sum(value * value for value in raw) ** 0.5 or 1.0
    return [value / length for value in raw]
