"""Ollama: lines of JSON on /api, where models are loaded and unloaded on request."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec

from app.dialects.facts import ModelFacts, readable_count
from app.dialects.kept import FrameKeeper, FrameShapes, FrameTeller
from app.dialects.neutral import Delta, End, Message, Part, Request, ToolCall, data_of, data_uri
from app.dialects.protocol import (
    AnswerReader,
    AnswerWriter,
    Body,
    Fold,
    Loading,
    Question,
    TargetDialect,
    Told,
)
from app.dialects.runner import RunnerOptions, runner_options, unloads
from app.dialects.shapes import (
    Frame,
    GarbledAnswer,
    Kind,
    UntranslatableRequest,
    as_count,
    as_dict,
    as_frames,
    as_list,
    as_text,
    is_legacy_embeddings,
    join,
    nanoseconds,
    without_nulls,
)
from app.dialects.toolcalls import parsed_arguments, read_call, unreadable_call_text
from app.dialects.usage import Usage, from_nanoseconds, tokens

_NO_DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": None,
    "parameter_size": "",
    "quantization_level": "",
}

_SAID = ("thinking", "tool_calls", "images")
_PLAIN = frozenset({"model", "created_at", "message", "response", "done"})
_PLAIN_MESSAGE = frozenset({"role", "content"})
# A prompt without a word, as it stands in a body.
_EMPTY = (b"", b'""', b"null")
_KNOWN = _PLAIN | {"thinking", "tool_calls", "logprobs"}
_KNOWN_MESSAGE = _PLAIN_MESSAGE | {"thinking", "tool_calls"}
_NOT_FIGURES = frozenset({"message", "response", "model", "created_at", "logprobs", *_SAID})
# What every answer has, under names of its own in each dialect; and what only its own target understands.
_TOLD_ELSEWHERE = _NOT_FIGURES | {
    "done",
    "done_reason",
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
    "context",
}


def saying(kind: Kind, model: str, at: datetime, text: str, **more: Any) -> Frame:
    """The beginning of every chat or generate frame."""
    created_at = _written_time(at)
    if kind == "chat":
        message = {"role": "assistant", "content": text, **more}
        return {"model": model, "created_at": created_at, "message": message}
    return {"model": model, "created_at": created_at, "response": text, **more}


def _said(kind: Kind, frame: Frame) -> tuple[Frame, str]:
    """Where a frame says something, and its text."""
    if kind == "chat":
        message = as_dict(frame.get("message"))
        return message, as_text(message.get("content"))
    return frame, as_text(frame.get("response"))


class LineShapes(FrameShapes):
    def timeless(self, frame: Frame) -> Frame:
        return {**frame, "created_at": None}

    def says(self, kind: Kind, frame: Frame) -> str | None:
        said, text = _said(kind, frame)
        if not text or frame.get("logprobs") or any(said.get(name) for name in _SAID):
            return None
        more = said if kind == "chat" else {}
        return text if all(not more[name] for name in more.keys() - _PLAIN_MESSAGE) else None

    def with_text(self, kind: Kind, frame: Frame, text: str) -> Frame:
        if kind == "chat":
            return {**frame, "message": {**frame["message"], "content": text}}
        return {**frame, "response": text}

    def can_wait(self, kind: Kind, frame: Frame) -> bool:
        if frame.get("done") is True:
            return True
        said, text = _said(kind, frame)
        is_plain = without_nulls(frame).keys() <= _PLAIN
        return is_plain and not text and (kind != "chat" or without_nulls(said).keys() <= _PLAIN_MESSAGE)


LINES = LineShapes()


class OllamaReader(AnswerReader):
    def __init__(self, kind: Kind, started_at: datetime) -> None:
        self._kind = kind
        self._final: Frame = {}
        self._extras: Frame = {}

    def note(self, frame: Frame, at: datetime) -> None:
        # The frame that ends the answer carries the figures; embeddings are one frame without `done`.
        self.ended = frame.get("done") is True
        if self.ended or "embeddings" in frame:
            self._final = frame

    def deltas(self, frame: Frame) -> list[Delta]:
        said, text = _said(self._kind, frame)
        delta = Delta(text, as_text(said.get("thinking")), logprobs=frame.get("logprobs"))
        if said.get("tool_calls"):
            delta.calls = [read_call(call) for call in as_list(said["tool_calls"])]
        if not frame.keys() <= _TOLD_ELSEWHERE:
            join(self._extras, {name: frame[name] for name in frame.keys() - _TOLD_ELSEWHERE})
        return [delta]

    def end(self) -> End | None:
        # Whoever asks for the counts gets them as they are, also those that no ledger would believe.
        usage = self.usage()
        usage["prompt_tokens"] = as_count(self._final.get("prompt_eval_count"))
        usage["completion_tokens"] = as_count(self._final.get("eval_count"))
        if not self.ended:
            return None
        return End(as_text(self._final.get("done_reason")), usage, extras=self._extras)

    def usage(self) -> Usage:
        """Ollama measures all of it; any field may be absent and then counts as nothing."""
        final = self._final
        return Usage(
            prompt_tokens=tokens(final.get("prompt_eval_count")),
            completion_tokens=tokens(final.get("eval_count")),
            load_seconds=from_nanoseconds(final.get("load_duration")),
            prefill_seconds=from_nanoseconds(final.get("prompt_eval_duration")),
            decode_seconds=from_nanoseconds(final.get("eval_duration")),
        )


class OllamaWriter(AnswerWriter):
    def __init__(
        self, kind: Kind, model: str, answer_id: str, started_at: datetime, *, include_usage: bool = True
    ) -> None:
        super().__init__(kind, model, answer_id, started_at, include_usage=include_usage)
        self._kept = FrameTeller(kind, LINES)

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
        calls = [_write_call(call, index) for index, call in enumerate(readable)]
        frames = [self.say(unreadable, at)] if unreadable else []
        if calls:
            frames.append({**saying(self._kind, self._model, at, "", tool_calls=calls), "done": False})
        return frames

    def end(self, end: End, at: datetime) -> list[Frame]:
        final = {
            **end.extras,
            **saying(self._kind, self._model, at, ""),
            "done": True,
            # A tool call ends an Ollama answer like any other.
            "done_reason": "stop" if end.reason in {"", "tool_calls", "function_call"} else end.reason,
            "total_duration": nanoseconds((at - self._started_at).total_seconds()),
            "load_duration": 0,
            "prompt_eval_count": end.usage["prompt_tokens"],
            "prompt_eval_duration": nanoseconds(end.usage["prefill_seconds"]),
            "eval_count": end.usage["completion_tokens"],
            "eval_duration": nanoseconds(end.usage["decode_seconds"]),
        }
        return [final]

    def say(self, part: Part, at: datetime) -> Frame:
        if isinstance(part, str):
            frame = saying(self._kind, self._model, at, part)
        else:
            frame = {**saying(self._kind, self._model, at, ""), **part}
        frame["done"] = False
        return frame

    def told(self, part: Part, at: datetime) -> list[Frame]:
        frames = self._kept.frames(part)
        return [self.say(part, at)] if frames is None else self._dated(frames, at)

    def _dated(self, frames: list[Frame], at: datetime) -> list[Frame]:
        created_at = _written_time(at)
        return [{**frame, "created_at": created_at} for frame in frames]

    def foresee(self, result: Mapping[str, Any]) -> None:
        self._model = as_text(result.get("model")) or self._model

    def ending(self, result: Mapping[str, Any], at: datetime) -> list[Frame]:
        if self._kept.ends is not None:
            return self._dated(self._kept.ends, at)
        figures = {name: value for name, value in result.items() if name not in _NOT_FIGURES}
        return [{**saying(self._kind, self._model, at, ""), "done_reason": "stop", **figures, "done": True}]


class OllamaFold(Fold):
    """The final frame with everything said before it put into its message."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Any] = []
        self._logprobs: list[Any] = []
        # What else is said, beside the texts and in the message.
        self._more: Frame = {}
        self._more_said: Frame = {}
        self._final: Frame | None = None

    def say(self, text: str) -> None:
        self._texts.append(text)

    def _add(self, frame: Frame) -> None:
        said, text = _said(self._kind, frame)
        self._texts.append(text)
        self._thoughts.append(as_text(said.get("thinking")))
        self._calls += as_list(said.get("tool_calls"))
        self._logprobs += as_list(frame.get("logprobs"))
        if self._kind == "chat" and not said.keys() <= _KNOWN_MESSAGE:
            join(self._more_said, {name: said[name] for name in said.keys() - _KNOWN_MESSAGE})
        if frame.get("done") is True:
            self._final = frame
        elif not frame.keys() <= _KNOWN:
            join(self._more, {name: frame[name] for name in frame.keys() - _KNOWN})

    def _whole(self) -> Frame | None:
        final = self._final
        if final is None:
            return None
        is_chat = self._kind == "chat"
        said: Frame = {"content" if is_chat else "response": "".join(self._texts)}
        thinking = "".join(self._thoughts)
        if thinking:
            said["thinking"] = thinking
        if self._calls:
            said["tool_calls"] = self._calls
        if is_chat:
            message = {"role": "assistant", **as_dict(final.get("message")), **self._more_said, **said}
            said = {"message": message}
        more = {name: value for name, value in self._more.items() if name not in final}
        return {**final, **more, **said, **({"logprobs": self._logprobs} if self._logprobs else {})}


