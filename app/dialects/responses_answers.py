"""Responses: the whole object that a job's result is, and the events that tell a reader how it came about.

Both are functions of the request, the job's id and what was said, and of nothing else: the events of a stream
have the same numbers for every reader, on any replica and at any time.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from ulid import ULID

from app.dialects.framing import SSE_KEEP_ALIVE
from app.dialects.neutral import ToolCall
from app.dialects.neutral_frames import NeutralFold, NeutralWriter, usage_of, with_extras
from app.dialects.protocol import Dialect, StreamEncoder
from app.dialects.responses_request import DEFAULT_TEMPERATURE, DEFAULT_TOP_P
from app.dialects.shapes import Frame, Kind, as_count, as_dict, as_frames, as_list, as_text, without_nulls
from app.dialects.usage import Usage

RESPONSE_PREFIX = "resp_"
# How neutral endings are told by a response that is not complete, and back.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_REASONS = {told: reason for reason, told in _INCOMPLETE.items()}
# What became of the job, or of the server, that is not the response's own end: its reader may come again.
_NOT_ITS_END = frozenset({"unavailable", "restarted", "not_found"})
_CANCELLED = frozenset({"cancelled", "skipped", "stale"})
_ERROR_CODES = {"invalid_request_error": "invalid_prompt", "rate_limit_error": "rate_limit_exceeded"}
LOST = "what this response said is not kept in full any more; retrieve it without a stream"
BEYOND = "starting_after is beyond the end of this response; retrieve it from its start"


class Echoed(msgspec.Struct, gc=False):
    """What of a request its response repeats; all else, and above all its input, is read over."""

    model: Any = None
    background: Any = None
    instructions: Any = None
    max_output_tokens: Any = None
    max_tool_calls: Any = None
    metadata: Any = None
    parallel_tool_calls: Any = None
    previous_response_id: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    reasoning: Any = None
    safety_identifier: Any = None
    store: Any = None
    temperature: Any = None
    text: Any = None
    tool_choice: Any = None
    tools: Any = None
    top_logprobs: Any = None
    top_p: Any = None
    user: Any = None

    @property
    def summarizes(self) -> bool:
        """Whether reasoning is asked for as a summary: that is where many clients look for it."""
        reasoning = as_dict(self.reasoning)
        return bool(reasoning.get("summary") or reasoning.get("generate_summary"))


_decode_echoed = msgspec.json.Decoder(Echoed).decode


def echoed(payload: str) -> Echoed:
    return _decode_echoed(payload)


def response(asked: Echoed, answer_id: str, status: str, **more: Any) -> Frame:
    """A response, whatever has become of it."""
    text, reasoning = as_dict(asked.text), as_dict(asked.reasoning)
    return {
        "id": RESPONSE_PREFIX + answer_id,
        "object": "response",
        "created_at": int(ULID.from_str(answer_id).timestamp),
        "status": status,
        "background": asked.background is True,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "metadata": asked.metadata or {},
        "model": asked.model,
        "output": [],
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key,
        "prompt_cache_retention": asked.prompt_cache_retention,
        "reasoning": {"effort": None, "summary": None, **reasoning},
        "safety_identifier": asked.safety_identifier,
        "service_tier": "default",
        "store": asked.store is not False,
        "temperature": DEFAULT_TEMPERATURE if asked.temperature is None else asked.temperature,
        "text": {"format": {"type": "text"}, **without_nulls(text)},
        "tool_choice": asked.tool_choice or "auto",
        "tools": asked.tools or [],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": DEFAULT_TOP_P if asked.top_p is None else asked.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": asked.user,
        **more,
    }


def failed_response(asked: Echoed, answer_id: str, error: Frame) -> Frame:
    """`error` is the error as the surface would answer it."""
    said = as_dict(error.get("error"))
    if said.get("code") in _CANCELLED:
        return response(asked, answer_id, "cancelled")
    # In words of OpenAI's; the job has ours.
    code = _ERROR_CODES.get(as_text(said.get("type")), "server_error")
    told = {"code": code, "message": said.get("message"), **without_nulls({"param": said.get("param")})}
    return response(asked, answer_id, "failed", error=told)


# -- items -------------------------------------------------------------------------------------------


class _Wording(NamedTuple):
    """How one kind of item is told of, and where it has its text."""

    prefix: str
    item: str
    holder: str
    part: str
    part_events: str
    text_events: str
    place: str


_TEXT = _Wording(
    "msg",
    "message",
    "content",
    "output_text",
    "response.content_part",
    "response.output_text",
    "content_index",
)
_THOUGHT = _Wording(
    "rs",
    "reasoning",
    "content",
    "reasoning_text",
    "response.content_part",
    "response.reasoning_text",
    "content_index",
)
_SUMMARY = _Wording(
    "rs",
    "reasoning",
    "summary",
    "summary_text",
    "response.reasoning_summary_part",
    "response.reasoning_summary_text",
    "summary_index",
)


def _wordings(*, summarizes: bool) -> dict[str, _Wording]:
    return {"text": _TEXT, "thinking": _SUMMARY if summarizes else _THOUGHT}


def _item(wording: _Wording, answer_id: str, index: int, parts: list[Frame], status: str) -> Frame:
    item: Frame = {"id": f"{wording.prefix}_{answer_id}_{index}", "type": wording.item, "status": status}
    if wording is _TEXT:
        item["role"] = "assistant"
    else:
        item["summary"] = []
    return item | {wording.holder: parts}


def _part(wording: _Wording, text: str, logprobs: list[Any]) -> Frame:
    more = {"annotations": [], "logprobs": logprobs} if wording is _TEXT else {}
    return {"type": wording.part, "text": text, **more}


def _call_item(call: Frame, answer_id: str, index: int, status: str) -> Frame:
    return {
        "id": f"fc_{answer_id}_{index}",
        "type": "function_call",
        "status": status,
        "arguments": as_text(call.get("arguments")),
        "call_id": as_text(call.get("id")) or f"call_{answer_id}_{index}",
        "name": as_text(call.get("name")),
    }


def _logprobs(frame: Frame) -> list[Any]:
    """With all the fields that OpenAI's have."""
    return [
        {"bytes": [], "top_logprobs": [], **without_nulls(each)} for each in as_frames(frame.get("logprobs"))
    ]


