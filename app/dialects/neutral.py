"""What every dialect can be read into and written from: a request, and the pieces of an answer.

Only what more than one dialect has words for stands here. Where a dialect has the widest vocabulary (Ollama's
`options`, its `format` and `think`), its words are taken.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.dialects.shapes import Frame


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
    # Sampling, limits and the runner's own, under the names that Ollama and llama.cpp give them.
    options: dict[str, Any] = field(default_factory=dict)
    # "json", or the schema that the answer must have.
    format: Any = None
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
    """How the answer ended, and what it cost."""

    reason: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


Piece = Delta | End


class Embeddings(msgspec.Struct):
    vectors: list[Any]
    tokens: int


# Output as a job's log keeps it. Plain text is a string, whatever the dialect: that is nearly all of nearly
# every answer. What is more than text stays the frame it came in, without its envelope. The beginning (a
# role) and the end (reasons, counts) are not kept: the result has them.
Part = str | Frame
