"""Tool calls: arguments are an object in one dialect and a text in another, and not all have ids."""

import json
from typing import Any

from app.dialects.neutral import Message, ToolCall
from app.dialects.shapes import Frame, as_dict, as_text, join

_FRAGMENT = frozenset({"index", "id", "type", "function"})
_FUNCTION = frozenset({"name", "arguments"})


def read_call(call: Any) -> ToolCall:
    """A call within a message: `{"id", "function": {"name", "arguments"}}` wherever there are any so far."""
    call = as_dict(call)
    function = as_dict(call.get("function"))
    return ToolCall(as_text(call.get("id")), as_text(function.get("name")), function.get("arguments"))


def arguments_text(arguments: Any) -> str:
    """Arguments as a text; one that is given is taken to be JSON already."""
    if isinstance(arguments, str):
        return arguments or "{}"
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False, separators=(",", ":"))


def parsed_arguments(text: Any) -> dict[str, Any] | None:
    """Arguments as an object, or None when what the model wrote is no JSON object."""
    if isinstance(text, dict):
        return text
    if text is None or (isinstance(text, str) and not text.strip()):
        return {}
    try:
        arguments = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def unreadable_call_text(call: ToolCall) -> str:
    """What is left of a call whose arguments are no JSON object: its text. Ollama does the same."""
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}'


class CallAssembler:
    """Puts OpenAI's streamed fragments of tool calls together again."""

    def __init__(self) -> None:
        self._calls: dict[int, ToolCall] = {}
        # What else is said of a call, and of its function.
        self._extras: dict[int, tuple[Frame, Frame]] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, fragments: list[Any]) -> None:
        for position, item in enumerate(fragments):
            fragment = as_dict(item)
            index = self._index(fragment, position)
            call = self._calls.setdefault(index, ToolCall("", "", ""))
            self._add_extras(index, fragment)
            more = read_call(fragment)
            call.id = call.id or more.id
            call.name = call.name or more.name
            if more.arguments is not None:
                whole = isinstance(more.arguments, str)
                call.arguments += more.arguments if whole else arguments_text(more.arguments)

    def _add_extras(self, index: int, fragment: Frame) -> None:
        function = as_dict(fragment.get("function"))
        if fragment.keys() <= _FRAGMENT and function.keys() <= _FUNCTION:
            return
        of_call, of_function = self._extras.setdefault(index, ({}, {}))
        join(of_call, {name: value for name, value in fragment.items() if name not in _FRAGMENT})
        join(of_function, {name: value for name, value in function.items() if name not in _FUNCTION})

    def _index(self, fragment: Frame, position: int) -> int:
        """Some servers leave the index out: then an id that was not seen yet begins the next call."""
        index = fragment.get("index")
        if isinstance(index, int):
            return index
        call_id = fragment.get("id")
        known = [at for at, call in self._calls.items() if call_id and call.id == call_id]
        if known:
            return known[0]
        if call_id or not self._calls or position:
            return len(self._calls)
        return max(self._calls)

    def calls(self) -> list[ToolCall]:
        """In the order of their index; the arguments are texts."""
        return [self._calls[index] for index in sorted(self._calls)]

    def extras(self) -> list[tuple[Frame, Frame]]:
        """What else their fragments said, of the call and of its function, in the same order."""
        return [self._extras.get(index, ({}, {})) for index in sorted(self._calls)]


class CallIds:
    """Gives every tool call an id and every result the id of the call it answers.

    Ollama's clients mostly name the tool instead. A result then belongs to the oldest unanswered call of that
    tool, or, with no name either, to the oldest unanswered call at all.
    """

    def __init__(self, messages: list[Message]) -> None:
        self._taken = {call.id for message in messages for call in message.calls}
        self._open: list[tuple[str, str]] = []
        self._made = 0

    def asked(self, call: ToolCall) -> str:
        call_id = call.id or self._new_id()
        self._open.append((call_id, call.name))
        return call_id

    def answered(self, result: Message) -> str:
        given = result.call_id
        if given:
            self._open = [(call_id, name) for call_id, name in self._open if call_id != given]
            return given
        wanted = result.tool_name
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
