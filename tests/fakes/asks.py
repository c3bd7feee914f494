"""Reading requests of both surfaces, and refusing the bad ones in Ollama's words."""

import base64
import binascii
import json
from typing import Any

from tests.fakes.answers import Ask, count_tokens


class Rejected(Exception):
    """An error answer instead of an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def parse_body(body: bytes) -> dict[str, Any]:
    if not body.strip():
        raise Rejected(400, "missing request body")
    try:
        parsed = json.loads(body)
    except ValueError:
        raise Rejected(400, "invalid character in JSON input") from None
    if not isinstance(parsed, dict):
        raise Rejected(400, f"json: cannot unmarshal {type(parsed).__name__} into Go value")
    return parsed


def options_of(body: dict[str, Any]) -> dict[str, Any]:
    options = body.get("options") or {}
    if not isinstance(options, dict):
        raise Rejected(400, "json: cannot unmarshal into Go struct field .options of type map")
    return options


def ollama_chat(body: dict[str, Any]) -> Ask:
    messages = body.get("messages") or []
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise Rejected(400, "json: cannot unmarshal into Go struct field .messages of type []api.Message")
    last = messages[-1]
    for message in messages:
        if not isinstance(message.get("content", ""), str | None):
            raise Rejected(400, "json: cannot unmarshal into Go struct field Message.content of type string")
        for call in message.get("tool_calls") or []:
            if not isinstance(call["function"].get("arguments", {}), dict):
                raise Rejected(400, "json: cannot unmarshal into Go struct field .arguments of type map")
    ask = _ask(body, last.get("content") or "", sum(_images(each) for each in messages))
    ask.last_role = last.get("role", "user")
    ask.prompt_tokens = count_tokens(*(each.get("content") or "" for each in messages))
    ask.tools = body.get("tools") or []
    return ask


def ollama_generate(body: dict[str, Any]) -> Ask:
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise Rejected(400, "json: cannot unmarshal into Go struct field .prompt of type string")
    ask = _ask(body, prompt, _images(body))
    ask.prompt_tokens = count_tokens(prompt, body.get("system") or "")
    return ask


def _ask(body: dict[str, Any], said: str, images: int) -> Ask:
    options = options_of(body)
    return Ask(
        said=said,
        form=body.get("format") or None,
        think=bool(body.get("think")),
        images=images,
        limit=options.get("num_predict"),
        stop=options.get("stop") or [],
    )


def _images(holder: dict[str, Any]) -> int:
    images = holder.get("images") or []
    for image in images:
        _check_base64(image)
    return len(images)


def _check_base64(image: Any) -> None:
    try:
        base64.b64decode(image, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise Rejected(400, "illegal base64 data at input byte 0") from None


def openai_chat(body: dict[str, Any]) -> Ask:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Rejected(400, "[] is too short - 'messages'")
    read = [_openai_content(message) for message in messages]
    ask = _openai_ask(body, read[-1][0])
    ask.images = sum(images for _, images in read)
    ask.prompt_tokens = count_tokens(*(text for text, _ in read))
    ask.last_role = messages[-1].get("role", "user")
    ask.tools = [] if body.get("tool_choice") == "none" else body.get("tools") or []
    effort = (body.get("reasoning") or {}).get("effort") or body.get("reasoning_effort")
    if effort and effort not in {"high", "medium", "low", "none"}:
        allowed = '"high", "medium", "low", or "none"'
        raise Rejected(400, f"invalid reasoning value: '{effort}' (must be {allowed})")
    ask.think = bool(effort) and effort != "none"
    form = body.get("response_format") or {}
    if form.get("type") == "json_object":
        ask.form = "json"
    elif form.get("type") == "json_schema":
        ask.form = form["json_schema"]["schema"]
    return ask


def _openai_content(message: dict[str, Any]) -> tuple[str, int]:
    content = message.get("content")
    if isinstance(content, str):
        return content, 0
    if content is None:
        if not message.get("tool_calls"):
            raise Rejected(400, "invalid message content type: <nil>")
        return "", 0
    texts, images = [], 0
    for part in content:
        if part.get("type") == "text":
            texts.append(part["text"])
        elif part.get("type") == "image_url":
            header, _, data = part["image_url"]["url"].partition(",")
            if not header.startswith("data:") or not header.endswith(";base64"):
                raise Rejected(400, "invalid image input")
            _check_base64(data)
            images += 1
        else:
            raise Rejected(400, "invalid message format")
    return " ".join(texts), images


def openai_completion(body: dict[str, Any]) -> Ask:
    prompt = body.get("prompt", "")
    if not isinstance(prompt, str):
        raise Rejected(400, "json: cannot unmarshal into Go struct field .prompt of type string")
    ask = _openai_ask(body, prompt)
    ask.prompt_tokens = count_tokens(prompt)
    return ask


def _openai_ask(body: dict[str, Any], said: str) -> Ask:
    stop = body.get("stop") or []
    return Ask(
        said=said,
        limit=body.get("max_completion_tokens") or body.get("max_tokens"),
        stop=[stop] if isinstance(stop, str) else stop,
    )


def embed_inputs(value: Any) -> list[str]:
    if value is None or value == "":
        return []
    inputs = [value] if isinstance(value, str) else value
    if not isinstance(inputs, list) or not all(isinstance(each, str) for each in inputs):
        raise Rejected(400, "invalid input type")
    return inputs
