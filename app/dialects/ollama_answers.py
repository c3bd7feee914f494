"""The answers of Ollama's dialect: frames read, written, watched, folded and measured."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from app.dialects.neutral import Delta, End, Part, Piece, ToolCall
from app.dialects.protocol import AnswerReader, AnswerWriter, Fold, Meter, Watch
from app.dialects.shapes import (
    Frame,
    Kind,
    UntranslatableRequest,
    as_count,
    as_dict,
    as_list,
    as_text,
    nanoseconds,
)
from app.dialects.toolcalls import parsed_arguments, read_call, unreadable_call_text
from app.dialects.usage import Usage, from_nanoseconds, tokens

_SAID = ("thinking", "tool_calls", "images")
_NOT_FIGURES = frozenset({"message", "response", "model", "created_at", "logprobs", *_SAID})


def ollama_time(at: datetime) -> str:
    """RFC 3339 in UTC with a Z, as Go writes it."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def saying(kind: Kind, model: str, at: datetime, text: str, **more: Any) -> Frame:
    """The beginning of every chat or generate frame."""
    created_at = ollama_time(at)
    if kind == "chat":
        message = {"role": "assistant", "content": text, **more}
        return {"model": model, "created_at": created_at, "message": message}
    return {"model": model, "created_at": created_at, "response": text, **more}


def usage_of(final_frame: Mapping[str, Any]) -> Usage:
    """Ollama measures all of it; any field may be absent and then counts as nothing."""
    return Usage(
        prompt_tokens=tokens(final_frame.get("prompt_eval_count")),
        completion_tokens=tokens(final_frame.get("eval_count")),
        load_seconds=from_nanoseconds(final_frame.get("load_duration")),
        prefill_seconds=from_nanoseconds(final_frame.get("prompt_eval_duration")),
        decode_seconds=from_nanoseconds(final_frame.get("eval_duration")),
    )


def write_call(call: ToolCall, index: int | None = None) -> Frame:
    """Arguments that cannot be read are the caller's mistake."""
    arguments = parsed_arguments(call.arguments)
    if arguments is None:
        raise UntranslatableRequest("invalid tool call arguments")
    function: Frame = {} if index is None else {"index": index}
    function |= {"name": call.name, "arguments": arguments}
    return {"id": call.id, "function": function} if call.id else {"function": function}


def part_of(kind: Kind, frame: Frame) -> Part | None:
    """What a frame says, as a job's log keeps it."""
    chat = kind == "chat"
    said = as_dict(frame.get("message")) if chat else frame
    text = as_text(said.get("content" if chat else "response"))
    more = {name: said[name] for name in _SAID if said.get(name)}
    logprobs = {"logprobs": frame["logprobs"]} if frame.get("logprobs") else {}
    if not more and not logprobs:
        return text or None
    if chat:
        return {"message": {"role": "assistant", "content": text, **more}, **logprobs}
    return {"response": text, **more, **logprobs}


class OllamaReader(AnswerReader):
    def __init__(self, kind: Kind, started_at: datetime) -> None:
        self._chat = kind == "chat"

    def feed(self, frame: Frame, at: datetime) -> list[Piece]:
        said = as_dict(frame.get("message")) if self._chat else frame
        text = as_text(said.get("content" if self._chat else "response"))
        calls = as_list(said.get("tool_calls"))
        delta = Delta(text, as_text(said.get("thinking")), logprobs=frame.get("logprobs"))
        if calls:
            delta.calls = [read_call(call) for call in calls]
        if frame.get("done") is not True:
            return [delta]
        usage = usage_of(frame)
        # Whoever asks for the counts gets them as they are, also those that no ledger would believe.
        prompt, completion = as_count(frame.get("prompt_eval_count")), as_count(frame.get("eval_count"))
        reason = as_text(frame.get("done_reason"))
        return [delta, End(reason, prompt, completion, usage["prefill_seconds"], usage["decode_seconds"])]


