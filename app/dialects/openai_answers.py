"""The answers of OpenAI's dialect: chunks read and measured, written and folded."""

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from app.dialects.kept import FrameShapes, FrameTeller
from app.dialects.neutral import Delta, End, Part, ToolCall
from app.dialects.protocol import AnswerReader, AnswerWriter, Fold
from app.dialects.shapes import Frame, Kind, as_dict, as_frames, as_list, as_text, join, without_nulls
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
_CHOICE = frozenset({"index", "delta", "message", "text", "finish_reason", "logprobs"})
_DELTA = frozenset({"role", "content", "refusal", "reasoning_content", "reasoning", "tool_calls"})
# The same in every chunk of an answer.
_LASTING = frozenset({"model", "system_fingerprint", "service_tier"})
# Where nothing else is, nothing is said.
_SILENT = _PLAIN | {"service_tier", "obfuscation"}
# What every answer has, under names of its own in each dialect.
_TOLD_ELSEWHERE = _PLAIN | {"usage"}


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


# Stands for any text in a frame; no target knows it.
_SOME_TEXT = secrets.token_hex(16)
_SOME_TEXT_ON_WIRE = msgspec.json.encode(_SOME_TEXT)


class ChunkShapes(FrameShapes):
    def timeless(self, frame: Frame) -> Frame:
        return {**frame, "id": None, "created": None}

    def says(self, kind: Kind, frame: Frame) -> str | None:
        choices = frame.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            return None
        choice = choices[0]
        if _index(choice) or choice.get("logprobs"):
            return None
        if kind != "chat":
            return as_text(choice.get("text")) or None
        delta = as_dict(choice.get("delta"))
        text = as_text(delta.get("content"))
        is_all = all(not value for name, value in delta.items() if name not in _PLAIN_DELTA)
        return text if text and is_all else None

    def with_text(self, kind: Kind, frame: Frame, text: str) -> Frame:
        choice = frame["choices"][0]
        said = {"text": text} if kind != "chat" else {"delta": {**choice["delta"], "content": text}}
        return {**frame, "choices": [{**choice, **said}]}

    def can_wait(self, kind: Kind, frame: Frame) -> bool:
        choices = as_frames(frame.get("choices"))
        if any(_spoken(choice) or choice.get("text") or choice.get("logprobs") for choice in choices):
            return False
        if any(choice.get("finish_reason") for choice in choices):
            return True
        if frame.get("usage"):
            return not choices
        return without_nulls(frame).keys() <= _SILENT and all(
            without_nulls(choice).keys() <= _CHOICE for choice in choices
        )


CHUNKS = ChunkShapes()


def _spoken(choice: Frame) -> Frame:
    return {n: value for n, value in _said(choice).items() if n != "role" and value not in (None, "", [])}


def _said(choice: Frame) -> Frame:
    """A server that does not stream answers with a `message` where a chunk has its `delta`."""
    return as_dict(choice.get("delta")) or as_dict(choice.get("message"))


def _index(choice: Frame) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0


def _without_end(choice: Frame) -> Frame | None:
    """The choice as far as something is said in it."""
    spoken = _spoken(choice)
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
        self._extras: Frame = {}

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
                # What is said and ended at once was written all the time.
                begun = self._first_output_at or (self._started_at if reason else at)
                self._first_output_at, self._last_output_at = begun, at

    def note_text(self, text: str, at: datetime) -> None:
        if text:
            self._first_output_at = self._first_output_at or at
            self._last_output_at = at

    def deltas(self, frame: Frame) -> list[Delta]:
        if not frame.keys() <= _TOLD_ELSEWHERE:
            join(self._extras, _except(frame, _TOLD_ELSEWHERE))
        choices = as_frames(frame.get("choices"))
        # The others have one answer where this one may have `n`.
        return [self._delta(choice) for choice in choices if not choice.get("index")]

    def _delta(self, choice: Frame) -> Delta:
        said = _said(choice)
        if "tool_calls" in said:
            self._calls.add(as_list(said["tool_calls"]))
        text = as_text(said.get("content")) or as_text(said.get("refusal")) or as_text(choice.get("text"))
        thinking = as_text(said.get("reasoning_content")) or as_text(said.get("reasoning"))
        if not (choice.keys() <= _CHOICE and said.keys() <= _DELTA):
            join(self._extras, _except(choice, _CHOICE) | _except(said, _DELTA))
        return Delta(text, thinking, logprobs=_read_logprobs(as_dict(choice.get("logprobs"))))

    def end(self) -> End | None:
        reason, counts = self._reasons.get(0), self._figures.get("usage", {})
        if not reason:
            return None
        return End(
            as_text(reason),
            self.usage(),
            self._calls.calls(),
            self._extras,
            cached_tokens=tokens(as_dict(counts.get("prompt_tokens_details")).get("cached_tokens")),
            reasoning_tokens=tokens(as_dict(counts.get("completion_tokens_details")).get("reasoning_tokens")),
        )

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


