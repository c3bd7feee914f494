"""The answers of OpenAI's dialect: chunks read and measured, written and folded."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from app.dialects.neutral import Delta, End, Part, ToolCall
from app.dialects.protocol import AnswerReader, AnswerWriter, Fold
from app.dialects.shapes import Frame, Kind, as_dict, as_list, as_text
from app.dialects.toolcalls import CallAssembler, arguments_text
from app.dialects.usage import Usage, from_milliseconds, tokens

# Only reasons that clients know: strict ones refuse any other word.
_FINISH_REASONS = {"length": "length", "content_filter": "content_filter"}
_ENVELOPE = frozenset(
    {"id", "object", "created", "model", "system_fingerprint", "created_at", "usage", "timings", "choices"}
)


_PLAIN = frozenset({"id", "object", "created", "model", "system_fingerprint", "choices"})
# Ollama says the role with every word.
_PLAIN_DELTA = frozenset({"role", "content"})
_PLAIN_CHOICE = frozenset({"index", "delta", "finish_reason", "logprobs"})


def completion_id(kind: Kind, answer_id: str) -> str:
    return f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{answer_id}"


def write_call(call_id: str, name: str, arguments: str) -> Frame:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def part_of(chunk: Frame) -> Part | None:
    """What a chunk says, as a job's log keeps it."""
    found = [_without_end(as_dict(choice)) for choice in as_list(chunk.get("choices"))]
    choices = [choice for choice in found if choice is not None]
    if not choices:
        return None
    if len(choices) == 1:
        text = _plain_text(choices[0])
        if text is not None:
            return text
    rest = {name: value for name, value in chunk.items() if name not in _ENVELOPE}
    return {**rest, "choices": choices}


def plain_text(chunk: Frame) -> str | None:
    """The text of a chunk of a chat that only goes on with its one choice."""
    choices = chunk.get("choices")
    if not chunk.keys() <= _PLAIN or chunk.get("object") == "error":
        return None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    choice = choices[0]
    if not choice.keys() <= _PLAIN_CHOICE or choice.get("finish_reason") or choice.get("logprobs"):
        return None
    delta = choice.get("delta")
    if choice.get("index") != 0 or not isinstance(delta, dict) or not delta.keys() <= _PLAIN_DELTA:
        return None
    if delta.get("role", "assistant") != "assistant":
        return None
    text = delta.get("content")
    return text if isinstance(text, str) else None


def _said(choice: Frame) -> Frame:
    """A server that does not stream answers with a `message` where a chunk has its `delta`."""
    return as_dict(choice.get("delta")) or as_dict(choice.get("message"))


def _index(choice: Frame) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0


def _without_end(choice: Frame) -> Frame | None:
    """The choice as far as something is said in it."""
    spoken = {n: value for n, value in _said(choice).items() if n != "role" and value not in (None, "", [])}
    text = as_text(choice.get("text"))
    logprobs = choice.get("logprobs")
    if not spoken and not text and not logprobs:
        return None
    said: Frame = {"index": choice.get("index") or 0}
    if "text" in choice:
        said["text"] = text
    else:
        said["delta"] = spoken
    return said | ({"logprobs": logprobs} if logprobs else {})


def _plain_text(choice: Frame) -> str | None:
    if choice["index"] != 0 or "logprobs" in choice:
        return None
    if "text" in choice:
        return as_text(choice["text"])
    delta = choice["delta"]
    return delta["content"] if set(delta) == {"content"} and isinstance(delta["content"], str) else None


