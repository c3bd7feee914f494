"""Requests for responses: what may stand in one, and what it asks for in neutral words.

Each parameter is honoured, harmless and echoed, or refused by its name. Sampling words that OpenAI's API does
not have, but the targets, may stand beside the others (`extra_body` of its clients).
"""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from app.dialects.neutral import Message, Request, ToolCall
from app.dialects.openai import EFFORT_TO_THINK, LLAMA_OPTIONS
from app.dialects.protocol import Body
from app.dialects.shapes import Frame, UntranslatableRequest, as_dict, as_frames, as_text, without_nulls

Shape = TypeVar("Shape")

LOGPROBS = "message.output_text.logprobs"
# Images are always shown, and the text of a reasoning item stands in it: it can be handed back as it is.
INCLUDABLE = frozenset({LOGPROBS, "message.input_image.image_url", "reasoning.encrypted_content"})
# What OpenAI has and nobody here can do.
_UNSUPPORTED = (
    "access_programs",
    "context_management",
    "conversation",
    "image",
    "moderation",
    "prompt",
    "prompt_cache_options",
)
# Sampling, under the names that Ollama, llama.cpp and OpenAI's older surfaces share.
_SAMPLING = ("seed", "stop", "frequency_penalty", "presence_penalty", *LLAMA_OPTIONS)
# What OpenAI documents as its defaults, also for targets that have others.
DEFAULT_TEMPERATURE = DEFAULT_TOP_P = 1.0
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TOOL_FIELDS = frozenset({"type", "name", "description", "parameters", "strict"})
_PATH = re.compile(r"at `\$\.?([^`]*)`")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


class RefusedRequest(UntranslatableRequest):
    """With the code that OpenAI has for it."""

    def __init__(self, message: str, param: str | None, code: str = "invalid_value") -> None:
        super().__init__(message, param)
        self.code = code


def _unsupported(param: str, what: str = "") -> RefusedRequest:
    words = f"{what} is not supported here" if what else "is not supported here"
    return RefusedRequest(f"{param}: {words}", param, "unsupported_parameter")