class OllamaBody(Body, frozen=True, gc=False):
    options: RunnerOptions | None = None
    prompt: msgspec.Raw = msgspec.Raw(b"")

    def says_nothing(self, kind: Kind) -> bool:
        """It only asks to load or unload its model: as `only_loads` has it, without looking at the rest."""
        return not self.messages if kind == "chat" else memoryview(self.prompt) in _EMPTY

    @property
    def runner_options(self) -> RunnerOptions | None:
        return self.options


class Ollama(TargetDialect):
    name = "ollama"
    path_prefix = "/api/"
    paths: ClassVar = {"chat": "/api/chat", "generate": "/api/generate", "embed": "/api/embed"}
    sse = False
    streams_unasked = True
    body_shape = OllamaBody
    inventory_questions = (
        Question("/api/version", needed=False, lasting=True),
        Question("/api/tags"),
        Question("/api/ps", needed=False),
    )
    tells_residents = True
    embeddings_in = ("embeddings", "embedding")
    reader = OllamaReader
    writer = OllamaWriter
    fold = OllamaFold

    def endpoint(self, kind: Kind, body: Mapping[str, Any]) -> str:
        if kind == "embed":
            return "/api/embeddings" if is_legacy_embeddings(body) else "/api/embed"
        return f"/api/{kind}"

    def read_request(self, kind: Kind, body: Frame) -> Request:
        if kind == "embed":
            text = body.get("prompt") if is_legacy_embeddings(body) else body.get("input")
            return Request(model=body.get("model"), input=text, dimensions=body.get("dimensions"))
        wants_logprobs = {"logprobs": True, "top_logprobs": body.get("top_logprobs")}
        request = Request(
            model=body.get("model"),
            options=as_dict(body.get("options")),
            format=body.get("format"),
            think=body.get("think"),
            logprobs=without_nulls(wants_logprobs) if body.get("logprobs") else {},
            stream=body.get("stream") is not False,
        )
        if kind == "chat":
            request.messages = [_read_message(as_dict(each)) for each in as_list(body.get("messages"))]
            request.tools = as_list(body.get("tools"))
        else:
            _read_prompt(body, request)
        return request

    def write_request(self, kind: Kind, request: Request) -> Frame:
        body: Frame = {"model": request.model}
        if kind == "embed":
            return body | _write_input(request)
        if request.messages is None:
            body |= {"prompt": request.prompt, **without_nulls({"suffix": request.suffix})}
        else:
            body |= {"messages": [_write_message(each) for each in request.messages]}
        body |= request.logprobs
        body |= _write_tools(request)
        body |= {"format": request.format} if request.format else {}
        body |= without_nulls({"think": request.think})
        return body | request.extras | {"options": request.options, "stream": request.stream}

    def streaming_request(self, kind: Kind, body: Frame, own_name: str) -> Frame:
        return body if kind == "embed" else {**body, "stream": True}

    def asks_to_stream(self, kind: Kind, asked: Body) -> bool:
        """What there is to say of a model that was loaded or unloaded is one object, asked for or not."""
        if isinstance(asked, OllamaBody) and asked.says_nothing(kind):
            return False
        return super().asks_to_stream(kind, asked)

    def only_loads(self, kind: Kind, body: Mapping[str, Any]) -> Loading | None:
        if kind == "embed" or body.get("messages" if kind == "chat" else "prompt"):
            return None
        return "unload" if "keep_alive" in body and unloads(body["keep_alive"]) else "load"

    def loading_answer(self, kind: Kind, model: str, at: datetime, reason: Loading) -> Frame:
        return {**saying(kind, model, at, ""), "done": True, "done_reason": reason}

    def load_request(self, kind: Kind, body: Mapping[str, Any]) -> Frame:
        """For the job's own endpoint. A `keep_alive` of zero stays behind: alone it would unload."""
        load: Frame = {"model": body.get("model"), **_nothing_to_say(kind, body)}
        options = runner_options(as_dict(body.get("options")))
        if options:
            load["options"] = options
        if body.get("keep_alive") is not None and not unloads(body["keep_alive"]):
            load["keep_alive"] = body["keep_alive"]
        return load

    def part_of(self, kind: Kind, frame: Frame) -> Part | None:
        said, text = _said(kind, frame)
        more = {name: said[name] for name in _SAID if said.get(name)}
        logprobs = {"logprobs": frame["logprobs"]} if frame.get("logprobs") else {}
        if not more and not logprobs:
            return text or None
        if kind == "chat":
            return {"message": {"role": "assistant", "content": text, **more}, **logprobs}
        return {"response": text, **more, **logprobs}

    def keeper(self, kind: Kind) -> FrameKeeper | None:
        return FrameKeeper(kind, LINES)

    def plain_text(self, kind: Kind, frame: Frame) -> str | None:
        if not frame.keys() <= _PLAIN or frame.get("done") is not False:
            return None
        said, name = (frame.get("message"), "content") if kind == "chat" else (frame, "response")
        if not isinstance(said, dict) or (kind == "chat" and not said.keys() <= _PLAIN_MESSAGE):
            return None
        text = said.get(name)
        return text if isinstance(text, str) else None

    def unsaid(self, kind: Kind, result: Frame) -> Part | None:
        if kind == "chat":
            return self.part_of(kind, {"message": {**as_dict(result.get("message")), "content": ""}})
        return self.part_of(kind, {**result, "response": ""})

    def read_embeddings(self, answer: Mapping[str, Any]) -> tuple[list[Any], int]:
        vectors = [answer["embedding"]] if "embedding" in answer else as_list(answer.get("embeddings"))
        return vectors, as_count(answer.get("prompt_eval_count"))

    def write_embeddings(
        self, vectors: list[Any], tokens: int, model: str, total_duration: int, asked: Mapping[str, Any]
    ) -> Frame:
        if is_legacy_embeddings(asked):
            return {"embedding": vectors[0] if vectors else []}
        figures = {"total_duration": total_duration, "load_duration": 0, "prompt_eval_count": tokens}
        return {"model": model, "embeddings": vectors, **figures}

    def error(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> Frame:
        return {"error": message}

    def read_inventory(self, answers: Mapping[str, Frame | None]) -> Told:
        models = as_dict(answers["/api/tags"]).get("models")
        if not isinstance(models, list):
            raise GarbledAnswer("/api/tags answered no list of models")
        running = as_frames(as_dict(answers["/api/ps"]).get("models"))
        version = as_text(as_dict(answers["/api/version"]).get("version"))
        return as_frames(models), running, version or None

    def model_name(self, model: Frame) -> str:
        return as_text(model.get("model")) or as_text(model.get("name"))

    def model_created(self, model: Frame) -> int:
        try:
            return int(datetime.fromisoformat(as_text(model.get("modified_at"))).timestamp())
        except (ValueError, OverflowError):
            return 0

    def model_entry(self, name: str, created: int, own: Frame | None) -> Frame:
        if own is not None:
            return {"details": _NO_DETAILS, "modified_at": _moment(0), **own}
        entry: Frame = {"name": name, "model": name, "modified_at": _moment(created), "size": 0, "digest": ""}
        return entry | {"details": _NO_DETAILS}

    def models_list(self, entries: list[Frame]) -> Frame:
        return {"models": entries}


def shown_model(entry: Frame, facts: ModelFacts) -> Frame:
    """What `/api/show` tells of a model that is only known from a list; `entry` is how it stands in ours.

    Clients look up the architecture, and by its name the length of the context: so it always has one.
    """
    name = facts.architecture or "unknown"
    told = {
        "general.parameter_count": facts.parameter_count,
        "general.organization": facts.owner,
        f"{name}.context_length": facts.context_length,
        f"{name}.embedding_length": facts.embedding_length,
        f"{name}.vocab_size": facts.vocabulary_size,
    }
    info = {key: value for key, value in told.items() if value}
    details = {
        "family": facts.architecture,
        "families": [facts.architecture] if facts.architecture else None,
        "parameter_size": readable_count(facts.parameter_count),
        "quantization_level": facts.quantization,
    }
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": {**entry["details"], **{key: value for key, value in details.items() if value}},
        "model_info": {"general.architecture": name, **info} if info else {},
        "capabilities": list(facts.capabilities) or ["completion"],
        "modified_at": entry["modified_at"],
    }