def _except(frame: Frame, names: frozenset[str]) -> Frame:
    return {name: value for name, value in frame.items() if name not in names and value is not None}


def _read_logprobs(logprobs: Frame) -> list[Any] | None:
    """One entry for each token; the older completions have a list for each of their properties instead."""
    if "tokens" not in logprobs:
        return as_list(logprobs.get("content")) or None
    figures, tops = as_list(logprobs.get("token_logprobs")), as_list(logprobs.get("top_logprobs"))
    entries = []
    for position, token in enumerate(as_list(logprobs["tokens"])):
        entry: Frame = {"token": token, "logprob": figures[position] if position < len(figures) else None}
        top = as_dict(tops[position]) if position < len(tops) else {}
        entry["top_logprobs"] = [{"token": word, "logprob": figure} for word, figure in top.items()]
        entries.append(entry)
    return entries or None


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
        # How many characters the tokens have that were told with their probabilities.
        self._offset = 0
        self._kept = FrameTeller(kind, CHUNKS)
        # What is sent before and behind a text, as long as frames differ in nothing else.
        self._around_text: tuple[bytes, bytes] | None = None

    def delta(self, delta: Delta, at: datetime) -> list[Frame]:
        if not self._chat:
            if not delta.text and not delta.logprobs:
                return []
            return [self._chunk({"text": delta.text}, logprobs=self._token_lists(delta.logprobs))]
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

    def _token_lists(self, entries: Any) -> Frame | None:
        """Probabilities as the older completions tell them."""
        if not entries:
            return None
        lists: Frame = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in as_frames(entries):
            token, tops = as_text(entry.get("token")), as_frames(entry.get("top_logprobs"))
            lists["tokens"].append(token)
            lists["token_logprobs"].append(entry.get("logprob"))
            lists["top_logprobs"].append({as_text(top.get("token")): top.get("logprob") for top in tops})
            lists["text_offset"].append(self._offset)
            self._offset += len(token)
        return lists

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
        # Where llama.cpp has its own figures, and under its names.
        chunks[-1] |= _timings(end.usage) | _except(end.extras, _TOLD_ELSEWHERE)
        return chunks

    def told(self, part: Part, at: datetime) -> list[Frame]:
        frames = self._kept.frames(part)
        return [self.say(part, at)] if frames is None else self._as_asked(frames)

    def on_wire(self, part: Part, at: datetime, encode: Callable[[Frame], bytes]) -> bytes:
        if isinstance(part, str) and self._around_text is not None:
            before, behind = self._around_text
            return before + msgspec.json.encode(part) + behind
        said = super().on_wire(part, at, encode)
        self._around_text = self._around(at, encode) if isinstance(part, str) else None
        return said

    def _around(self, at: datetime, encode: Callable[[Frame], bytes]) -> tuple[bytes, bytes] | None:
        """Once a text was told, the next one comes with the same around it, role and all."""
        before, found, behind = super().on_wire(_SOME_TEXT, at, encode).partition(_SOME_TEXT_ON_WIRE)
        return (before, behind) if found else None

    def foresee(self, result: Mapping[str, Any]) -> None:
        self._around_text = None
        lasting = {name: value for name, value in result.items() if name in _LASTING}
        self._envelope = {**_except(self._envelope, _LASTING), "model": self._model, **lasting}

    def _as_asked(self, chunks: list[Frame]) -> list[Frame]:
        """The target was asked for its counts in any case, for the ledger."""
        told: list[Frame] = []
        for each in chunks:
            chunk = {**each, "id": self._envelope["id"], "created": self._envelope["created"]}
            if not self._include_usage and "usage" in chunk:
                if chunk["usage"] is None:
                    del chunk["usage"]
                elif not chunk.get("choices"):
                    # Without it, what else it says would stand in the chunk before it.
                    more = _except(chunk, _TOLD_ELSEWHERE)
                    if told:
                        told[-1] |= more
                    elif more:
                        told.append(_without(chunk, "usage"))
                    continue
            told.append(chunk)
        return told

    def say(self, part: Part, at: datetime) -> Frame:
        if isinstance(part, str):
            said: Frame = {"delta": {"content": part}} if self._chat else {"text": part}
            return {**self._envelope, "choices": [self._whole({"index": 0, **said})]}
        choices = [self._whole(as_dict(choice)) for choice in as_list(part.get("choices"))]
        return {**self._envelope, **part, "choices": choices}

    def ending(self, result: Mapping[str, Any], at: datetime) -> list[Frame]:
        if self._kept.ends is not None:
            return self._as_asked(self._kept.ends)
        frames: list[Frame] = []
        for choice in as_frames(result.get("choices")):
            said: Frame = {"delta": {}} if self._chat else {"text": ""}
            end = {"index": choice.get("index") or 0, **said, **_except(choice, _CHOICE)}
            frames.append(
                {**self._envelope, "choices": [self._whole(end, choice.get("finish_reason") or "stop")]}
            )
        if self._include_usage and isinstance(result.get("usage"), dict):
            frames.append({**self._envelope, "choices": [], "usage": result["usage"]})
        if frames:
            frames[-1] |= _except(dict(result), _TOLD_ELSEWHERE)
        return frames

    def _whole(self, choice: Frame, reason: str | None = None) -> Frame:
        index = choice["index"]
        if "delta" in choice and index not in self._begun:
            self._begun.add(index)
            choice = {**choice, "delta": {"role": "assistant", "content": "", **choice["delta"]}}
        return {**choice, "logprobs": choice.get("logprobs"), "finish_reason": reason}


