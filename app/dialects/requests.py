"""Requests: from one dialect to the other, and how a body is put on the wire.

Within one dialect nothing is touched: a body goes to its target as it came, unknown fields included. Across
dialects only what has a counterpart is carried over.
"""

from collections.abc import Callable, Mapping
from typing import Any, assert_never

from app.dialects.embeddings import embed_request_to_ollama, embed_request_to_openai
from app.dialects.messages import image_url, messages_to_ollama, messages_to_openai
from app.dialects.options import options_from_sampling, sampling_from_options
from app.dialects.runner import is_legacy_embeddings
from app.dialects.shapes import (
    Dialect,
    Frame,
    Kind,
    UntranslatableRequest,
    as_dict,
    as_list,
    as_text,
    without_nulls,
)

# Ollama's own words that callers put into an OpenAI body (`extra_body`) when they know what is behind it.
_OLLAMA_EXTRAS = ("keep_alive", "truncate", "shift")

_EFFORT_TO_THINK: dict[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def translate_request(kind: Kind, body: Frame, source: Dialect, to: Dialect) -> Frame:
    """The body as the other dialect says it; the very same object where there is nothing to translate.

    Raises UntranslatableRequest, with a message for the caller.
    """
    if source == to:
        return body
    return _TRANSLATIONS[kind, to](body)


def endpoint(kind: Kind, dialect: Dialect, body: Mapping[str, Any]) -> str:
    """Where a body of that dialect is posted."""
    match kind:
        case "chat":
            return "/api/chat" if dialect == "ollama" else "/v1/chat/completions"
        case "generate":
            if dialect == "ollama":
                return "/api/generate"
            return "/v1/chat/completions" if "messages" in body else "/v1/completions"
        case "embed":
            if dialect == "openai":
                return "/v1/embeddings"
            return "/api/embeddings" if is_legacy_embeddings(body) else "/api/embed"
        case _:
            assert_never(kind)


def asks_to_stream(kind: Kind, body: Mapping[str, Any], dialect: Dialect) -> bool:
    """Ollama streams unless told not to, OpenAI only when told to."""
    if kind == "embed":
        return False
    return body.get("stream") is not False if dialect == "ollama" else body.get("stream") is True


def asks_for_usage(body: Mapping[str, Any]) -> bool:
    return as_dict(body.get("stream_options")).get("include_usage") is True


def streaming_request(kind: Kind, body: Frame, dialect: Dialect) -> Frame:
    """The same body, streamed and with usage even if its caller did not ask: for progress and the ledger."""
    if kind == "embed":
        return body
    if dialect == "ollama":
        return {**body, "stream": True}
    stream_options = {**as_dict(body.get("stream_options")), "include_usage": True}
    return {**body, "stream": True, "stream_options": stream_options}


def _chat_to_openai(body: Frame) -> Frame:
    translated: Frame = {"model": body.get("model"), "messages": messages_to_openai(body.get("messages"))}
    if as_list(body.get("tools")):
        translated["tools"] = body["tools"]
    return translated | _common_to_openai(body, "chat")


def _generate_to_openai(body: Frame) -> Frame:
    """Ollama puts the prompt through the chat template, so this is a chat unless it is `raw` or infilling."""
    for field in ("template", "context"):
        if body.get(field):
            raise UntranslatableRequest(f"{field} is not supported by this target")
    prompt = as_text(body.get("prompt"))
    images = as_list(body.get("images"))
    if body.get("raw") or body.get("suffix"):
        if images:
            raise UntranslatableRequest("images cannot be combined with raw or suffix on this target")
        suffix = without_nulls({"suffix": body.get("suffix") or None})
        return {"model": body.get("model"), "prompt": prompt, **suffix} | _common_to_openai(body, "generate")
    pictures = [{"type": "image_url", "image_url": {"url": image_url(image)}} for image in images]
    content = [{"type": "text", "text": prompt}, *pictures] if pictures else prompt
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    messages = [*system, {"role": "user", "content": content}]
    return {"model": body.get("model"), "messages": messages} | _common_to_openai(body, "chat")


def _common_to_openai(body: Frame, form: Kind) -> Frame:
    translated = sampling_from_options(as_dict(body.get("options")))
    if body.get("format"):
        translated["response_format"] = _response_format(body["format"])
    think = body.get("think")
    if form == "chat" and think is not None:
        translated["reasoning_effort"] = _effort(think)
    if form == "chat" and body.get("logprobs"):
        translated |= without_nulls({"logprobs": True, "top_logprobs": body.get("top_logprobs")})
    if body.get("stream") is False:
        return translated | {"stream": False}
    return translated | {"stream": True, "stream_options": {"include_usage": True}}


def _response_format(ollama_format: Any) -> Frame:
    if isinstance(ollama_format, dict):
        return {"type": "json_schema", "json_schema": {"name": "response", "schema": ollama_format}}
    return {"type": "json_object"}


def _effort(think: Any) -> str:
    if isinstance(think, str):
        return think
    return "medium" if think else "none"


def _chat_to_ollama(body: Frame) -> Frame:
    translated: Frame = {"model": body.get("model"), "messages": messages_to_ollama(body.get("messages"))}
    tools = _chosen_tools(body)
    if tools:
        translated["tools"] = tools
    translated |= _common_to_ollama(body)
    if body.get("logprobs"):
        translated |= without_nulls({"logprobs": True, "top_logprobs": body.get("top_logprobs")})
    return translated


def _generate_to_ollama(body: Frame) -> Frame:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if prompt is not None and not isinstance(prompt, str):
        raise UntranslatableRequest("prompt must be a single text on this target")
    suffix = without_nulls({"suffix": body.get("suffix") or None})
    return {"model": body.get("model"), "prompt": prompt or "", **suffix} | _common_to_ollama(body)


def _common_to_ollama(body: Frame) -> Frame:
    translated: Frame = {name: body[name] for name in _OLLAMA_EXTRAS if body.get(name) is not None}
    ollama_format = _ollama_format(as_dict(body.get("response_format")))
    if ollama_format:
        translated["format"] = ollama_format
    think = _think(body)
    if think is not None:
        translated["think"] = think
    translated["options"] = options_from_sampling(body)
    translated["stream"] = body.get("stream") is True
    return translated


def _ollama_format(response_format: Frame) -> Any:
    match response_format.get("type"):
        case "json_object":
            return "json"
        case "json_schema":
            return as_dict(response_format.get("json_schema")).get("schema") or "json"
        case _:
            return None


def _think(body: Frame) -> bool | str | None:
    if isinstance(body.get("think"), bool | str):
        return body["think"]  # type: ignore[no-any-return]  # narrowed on the line above
    effort = as_dict(body.get("reasoning")).get("effort") or body.get("reasoning_effort")
    if not effort:
        return None
    if not isinstance(effort, str) or effort not in _EFFORT_TO_THINK:
        raise UntranslatableRequest(
            f'invalid reasoning value: \'{effort}\' (must be "high", "medium", "low", or "none")'
        )
    return _EFFORT_TO_THINK[effort]


def _chosen_tools(body: Frame) -> list[Any]:
    """Ollama has no `tool_choice`: "none" takes the tools away, a named tool leaves only that one."""
    tools = as_list(body.get("tools"))
    choice = body.get("tool_choice")
    if choice == "none":
        return []
    named = as_dict(as_dict(choice).get("function")).get("name")
    if not named:
        return tools
    return [tool for tool in tools if as_dict(as_dict(tool).get("function")).get("name") == named]


_TRANSLATIONS: dict[tuple[Kind, Dialect], Callable[[Frame], Frame]] = {
    ("chat", "openai"): _chat_to_openai,
    ("chat", "ollama"): _chat_to_ollama,
    ("generate", "openai"): _generate_to_openai,
    ("generate", "ollama"): _generate_to_ollama,
    ("embed", "openai"): embed_request_to_openai,
    ("embed", "ollama"): embed_request_to_ollama,
}
