"""What people type, made into what the wire wants."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.cli.errors import CommandError
from foreman_client.wire import decode


def number(text: str, option: str) -> int:
    if not text.isdecimal():
        raise CommandError(f"{option}: {text!r} is not a number")
    return int(text)


def pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """key=value, any number of times."""
    found = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise CommandError(f"{option}: {text!r} is not key=value")
        found[key] = value
    return found


def settings(given: Sequence[str]) -> dict[str, Any]:
    """key=value with values as JSON where they are JSON, and dots for what is nested: rate.limit=5."""
    made: dict[str, Any] = {}
    for key, text in pairs(given, "settings").items():
        *path, last = key.split(".")
        place = made
        for name in path:
            place = place.setdefault(name, {})
        try:
            place[last] = decode(text)
        except ValueError:
            place[last] = text
    return made


def json_object(text: str | None, option: str) -> dict[str, Any] | None:
    """An object as JSON, from a file with @name, or from stdin with -."""
    if text is None:
        return None
    try:
        value = decode(text_of(text))
    except ValueError as error:
        raise CommandError(f"{option} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CommandError(f"{option} must be a JSON object, not {type(value).__name__}")
    return value


def text_of(text: str) -> str:
    """The text itself, a file's with @name, or stdin's with -."""
    if text == "-":
        return sys.stdin.read()
    if text.startswith("@") and len(text) > 1:
        try:
            return Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise CommandError(f"cannot read {text[1:]}: {error}") from None
    return text


def secret(text: str | None, option: str) -> str | None:
    """From a file with @name, from stdin with -, or from a variable with env:NAME.

    Not by itself: whoever lists processes or reads the shell's history would see it.
    """
    if text is None:
        return None
    if text.startswith("env:"):
        found = os.environ.get(text[4:], "")
    elif text == "-" or text.startswith("@"):
        found = text_of(text)
    else:
        raise CommandError(
            f"{option}: give it from a file (@name), from stdin (-) or from a variable (env:NAME)"
        )
    if not found.strip():
        raise CommandError(
            f"{option}: there is nothing in {'stdin' if text == '-' else text.removeprefix('@')}"
        )
    return found.strip()
