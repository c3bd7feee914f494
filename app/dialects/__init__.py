"""Ollama's and OpenAI's ways of saying the same things, and the way from one to the other.

Pure: no I/O, no clock, no randomness. A job keeps its payload and its output in the dialect it came in;
translation happens only where a target or a reader speaks the other one.
"""

from app.dialects.errors import error_message, model_not_found, ollama_error, openai_error, surface_error
from app.dialects.fold import IncompleteAnswer, ResponseFolder, fold
from app.dialects.framing import SSE_DONE, SSE_KEEP_ALIVE, FrameDecoder, encode_frame, parse_frame
from app.dialects.models import canonical_model, find_model, model_key
from app.dialects.requests import (
    asks_for_usage,
    asks_to_stream,
    endpoint,
    streaming_request,
    translate_request,
)
from app.dialects.runner import (
    RUNNER_OPTIONS,
    affinity_key,
    emptiness,
    empty_answer,
    is_legacy_embeddings,
    load_request,
    runner_options,
)
from app.dialects.shapes import Dialect, Frame, GarbledAnswer, Kind, UntranslatableRequest
from app.dialects.to_ollama import silence
from app.dialects.translate import ReplyForm, ResponseTranslator, response_translator, translate_response
from app.dialects.usage import Usage, UsageMeter, usage_from_ollama, usage_from_openai

__all__ = [
    "RUNNER_OPTIONS",
    "SSE_DONE",
    "SSE_KEEP_ALIVE",
    "Dialect",
    "Frame",
    "FrameDecoder",
    "GarbledAnswer",
    "IncompleteAnswer",
    "Kind",
    "ReplyForm",
    "ResponseFolder",
    "ResponseTranslator",
    "UntranslatableRequest",
    "Usage",
    "UsageMeter",
    "affinity_key",
    "asks_for_usage",
    "asks_to_stream",
    "canonical_model",
    "emptiness",
    "empty_answer",
    "encode_frame",
    "endpoint",
    "error_message",
    "find_model",
    "fold",
    "is_legacy_embeddings",
    "load_request",
    "model_key",
    "model_not_found",
    "ollama_error",
    "openai_error",
    "parse_frame",
    "response_translator",
    "runner_options",
    "silence",
    "streaming_request",
    "surface_error",
    "translate_request",
    "translate_response",
    "usage_from_ollama",
    "usage_from_openai",
]