class OpenAIReader(AnswerReader):
    """OpenAI's usage counts tokens only; llama.cpp adds `timings`, and for everybody else the moments count
    at which the frames arrived. It may come after the finish reasons: only the end of the source is the end.
    """

    def __init__(self, kind: Kind, started_at: datetime) -> None:
        self._started_at = started_at
        self._first_output_at: datetime | None = None
        self._last_output_at = started_at
        self._figures: Frame = {}
        # How each choice ended that has begun.
        self._reasons: dict[int, Any] = {}
        self._calls = CallAssembler()

    @property
    def complete(self) -> bool:
        return bool(self._reasons) and all(self._reasons.values())

    def note(self, frame: Frame, at: datetime) -> None:
        for name in ("usage", "timings"):
            if isinstance(frame.get(name), dict):
                self._figures[name] = frame[name]
        for item in as_list(frame.get("choices")):
            choice = as_dict(item)
            index, reason = _index(choice), choice.get("finish_reason")
            if reason or index not in self._reasons:
                self._reasons[index] = reason
            if _has_output(choice):
                self._first_output_at = self._first_output_at or at
                self._last_output_at = at

    def note_text(self, text: str, at: datetime) -> None:
        if text:
            self._first_output_at = self._first_output_at or at
            self._last_output_at = at

    def deltas(self, frame: Frame) -> list[Delta]:
        deltas = []
        for item in as_list(frame.get("choices")):
            choice = as_dict(item)
            # The others have one answer where this one may have `n`.
            if not choice.get("index"):
                deltas.append(self._delta(choice))
        return deltas

    def _delta(self, choice: Frame) -> Delta:
        said = _said(choice)
        if "tool_calls" in said:
            self._calls.add(as_list(said["tool_calls"]))
        text = as_text(said.get("content")) or as_text(said.get("refusal")) or as_text(choice.get("text"))
        thinking = as_text(said.get("reasoning_content")) or as_text(said.get("reasoning"))
        logprobs = choice.get("logprobs")
        return Delta(text, thinking, logprobs=as_list(as_dict(logprobs).get("content")) if logprobs else None)

    def end(self) -> End | None:
        reason = self._reasons.get(0)
        return End(as_text(reason), self.usage(), self._calls.calls()) if reason else None

    def usage(self) -> Usage:
        """Until the first output, and from there to the last."""
        counts, timings = self._figures.get("usage", {}), self._figures.get("timings", {})
        first = self._first_output_at or self._started_at
        prefill = max(0.0, (first - self._started_at).total_seconds())
        decode = max(0.0, (self._last_output_at - first).total_seconds())
        return Usage(
            prompt_tokens=tokens(counts.get("prompt_tokens")),
            completion_tokens=tokens(counts.get("completion_tokens")),
            load_seconds=0.0,
            prefill_seconds=from_milliseconds(timings.get("prompt_ms"), prefill),
            decode_seconds=from_milliseconds(timings.get("predicted_ms"), decode),
        )


def _has_output(choice: Frame) -> bool:
    """Whether a choice carries something the model wrote, not just a role or an end."""
    said = _said(choice)
    written = said.get("content") or said.get("reasoning_content") or said.get("reasoning")
    return bool(written or said.get("tool_calls") or choice.get("text"))


class OpenAIWriter(AnswerWriter):
    """The first chunk carries the role, then come the deltas, one with nothing but the finish reason, and the
    usage chunk when it is wanted."""

    def __init__(
        self, kind: Kind, model: str, answer_id: str, started_at: datetime, *, include_usage: bool = True
    ) -> None:
        super().__init__(kind, model, answer_id, started_at, include_usage=include_usage)
        self._chat = kind == "chat"
        self._envelope: Frame = {
            "id": completion_id(kind, answer_id),
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": int(started_at.timestamp()),
            "model": model,
            "system_fingerprint": "fp_foreman",
        }
        # What a target said in another dialect bears the name that Ollama gives to its own translations.
        self._translated = {**self._envelope, "system_fingerprint": "fp_ollama"}
        # The choices that have had their role.
        self._begun: set[int] = set()
        self._calls_sent = 0

    def delta(self, delta: Delta, at: datetime) -> list[Frame]:
        if not self._chat:
            return [self._chunk({"text": delta.text})] if delta.text else []
        said: Frame = {}
        if delta.thinking:
            # Ollama calls it one thing, DeepSeek and llama.cpp the other; clients look for either.
            said |= {"reasoning": delta.thinking, "reasoning_content": delta.thinking}
        if delta.text:
            said["content"] = delta.text
        if delta.calls:
            said["tool_calls"] = [self._call(call) for call in delta.calls]
        if not said and not delta.logprobs:
            return []
        logprobs = {"content": delta.logprobs, "refusal": None} if delta.logprobs else None
        return [self._chunk({"delta": self._with_role(said)}, logprobs=logprobs)]

    def _with_role(self, said: Frame) -> Frame:
        if 0 in self._begun:
            return said
        self._begun.add(0)
        return {"role": "assistant", "content": None if "tool_calls" in said else "", **said}

    def _call(self, call: ToolCall) -> Frame:
        index = self._calls_sent
        self._calls_sent += 1
        call_id = call.id or f"call_{self._answer_id[-24:]}_{index}"
        return {"index": index, **write_call(call_id, call.name, arguments_text(call.arguments))}

    def _chunk(self, said: Frame, reason: str | None = None, logprobs: Frame | None = None) -> Frame:
        choice = {"index": 0, **said, "finish_reason": reason, "logprobs": logprobs}
        return {**self._translated, "choices": [choice]}

    def end(self, end: End, at: datetime) -> list[Frame]:
        reason = _FINISH_REASONS.get(end.reason, "stop")
        if self._calls_sent and reason == "stop":
            reason = "tool_calls"
        chunks = [self._chunk({"delta": self._with_role({})} if self._chat else {"text": ""}, reason)]
        if self._include_usage:
            prompt, completion = end.usage["prompt_tokens"], end.usage["completion_tokens"]
            counts = {"prompt_tokens": prompt, "completion_tokens": completion}
            usage = {**counts, "total_tokens": prompt + completion}
            chunks.append({**self._translated, "choices": [], "usage": usage})
        return chunks

    def say(self, part: Part, at: datetime) -> Frame:
        if isinstance(part, str):
            said: Frame = {"delta": {"content": part}} if self._chat else {"text": part}
            return {**self._envelope, "choices": [self._whole({"index": 0, **said})]}
        choices = [self._whole(as_dict(choice)) for choice in as_list(part.get("choices"))]
        return {**self._envelope, **part, "choices": choices}

    def ending(self, result: Mapping[str, Any], at: datetime) -> list[Frame]:
        frames: list[Frame] = []
        for each in as_list(result.get("choices")):
            choice = as_dict(each)
            said: Frame = {"delta": {}} if self._chat else {"text": ""}
            end = {"index": choice.get("index") or 0, **said}
            frames.append(
                {**self._envelope, "choices": [self._whole(end, choice.get("finish_reason") or "stop")]}
            )
        if self._include_usage and isinstance(result.get("usage"), dict):
            frames.append({**self._envelope, "choices": [], "usage": result["usage"]})
        return frames

    def _whole(self, choice: Frame, reason: str | None = None) -> Frame:
        index = choice["index"]
        if "delta" in choice and index not in self._begun:
            self._begun.add(index)
            choice = {**choice, "delta": {"role": "assistant", "content": "", **choice["delta"]}}
        return {**choice, "logprobs": choice.get("logprobs"), "finish_reason": reason}


