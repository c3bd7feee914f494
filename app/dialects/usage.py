"""What an answer cost: tokens, and the seconds spent loading, reading the prompt and writing.

Ollama measures all of it. OpenAI's usage counts tokens only; llama.cpp adds `timings`, and for everybody else
the meter uses the moments at which the frames arrived.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from app.dialects.shapes import Dialect, Frame, as_count, as_dict, as_list, seconds

# No answer costs more. What a target says beyond that is a mistake, and must spoil neither job nor sums.
MAX_TOKENS = 10**12
MAX_SECONDS = 1e9


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    load_seconds: float
    prefill_seconds: float
    decode_seconds: float


def usage_from_ollama(final_frame: Mapping[str, Any]) -> Usage:
    """Any field may be absent and then counts as nothing."""
    return Usage(
        prompt_tokens=_tokens(final_frame.get("prompt_eval_count")),
        completion_tokens=_tokens(final_frame.get("eval_count")),
        load_seconds=_nanoseconds(final_frame.get("load_duration")),
        prefill_seconds=_nanoseconds(final_frame.get("prompt_eval_duration")),
        decode_seconds=_nanoseconds(final_frame.get("eval_duration")),
    )


def usage_from_openai(
    body: Mapping[str, Any], *, prefill_seconds: float = 0.0, decode_seconds: float = 0.0
) -> Usage:
    """From an answer or chunk with `usage`; the seconds are for servers that do not time themselves."""
    counts = as_dict(body.get("usage"))
    timings = as_dict(body.get("timings"))
    return Usage(
        prompt_tokens=_tokens(counts.get("prompt_tokens")),
        completion_tokens=_tokens(counts.get("completion_tokens")),
        load_seconds=0.0,
        prefill_seconds=_milliseconds(timings.get("prompt_ms"), prefill_seconds),
        decode_seconds=_milliseconds(timings.get("predicted_ms"), decode_seconds),
    )


def _tokens(value: Any) -> int:
    return min(MAX_TOKENS, as_count(value))


def _nanoseconds(value: Any) -> float:
    return min(MAX_SECONDS, seconds(value))


def _milliseconds(value: Any, fallback: float) -> float:
    is_usable = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    # The smaller one first: a whole number of a target's may be too large to be divided.
    return min(value, MAX_SECONDS * 1000) / 1000 if is_usable else fallback


class UsageMeter:
    """Watches the frames of one answer, in the target's dialect, as they arrive."""

    def __init__(self, dialect: Dialect, started_at: datetime) -> None:
        self._dialect = dialect
        self._started_at = started_at
        self._first_output_at: datetime | None = None
        self._last_output_at: datetime | None = None
        self._seen: dict[str, Any] = {}

    def feed(self, frame: Frame, at: datetime) -> None:
        if self._dialect == "ollama":
            # The frame that ends the answer carries the figures; embeddings are one frame without `done`.
            if frame.get("done") is True or "embeddings" in frame:
                self._seen = frame
            return
        for name in ("usage", "timings"):
            if isinstance(frame.get(name), dict):
                self._seen[name] = frame[name]
        if any(has_output(choice) for choice in as_list(frame.get("choices"))):
            self._first_output_at = self._first_output_at or at
            self._last_output_at = at

    def usage(self) -> Usage:
        if self._dialect == "ollama":
            return usage_from_ollama(self._seen)
        prefill, decode = self.measured_seconds()
        return usage_from_openai(self._seen, prefill_seconds=prefill, decode_seconds=decode)

    def measured_seconds(self) -> tuple[float, float]:
        """Until the first output, and from there to the last."""
        if self._first_output_at is None or self._last_output_at is None:
            return 0.0, 0.0
        prefill = (self._first_output_at - self._started_at).total_seconds()
        decode = (self._last_output_at - self._first_output_at).total_seconds()
        return max(0.0, prefill), max(0.0, decode)


def has_output(choice: Any) -> bool:
    """Whether a choice of an OpenAI chunk carries something the model wrote, not just a role or an end."""
    choice = as_dict(choice)
    delta = as_dict(choice.get("delta")) or as_dict(choice.get("message"))
    written = ("content", "reasoning_content", "reasoning", "tool_calls")
    return bool(choice.get("text")) or any(delta.get(name) for name in written)
