"""What the fake says: deterministic, and a valid instance of whatever form was asked for."""

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.config import Config


@dataclass
class Ask:
    """A request, of either surface, boiled down to what decides the answer."""

    said: str
    last_role: str = "user"
    prompt_tokens: int = 0
    tools: list[Any] = field(default_factory=list)
    form: Any = None
    think: bool = False
    images: int = 0
    limit: int | None = None
    stop: list[str] = field(default_factory=list)


@dataclass
class Answer:
    thinking: list[str]
    content: list[str]
    calls: list[dict[str, Any]]
    reason: str
    prompt_tokens: int

    @property
    def tokens(self) -> int:
        return len(self.thinking) + len(self.content) + sum(3 for _ in self.calls)


def compose(ask: Ask, config: Config) -> Answer:
    thinking = words(config.thinking) if ask.think else []
    calls = _calls(ask)
    text = "" if calls else _text(ask, config)
    for stop in ask.stop:
        text = text.partition(stop)[0] if stop else text
    # JSON is cut into pieces that are no words, so that nobody relies on whole ones.
    content = _slices(text) if ask.form else words(text)
    limited = ask.limit is not None and 0 < ask.limit < len(content)
    return Answer(
        thinking=thinking,
        content=content[: ask.limit] if limited else content,
        calls=calls,
        reason="length" if limited else "stop",
        prompt_tokens=ask.prompt_tokens,
    )


def words(text: str) -> list[str]:
    """Tokens, more or less: each word with the space before it."""
    return re.findall(r"\s*\S+|\s+$", text)


def _slices(text: str) -> list[str]:
    return [text[at : at + 3] for at in range(0, len(text), 3)]


def _text(ask: Ask, config: Config) -> str:
    if isinstance(ask.form, dict):
        return json.dumps(instance(ask.form))
    if ask.form:
        return json.dumps({"answer": ask.said})
    if config.reply is not None:
        return config.reply
    if config.reply_tokens is not None:
        return " ".join(f"word{number}" for number in range(config.reply_tokens))
    if ask.last_role == "tool":
        return f"The tool says: {ask.said}"
    seen = f" I see {ask.images} image{'s' if ask.images > 1 else ''}." if ask.images else ""
    return f"You said: {ask.said}{seen}"


def _calls(ask: Ask) -> list[dict[str, Any]]:
    """Every tool that the last message names is called; "use a tool" calls the first."""
    functions = [tool["function"] for tool in ask.tools]
    if ask.last_role == "tool" or not functions:
        return []
    said = ask.said.lower()
    named = [each for each in functions if each["name"].lower() in said]
    chosen = named or (functions[:1] if "tool" in said else [])
    return [
        {
            "id": f"call_{_digest(each['name'], str(index))[:8]}",
            "name": each["name"],
            "arguments": instance(each.get("parameters") or {"type": "object"}),
        }
        for index, each in enumerate(chosen)
    ]


def instance(schema: dict[str, Any], definitions: dict[str, Any] | None = None) -> Any:
    """A small valid instance of a JSON Schema, as a constrained sampler would make one."""
    known = {**(definitions or {}), **schema.get("$defs", {}), **schema.get("definitions", {})}
    if "$ref" in schema:
        return instance(known[schema["$ref"].rpartition("/")[2]], known)
    for choice in ("anyOf", "oneOf", "allOf"):
        if schema.get(choice):
            return instance(schema[choice][0], known)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    return _plain_instance(kind[0] if isinstance(kind, list) else kind, schema, known)


def _plain_instance(kind: str, schema: dict[str, Any], known: dict[str, Any]) -> Any:
    plain = {
        "string": "text".ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", 10_000)],
        "integer": int(schema.get("minimum", 1)),
        "number": schema.get("minimum", 1.5),
        "boolean": True,
    }
    match kind:
        case "object":
            return {name: instance(each, known) for name, each in schema.get("properties", {}).items()}
        case "array":
            return [instance(schema.get("items") or {"type": "string"}, known)] * max(
                1, schema.get("minItems", 1)
            )
        case _:
            return plain.get(kind)


def embedding(text: str, dimensions: int) -> list[float]:
    """Of length one, and the same for the same text."""
    seed = b"".join(hashlib.sha256(f"{n}:{text}".encode()).digest() for n in range(dimensions // 32 + 1))
    raw = [byte - 127.5 for byte in seed[:dimensions]]
    norm = math.sqrt(sum(value * value for value in raw))
    return [value / norm for value in raw]


def count_tokens(*texts: str) -> int:
    return sum(len(words(text)) for text in texts)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
