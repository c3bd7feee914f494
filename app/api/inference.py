"""What the routes of the synchronous surfaces have in common: one declaration for all of them."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import Header
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from app.api.parameters import NAME_PATTERN
from app.api.passthrough import answer
from app.api.routes import JSON, AnswerHeader, Content, Errors, Reply, Routes
from app.dialects.protocol import Dialect
from app.dialects.shapes import Kind
from app.identity.scopes import Scope

_WORDS = {
    400: "The body or a header is malformed",
    401: "A valid API key is needed",
    403: "The key may not do that",
    404: "No target has this model",
    413: "The body is too large",
    429: "Too many",
    500: "The target failed: with its own status, and what it said",
    503: "Overloaded, or shutting down",
    504: "The deadline has passed",
}


class OllamaError(msgspec.Struct):
    error: str


class OpenAIErrorBody(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(msgspec.Struct):
    error: OpenAIErrorBody


class AnthropicErrorBody(msgspec.Struct):
    type: str
    message: str


class AnthropicError(msgspec.Struct):
    type: Literal["error"]
    error: AnthropicErrorBody


OLLAMA_ERRORS = Errors(OllamaError, JSON, _WORDS)
OPENAI_ERRORS = Errors(OpenAIError, JSON, _WORDS)
ANTHROPIC_ERRORS = Errors(AnthropicError, JSON, _WORDS)

# As the server that is stood in for would answer; what exactly is its target's business.
AnyDocument = dict[str, Any]


class Inference(msgspec.Struct):
    """Whatever else stands beside the model is the target's business."""

    model: Annotated[str, Meta(min_length=1)]


def extensions(
    x_foreman_priority: Annotated[
        int | None, Header(ge=-100, le=100, description="Higher goes first.", alias="X-Foreman-Priority")
    ] = None,
    x_foreman_queue: Annotated[
        str | None, Header(pattern=NAME_PATTERN, description="The queue to wait in.", alias="X-Foreman-Queue")
    ] = None,
    x_foreman_deadline_seconds: Annotated[
        float | None, Header(gt=0, description="Give up after this long.", alias="X-Foreman-Deadline-Seconds")
    ] = None,
    x_foreman_max_attempts: Annotated[
        int | None,
        Header(
            ge=1,
            le=100,
            description="Try a target that fails so often, with the queue's backoff, instead of telling its "
            "error at once.",
            alias="X-Foreman-Max-Attempts",
        ),
    ] = None,
    x_foreman_on_disconnect: Annotated[
        Literal["cancel", "continue"] | None,
        Header(description="What a hang-up means for the job.", alias="X-Foreman-On-Disconnect"),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        Header(description="The same request again attaches to the running job.", alias="Idempotency-Key"),
    ] = None,
) -> None:
    """Foreman's own, as headers: what clients of these surfaces can set. Read in app/api/passthrough.py."""


def asks(
    routes: Routes, dialect: Dialect, path: str, kind: Kind, summary: str, shape: type = Inference
) -> None:
    """Declares a route that asks a model something; `shape` is what its body may hold."""
    answered = Reply(
        "The answer, whole or as it comes",
        AnyDocument,
        (AnswerHeader("X-Foreman-Job-Id", "The job behind this answer."),),
        streams_as=() if kind == "embed" else (dialect.stream_type,),
    )

    @routes.post(
        path,
        Scope.JOBS_WRITE,
        summary,
        answered,
        request=Content(shape),
        parameters=extensions,
        errors=(400, 404, 413, 429, 500, 503, 504),
        hot=True,
    )
    async def asked(request: Request) -> Response:
        return await answer(request, kind, dialect)

    # What clients made from the document call it.
    asked.__name__ = path.removeprefix(dialect.path_prefix).replace("/", "_") or dialect.name