class TextConfig(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    format: Frame | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    # Its older name.
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    # There is nothing to be obfuscated from whoever runs the server.
    include_obfuscation: bool | None = None


_NoNul = r"^[^\x00]*\Z"
ResponseMetadata = Annotated[
    dict[
        Annotated[str, Meta(min_length=1, max_length=64, pattern=_NoNul)],
        Annotated[str, Meta(max_length=512, pattern=_NoNul)],
    ],
    Meta(max_length=16),
]


class ResponsesBody(Body, frozen=True, gc=False, forbid_unknown_fields=True):
    input: str | list[Frame] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    store: bool | None = None
    # Not what `Body` has under that name.
    stream_options: ResponseStreamOptions | None = None  # type: ignore[assignment]
    metadata: ResponseMetadata | None = None
    include: list[str] | None = None
    tools: list[Frame] | None = None
    tool_choice: str | Frame | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    # Refused unless they are null.
    access_programs: Any = None
    context_management: Any = None
    conversation: Any = None
    image: Any = None
    moderation: Any = None
    prompt: Any = None
    prompt_cache_options: Any = None
    # The targets' own words.
    options: Frame | None = None
    keep_alive: Any = None
    seed: Any = None
    stop: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    top_k: Any = None
    min_p: Any = None
    typical_p: Any = None
    repeat_penalty: Any = None
    repeat_last_n: Any = None
    mirostat: Any = None
    mirostat_tau: Any = None
    mirostat_eta: Any = None

    @property
    def wants_usage(self) -> bool:
        return True

    @property
    def is_stored(self) -> bool:
        return self.store is not False


def refusal_of(problem: msgspec.ValidationError) -> RefusedRequest:
    """What is wrong with the shape of a body, by the name of the parameter."""
    words = str(problem)
    found = _PATH.search(words)
    # Which of the values of an object it is about, the words do not say.
    param = found[1].removesuffix("[...]") if found else None
    unknown = _UNKNOWN.search(words)
    if unknown is not None:
        name = f"{param}.{unknown[1]}" if param else unknown[1]
        return RefusedRequest(f"Unknown parameter: '{name}'.", name, "unknown_parameter")
    message = words.partition(" - at ")[0]
    code = "invalid_type" if ", got " in message else "invalid_value"
    return RefusedRequest(f"{param}: {message}" if param else message, param, code)


def converted(body: Frame) -> ResponsesBody:
    try:
        return msgspec.convert(body, ResponsesBody)
    except msgspec.ValidationError as problem:
        raise refusal_of(problem) from problem


def read(asked: ResponsesBody) -> Request:
    """Raises RefusedRequest."""
    _check_words(asked)
    request = Request(model=asked.model, stream=asked.stream is True)
    request.messages = _messages(asked)
    request.options = _options(asked)
    request.extras = without_nulls({"keep_alive": asked.keep_alive})
    request.tools, request.tool_choice = _tools(asked)
    request.parallel_tool_calls = asked.parallel_tool_calls
    request.format, request.format_details = _format(asked.text)
    if asked.reasoning is not None and asked.reasoning.effort is not None:
        request.think = EFFORT_TO_THINK[asked.reasoning.effort]
    if LOGPROBS in (asked.include or ()) or asked.top_logprobs:
        request.logprobs = {"logprobs": True, **without_nulls({"top_logprobs": asked.top_logprobs})}
    return request


def _check_words(asked: ResponsesBody) -> None:
    if asked.messages is not None:
        raise RefusedRequest(
            "Unknown parameter: 'messages'. A response takes them as 'input'.",
            "messages",
            "unknown_parameter",
        )
    for name in _UNSUPPORTED:
        if getattr(asked, name) is not None:
            raise _unsupported(name)
    if asked.truncation == "auto":
        raise _unsupported("truncation", "'auto'")
    if asked.service_tier not in (None, "auto", "default"):
        raise _unsupported("service_tier", f"'{asked.service_tier}'")
    if asked.text is not None and asked.text.verbosity not in (None, "medium"):
        raise _unsupported("text.verbosity", f"'{asked.text.verbosity}'")
    check_include(asked.include or ())
    if asked.background and not asked.is_stored:
        raise RefusedRequest("background: a response in the background has to be stored", "store")
    if asked.input is None and asked.previous_response_id is None:
        raise RefusedRequest("Missing required parameter: 'input'.", "input", "missing_required_parameter")
    if asked.input == [] and asked.previous_response_id is None:
        raise RefusedRequest("input: there must be at least one item", "input")


def check_include(include: Iterable[str]) -> None:
    for index, name in enumerate(include):
        if name not in INCLUDABLE:
            raise RefusedRequest(
                f"include[{index}]: '{name[:100]}' is not supported here", f"include[{index}]"
            )


# -- what is said ------------------------------------------------------------------------------------


def _messages(asked: ResponsesBody) -> list[Message]:
    conversation = _Conversation()
    if asked.instructions:
        conversation.messages.append(Message("system", asked.instructions))
    for index, item in enumerate(items_of(asked.input)):
        conversation.add(item, f"input[{index}]")
    return conversation.messages


def items_of(given: str | list[Frame] | None) -> list[Frame]:
    """A text is short for one message."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given or []


class _Conversation:
    """From items to messages: what an assistant thought, said and called in one go is one message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._thoughts: list[str] = []
        self._names: dict[str, str] = {}
        # The last message is an assistant's, and may still get calls.
        self._is_speaking = False

    def add(self, item: Frame, where: str) -> None:
        match item.get("type", "message"):
            case "message":
                self._message(item, where)
            case "function_call":
                self._call(item, where)
            case "function_call_output":
                self._output(item, where)
            case "reasoning":
                texts = as_frames(item.get("content")) or as_frames(item.get("summary"))
                self._thoughts += [as_text(each.get("text")) for each in texts]
            case other:
                raise RefusedRequest(
                    f"{where}: items of type {_shown(other)} are not supported here", f"{where}.type"
                )

    def _message(self, item: Frame, where: str) -> None:
        role = _ROLES.get(as_text(item.get("role")))
        if role is None:
            raise RefusedRequest(f"{where}.role: must be one of {', '.join(_ROLES)}", f"{where}.role")
        text, images = _content(item.get("content"), f"{where}.content")
        self._is_speaking = role == "assistant"
        thinking = self._thinking()
        self.messages.append(Message(role, text, images, thinking if self._is_speaking else None))

    def _call(self, item: Frame, where: str) -> None:
        for name in ("name", "call_id", "arguments"):
            _text(item.get(name), f"{where}.{name}")
        call = ToolCall(item["call_id"], item["name"], item["arguments"])
        self._names[call.id] = call.name
        if not self._is_speaking or self._thoughts:
            self.messages.append(Message("assistant", "", thinking=self._thinking()))
            self._is_speaking = True
        self.messages[-1].calls.append(call)

    def _output(self, item: Frame, where: str) -> None:
        call_id = _text(item.get("call_id"), f"{where}.call_id")
        text, images = _content(item.get("output"), f"{where}.output")
        self._is_speaking = False
        name = as_text(item.get("name")) or self._names.get(call_id, "")
        self.messages.append(Message("tool", text, images, call_id=call_id, tool_name=name))

    def _thinking(self) -> str | None:
        thought, self._thoughts = "\n".join(filter(None, self._thoughts)), []
        return thought or None


def _content(content: Any, where: str) -> tuple[str, list[str]]:
    if isinstance(content, str):
        return content, []
    if not isinstance(content, list):
        raise RefusedRequest(f"{where}: must be a text or a list of parts", where, "invalid_type")
    texts: list[str] = []
    images: list[str] = []
    for index, each in enumerate(content):
        part, place = as_dict(each), f"{where}[{index}]"
        match part.get("type"):
            case "input_text" | "output_text" | "text":
                texts.append(_text(part.get("text"), f"{place}.text"))
            case "refusal":
                texts.append(_text(part.get("refusal"), f"{place}.refusal"))
            case "input_image":
                if part.get("file_id") is not None:
                    raise _unsupported(f"{place}.file_id")
                images.append(_text(part.get("image_url"), f"{place}.image_url"))
            case other:
                raise RefusedRequest(
                    f"{place}: content of type {_shown(other)} is not supported here", f"{place}.type"
                )
    return "\n".join(texts), images


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise RefusedRequest(f"{where}: must be a text", where, "invalid_type")
    return value


def _shown(value: Any) -> str:
    return f"'{value[:100]}'" if isinstance(value, str) else "that is no text"


# -- how it is to be said ----------------------------------------------------------------------------


def _options(asked: ResponsesBody) -> Frame:
    own = without_nulls({name: getattr(asked, name) for name in _SAMPLING})
    if isinstance(own.get("stop"), str):
        own["stop"] = [own["stop"]]
    limits = {"temperature": asked.temperature, "top_p": asked.top_p, "num_predict": asked.max_output_tokens}
    defaults = {"temperature": DEFAULT_TEMPERATURE, "top_p": DEFAULT_TOP_P}
    return {**defaults, **without_nulls(asked.options or {}), **own, **without_nulls(limits)}


def _format(text: TextConfig | None) -> tuple[Any, Frame]:
    """What the answer must be, and what else is said of that."""
    given = as_dict(text.format if text else None)
    match given.get("type", "text"):
        case "text":
            return None, {}
        case "json_object":
            return "json", {}
        case "json_schema":
            if not isinstance(given.get("schema"), dict):
                raise RefusedRequest("text.format.schema: must be an object", "text.format.schema")
            name = _text(given.get("name"), "text.format.name")
            more = {each: given.get(each) for each in ("description", "strict")}
            return given["schema"], {"name": name, **without_nulls(more)}
        case other:
            raise RefusedRequest(
                f"text.format.type: {_shown(other)} is not supported here", "text.format.type"
            )


def _tools(asked: ResponsesBody) -> tuple[list[Any], Any]:
    tools = {}
    for index, tool in enumerate(asked.tools or ()):
        function = _function(tool, f"tools[{index}]")
        tools[function["name"]] = {"type": "function", "function": function}
    choice = asked.tool_choice
    if not isinstance(choice, dict):
        if choice not in (None, "auto", "none", "required"):
            raise RefusedRequest(f"tool_choice: {_shown(choice)} is not one of its values", "tool_choice")
        return list(tools.values()), choice
    if choice.get("type") == "function":
        return list(tools.values()), {"name": _known(choice.get("name"), tools, "tool_choice.name")}
    if choice.get("type") != "allowed_tools":
        raise RefusedRequest(
            f"tool_choice.type: {_shown(choice.get('type'))} is not supported here", "tool_choice.type"
        )
    if choice.get("mode") not in ("auto", "required"):
        raise RefusedRequest("tool_choice.mode: must be auto or required", "tool_choice.mode")
    allowed = [
        tools[_known(each.get("name"), tools, f"tool_choice.tools[{index}].name")]
        for index, each in enumerate(as_frames(choice.get("tools")))
    ]
    return allowed, choice["mode"]


def _function(tool: Frame, where: str) -> Frame:
    if tool.get("type") != "function":
        raise RefusedRequest(
            f"{where}.type: tools of type {_shown(tool.get('type'))} are not supported here, only functions",
            f"{where}.type",
        )
    for name, value in tool.items():
        if name not in _TOOL_FIELDS and value not in (None, False):
            raise _unsupported(f"{where}.{name}")
    name = _text(tool.get("name"), f"{where}.name")
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise RefusedRequest(f"{where}.parameters: must be an object", f"{where}.parameters", "invalid_type")
    more = {"description": tool.get("description"), "strict": tool.get("strict")}
    nothing = {"type": "object", "properties": {}}
    return {"name": name, "parameters": parameters or nothing, **without_nulls(more)}


def _known(name: Any, tools: Frame, where: str) -> str:
    if not isinstance(name, str) or name not in tools:
        raise RefusedRequest(f"{where}: there is no such tool among 'tools'", where)
    return name