class OpenAIFold(Fold):
    """Chunks of chat completions or of the older completions; the shape of the choices tells which."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self._envelope: Frame = {}
        self._choices: dict[int, _Choice] = {}

    def say(self, text: str) -> None:
        if 0 not in self._choices:
            self._choices[0] = _Choice()
        self._choices[0].say(text, chat=self._kind == "chat")

    def _add(self, frame: Frame) -> None:
        # Later fields win (usage, timings), but a null never wipes out a value.
        for name, value in frame.items():
            if name != "choices" and (value is not None or name not in self._envelope):
                self._envelope[name] = value
        for item in as_list(frame.get("choices")):
            choice = as_dict(item)
            index = _index(choice)
            if index not in self._choices:
                self._choices[index] = _Choice()
            self._choices[index].feed(choice)

    def _whole(self) -> Frame | None:
        if not self._choices or not all(choice.finish_reason for choice in self._choices.values()):
            return None
        envelope = dict(self._envelope)
        if envelope.get("object") == "chat.completion.chunk":
            envelope["object"] = "chat.completion"
        if envelope.get("usage", ...) is None:
            del envelope["usage"]
        choices = [{"index": index, **self._choices[index].whole()} for index in sorted(self._choices)]
        return {**envelope, "choices": choices}


class _Choice:
    def __init__(self) -> None:
        self._is_chat = False
        self._message: Frame = {"role": "assistant", "content": None}
        # What was said since the message was last whole: to join a long answer word by word takes its time.
        self._said: list[str] = []
        self._text = ""
        self._calls = CallAssembler()
        self._logprobs: Frame | None = None
        self.finish_reason: str | None = None

    def feed(self, choice: Frame) -> None:
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self._text += as_text(choice.get("text"))
        if isinstance(choice.get("logprobs"), dict):
            self._logprobs = self._logprobs or {}
            _join(self._logprobs, choice["logprobs"])
        said = choice.get("delta", choice.get("message"))
        if isinstance(said, dict):
            self._is_chat = True
            if said.keys() == {"content"} and isinstance(said["content"], str):
                self._said.append(said["content"])
                return
            self._join_said()
            if "tool_calls" in said:
                self._calls.add(as_list(said["tool_calls"]))
                said = {name: value for name, value in said.items() if name != "tool_calls"}
            _join(self._message, said)

    def say(self, text: str, *, chat: bool) -> None:
        if chat:
            self._is_chat = True
            self._said.append(text)
        else:
            self._text += text

    def _join_said(self) -> None:
        if self._said:
            self._message["content"] = as_text(self._message["content"]) + "".join(self._said)
            self._said.clear()

    def whole(self) -> Frame:
        self._join_said()
        ending = {"logprobs": self._logprobs, "finish_reason": self.finish_reason}
        if not self._is_chat:
            return {"text": self._text, **ending}
        message = dict(self._message)
        if self._calls:
            calls = self._calls.calls()
            message["tool_calls"] = [write_call(call.id, call.name, call.arguments) for call in calls]
        return {"message": message, **ending}


def _join(whole: Frame, more: Frame) -> None:
    """Text and lists grow, anything else is replaced, and the role is said once."""
    for name, value in more.items():
        known = whole.get(name)
        grows = isinstance(known, str) and isinstance(value, str) and name != "role"
        if grows or (isinstance(known, list) and isinstance(value, list)):
            whole[name] = known + value
        elif value is not None or name not in whole:
            whole[name] = value
