"""From the frames of a stream to the one object that a caller gets who did not ask to stream."""

from typing import Any

from app.dialects.errors import error_message
from app.dialects.shapes import Dialect, Frame, Kind, as_dict, as_list, as_text
from app.dialects.toolcalls import CallAssembler


class IncompleteAnswer(ValueError):
    """The frames so far do not make a whole answer."""


class ResponseFolder:
    """Feed it the frames of one answer, in one dialect; `response()` once `complete`."""

    def __init__(self, kind: Kind, dialect: Dialect) -> None:
        self._fold: _OllamaFold | _OpenAIFold | _SingleFold
        if kind == "embed":
            self._fold = _SingleFold()
        elif dialect == "ollama":
            self._fold = _OllamaFold(kind)
        else:
            self._fold = _OpenAIFold()
        self.error: str | None = None

    def feed(self, frame: Frame) -> None:
        error = error_message(frame)
        if error is None:
            self._fold.feed(frame)
        else:
            self.error = self.error or error

    @property
    def complete(self) -> bool:
        return self.error is None and self._fold.complete

    def response(self) -> Frame:
        if not self.complete:
            raise IncompleteAnswer(self.error or "the answer has no end yet")
        return self._fold.response()

    @property
    def text(self) -> str:
        """What the model has written so far, as far as it is text for a reader."""
        return self._fold.text


def fold(kind: Kind, dialect: Dialect, frames: list[Frame]) -> Frame:
    folder = ResponseFolder(kind, dialect)
    for frame in frames:
        folder.feed(frame)
    return folder.response()


class _SingleFold:
    def __init__(self) -> None:
        self._only: Frame | None = None
        self.text = ""

    def feed(self, frame: Frame) -> None:
        self._only = frame

    @property
    def complete(self) -> bool:
        return self._only is not None

    def response(self) -> Frame:
        return self._only or {}


class _OllamaFold:
    """The final frame with everything said before it put into its message."""

    def __init__(self, kind: Kind) -> None:
        self._chat = kind == "chat"
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Any] = []
        self._logprobs: list[Any] = []
        self._final: Frame | None = None

    @property
    def complete(self) -> bool:
        return self._final is not None

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

    def response(self) -> Frame:
        final = self._final or {}
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


class _OpenAIFold:
    """Chunks of chat completions or of the older completions; the shape of the choices tells which."""

    def __init__(self) -> None:
        self._envelope: Frame = {}
        self._choices: dict[int, _Choice] = {}

    @property
    def complete(self) -> bool:
        return bool(self._choices) and all(choice.finish_reason for choice in self._choices.values())

    @property
    def text(self) -> str:
        first = self._choices.get(0)
        return first.text if first else ""

    def feed(self, chunk: Frame) -> None:
        # Later fields win (usage, timings), but a null never wipes out a value.
        self._envelope |= {
            name: value
            for name, value in chunk.items()
            if name != "choices" and (value is not None or name not in self._envelope)
        }
        for item in as_list(chunk.get("choices")):
            choice = as_dict(item)
            index = choice.get("index")
            index = index if isinstance(index, int) else 0
            self._choices.setdefault(index, _Choice()).feed(choice)

    def response(self) -> Frame:
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
        self._text = ""
        self._calls = CallAssembler()
        self._logprobs: Frame | None = None
        self.finish_reason: str | None = None

    @property
    def text(self) -> str:
        return as_text(self._message["content"]) if self._is_chat else self._text

    def feed(self, choice: Frame) -> None:
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self._text += as_text(choice.get("text"))
        if isinstance(choice.get("logprobs"), dict):
            self._logprobs = _joined(self._logprobs or {}, choice["logprobs"])
        said = choice.get("delta", choice.get("message"))
        if isinstance(said, dict):
            self._is_chat = True
            self._calls.add(as_list(said.get("tool_calls")))
            self._message = _joined(self._message, {k: v for k, v in said.items() if k != "tool_calls"})

    def whole(self) -> Frame:
        ending = {"logprobs": self._logprobs, "finish_reason": self.finish_reason}
        if not self._is_chat:
            return {"text": self._text, **ending}
        message = dict(self._message)
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in self._calls.calls()
            ]
        return {"message": message, **ending}


def _joined(before: Frame, more: Frame) -> Frame:
    """Text and lists grow, anything else is replaced, and the role is said once."""
    whole = dict(before)
    for name, value in more.items():
        known = whole.get(name)
        grows = isinstance(known, str) and isinstance(value, str) and name != "role"
        if grows or (isinstance(known, list) and isinstance(value, list)):
            whole[name] = known + value
        elif value is not None or name not in whole:
            whole[name] = value
    return whole