def _read_message(message: Frame) -> Message:
    return Message(
        as_text(message.get("role")) or "user",
        message.get("content"),
        images=[data_uri(image) for image in as_list(message.get("images"))],
        thinking=message.get("thinking"),
        calls=[read_call(call) for call in as_list(message.get("tool_calls"))],
        call_id=as_text(message.get("tool_call_id")),
        tool_name=as_text(message.get("tool_name")) or as_text(message.get("name")),
    )


def _read_prompt(body: Frame, request: Request) -> None:
    """Ollama puts the prompt through the chat template, so this is a chat unless it is `raw` or infilling."""
    for field in ("template", "context"):
        if body.get(field):
            raise UntranslatableRequest(f"{field} is not supported by this target")
    prompt = as_text(body.get("prompt"))
    images = as_list(body.get("images"))
    if body.get("raw") or body.get("suffix"):
        if images:
            raise UntranslatableRequest("images cannot be combined with raw or suffix on this target")
        request.prompt, request.suffix = prompt, body.get("suffix") or None
        return
    system = [Message("system", body["system"])] if body.get("system") else []
    request.messages = [*system, Message("user", prompt, [data_uri(image) for image in images])]


def _write_message(message: Message) -> Frame:
    body: Frame = {"role": message.role, "content": message.content or ""}
    if message.images:
        body["images"] = [data_of(url) for url in message.images]
    if message.thinking:
        body["thinking"] = message.thinking
    if message.calls:
        body["tool_calls"] = [_write_call(call) for call in message.calls]
    if message.role == "tool":
        body |= {"tool_name": message.tool_name} if message.tool_name else {}
        body |= {"tool_call_id": message.call_id} if message.call_id else {}
    return body


