"""Tasks: a handler and how its job is to be treated, checked at registration, not when it first fails."""

import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from foreman_client.handle import validated
from foreman_client.wire import encode

Handler = Callable[..., Any]
RetryOn = type[Exception] | tuple[type[Exception], ...]

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}")


@dataclass(frozen=True, slots=True)
class Task:
    kind: str
    handler: Handler
    retry_on: tuple[type[Exception], ...]
    max_duration: float | None
    blocking: bool
    # How many of (payload, job) the handler takes.
    arity: int
    payload_model: type[Any] | None
    result_model: type[Any] | None

    def arguments(self, payload: Any, job: Any) -> tuple[Any, ...]:
        if self.payload_model is not None:
            payload = validated(self.payload_model, payload)
        return (payload, job)[: self.arity]

    def encoded(self, result: Any) -> bytes:
        """The result as JSON; a result that its declared model or JSON cannot hold is the handler's error."""
        if self.result_model is not None and not isinstance(result, self.result_model):
            result = validated(self.result_model, result)
        return b"null" if result is None else encode(result)


def make_task(
    kind: str,
    handler: Handler,
    *,
    retry_on: RetryOn = (),
    max_duration: float | timedelta | None = None,
) -> Task:
    if not NAME.fullmatch(kind):
        raise ValueError(f"{kind!r} is not a kind: letters, digits and . _ : - (at most 128)")
    if not callable(handler):
        raise TypeError(f"the handler of {kind!r} is not a function: {handler!r}")
    hints = _hints(handler)
    names = _parameters(kind, handler)
    return Task(
        kind=kind,
        handler=handler,
        retry_on=_retry_on(kind, retry_on),
        max_duration=_seconds(kind, max_duration),
        blocking=not _awaited(handler),
        arity=len(names),
        payload_model=_model(hints.get(names[0])) if names else None,
        result_model=_model(hints.get("return")),
    )


def _retry_on(kind: str, retry_on: Any) -> tuple[type[Exception], ...]:
    classes = retry_on if isinstance(retry_on, (tuple, list)) else (retry_on,)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise TypeError(f"retry_on of {kind!r} takes classes of exceptions, not {one!r}")
    return tuple(classes)


def _seconds(kind: str, max_duration: float | timedelta | None) -> float | None:
    if max_duration is None:
        return None
    seconds = max_duration.total_seconds() if isinstance(max_duration, timedelta) else float(max_duration)
    if not seconds > 0:
        raise ValueError(f"max_duration of {kind!r} must be more than 0 seconds, not {max_duration!r}")
    return seconds


def _parameters(kind: str, handler: Handler) -> list[str]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(handler).parameters.values()
    names = [each.name for each in parameters if each.kind in positional]
    required = [each for each in parameters if each.default is each.empty]
    unfillable = [each for each in required if each.kind is inspect.Parameter.KEYWORD_ONLY]
    if unfillable or len([each for each in required if each.kind in positional]) > 2:
        raise TypeError(f"the handler of {kind!r} must be callable as f(), f(payload) or f(payload, job)")
    return names[:2]


def _awaited(handler: Handler) -> bool:
    """Also for objects whose `__call__` is the coroutine function."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _hints(handler: Handler) -> dict[str, Any]:
    try:
        return typing.get_type_hints(handler)
    except (NameError, TypeError):
        # Names that exist for type checkers only; such a handler gets its payload as it came.
        return {}


def _model(hint: Any) -> type[Any] | None:
    """A pydantic model if the signature names one; recognised by its method, so pydantic stays optional."""
    return hint if isinstance(hint, type) and hasattr(hint, "model_validate") else None
