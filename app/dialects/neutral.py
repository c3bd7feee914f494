"""What every dialect can be read into and written from: a request, and the pieces of an answer.

Only what more than one dialect has words for stands here. Where a dialect has the widest vocabulary (Ollama's
`options`, its `format` and `think`), its words are taken.
"""

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.dialects.shapes import Frame, UntranslatableRequest
from app.dialects.usage import Usage


@dataclass(slots=True)
class ToolCall:
    # Empty where the dialect does without.
    id: str
    name: str
    # An object, or the text of one; see toolcalls.py for either way.
    arguments: Any


@dataclass(slots=True)
class Message:
    role: str
    content: Any
    # URLs; pictures that came along are data URIs.
    images: list[str] = field(default_factory=list)
    thinking: Any = None
    calls: list[ToolCall] = field(default_factory=list)
    # Of a tool's result: which call it answers, by id or by the name of the tool.
    call_id: str = ""
    tool_name: str = ""


@dataclass(slots=True, kw_only=True)
class Request:
    """A chat has messages, a completion a prompt, embeddings an input."""

    model: Any
    messages: list[Message] | None = None
    prompt: str = ""
    suffix: str | None = None
    input: Any = None
    dimensions: Any = None
    # As functions with a JSON schema, in the form that all dialects so far share.
    tools: list[Any] = field(default_factory=list)
    # "auto", "none", "required" or {"name": …}; None where the caller did not say.
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    # Sampling, limits and the runner's own, under the names that Ollama and llama.cpp give them.
    options: dict[str, Any] = field(default_factory=dict)
    # "json", or the schema that the answer must have; and what else is said of the schema: `name`, `strict` …
    format: Any = None
    format_details: Frame = field(default_factory=dict)
    # Yes, no, or how much.
    think: bool | str | None = None
    # {"logprobs": True, "top_logprobs": n} where asked for.
    logprobs: Frame = field(default_factory=dict)
    stream: bool = False
    # Words of one server only, from callers who know what is behind: `keep_alive` and the like.
    extras: Frame = field(default_factory=dict)


class Delta(msgspec.Struct, gc=False):
    """What a model has just said. Tool calls are whole."""

    text: str = ""
    thinking: str = ""
    calls: list[ToolCall] = []
    logprobs: Any = None


class End(msgspec.Struct, gc=False):
    """How the answer ended, what it cost, and the calls that were whole only then."""

    reason: str
    usage: Usage
    calls: list[ToolCall] = []
    # What else the source said of the answer as a whole, under its own names.
    extras: Frame = {}
    # How many of the tokens read came from the source's cache, and how many of those written were thoughts.
    cached_tokens: int = 0
    reasoning_tokens: int = 0


# Output as a job's log keeps it. Plain text is a string, whatever the dialect: that is nearly all of nearly
# every answer. Of a target that speaks as the job's caller does, everything else is kept as it came (see
# kept.py). What was translated is kept without its envelope, and without its beginning (a role) and its end
# (reasons, counts): the result has them.
Part = str | Frame

# The first characters of a picture's base64 give away what it is.
_SIGNATURES = {"/9j/": "jpeg", "iVBORw0KGgo": "png", "R0lGOD": "gif", "UklGR": "webp"}


def data_uri(image: Any) -> str:
    """A bare base64 picture as a data URI."""
    if not isinstance(image, str):
        raise UntranslatableRequest("invalid image input")
    if image.startswith("data:"):
        return image
    kind = next((name for prefix, name in _SIGNATURES.items() if image.startswith(prefix)), "png")
    return f"data:image/{kind};base64,{image}"


def data_of(url: str) -> str:
    """The base64 out of a data URI; a link cannot be passed on to servers that fetch nothing."""
    header, comma, data = url.partition(",")
    if not comma or not header.startswith("data:") or not header.endswith(";base64"):
        raise UntranslatableRequest("invalid image input: only base64 data URIs are supported by this target")
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise UntranslatableRequest("invalid image input: not base64") from None
    return data
