"""The ways of speaking to models, and the way from one to another.

Pure: no I/O, no clock, no randomness. A job keeps its payload and its output in the dialect it came in;
translation happens only where a target or a reader speaks another one. Nobody outside asks which dialect
it has at hand: what differs between them stands behind `Dialect`.
"""

from typing import TYPE_CHECKING, Literal

from app.dialects.framing import FrameDecoder, parse_frame
from app.dialects.models import canonical_model, find_model, model_key
from app.dialects.neutral import Part
from app.dialects.ollama import Ollama
from app.dialects.openai import OpenAI
from app.dialects.protocol import AnswerWriter, Body, Dialect, Question, ReplyForm, Told
from app.dialects.runner import RUNNER_OPTIONS, RunnerOptions, affinity_key, runner_options
from app.dialects.shapes import (
    Frame,
    GarbledAnswer,
    Kind,
    UntranslatableRequest,
    asks_for_usage,
    error_message,
)
from app.dialects.translate import (
    CUT_SHORT,
    IncompleteAnswer,
    ResponseFolder,
    ResponseTranslator,
    response_translator,
    translate_request,
)
from app.dialects.usage import MAX_SECONDS, MAX_TOKENS, Usage

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (Ollama(), OpenAI())}
# What jobs, targets and readers speak who do not say.
DEFAULT_DIALECT = DIALECTS["ollama"]

if TYPE_CHECKING:
    DialectName = str
else:
    # For schemas, which refuse any other name.
    DialectName = Literal[tuple(DIALECTS)]


def dialect_named(name: str | None) -> Dialect:
    return DIALECTS.get(name or "", DEFAULT_DIALECT)


__all__ = [
    "CUT_SHORT",
    "DEFAULT_DIALECT",
    "DIALECTS",
    "MAX_SECONDS",
    "MAX_TOKENS",
    "RUNNER_OPTIONS",
    "AnswerWriter",
    "Body",
    "Dialect",
    "DialectName",
    "Frame",
    "FrameDecoder",
    "GarbledAnswer",
    "IncompleteAnswer",
    "Kind",
    "Part",
    "Question",
    "ReplyForm",
    "ResponseFolder",
    "ResponseTranslator",
    "RunnerOptions",
    "Told",
    "UntranslatableRequest",
    "Usage",
    "affinity_key",
    "asks_for_usage",
    "canonical_model",
    "dialect_named",
    "error_message",
    "find_model",
    "model_key",
    "parse_frame",
    "response_translator",
    "runner_options",
    "translate_request",
]
