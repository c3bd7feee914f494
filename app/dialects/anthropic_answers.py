"""The answers of Anthropic's messages: the whole message, and the events of a stream.

Both are made of the same neutral pieces by the same rules, so that a stream adds up to the whole: what is
said in one go and of one kind is one block, and each call of a tool is one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from app.dialects.neutral import ToolCall
from app.dialects.neutral_frames import NeutralWriter, with_extras
from app.dialects.protocol import StreamEncoder
from app.dialects.shapes import Frame, as_count, as_dict, as_frames, as_text
from app.dialects.toolcalls import parsed_arguments, unreadable_call_text
from app.dialects.usage import Usage, tokens

# Nothing is signed here: a thought that comes back is believed.
UNSIGNED = ""

# From the words of targets to Anthropic's, and back for readers who speak another dialect.
_STOP_REASONS = {"length": "max_tokens", "content_filter": "refusal"}
_REASONS = {"max_tokens": "length", "refusal": "content_filter", "tool_use": "tool_calls"}
# By which sequence an answer was stopped, in the words of vLLM and of SGLang.
_STRUCK = ("stop_reason", "matched_stop")
# What the events of a stream have told of a message before its last one.
_SAID_BEFORE = frozenset({"id", "type", "role", "model", "content", "usage"})


def message_id(answer_id: str) -> str:
    return f"msg_{answer_id}"


def message(
    model: str,
    answer_id: str,
    content: list[Frame],
    stop_reason: str | None,
    usage: Frame,
    stop_sequence: str | None = None,
) -> Frame:
    return {
        "id": message_id(answer_id),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": usage,
    }


def whole_message(
    model: str, answer_id: str, said: Frame, *, omits_thinking: bool, stop_sequences: Sequence[str] = ()
) -> Frame:
    """From what a NeutralFold has gathered."""
    blocks = Blocks(answer_id)
    content: list[Frame] = []
    for piece in as_frames(said.get("pieces")):
        if "thinking" in piece:
            thought = "" if omits_thinking else piece["thinking"]
            content.append({"type": "thinking", "thinking": thought, "signature": UNSIGNED})
        elif "text" in piece:
            content.append({"type": "text", "text": piece["text"]})
        else:
            content.append(blocks.of_call(as_dict(piece.get("call"))))
    end = as_dict(said.get("end"))
    used = as_dict(end.get("usage"))
    usage = usage_of(as_count(used.get("prompt_tokens")), as_count(used.get("completion_tokens")))
    # Only some targets tell; with the others it ends the turn like any other word.
    extras = as_dict(end.get("extras"))
    struck = [extras[name] for name in _STRUCK if extras.get(name) in stop_sequences]
    if struck and end.get("reason") == "stop":
        reason, sequence = "stop_sequence", struck[0]
    else:
        reason, sequence = _stop_reason(as_text(end.get("reason")), calls=blocks.calls > 0), None
    return with_extras(message(model, answer_id, content, reason, usage, sequence), end)


def usage_of(read: int, written: int) -> Frame:
    """What a target read from a cache of its own counts as read: nobody here pays less for it."""
    return {
        "input_tokens": read,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": written,
    }


def _stop_reason(reason: str, *, calls: bool) -> str:
    return _STOP_REASONS.get(reason) or ("tool_use" if calls else "end_turn")


class Blocks:
    """The calls of one answer as blocks; those that have no id are given one."""

    def __init__(self, answer_id: str) -> None:
        self._answer_id = answer_id
        self.calls = 0

    def of_call(self, call: Frame) -> Frame:
        """A call whose arguments are no JSON object cannot be said to these clients: it is left as text."""
        name, arguments = as_text(call.get("name")), call.get("arguments")
        given = parsed_arguments(arguments)
        if given is None:
            return {"type": "text", "text": unreadable_call_text(ToolCall("", name, arguments))}
        self.calls += 1
        call_id = as_text(call.get("id")) or f"toolu_{self._answer_id[-24:]}_{self.calls}"
        return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def unsaid(result: Mapping[str, Any]) -> Frame:
    """The thoughts and calls of a message, as a neutral frame."""
    blocks = as_frames(result.get("content"))
    thinking = "".join([as_text(block["thinking"]) for block in blocks if "thinking" in block])
    calls = [
        {
            "id": as_text(block.get("id")),
            "name": as_text(block.get("name")),
            "arguments": msgspec.json.encode(as_dict(block.get("input"))).decode(),
        }
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    return ({"thinking": thinking} if thinking else {}) | ({"tool_calls": calls} if calls else {})


class AnthropicWriter(NeutralWriter):
    def _how_it_ended(self, result: Mapping[str, Any]) -> tuple[str, Usage]:
        used = as_dict(result.get("usage"))
        return _REASONS.get(as_text(result.get("stop_reason")), "stop"), Usage(
            prompt_tokens=tokens(used.get("input_tokens")),
            completion_tokens=tokens(used.get("output_tokens")),
            load_seconds=0.0,
            prefill_seconds=0.0,
            decode_seconds=0.0,
        )


class AnthropicEncoder(StreamEncoder):
    """The events of one stream. What was read is known at its end only, and is said there."""

    def __init__(self, model: str, answer_id: str, *, omits_thinking: bool) -> None:
        self._model = model
        self._answer_id = answer_id
        self._omits_thinking = omits_thinking
        self._blocks = Blocks(answer_id)
        self._begun = False
        # The kind of the block that is open, and the number of the next one.
        self._open: str | None = None
        self._next = 0

    def frame(self, frame: Frame) -> bytes:
        return b"".join([event(each) for each in self._events(frame)])

    def error(self, error: Frame) -> bytes:
        return event(error)

    def end(self) -> bytes:
        return event({"type": "message_stop"})

    def silence(self, nothing_said: Frame) -> bytes:
        return event({"type": "ping"})

    def _events(self, frame: Frame) -> Iterator[Frame]:
        yield from self._begin()
        if frame.get("thinking"):
            yield from self._turn_to("thinking", {"thinking": "", "signature": UNSIGNED})
            if not self._omits_thinking:
                yield self._delta({"type": "thinking_delta", "thinking": frame["thinking"]})
        if frame.get("text"):
            yield from self._turn_to("text", {"text": ""})
            yield self._delta({"type": "text_delta", "text": frame["text"]})
        for call in as_frames(frame.get("tool_calls")):
            yield from self._call(call)
        if "end" in frame:
            yield from self._close()
            yield self._last(as_dict(frame.get("result")))

    def _begin(self) -> Iterator[Frame]:
        if not self._begun:
            self._begun = True
            opening = message(self._model, self._answer_id, [], None, usage_of(0, 0))
            yield {"type": "message_start", "message": opening}

    def _turn_to(self, kind: str, empty: Frame) -> Iterator[Frame]:
        """What is said next is of this kind: goes on with the open block, or begins one."""
        if self._open != kind:
            yield from self._close()
            self._open = kind
            yield {
                "type": "content_block_start",
                "index": self._next,
                "content_block": {"type": kind, **empty},
            }

    def _delta(self, delta: Frame) -> Frame:
        return {"type": "content_block_delta", "index": self._next, "delta": delta}

    def _close(self) -> Iterator[Frame]:
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": UNSIGNED})
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._next}
            self._open = None
            self._next += 1

    def _call(self, call: Frame) -> Iterator[Frame]:
        """A block of its own, also as text."""
        yield from self._close()
        block = self._blocks.of_call(call)
        if block["type"] == "text":
            yield from self._turn_to("text", {"text": ""})
            yield self._delta({"type": "text_delta", "text": block["text"]})
        else:
            yield from self._turn_to("tool_use", {"id": block["id"], "name": block["name"], "input": {}})
            whole = msgspec.json.encode(block["input"]).decode()
            yield self._delta({"type": "input_json_delta", "partial_json": whole})
        yield from self._close()

    def _last(self, result: Frame) -> Frame:
        how = {name: value for name, value in result.items() if name not in _SAID_BEFORE}
        return {"type": "message_delta", "delta": how, "usage": as_dict(result.get("usage"))}


def event(said: Frame) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (as_text(said["type"]).encode(), msgspec.json.encode(said))
