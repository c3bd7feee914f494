"""Answers kept in neutral frames, for dialects whose own events are made for one reader at a time.

No target speaks these dialects. What their log keeps is what was said, and no more:

    {"text": …}, {"thinking": …}, {"tool_calls": [{"id", "name", "arguments"}]}, {"logprobs": […]}

any of them in one frame, and at the end {"end": {"reason", "usage", "details", "extras"}}: details of the
usage, and what else the target said of the answer as a whole. A StreamEncoder makes a reader's events
of them: always the same ones from the same frames, so that a reader can go on behind any event, on any
replica. For that each frame stays one part of the log, also when it is nothing but text.
"""

from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from app.dialects.neutral import Delta, End, Part, ToolCall
from app.dialects.protocol import AnswerReader, AnswerWriter, Dialect, Fold
from app.dialects.shapes import Frame, Kind, as_dict, as_frames, as_list, as_text, without_nulls
from app.dialects.toolcalls import arguments_text
from app.dialects.usage import Usage, tokens

_LAST = frozenset({"end", "result"})


def frame_of(delta: Delta) -> Frame:
    frame: Frame = {}
    if delta.thinking:
        frame["thinking"] = delta.thinking
    if delta.text:
        frame["text"] = delta.text
    if delta.calls:
        frame["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": arguments_text(call.arguments)}
            for call in delta.calls
        ]
    if delta.logprobs:
        frame["logprobs"] = delta.logprobs
    return frame


class NeutralReader(AnswerReader):
    """For readers who speak another dialect than the job's caller did."""

    def __init__(self, kind: Kind, started_at: datetime) -> None:
        self._end: Frame | None = None

    def note(self, frame: Frame, at: datetime) -> None:
        if "end" in frame:
            self._end = as_dict(frame["end"])
            self.ended = True

    def deltas(self, frame: Frame) -> list[Delta]:
        calls = [
            ToolCall(as_text(call.get("id")), as_text(call.get("name")), call.get("arguments"))
            for call in as_frames(frame.get("tool_calls"))
        ]
        said = Delta(as_text(frame.get("text")), as_text(frame.get("thinking")), calls, frame.get("logprobs"))
        return [said]

    def end(self) -> End | None:
        if self._end is None:
            return None
        return End(as_text(self._end.get("reason")), self.usage())

    def usage(self) -> Usage:
        return usage_of(as_dict((self._end or {}).get("usage")))


def with_extras(answer: Frame, end: Frame) -> Frame:
    """What has no counterpart here is kept beside what has, under its own name."""
    return {**as_dict(end.get("extras")), **answer}


def usage_of(said: Mapping[str, Any]) -> Usage:
    return Usage(
        prompt_tokens=tokens(said.get("prompt_tokens")),
        completion_tokens=tokens(said.get("completion_tokens")),
        load_seconds=_seconds(said.get("load_seconds")),
        prefill_seconds=_seconds(said.get("prefill_seconds")),
        decode_seconds=_seconds(said.get("decode_seconds")),
    )


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


class NeutralWriter(AnswerWriter):
    def delta(self, delta: Delta, at: datetime) -> list[Frame]:
        frame = frame_of(delta)
        return [frame] if frame else []

    def end(self, end: End, at: datetime) -> list[Frame]:
        details = {"cached_tokens": end.cached_tokens, "reasoning_tokens": end.reasoning_tokens}
        extras = without_nulls(end.extras)
        return [{"end": {"reason": end.reason, "usage": end.usage, "details": details, "extras": extras}}]

    def say(self, part: Part, at: datetime) -> Frame:
        return {"text": part} if isinstance(part, str) else part

    def ending(self, result: Mapping[str, Any], at: datetime) -> list[Frame]:
        """The end, and with it the whole answer as its caller gets it."""
        reason, usage = self._how_it_ended(result)
        return [{"end": {"reason": reason, "usage": usage}, "result": result}]

    @abstractmethod
    def _how_it_ended(self, result: Mapping[str, Any]) -> tuple[str, Usage]:
        """The reason in neutral words ("stop", "length", "tool_calls" …), and the counts."""


class NeutralFold(Fold):
    """Everything that was said, in its order: `pieces`, each {"text"}, {"thinking"} or {"call"}; `logprobs`;
    and `end`. What the caller gets is made of that by `Dialect.identified`."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self._pieces: list[tuple[str, list[Any]]] = []
        self._logprobs: list[Any] = []
        self._end: Frame | None = None

    def say(self, text: str) -> None:
        self._said("text", text)

    def _said(self, what: str, value: Any) -> None:
        if not self._pieces or self._pieces[-1][0] != what:
            self._pieces.append((what, []))
        self._pieces[-1][1].append(value)

    def _add(self, frame: Frame) -> None:
        for what in ("thinking", "text"):
            if frame.get(what):
                self._said(what, frame[what])
        for call in as_frames(frame.get("tool_calls")):
            self._said("call", call)
        self._logprobs += as_list(frame.get("logprobs"))
        if "end" in frame:
            self._end = as_dict(frame["end"])

    def _whole(self) -> Frame | None:
        if self._end is None:
            return None
        pieces: list[Frame] = []
        for what, values in self._pieces:
            pieces += [{what: each} for each in values] if what == "call" else [{what: "".join(values)}]
        return {"pieces": pieces, "logprobs": self._logprobs, "end": self._end}


class NeutralDialect(Dialect):
    """A dialect whose answers are kept in neutral frames."""

    reader = NeutralReader
    fold = NeutralFold

    def part_of(self, kind: Kind, frame: Frame) -> Part | None:
        return {name: value for name, value in frame.items() if name not in _LAST} or None

    def text_part(self, text: str) -> Part:
        return {"text": text}
