"""Commands whose parameters are read without pydantic.

Typer has it check every value, and to load it takes as long as a whole `foreman get`. But most of what is
typed is text, and is to be text. All else goes typer's own way; and should it one day look elsewhere for its
checks, then commands are slower and nothing more, which test_start.py tells.
"""

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup


class _TakenAsIs:
    """In the place of a parameter's check: text, and defaults that are what they should be already."""

    def __init__(self, param: Any) -> None:
        self._usual = param.get_runtime_param

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        annotation = param.type_descriptor.annotation
        if param.multiple or param.nargs == -1:
            if annotation == list[str]:
                return list(value or ())
        elif value is None or (annotation in {str, int, float} and type(value) is annotation):
            return value
        return self._usual().coerce(value, param=param, ctx=ctx)


def _lightened(params: Iterable[Any]) -> list[Any]:
    made = list(params)
    for param in made:
        if hasattr(param, "get_runtime_param") and "get_runtime_param" not in vars(param):
            taken = _TakenAsIs(param)
            param.get_runtime_param = lambda taken=taken: taken
    return made


class LightCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _lightened(super().get_params(ctx))


class LightGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _lightened(super().get_params(ctx))
