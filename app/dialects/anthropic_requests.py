"""What callers of Anthropic's messages may say, and what it means in neutral words.

The shapes are the list of what is taken: anything else is refused by its name, because a parameter that is
ignored misleads whoever set it. What is taken and changes nothing here is marked as harmless.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from app.dialects.neutral import Message, Request, ToolCall
from app.dialects.shapes import Frame, UntranslatableRequest, without_nulls

# Caches are the target's own business. Harmless: it may say what it wants.
CacheControl = dict[str, Any]
NonEmpty = Annotated[str, Meta(min_length=1)]
# As many as any server counts.
TokenLimit = Annotated[int, Meta(ge=1, le=2**31 - 1)]

_THINKS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_PLACE = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<where>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_SHOWN = 200


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Whatever it does not name is refused."""


class _Block(_Strict, frozen=True, kw_only=True, tag_field="type"):
    cache_control: CacheControl | None = None


class TextBlock(_Block, frozen=True, kw_only=True, tag="text"):
    text: str
    # Harmless: of an answer that is sent back.
    citations: list[dict[str, Any]] | None = None


class Base64Image(_Strict, frozen=True, kw_only=True, tag_field="type", tag="base64"):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str

    @property
    def address(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


class ImageUrl(_Strict, frozen=True, kw_only=True, tag_field="type", tag="url"):
    url: NonEmpty

    @property
    def address(self) -> str:
        return self.url


class ImageBlock(_Block, frozen=True, kw_only=True, tag="image"):
    source: Base64Image | ImageUrl


class PlainText(_Strict, frozen=True, kw_only=True, tag_field="type", tag="text"):
    data: str
    media_type: Literal["text/plain"] = "text/plain"


class NoCitations(_Strict, frozen=True, kw_only=True):
    enabled: Literal[False] | None = None


class DocumentBlock(_Block, frozen=True, kw_only=True, tag="document"):
    """Only of plain text: no target reads anything else."""

    source: PlainText
    title: str | None = None
    context: str | None = None
    citations: NoCitations | None = None

    @property
    def text(self) -> str:
        return "\n".join([each for each in (self.title, self.context, self.source.data) if each])


class DirectCaller(_Strict, frozen=True, kw_only=True, tag_field="type", tag="direct"):
    """Harmless: who calls tools here is always the model itself."""


class ToolUseBlock(_Block, frozen=True, kw_only=True, tag="tool_use"):
    id: NonEmpty
    name: NonEmpty
    input: dict[str, Any]
    caller: DirectCaller | None = None


class ToolResultBlock(_Block, frozen=True, kw_only=True, tag="tool_result"):
    tool_use_id: NonEmpty
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(_Block, frozen=True, kw_only=True, tag="thinking"):
    thinking: str
    # Harmless: nothing is signed here, and nothing looked up.
    signature: str | None = None


class RedactedThinkingBlock(_Block, frozen=True, kw_only=True, tag="redacted_thinking"):
    """Harmless: nobody but who wrote it can read it, and so it is left out."""

    data: str


class UserMessage(_Strict, frozen=True, kw_only=True, tag_field="role", tag="user"):
    content: (
        NonEmpty
        | Annotated[list[TextBlock | ImageBlock | DocumentBlock | ToolResultBlock], Meta(min_length=1)]
    )


class AssistantMessage(_Strict, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    content: str | list[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock]


class SystemMessage(_Strict, frozen=True, kw_only=True, tag_field="role", tag="system"):
    content: str | list[TextBlock]


class Tool(_Strict, frozen=True, kw_only=True):
    name: NonEmpty
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    # Harmless: input comes whole.
    eager_input_streaming: bool | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None


class _Choice(_Strict, frozen=True, kw_only=True, tag_field="type"):
    disable_parallel_tool_use: bool | None = None


class AutoChoice(_Choice, frozen=True, kw_only=True, tag="auto"):
    pass


class AnyChoice(_Choice, frozen=True, kw_only=True, tag="any"):
    pass


class ToolChoice(_Choice, frozen=True, kw_only=True, tag="tool"):
    name: NonEmpty


class NoneChoice(_Choice, frozen=True, kw_only=True, tag="none"):
    pass


class _Thinking(_Strict, frozen=True, kw_only=True, tag_field="type"):
    display: Literal["summarized", "omitted"] | None = None


class ThinkingEnabled(_Thinking, frozen=True, kw_only=True, tag="enabled"):
    # Harmless: no target keeps to one, and `max_tokens` bounds it all.
    budget_tokens: TokenLimit


class ThinkingAdaptive(_Thinking, frozen=True, kw_only=True, tag="adaptive"):
    pass


class ThinkingDisabled(_Thinking, frozen=True, kw_only=True, tag="disabled"):
    pass


class JsonFormat(_Strict, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    schema: dict[str, Any]


class OutputConfig(_Strict, frozen=True, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class Metadata(_Strict, frozen=True, kw_only=True):
    # Harmless: who calls is known by the key.
    user_id: str | None = None


class CountTokensRequest(_Strict, frozen=True, kw_only=True):
    """What a model is given to read."""

    model: str
    messages: Annotated[list[UserMessage | AssistantMessage | SystemMessage], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    # Each is a Tool. Looked at one by one, so that a server's own tool is refused by its name.
    tools: list[dict[str, Any]] | None = None
    tool_choice: AutoChoice | AnyChoice | ToolChoice | NoneChoice | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    # How clients of the beta say `output_config.format`.
    output_format: JsonFormat | None = None
    cache_control: CacheControl | None = None
    # Harmless: there is no other.
    speed: Literal["standard"] | None = None


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True):
    max_tokens: TokenLimit
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    # Harmless: there is one tier.
    service_tier: Literal["auto", "standard_only"] | None = None


def told(problem: msgspec.ValidationError) -> str:
    """What is wrong, behind the name of the parameter."""
    found = _PLACE.fullmatch(str(problem))
    what, where = (found["what"], found["where"] or "") if found else (str(problem), "")
    for pattern, words in ((_UNKNOWN, "not supported here"), (_MISSING, "required")):
        named = pattern.fullmatch(what)
        if named is not None:
            place = f"{where}.{named[1]}" if where else named[1]
            return f"{place[:_SHOWN]}: {words}"
    return f"{where}: {what}"[:_SHOWN] if where else what[:_SHOWN]


def neutral_request(asked: CountTokensRequest) -> Request:
    """Raises UntranslatableRequest, with a message that names the parameter."""
    tools = _tools(asked.tools or ())
    names: dict[str, str] = {}
    system = [Message("system", _joined(asked.system))] if asked.system else []
    spoken = [each for position, m in enumerate(asked.messages) for each in _read(m, names, position)]
    request = Request(
        model=asked.model,
        messages=[*system, *spoken],
        tools=tools,
        think=_think(asked),
        format=_format(asked),
    )
    _choose(request, asked)
    if isinstance(asked, MessagesRequest):
        request.options = _options(asked)
        request.stream = asked.stream is True
    return request


def omits_thinking(thinking: Any) -> bool:
    """Whether a caller wants to know that there was a thought, but not which."""
    return isinstance(thinking, dict) and thinking.get("display") == "omitted"


def _joined(content: str | Iterable[TextBlock | DocumentBlock]) -> str:
    return content if isinstance(content, str) else "\n".join([block.text for block in content])


def _read(
    message: UserMessage | AssistantMessage | SystemMessage, names: dict[str, str], position: int
) -> list[Message]:
    match message:
        case UserMessage(content=str(text)):
            return [Message("user", text)]
        case UserMessage():
            return _read_user(message, names, position)
        case AssistantMessage():
            return [_read_assistant(message, names)]
        case SystemMessage():
            return [Message("system", _joined(message.content))]


def _read_user(message: UserMessage, names: dict[str, str], position: int) -> list[Message]:
    """Results of tools are messages of their own, before and behind what else is said."""
    messages: list[Message] = []
    said: list[TextBlock | ImageBlock | DocumentBlock] = []
    for index, block in enumerate(message.content):
        match block:
            case ToolResultBlock():
                if block.tool_use_id not in names:
                    place = f"messages[{position}].content[{index}].tool_use_id"
                    unknown = f"{place}: no tool_use before it has this id"
                    raise UntranslatableRequest(unknown, place)
                messages += [*_user(said), _read_result(block, names)]
                said = []
            case TextBlock() | ImageBlock() | DocumentBlock():
                said.append(block)
    return [*messages, *_user(said)]


def _user(said: Sequence[TextBlock | ImageBlock | DocumentBlock]) -> list[Message]:
    return [Message("user", *_texts_and_images(said))] if said else []


def _texts_and_images(blocks: Sequence[TextBlock | ImageBlock | DocumentBlock]) -> tuple[str, list[str]]:
    text = _joined(each for each in blocks if not isinstance(each, ImageBlock))
    return text, [each.source.address for each in blocks if isinstance(each, ImageBlock)]


def _read_result(block: ToolResultBlock, names: dict[str, str]) -> Message:
    content = block.content or ""
    text, images = (content, []) if isinstance(content, str) else _texts_and_images(content)
    if block.is_error:
        # No other dialect has a word for it, and the model has to know.
        text = f"Error: {text}"
    return Message("tool", text, images, call_id=block.tool_use_id, tool_name=names[block.tool_use_id])


def _read_assistant(message: AssistantMessage, names: dict[str, str]) -> Message:
    if isinstance(message.content, str):
        return Message("assistant", message.content)
    calls = [
        ToolCall(each.id, each.name, each.input) for each in message.content if isinstance(each, ToolUseBlock)
    ]
    names.update({call.id: call.name for call in calls})
    texts = [each for each in message.content if isinstance(each, TextBlock)]
    thoughts = [each.thinking for each in message.content if isinstance(each, ThinkingBlock)]
    return Message("assistant", _joined(texts), thinking="\n".join(thoughts) or None, calls=calls)


def _tools(given: Sequence[Frame]) -> list[Frame]:
    return [_tool(tool, f"tools[{index}]") for index, tool in enumerate(given)]


def _tool(given: Frame, place: str) -> Frame:
    kind = given.get("type")
    if kind not in (None, "custom"):
        raise UntranslatableRequest(
            f"{place}.type: {str(kind)[:_SHOWN]!r} is a tool of Anthropic's own, which no target here has",
            f"{place}.type",
        )
    try:
        tool = msgspec.convert(given, Tool)
    except msgspec.ValidationError as problem:
        raise UntranslatableRequest(f"{place}.{told(problem)}", place) from problem
    described = {"description": tool.description, "parameters": tool.input_schema, "strict": tool.strict}
    return {"type": "function", "function": {"name": tool.name, **without_nulls(described)}}


def _choose(request: Request, asked: CountTokensRequest) -> None:
    choice = asked.tool_choice
    if choice is None:
        return
    if not request.tools:
        raise UntranslatableRequest("tool_choice: there are no tools to choose from", "tool_choice")
    request.parallel_tool_calls = False if choice.disable_parallel_tool_use else None
    match choice:
        case AutoChoice():
            request.tool_choice = "auto"
        case AnyChoice():
            request.tool_choice = "required"
        case NoneChoice():
            request.tool_choice = "none"
        case ToolChoice():
            if all(tool["function"]["name"] != choice.name for tool in request.tools):
                raise UntranslatableRequest("tool_choice.name: there is no such tool", "tool_choice.name")
            request.tool_choice = {"name": choice.name}


def _think(asked: CountTokensRequest) -> bool | str | None:
    """Unless it says otherwise, the model thinks as it is used to: so it is with Anthropic's, too."""
    if isinstance(asked.thinking, ThinkingDisabled):
        return False
    if asked.output_config is not None and asked.output_config.effort is not None:
        return _THINKS[asked.output_config.effort]
    return True if isinstance(asked.thinking, ThinkingEnabled) else None


def _format(asked: CountTokensRequest) -> Frame | None:
    wanted = (asked.output_config and asked.output_config.format) or asked.output_format
    return wanted.schema if wanted else None


def _options(asked: MessagesRequest) -> Frame:
    """What is not said stays the model's own: its server knows best."""
    return without_nulls(
        {
            "num_predict": asked.max_tokens,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "top_k": asked.top_k,
            "stop": asked.stop_sequences or None,
        }
    )