def whole_response(asked: Echoed, answer_id: str, folded: Frame) -> Frame:
    """From everything that was said, as `ResponsesFold` has it."""
    end = as_dict(folded["end"])
    reason = _INCOMPLETE.get(as_text(end.get("reason")))
    status = "completed" if reason is None else "incomplete"
    wordings = _wordings(summarizes=asked.summarizes)
    pieces = list(folded["pieces"])
    if reason is None and not any("text" in piece or "call" in piece for piece in pieces):
        # An answer has something that can be taken for one.
        pieces.append({"text": ""})
    output = []
    for index, piece in enumerate(pieces):
        ended = status if index == len(pieces) - 1 else "completed"
        if "call" in piece:
            output.append(_call_item(piece["call"], answer_id, index, "completed"))
            continue
        what = "text" if "text" in piece else "thinking"
        part = _part(wordings[what], piece[what], piece.get("logprobs", []))
        output.append(_item(wordings[what], answer_id, index, [part], ended))
    details = None if reason is None else {"reason": reason}
    usage = _usage(usage_of(as_dict(end.get("usage"))), as_dict(end.get("details")))
    told = response(asked, answer_id, status, output=output, incomplete_details=details, usage=usage)
    return with_extras(told, end)


def _usage(usage: Usage, details: Frame) -> Frame:
    """Not all targets tell how much of it was cached, or thought."""
    cached, thought = as_count(details.get("cached_tokens")), as_count(details.get("reasoning_tokens"))
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": prompt + completion,
    }


def calls_of(result: Mapping[str, Any]) -> list[ToolCall]:
    items = [item for item in as_frames(result.get("output")) if item.get("type") == "function_call"]
    return [ToolCall(each["call_id"], each["name"], each["arguments"]) for each in items]


def thinking_of(result: Mapping[str, Any]) -> str:
    items = [item for item in as_frames(result.get("output")) if item.get("type") == "reasoning"]
    parts = [part for item in items for part in as_frames(item.get("content")) or as_frames(item["summary"])]
    return "".join([as_text(part.get("text")) for part in parts])


# -- answers -----------------------------------------------------------------------------------------


class ResponsesWriter(NeutralWriter):
    def _how_it_ended(self, result: Mapping[str, Any]) -> tuple[str, Usage]:
        told = as_text(as_dict(result.get("incomplete_details")).get("reason"))
        usage = as_dict(result.get("usage"))
        counts = {
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
        }
        return _REASONS.get(told, "tool_calls" if calls_of(result) else "stop"), usage_of(counts)