def _write_tools(request: Request) -> Frame:
    """Ollama's models decide for themselves whether they call a tool, and how many."""
    if not request.tools or request.tool_choice == "none":
        return {}
    if request.tool_choice not in (None, "auto"):
        raise UntranslatableRequest("tool_choice: this target cannot be made to call a tool", "tool_choice")
    if request.parallel_tool_calls is False:
        raise UntranslatableRequest(
            # In the words of either of its callers.
            "parallel_tool_calls (disable_parallel_tool_use): this target cannot be kept from calling "
            "several tools",
            "parallel_tool_calls",
        )
    return {"tools": request.tools}


def _write_input(request: Request) -> Frame:
    text = request.input
    if not isinstance(text, str) and not (isinstance(text, list) and all(isinstance(t, str) for t in text)):
        raise UntranslatableRequest("invalid input: this target embeds a text or a list of texts")
    return {"input": text, **without_nulls({"dimensions": request.dimensions}), **request.extras}


def _nothing_to_say(kind: Kind, body: Mapping[str, Any]) -> Frame:
    match kind:
        case "chat":
            return {"messages": [], "stream": False}
        case "generate":
            return {"prompt": "", "stream": False}
        case "embed":
            return {"prompt": ""} if is_legacy_embeddings(body) else {"input": []}


def _write_call(call: ToolCall, index: int | None = None) -> Frame:
    """Arguments that cannot be read are the caller's mistake."""
    arguments = parsed_arguments(call.arguments)
    if arguments is None:
        raise UntranslatableRequest("invalid tool call arguments")
    function: Frame = {} if index is None else {"index": index}
    function |= {"name": call.name, "arguments": arguments}
    return {"id": call.id, "function": function} if call.id else {"function": function}


def _written_time(at: datetime) -> str:
    """RFC 3339 in UTC with a Z, as Go writes it."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _moment(seconds: int) -> str:
    return _written_time(datetime.fromtimestamp(seconds, UTC))
