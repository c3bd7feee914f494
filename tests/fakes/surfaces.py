"""The two ways in which the fake writes an answer down: Ollama's own, and the one under `/v1`.

Nothing here is shared with the code under test: a mistake made twice would cancel out.
"""

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from tests.fakes.answers import Answer

Piece = tuple[Literal["thinking", "content", "calls"], Any]


@dataclass
class Timing:
    """Moments in nanoseconds."""

    started: int
    loaded: int = 0
    prompt_read: int = 0

    @staticmethod
    def now() -> int:
        return time.perf_counter_ns()


def pieces(answer: Answer) -> list[Piece]:
    calls: list[Piece] = [("calls", answer.calls)] if answer.calls else []
    return [
        *(("thinking", text) for text in answer.thinking),
        *(("content", text) for text in answer.content),
        *calls,
    ]


def _dump(value: Any) -> bytes:
    return orjson.dumps(value)


class OllamaSurface:
    content_type = "application/x-ndjson"

    def __init__(self, kind: str, model: str, raw: bool = False) -> None:
        self._chat = kind == "chat"
        self._model = model
        self._raw = raw

    def piece(self, piece: Piece) -> bytes:
        return _dump(self._frame([piece]) | {"done": False}) + b"\n"

    def ending(self, answer: Answer, timing: Timing) -> list[bytes]:
        return [_dump(self._frame([]) | self._figures(answer, timing)) + b"\n"]

    def whole(self, answer: Answer, timing: Timing) -> dict[str, Any]:
        return self._frame(pieces(answer)) | self._figures(answer, timing)

    def empty(self, reason: str) -> dict[str, Any]:
        return self._frame([]) | {"done": True, "done_reason": reason}

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"error": message}

    def in_band_error(self, message: str) -> bytes:
        return _dump({"error": message}) + b"\n"

    def _frame(self, said: list[Piece]) -> dict[str, Any]:
        text = "".join(value for name, value in said if name == "content")
        thinking = "".join(value for name, value in said if name == "thinking")
        calls = [
            {
                "id": call["id"],
                "function": {"index": index, "name": call["name"], "arguments": call["arguments"]},
            }
            for name, value in said
            if name == "calls"
            for index, call in enumerate(value)
        ]
        more: dict[str, Any] = {"thinking": thinking} if thinking else {}
        more |= {"tool_calls": calls} if calls else {}
        at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        frame: dict[str, Any] = {"model": self._model, "created_at": at}
        if self._chat:
            return frame | {"message": {"role": "assistant", "content": text, **more}}
        return frame | {"response": text, **more}

    def _figures(self, answer: Answer, timing: Timing) -> dict[str, Any]:
        now = Timing.now()
        tokens = list(range(answer.prompt_tokens + answer.tokens))
        context = {} if self._chat or self._raw else {"context": tokens}
        return {
            "done": True,
            "done_reason": answer.reason,
            **context,
            "total_duration": now - timing.started,
            "load_duration": timing.loaded - timing.started,
            "prompt_eval_count": answer.prompt_tokens,
            "prompt_eval_duration": timing.prompt_read - timing.loaded,
            "eval_count": answer.tokens,
            "eval_duration": now - timing.prompt_read,
        }


class OpenAISurface:
    content_type = "text/event-stream"

    def __init__(self, kind: str, model: str, include_usage: bool = False) -> None:
        self._chat = kind == "chat"
        self._include_usage = include_usage
        self._first = True
        self._envelope = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{time.monotonic_ns() % 1000}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": "fp_ollama",
        }

    def piece(self, piece: Piece) -> bytes:
        name, value = piece
        if not self._chat:
            return self._chunk({"text": value}) if name == "content" else b""
        delta: dict[str, Any] = {"role": "assistant"} if self._first else {}
        self._first = False
        if name == "calls":
            delta |= {"content": "", "tool_calls": [_openai_call(i, call) for i, call in enumerate(value)]}
        else:
            delta["reasoning" if name == "thinking" else "content"] = value
        return self._chunk({"delta": delta})

    def ending(self, answer: Answer, timing: Timing) -> list[bytes]:
        last = {"delta": {"role": "assistant", "content": ""}} if self._chat else {"text": ""}
        chunks = [self._chunk(last, self._reason(answer))]
        if self._include_usage:
            chunks.append(_event({**self._envelope, "choices": [], "usage": _usage(answer)}))
        return [*chunks, b"data: [DONE]\n\n"]

    def whole(self, answer: Answer, timing: Timing) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": self._reason(answer)}
        text = "".join(answer.content)
        if self._chat:
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if answer.thinking:
                message["reasoning"] = "".join(answer.thinking)
            if answer.calls:
                message["tool_calls"] = [_openai_call(i, call) for i, call in enumerate(answer.calls)]
            choice["message"] = message
        else:
            choice["text"] = text
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._envelope, "object": kind, "choices": [choice], "usage": _usage(answer)}

    def error(self, status: int, message: str) -> dict[str, Any]:
        kinds = {400: "invalid_request_error", 404: "not_found_error"}
        return {
            "error": {"message": message, "type": kinds.get(status, "api_error"), "param": None, "code": None}
        }

    def in_band_error(self, message: str) -> bytes:
        return _event(self.error(500, message))

    def _reason(self, answer: Answer) -> str:
        return "tool_calls" if answer.calls else answer.reason

    def _chunk(self, choice: dict[str, Any], reason: str | None = None) -> bytes:
        return _event({**self._envelope, "choices": [{"index": 0, **choice, "finish_reason": reason}]})


Surface = OllamaSurface | OpenAISurface


def _event(value: Any) -> bytes:
    return b"data: " + _dump(value) + b"\n\n"


def _ollama_calls(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"id": each["id"], "function": {"index": n, "name": each["name"], "arguments": each["arguments"]}}
        for n, each in enumerate(calls)
    ]


def _openai_call(index: int, call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    return {"id": call["id"], "index": index, "type": "function", "function": function}


def _usage(answer: Answer) -> dict[str, int]:
    prompt, completion = answer.prompt_tokens, answer.tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
