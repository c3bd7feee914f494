"""Answers from Ollama's frames to OpenAI's chunks.

The first chunk carries the role, then come the deltas, a chunk with nothing but the finish reason, and the
usage chunk when it is wanted. `[DONE]` is no frame: the framing adds it.
"""

from datetime import datetime
from typing import Any

from app.dialects.errors import error_message, openai_error
from app.dialects.shapes import Frame, Kind, as_count, as_dict, as_list, as_text
from app.dialects.toolcalls import to_openai_call

CUT_SHORT = "the answer was cut short"

# Only reasons that OpenAI's clients know: strict ones refuse any other word.
_FINISH_REASONS = {"length": "length", "content_filter": "content_filter"}


class OllamaToOpenAI:
    """One chat or generate answer."""

    def __init__(
        self, kind: Kind, *, model: str, answer_id: str, started_at: datetime, include_usage: bool
    ) -> None:
        self._chat = kind == "chat"
        self._include_usage = include_usage
        self._answer_id = answer_id
        self._envelope: Frame = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{answer_id}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": int(started_at.timestamp()),
            "model": model,
            "system_fingerprint": "fp_ollama",
        }
        self._role_sent = False
        self._calls_sent = 0
        self.finished = False
        self.error: str | None = None

    def feed(self, frame: Frame, at: datetime) -> list[Frame]:
        if self.finished:
            return []
        error = error_message(frame)
        if error is not None:
            return self._fail(error)
        chunks = self._deltas(frame)
        if frame.get("done") is True:
            self.finished = True
            chunks += self._ending(frame)
        return chunks

    def finish(self, at: datetime) -> list[Frame]:
        return [] if self.finished else self._fail(CUT_SHORT)

    def _fail(self, message: str) -> list[Frame]:
        self.finished = True
        self.error = message
        return [openai_error(500, message)]

    def _deltas(self, frame: Frame) -> list[Frame]:
        if not self._chat:
            text = as_text(frame.get("response"))
            return [self._chunk({"text": text})] if text else []
        message = as_dict(frame.get("message"))
        delta: Frame = {}
        thinking = as_text(message.get("thinking"))
        if thinking:
            # Ollama calls it one thing, DeepSeek and llama.cpp the other; clients look for either.
            delta |= {"reasoning": thinking, "reasoning_content": thinking}
        if message.get("content"):
            delta["content"] = as_text(message["content"])
        calls = as_list(message.get("tool_calls"))
        if calls:
            delta["tool_calls"] = [self._call(call) for call in calls]
        logprobs = frame.get("logprobs")
        if not delta and not logprobs:
            return []
        extra = {"logprobs": {"content": logprobs, "refusal": None}} if logprobs else {}
        return [self._chunk({"delta": self._with_role(delta), **extra})]

    def _with_role(self, delta: Frame) -> Frame:
        if self._role_sent:
            return delta
        self._role_sent = True
        return {"role": "assistant", "content": None if "tool_calls" in delta else "", **delta}

    def _call(self, call: Any) -> Frame:
        index = self._calls_sent
        self._calls_sent += 1
        given = as_text(as_dict(call).get("id"))
        return {"index": index, **to_openai_call(call, given or f"call_{self._answer_id[-24:]}_{index}")}

    def _ending(self, frame: Frame) -> list[Frame]:
        reason = _FINISH_REASONS.get(as_text(frame.get("done_reason")), "stop")
        if self._calls_sent and reason == "stop":
            reason = "tool_calls"
        last: Frame = {"delta": self._with_role({})} if not self._role_sent else {"delta": {}}
        chunks = [self._chunk(last if self._chat else {"text": ""}, reason)]
        if self._include_usage:
            chunks.append({**self._envelope, "choices": [], "usage": _usage(frame)})
        return chunks

    def _chunk(self, choice: Frame, finish_reason: str | None = None) -> Frame:
        whole = {"index": 0, **choice, "finish_reason": finish_reason}
        whole.setdefault("logprobs", None)
        return {**self._envelope, "choices": [whole]}


def _usage(frame: Frame) -> Frame:
    prompt = as_count(frame.get("prompt_eval_count"))
    completion = as_count(frame.get("eval_count"))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
