"""Messages of a chat, both ways: roles, images, tool calls and their results, thinking."""

import base64
import binascii
from typing import Any

from app.dialects.shapes import Frame, UntranslatableRequest, as_dict, as_list, as_text
from app.dialects.toolcalls import to_ollama_call, to_openai_call

# The first characters of a picture's base64 give away what it is.
_SIGNATURES = {"/9j/": "jpeg", "iVBORw0KGgo": "png", "R0lGOD": "gif", "UklGR": "webp"}


def messages_to_openai(messages: Any) -> list[Frame]:
    conversation = _CallIds(as_list(messages))
    return [_message_to_openai(as_dict(message), conversation) for message in as_list(messages)]


def _message_to_openai(message: Frame, conversation: "_CallIds") -> Frame:
    role = as_text(message.get("role")) or "user"
    translated: Frame = {"role": role, "content": _content_to_openai(message)}
    calls = as_list(message.get("tool_calls"))
    if calls:
        translated["content"] = translated["content"] or None
        translated["tool_calls"] = [to_openai_call(call, conversation.asked(as_dict(call))) for call in calls]
    if role == "tool":
        translated["tool_call_id"] = conversation.answered(message)
    if message.get("thinking"):
        translated["reasoning_content"] = message["thinking"]
    return translated


def _content_to_openai(message: Frame) -> Any:
    content = message.get("content")
    images = as_list(message.get("images"))
    if not images:
        return "" if content is None else content
    text = [{"type": "text", "text": content}] if content else []
    return [*text, *({"type": "image_url", "image_url": {"url": image_url(image)}} for image in images)]


def image_url(image: Any) -> str:
    """A bare base64 picture as a data URI."""
    if not isinstance(image, str):
        raise UntranslatableRequest("invalid image input")
    if image.startswith("data:"):
        return image
    kind = next((name for prefix, name in _SIGNATURES.items() if image.startswith(prefix)), "png")
    return f"data:image/{kind};base64,{image}"


class _CallIds:
    """Gives every tool call an id and every result the id of the call it answers.

    Ollama's clients mostly name the tool instead. A result then belongs to the oldest unanswered call of that
    tool, or, with no name either, to the oldest unanswered call at all.
    """

    def __init__(self, messages: list[Any]) -> None:
        calls = [as_dict(call) for m in messages for call in as_list(as_dict(m).get("tool_calls"))]
        self._taken = {as_text(call.get("id")) for call in calls}
        self._open: list[tuple[str, str]] = []
        self._made = 0

    def asked(self, call: Frame) -> str:
        call_id = as_text(call.get("id")) or self._new_id()
        self._open.append((call_id, as_text(as_dict(call.get("function")).get("name"))))
        return call_id

    def answered(self, result: Frame) -> str:
        given = as_text(result.get("tool_call_id"))
        if given:
            self._open = [(call_id, name) for call_id, name in self._open if call_id != given]
            return given
        wanted = as_text(result.get("tool_name")) or as_text(result.get("name"))
        match = next((entry for entry in self._open if not wanted or entry[1] == wanted), None)
        if match is None:
            return self._new_id()
        self._open.remove(match)
        return match[0]

    def _new_id(self) -> str:
        while True:
            self._made += 1
            call_id = f"call_{self._made}"
            if call_id not in self._taken:
                return call_id


def messages_to_ollama(messages: Any) -> list[Frame]:
    names: dict[str, str] = {}
    translated: list[Frame] = []
    for item in as_list(messages):
        message = as_dict(item)
        for call in as_list(message.get("tool_calls")):
            name = as_text(as_dict(as_dict(call).get("function")).get("name"))
            names[as_text(as_dict(call).get("id"))] = name
        translated.append(_message_to_ollama(message, names))
    return translated


def _message_to_ollama(message: Frame, names: dict[str, str]) -> Frame:
    role = as_text(message.get("role")) or "user"
    text, images = _content_to_ollama(message.get("content"))
    # `developer` is OpenAI's newer word for a system message, `function` the older one for a tool's.
    translated: Frame = {"role": {"developer": "system", "function": "tool"}.get(role, role), "content": text}
    if images:
        translated["images"] = images
    thinking = as_text(message.get("reasoning_content")) or as_text(message.get("reasoning"))
    if thinking:
        translated["thinking"] = thinking
    calls = as_list(message.get("tool_calls"))
    if calls:
        translated["tool_calls"] = [to_ollama_call(call) for call in calls]
    if translated["role"] == "tool":
        call_id = as_text(message.get("tool_call_id"))
        tool_name = as_text(message.get("name")) or names.get(call_id, "")
        translated |= {"tool_name": tool_name} if tool_name else {}
        translated |= {"tool_call_id": call_id} if call_id else {}
    return translated


def _content_to_ollama(content: Any) -> tuple[str, list[str]]:
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise UntranslatableRequest("invalid message content type")
    texts: list[str] = []
    images: list[str] = []
    for item in content:
        part = as_dict(item)
        match part.get("type"):
            case "text" | "refusal" as kind:
                texts.append(as_text(part.get(kind)))
            case "image_url":
                images.append(_image_data(part.get("image_url")))
            case other:
                raise UntranslatableRequest(f"content of type {other!r} is not supported by this target")
    return "\n".join(texts), images


def _image_data(image: Any) -> str:
    """The base64 out of a data URI. Ollama fetches nothing, so a link cannot be passed on."""
    url = as_text(image.get("url") if isinstance(image, dict) else image)
    header, comma, data = url.partition(",")
    if not comma or not header.startswith("data:") or not header.endswith(";base64"):
        raise UntranslatableRequest("invalid image input: only base64 data URIs are supported by this target")
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise UntranslatableRequest("invalid image input: not base64") from None
    return data