class ResponsesFold(NeutralFold):
    """Each text has the probabilities of its own tokens."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self._probabilities: dict[int, list[Any]] = {}

    def _add(self, frame: Frame) -> None:
        super()._add(frame)
        if frame.get("text") and frame.get("logprobs"):
            latest = sum(what == "text" for what, _ in self._pieces) - 1
            self._probabilities.setdefault(latest, []).extend(_logprobs(frame))

    def _whole(self) -> Frame | None:
        whole = super()._whole()
        if whole is not None:
            texts = [piece for piece in whole["pieces"] if "text" in piece]
            for index, logprobs in self._probabilities.items():
                texts[index]["logprobs"] = logprobs
        return whole


# -- events ------------------------------------------------------------------------------------------


class _OpenItem:
    """The item that is being told of."""

    def __init__(self, wording: _Wording) -> None:
        self.wording = wording
        self.texts: list[str] = []
        self.logprobs: list[Any] = []


class ResponseEvents(StreamEncoder):
    """The events of one response, for one reader: numbered from 0 without a gap.

    What is not the response's own end (the server closes, a new run says something else) has no number of its
    own, but that of the event before: a reader goes on behind it.
    """

    def __init__(self, dialect: Dialect, payload: str, answer_id: str, after: int = -1) -> None:
        """A reader who has events up to the one of number `after` is not told of them again."""
        super().__init__(dialect)
        self._asked = echoed(payload)
        self._answer_id = answer_id
        self._after = after
        self._next = 0
        self._wordings = _wordings(summarizes=self._asked.summarizes)
        self._has_begun = False
        self._finished: list[Frame] = []
        self._item: _OpenItem | None = None

    @property
    def is_behind(self) -> bool:
        """Whether the next event is one that the reader has already."""
        return self._next <= self._after

    def opening(self) -> bytes:
        """Whoever asks for work in the background wants to know at once under which id."""
        return self.created() if self._asked.background is True else b""

    def created(self) -> bytes:
        """That there is a response, once."""
        if self._next:
            return b""
        status = "queued" if self._asked.background is True else "in_progress"
        told = response(self._asked, self._answer_id, status)
        said = self._event("response.created", response=told)
        return said + self._event("response.queued", response=told) if status == "queued" else said

    def silence(self, nothing_said: Frame) -> bytes:
        return self.created() or SSE_KEEP_ALIVE

    def frame(self, frame: Frame) -> bytes:
        said = [self._begin()]
        if frame.get("thinking"):
            said.append(self._say(self._wordings["thinking"], frame["thinking"], []))
        if frame.get("text"):
            said.append(self._say(_TEXT, frame["text"], _logprobs(frame)))
        said += [
            self._call(_call_item(call, self._answer_id, len(self._finished) + bool(self._item), "completed"))
            for call in as_frames(frame.get("tool_calls"))
        ]
        if "result" in frame:
            said.append(self._finish(as_dict(frame["result"])))
        return b"".join(said)

    def error(self, error: Frame) -> bytes:
        said = as_dict(error.get("error"))
        if said.get("code") in _NOT_ITS_END:
            return self._apart(as_text(said.get("message")), said.get("code"))
        begun = self._begin()
        if self._next < self._after:
            # An earlier run had said more. That it failed is new to its reader all the same.
            self._next = self._after + 1
        failed = failed_response(self._asked, self._answer_id, error)
        return begun + self._event("response.failed", response=failed)

    def end(self) -> bytes:
        return b""

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        told = response(self._asked, self._answer_id, "in_progress")
        return self.created() + self._event("response.in_progress", response=told)

    def _event(self, type_: str, **fields: Any) -> bytes:
        number = self._next
        self._next += 1
        return (
            b"" if number <= self._after else _written({"type": type_, "sequence_number": number, **fields})
        )

    def _apart(self, message: str, code: Any) -> bytes:
        number = max(0, self._after, self._next - 1)
        told = {"type": "error", "sequence_number": number, "code": code, "message": message, "param": None}
        return _written(told)

    # -- items ---------------------------------------------------------------------------------------

    def _say(self, wording: _Wording, text: str, logprobs: list[Any]) -> bytes:
        opened = b""
        if self._item is None or self._item.wording is not wording:
            opened = self._close("completed") + self._open(wording)
        item = self._current()
        item.texts.append(text)
        item.logprobs += logprobs
        more = {"logprobs": logprobs} if wording is _TEXT else {}
        return opened + self._of_part(wording.text_events + ".delta", wording, delta=text, **more)

    def _open(self, wording: _Wording) -> bytes:
        self._item = _OpenItem(wording)
        item = _item(wording, self._answer_id, len(self._finished), [], "in_progress")
        added = self._event("response.output_item.added", output_index=len(self._finished), item=item)
        part = _part(wording, "", [])
        return added + self._of_part(wording.part_events + ".added", wording, part=part)

    def _close(self, status: str) -> bytes:
        if self._item is None:
            return b""
        item, index = self._item, len(self._finished)
        wording, text = item.wording, "".join(item.texts)
        part = _part(wording, text, item.logprobs)
        more = {"logprobs": item.logprobs} if wording is _TEXT else {}
        said = self._of_part(wording.text_events + ".done", wording, text=text, **more)
        said += self._of_part(wording.part_events + ".done", wording, part=part)
        finished = _item(wording, self._answer_id, index, [part], status)
        said += self._event("response.output_item.done", output_index=index, item=finished)
        self._finished.append(finished)
        self._item = None
        return said

    def _of_part(self, type_: str, wording: _Wording, **fields: Any) -> bytes:
        index = len(self._finished)
        place = {"item_id": f"{wording.prefix}_{self._answer_id}_{index}", "output_index": index}
        return self._event(type_, **place, **{wording.place: 0}, **fields)

    def _call(self, item: Frame) -> bytes:
        said = self._close("completed")
        index = len(self._finished)
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "status": "in_progress", "arguments": ""}
        said += self._event("response.output_item.added", output_index=index, item=begun)
        said += self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        said += self._event(
            "response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"]
        )
        said += self._event("response.output_item.done", output_index=index, item=item)
        self._finished.append(item)
        return said

    def _current(self) -> _OpenItem:
        if self._item is None:
            raise RuntimeError("no item is open")
        return self._item

    # -- the end -------------------------------------------------------------------------------------

    def _finish(self, result: Frame) -> bytes:
        """The rest of what the result says, and that it is over. Rows of the log may be gone by then."""
        output = as_frames(result.get("output"))
        unsaid = self._unsaid(output)
        if unsaid is None or (any(unsaid) and self.is_behind):
            # Told from what is left, the events would have other numbers than those that the reader has.
            return self._apart(LOST, "not_found")
        rest = zip(output[len(self._finished) :], unsaid, strict=True)
        said = [self._retell(item, words) for item, words in rest]
        if self._next < self._after:
            return self._apart(BEYOND, "not_found")
        type_ = f"response.{result.get('status')}"
        return b"".join(said) + self._event(type_, response=result)

    def _unsaid(self, output: list[Frame]) -> list[str] | None:
        """What is still to be told of each item that is not finished; None if they do not fit together."""
        known = len(self._finished)
        if output[:known] != self._finished or (self._item and len(output) == known):
            return None
        unsaid = [_words(item) for item in output[known:]]
        if self._item is not None:
            heard = "".join(self._item.texts)
            is_same = self._item.wording.item == output[known].get("type") and unsaid[0].startswith(heard)
            if not is_same:
                return None
            unsaid[0] = unsaid[0][len(heard) :]
        return unsaid

    def _retell(self, item: Frame, unsaid: str) -> bytes:
        if item.get("type") == "function_call":
            return self._call(item)
        wording = _TEXT if item.get("type") == _TEXT.item else self._wordings["thinking"]
        said = b"" if self._item else self._open(wording)
        if unsaid:
            part = as_frames(item.get(wording.holder))[0]
            logprobs = as_list(part.get("logprobs"))[len(self._current().logprobs) :]
            said += self._say(wording, unsaid, logprobs)
        return said + self._close(as_text(item.get("status")))


def _words(item: Frame) -> str:
    """What an item says; of a call, that it is one."""
    if item.get("type") == "function_call":
        return as_text(item.get("call_id"))
    parts = as_frames(item.get("content")) or as_frames(item.get("summary"))
    return "".join([as_text(part.get("text")) for part in parts])


def _written(event: Frame) -> bytes:
    name: str = event["type"]
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
