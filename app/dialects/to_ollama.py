"""Answers from OpenAI's chunks to Ollama's frames.

The usage may come after the finish reason, so the final frame waits until the source has ended. Tool calls
come in fragments and leave whole.
"""

from datetime import datetime
from typing import Any

from app.dialects.errors import error_message, ollama_error
from app.dialects.shapes import Frame, Kind, as_dict, as_list, as_text, nanoseconds, ollama_time
from app.dialects.to_openai import CUT_SHORT
from app.dialects.toolcalls import CallAssembler, ollama_call, parsed_arguments, unreadable_call_text
from app.dialects.usage import UsageMeter


class OpenAIToOllama:
    """One chat or generate answer."""

    def __init__(self, kind: Kind, *, model: str, started_at: datetime) -> None:
        self._kind = kind
        self._model = model
        self._started_at = started_at
        self._meter = UsageMeter("openai", started_at)
        self._calls = CallAssembler()
        self._finish_reason: str | None = None
        self.finished = False
        self.error: str | None = None

    def feed(self, chunk: Frame, at: datetime) -> list[Frame]:
        if self.finished:
            return []
        error = error_message(chunk)
        if error is not None:
            return self._fail(error)
        self._meter.feed(chunk, at)
        frames: list[Frame] = []
        for item in as_list(chunk.get("choices")):
            choice = as_dict(item)
            # Ollama has one answer where OpenAI may have `n`.
            if not choice.get("index"):
                frames += self._choice(choice, at)
        return frames

    def finish(self, at: datetime) -> list[Frame]:
        if self.finished:
            return []
        if self._finish_reason is None:
            return self._fail(CUT_SHORT)
        self.finished = True
        return [*self._whole_calls(at), self._final(at)]

    def _fail(self, message: str) -> list[Frame]:
        self.finished = True
        self.error = message
        return [ollama_error(message)]

    def _choice(self, choice: Frame, at: datetime) -> list[Frame]:
        # A server that does not stream answers with a `message` where a chunk has its `delta`.
        delta = as_dict(choice.get("delta")) or as_dict(choice.get("message"))
        self._calls.add(as_list(delta.get("tool_calls")))
        if choice.get("finish_reason"):
            self._finish_reason = as_text(choice["finish_reason"])
        said: Frame = {}
        thinking = as_text(delta.get("reasoning_content")) or as_text(delta.get("reasoning"))
        text = as_text(delta.get("content")) or as_text(delta.get("refusal")) or as_text(choice.get("text"))
        logprobs = as_list(as_dict(choice.get("logprobs")).get("content"))
        if thinking:
            said["thinking"] = thinking
        if not text and not said and not logprobs:
            return []
        extra = {"logprobs": logprobs} if logprobs else {}
        return [{**saying(self._kind, self._model, at, text, said), "done": False, **extra}]

    def _whole_calls(self, at: datetime) -> list[Frame]:
        """The calls in one frame; before it, as text, those whose arguments cannot be read."""
        calls: list[Frame] = []
        unreadable: list[str] = []
        for call in self._calls.calls():
            arguments = parsed_arguments(call["arguments"])
            if arguments is None:
                unreadable.append(unreadable_call_text(call["name"], call["arguments"]))
            else:
                calls.append(ollama_call(call["name"], arguments, call["id"], index=len(calls)))
        frames = []
        if unreadable:
            frames.append({**saying(self._kind, self._model, at, "\n".join(unreadable), {}), "done": False})
        if calls:
            frames.append({**saying(self._kind, self._model, at, "", {"tool_calls": calls}), "done": False})
        return frames

    def _final(self, at: datetime) -> Frame:
        usage = self._meter.usage()
        return {
            **saying(self._kind, self._model, at, "", {}),
            "done": True,
            "done_reason": _done_reason(self._finish_reason),
            "total_duration": nanoseconds((at - self._started_at).total_seconds()),
            "load_duration": 0,
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": nanoseconds(usage["prefill_seconds"]),
            "eval_count": usage["completion_tokens"],
            "eval_duration": nanoseconds(usage["decode_seconds"]),
        }


def saying(kind: Kind, model: str, at: datetime, text: str, more: Frame) -> Frame:
    """The beginning of every chat or generate frame."""
    envelope: Frame = {"model": model, "created_at": ollama_time(at)}
    if kind == "chat":
        return {**envelope, "message": {"role": "assistant", "content": text, **more}}
    return {**envelope, "response": text, **more}


def silence(kind: Kind, model: str, at: datetime) -> Frame:
    """A frame that says nothing keeps a waiting NDJSON stream alive: clients take it, unlike a newline."""
    return {**saying(kind, model, at, "", {}), "done": False}


def _done_reason(finish_reason: Any) -> str:
    # A tool call ends an Ollama answer like any other.
    return "stop" if finish_reason in {"tool_calls", "function_call"} else as_text(finish_reason) or "stop"
