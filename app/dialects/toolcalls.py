"""Tool calls: Ollama's arguments are an object, OpenAI's a text; and only OpenAI insists on ids."""

import json
from typing import Any

from app.dialects.shapes import Frame, UntranslatableRequest, as_dict, as_text


def arguments_text(arguments: Any) -> str:
    """Ollama's arguments as OpenAI writes them; text is taken to be JSON already."""
    if isinstance(arguments, str):
        return arguments or "{}"
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False, separators=(",", ":"))


def parsed_arguments(text: Any) -> dict[str, Any] | None:
    """OpenAI's arguments as an object, or None when what the model wrote is no JSON object."""
    if isinstance(text, dict):
        return text
    if text is None or (isinstance(text, str) and not text.strip()):
        return {}
    try:
        arguments = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def to_openai_call(call: Any, call_id: str) -> Frame:
    function = as_dict(as_dict(call).get("function"))
    return {
        "id": call_id,
        "type": "function",
        "function": {
            "name": as_text(function.get("name")),
            "arguments": arguments_text(function.get("arguments")),
        },
    }


def to_ollama_call(call: Any) -> Frame:
    """A call in the history of a request: arguments that cannot be read are the caller's mistake."""
    call = as_dict(call)
    function = as_dict(call.get("function"))
    arguments = parsed_arguments(function.get("arguments"))
    if arguments is None:
        raise UntranslatableRequest("invalid tool call arguments")
    return ollama_call(as_text(function.get("name")), arguments, as_text(call.get("id")))


def ollama_call(name: str, arguments: dict[str, Any], call_id: str = "", index: int | None = None) -> Frame:
    function: Frame = {} if index is None else {"index": index}
    function |= {"name": name, "arguments": arguments}
    return {"id": call_id, "function": function} if call_id else {"function": function}


def unreadable_call_text(name: str, arguments: str) -> str:
    """What is left of a call whose arguments are no JSON object: its text. Ollama does the same."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}'


class CallAssembler:
    """Puts OpenAI's streamed fragments of tool calls together again."""

    def __init__(self) -> None:
        self._calls: dict[int, Frame] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, fragments: list[Any]) -> None:
        for position, item in enumerate(fragments):
            fragment = as_dict(item)
            call = self._calls.setdefault(
                self._index(fragment, position), {"id": "", "name": "", "arguments": ""}
            )
            function = as_dict(fragment.get("function"))
            call["id"] = call["id"] or as_text(fragment.get("id"))
            call["name"] = call["name"] or as_text(function.get("name"))
            arguments = function.get("arguments")
            call["arguments"] += arguments if isinstance(arguments, str) else _whole(arguments)

    def _index(self, fragment: Frame, position: int) -> int:
        """Some servers leave the index out: then an id that was not seen yet begins the next call."""
        index = fragment.get("index")
        if isinstance(index, int):
            return index
        call_id = fragment.get("id")
        known = [at for at, call in self._calls.items() if call_id and call["id"] == call_id]
        if known:
            return known[0]
        if call_id or not self._calls or position:
            return len(self._calls)
        return max(self._calls)

    def calls(self) -> list[Frame]:
        """`{"id", "name", "arguments": <text>}` in the order of their index."""
        return [self._calls[index] for index in sorted(self._calls)]


def _whole(arguments: Any) -> str:
    return "" if arguments is None else arguments_text(arguments)