class OllamaWriter(AnswerWriter):
    def __init__(
        self, kind: Kind, model: str, answer_id: str, started_at: datetime, *, include_usage: bool = True
    ) -> None:
        self._kind = kind
        self._model = model
        self._started_at = started_at

    def delta(self, delta: Delta, at: datetime) -> list[Frame]:
        frames = []
        if delta.text or delta.thinking or delta.logprobs:
            more = {"thinking": delta.thinking} if delta.thinking else {}
            frame = saying(self._kind, self._model, at, delta.text, **more)
            frame["done"] = False
            if delta.logprobs:
                frame["logprobs"] = delta.logprobs
            frames.append(frame)
        if delta.calls:
            frames += self._calls(delta.calls, at)
        return frames

    def _calls(self, given: list[ToolCall], at: datetime) -> list[Frame]:
        """The calls in one frame; before it, as text, those whose arguments cannot be read."""
        readable = [call for call in given if parsed_arguments(call.arguments) is not None]
        unreadable = "\n".join([unreadable_call_text(call) for call in given if call not in readable])
        calls = [write_call(call, index) for index, call in enumerate(readable)]
        frames = []
        if unreadable:
            frames.append({**saying(self._kind, self._model, at, unreadable), "done": False})
        if calls:
            frames.append({**saying(self._kind, self._model, at, "", tool_calls=calls), "done": False})
        return frames

    def end(self, end: End, at: datetime) -> list[Frame]:
        final = {
            **saying(self._kind, self._model, at, ""),
            "done": True,
            # A tool call ends an Ollama answer like any other.
            "done_reason": "stop" if end.reason in {"", "tool_calls", "function_call"} else end.reason,
            "total_duration": nanoseconds((at - self._started_at).total_seconds()),
            "load_duration": 0,
            "prompt_eval_count": end.prompt_tokens,
            "prompt_eval_duration": nanoseconds(end.prefill_seconds),
            "eval_count": end.completion_tokens,
            "eval_duration": nanoseconds(end.decode_seconds),
        }
        return [final]

    def say(self, part: Part, at: datetime) -> Frame:
        if isinstance(part, str):
            return {**saying(self._kind, self._model, at, part), "done": False}
        return {**saying(self._kind, self._model, at, ""), **part, "done": False}

    def ending(self, result: Mapping[str, Any], at: datetime) -> list[Frame]:
        figures = {name: value for name, value in result.items() if name not in _NOT_FIGURES}
        return [{**saying(self._kind, self._model, at, ""), "done_reason": "stop", **figures, "done": True}]

    def silence(self, at: datetime) -> Frame:
        return {**saying(self._kind, self._model, at, ""), "done": False}


class OllamaWatch(Watch):
    def passes(self, frame: Frame) -> list[Frame]:
        self.ended = frame.get("done") is True
        return [frame]


class OllamaFold(Fold):
    """The final frame with everything said before it put into its message."""

    def __init__(self, kind: Kind) -> None:
        self._chat = kind == "chat"
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Any] = []
        self._logprobs: list[Any] = []
        self._final: Frame | None = None

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def feed(self, frame: Frame) -> None:
        said = as_dict(frame.get("message")) if self._chat else frame
        self._texts.append(as_text(said.get("content" if self._chat else "response")))
        self._thoughts.append(as_text(said.get("thinking")))
        self._calls += as_list(said.get("tool_calls"))
        self._logprobs += as_list(frame.get("logprobs"))
        if frame.get("done") is True:
            self._final = frame

    def response(self) -> Frame | None:
        final = self._final
        if final is None:
            return None
        said: Frame = {"content" if self._chat else "response": self.text}
        thinking = "".join(self._thoughts)
        if thinking:
            said["thinking"] = thinking
        if self._calls:
            said["tool_calls"] = self._calls
        logprobs = {"logprobs": self._logprobs} if self._logprobs else {}
        if not self._chat:
            return {**final, **said, **logprobs}
        message = {"role": "assistant", **as_dict(final.get("message")), **said}
        return {**final, "message": message, **logprobs}


class OllamaMeter(Meter):
    def __init__(self, started_at: datetime) -> None:
        self._seen: Frame = {}

    def feed(self, frame: Frame, at: datetime) -> None:
        # The frame that ends the answer carries the figures; embeddings are one frame without `done`.
        if frame.get("done") is True or "embeddings" in frame:
            self._seen = frame

    def usage(self) -> Usage:
        return usage_of(self._seen)