def _without(frame: Frame, name: str) -> Frame:
    return {each: value for each, value in frame.items() if each != name}


def _timings(usage: Usage) -> Frame:
    if not usage["prefill_seconds"] and not usage["decode_seconds"]:
        return {}
    return {
        "timings": {
            "prompt_n": usage["prompt_tokens"],
            "prompt_ms": round(usage["prefill_seconds"] * 1000, 3),
            "predicted_n": usage["completion_tokens"],
            "predicted_ms": round(usage["decode_seconds"] * 1000, 3),
        }
    }


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
        self._more: Frame = {}
        self.finish_reason: str | None = None

    def feed(self, choice: Frame) -> None:
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self._text += as_text(choice.get("text"))
        if isinstance(choice.get("logprobs"), dict):
            self._logprobs = self._logprobs or {}
            join(self._logprobs, choice["logprobs"])
        if not choice.keys() <= _CHOICE:
            self._more |= _except(choice, _CHOICE)
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
            join(self._message, said)

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
        ending = {"logprobs": self._logprobs, "finish_reason": self.finish_reason, **self._more}
        if not self._is_chat:
            return {"text": self._text, **ending}
        message = dict(self._message)
        if self._calls:
            message["tool_calls"] = self._whole_calls()
        return {"message": message, **ending}

    def _whole_calls(self) -> list[Frame]:
        calls = []
        for call, (more, of_function) in zip(self._calls.calls(), self._calls.extras(), strict=True):
            whole = write_call(call.id, call.name, call.arguments)
            calls.append({**whole, "function": {**whole["function"], **of_function}, **more})
        return calls
