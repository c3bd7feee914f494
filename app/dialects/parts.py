"""Output as a job's log keeps it, and the frames that it becomes again.

Plain text is a string, whatever the dialect: that is nearly all of nearly every answer. What is more than
text (thinking, tool calls, log probabilities, a second choice) stays the frame it came in, without its
envelope. The beginning (a role) and the end (reasons, counts) are not kept: the result has them.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from app.dialects.shapes import Dialect, Frame, Kind, as_dict, as_list, as_text
from app.dialects.to_ollama import saying, silence

Part = str | dict[str, Any]

_ENVELOPE = frozenset(
    {"id", "object", "created", "model", "system_fingerprint", "created_at", "usage", "timings"}
)
_SAID = ("thinking", "tool_calls", "images")


def part_of(kind: Kind, dialect: Dialect, frame: Frame) -> Part | None:
    """What a frame says; None when it says nothing, as the first and the last one often do."""
    if kind == "embed":
        return None
    return _ollama_part(kind, frame) if dialect == "ollama" else _openai_part(frame)


def _ollama_part(kind: Kind, frame: Frame) -> Part | None:
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


def _openai_part(chunk: Frame) -> Part | None:
    found = [_without_end(as_dict(choice)) for choice in as_list(chunk.get("choices"))]
    choices = [choice for choice in found if choice is not None]
    if not choices:
        return None
    if len(choices) == 1:
        text = _plain_text(choices[0])
        if text is not None:
            return text
    rest = {name: value for name, value in chunk.items() if name not in _ENVELOPE and name != "choices"}
    return {**rest, "choices": choices}


def _without_end(choice: Frame) -> Frame | None:
    """The choice as far as something is said in it."""
    delta = as_dict(choice.get("delta")) or as_dict(choice.get("message"))
    spoken = {name: value for name, value in delta.items() if name != "role" and value not in (None, "", [])}
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


class PartFrames:
    """The frames of one answer, made from its parts and its result, in the dialect of the job."""

    def __init__(
        self,
        kind: Kind,
        dialect: Dialect,
        *,
        model: str,
        answer_id: str,
        started_at: datetime,
        include_usage: bool = True,
    ) -> None:
        self._kind = kind
        self._ollama = dialect == "ollama"
        self._model = model
        self._include_usage = include_usage
        chat = kind == "chat"
        self._envelope: Frame = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{answer_id}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(started_at.timestamp()),
            "model": model,
            "system_fingerprint": "fp_foreman",
        }
        self._begun: set[int] = set()

    def say(self, part: Part, at: datetime) -> Frame:
        if self._ollama:
            if isinstance(part, str):
                return {**saying(self._kind, self._model, at, part, {}), "done": False}
            return {**saying(self._kind, self._model, at, "", {}), **part, "done": False}
        if isinstance(part, str):
            key = "delta" if self._kind == "chat" else "text"
            choice: Frame = {"index": 0, key: {"content": part} if self._kind == "chat" else part}
            return {**self._envelope, "choices": [self._whole(choice)]}
        return {
            **self._envelope,
            **part,
            "choices": [self._whole(as_dict(c)) for c in as_list(part.get("choices"))],
        }

    def silence(self, at: datetime) -> Frame:
        """Keeps a waiting NDJSON stream alive."""
        return silence(self._kind, self._model, at)

    def ending(self, result: Mapping[str, Any], at: datetime) -> list[Frame]:
        """The last frames: how it ended, and the counts."""
        if not self._ollama:
            return self._openai_ending(result)
        figures = {
            name: value
            for name, value in result.items()
            if name not in {"message", "response", "model", "created_at", "logprobs", *_SAID}
        }
        return [
            {**saying(self._kind, self._model, at, "", {}), "done_reason": "stop", **figures, "done": True}
        ]

    def _openai_ending(self, result: Mapping[str, Any]) -> list[Frame]:
        frames: list[Frame] = []
        for each in as_list(result.get("choices")):
            choice = as_dict(each)
            end: Frame = {"index": choice.get("index") or 0}
            end["delta" if self._kind == "chat" else "text"] = {} if self._kind == "chat" else ""
            reason = choice.get("finish_reason") or "stop"
            frames.append({**self._envelope, "choices": [self._whole(end, reason)]})
        if self._include_usage and isinstance(result.get("usage"), dict):
            frames.append({**self._envelope, "choices": [], "usage": result["usage"]})
        return frames

    def _whole(self, choice: Frame, reason: str | None = None) -> Frame:
        index = choice["index"]
        if "delta" in choice and index not in self._begun:
            self._begun.add(index)
            choice = {**choice, "delta": {"role": "assistant", "content": "", **choice["delta"]}}
        return {**choice, "logprobs": choice.get("logprobs"), "finish_reason": reason}
