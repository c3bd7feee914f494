"""The form for the settings of a queue: from settings to what stands in its fields, and back. Pure.

What was not touched stays as it was written, and so does what the form has no field for.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from app.dashboard.spans import number_in, number_text, seconds_in, span
from app.errors import ForemanError
from app.jobs.queue_settings import QueueSettings
from app.jobs.states import TERMINAL

Texts = Mapping[str, str]

RETENTION = {str(state): f"retention_{state}" for state in sorted(TERMINAL)}
FOR_EVER = "for ever"


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    setting: str
    label: str
    help: str = ""
    kind: Literal["line", "lines", "choice"] = "line"
    # What can be chosen, with what each means.
    choices: tuple[tuple[str, str], ...] = ()
    placeholder: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    about: str
    fields: tuple[Field, ...]


GROUPS = (
    Group(
        "How much at once",
        "Over the whole fleet. A job that is held back waits its turn; none is lost.",
        (
            Field(
                "max_running",
                "max_running",
                "At most so many at once",
                "Jobs that are loading or working. Empty: as many as workers ask for.",
                placeholder="no limit",
            ),
            Field("rate_limit", "rate", "At most so many …", "Jobs given out.", placeholder="no limit"),
            Field(
                "rate_per_seconds", "rate", "… in this time", "Such as 1 s, 1 min or 1 h.", placeholder="1 s"
            ),
            Field(
                "rate_burst",
                "rate",
                "Of these, so many in one go",
                "What was not used may be caught up on. Empty: a fifth of the limit.",
                placeholder="a fifth",
            ),
            Field(
                "fair_by",
                "fair_by",
                "Fair by",
                "A metadata key, or tenant: its values take turns.",
                placeholder="first come, first served",
            ),
        ),
    ),
    Group(
        "What may come in",
        "",
        (
            Field(
                "max_depth",
                "max_depth",
                "At most so many waiting",
                "One more is refused with 429 queue_full.",
                placeholder="no limit",
            ),
            Field(
                "payload_schema",
                "payload_schema",
                "Schema of payloads",
                "JSON Schema that every payload must satisfy; one that does not is refused with 422.",
                "lines",
                placeholder='{"type": "object", "required": ["origin"]}',
            ),
        ),
    ),
    Group(
        "Keys",
        "Jobs of the same key run one at a time, or so many.",
        (
            Field(
                "key",
                "key",
                "Key, part by part",
                "One part on each line: a constant such as zendesk, or a JSON pointer into the payload such "
                "as /origin. Empty: no key.",
                "lines",
                placeholder="zendesk\n/origin\ntickets",
            ),
            Field(
                "max_active", "max_active", "Of a key, at most so many at once", "Empty: 1.", placeholder="1"
            ),
            Field(
                "max_queued",
                "max_queued",
                "Of a key, at most so many more waiting",
                "Empty: 0.",
                placeholder="0",
            ),
            Field(
                "when_full",
                "when_full",
                "One too many",
                "",
                "choice",
                (
                    ("", "is refused (the default)"),
                    ("reject", "reject: is refused with 409 key_busy"),
                    ("coalesce", "coalesce: is answered with the job that is there"),
                    ("replace-oldest", "replace-oldest: takes the place of the oldest that waits"),
                ),
            ),
            Field(
                "stale_policy",
                "stale_policy",
                "When a worker loses its lease",
                "",
                "choice",
                (
                    ("", "the job is stale (the default)"),
                    ("fail-stale", "fail-stale: the job is stale, the next of its key may run"),
                    ("block", "block: the key stays taken until the job is cancelled"),
                ),
            ),
        ),
    ),
    Group(
        "Attempts",
        "For jobs and workers that do not say otherwise.",
        (
            Field("max_attempts", "max_attempts", "Attempts", "Empty: 5.", placeholder="5"),
            Field(
                "backoff_seconds",
                "backoff_seconds",
                "Pauses between them",
                "One for all, or one after the other, separated by commas.",
                placeholder="5 s, 30 s, 2 min, 10 min, 30 min",
            ),
            Field(
                "lease_seconds",
                "lease_seconds",
                "Leases",
                "How long a worker may say nothing before its job is given to another.",
                placeholder="the server's own",
            ),
        ),
    ),
    Group(
        "How long ended jobs are kept",
        "Such as 12 h or 7 d; 0 or “for ever” keeps them. Empty: as the server has it.",
        tuple(Field(name, "retention", state) for state, name in RETENTION.items()),
    ),
)
FIELDS = {field.name: field for group in GROUPS for field in group.fields}
_OF_SETTING: dict[str, list[str]] = {}
for each in FIELDS.values():
    _OF_SETTING.setdefault(each.setting, []).append(each.name)


# -- from settings to texts ---------------------------------------------------------------------------------


def texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """What stands in the fields."""
    written = dict.fromkeys(FIELDS, "")
    for name, value in settings.items():
        if name in _OF_SETTING and value is not None:
            written |= _texts(name, value)
    return written


def _texts(setting: str, value: Any) -> dict[str, str]:
    if setting == "rate" and isinstance(value, dict):
        per = value.get("per_seconds")
        return {
            "rate_limit": number_text(value["limit"]) if "limit" in value else "",
            "rate_per_seconds": "" if per is None else span(per),
            "rate_burst": "" if value.get("burst") is None else number_text(value["burst"]),
        }
    if setting == "retention" and isinstance(value, dict):
        return {
            RETENTION[state]: FOR_EVER if seconds == 0 else span(seconds)
            for state, seconds in value.items()
            if state in RETENTION
        }
    return {_OF_SETTING[setting][0]: _text(setting, value)}


def _text(setting: str, value: Any) -> str:
    if setting == "backoff_seconds":
        return ", ".join(span(each) for each in (value if isinstance(value, list) else [value]))
    if setting == "lease_seconds":
        return span(value)
    if setting == "payload_schema":
        return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    if setting == "key" and isinstance(value, list):
        return _lines(value)
    return value if isinstance(value, str) else number_text(value)


def _lines(parts: list[Any]) -> str:
    plain = all(isinstance(part, str) and part == part.strip() and "\n" not in part for part in parts)
    if plain and not parts[0].startswith("["):
        return "\n".join(parts)
    return orjson.dumps(parts).decode()


# -- and back -----------------------------------------------------------------------------------------------


class UnreadableField(Exception):
    """Nothing that could be shown to the API; the message is for who typed it."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def settings_in(typed: Texts, stored: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings that are wanted; and by field what cannot even be shown to the API.

    What is not as the API wants it is left for it to refuse.
    """
    before = texts(stored)
    # Those of a newer version, for which there are no fields.
    wanted = {name: value for name, value in stored.items() if name not in _OF_SETTING}
    problems: dict[str, str] = {}
    for setting, names in _OF_SETTING.items():
        now = {name: typed.get(name, before[name]).strip() for name in names}
        if now == {name: before[name].strip() for name in names}:
            value = stored.get(setting)
        else:
            try:
                value = _value(setting, now, stored.get(setting))
            except UnreadableField as problem:
                problems[problem.field or names[0]] = str(problem)
                continue
        if value is not None:
            wanted[setting] = value
    return wanted, problems


def _value(setting: str, typed: Texts, stored: Any) -> Any:
    if setting == "rate":
        return _rate(typed)
    if setting == "retention":
        return _retention(typed, stored)
    [text] = typed.values()
    return _READ.get(setting, number_in)(text) if text else None


def _rate(typed: Texts) -> dict[str, Any] | None:
    limit, per, burst = (typed[name] for name in ("rate_limit", "rate_per_seconds", "rate_burst"))
    rate: dict[str, Any] = {}
    if limit:
        rate["limit"] = number_in(limit)
    if per:
        rate["per_seconds"] = _span(per, "rate_per_seconds")
    if burst:
        rate["burst"] = number_in(burst)
    return rate or None


def _retention(typed: Texts, stored: Any) -> dict[str, Any] | None:
    # States that this version has no field for stay.
    kept = {state: value for state, value in stored.items() if state not in RETENTION} if stored else {}
    for state, name in RETENTION.items():
        if typed[name]:
            kept[state] = 0 if typed[name].lower() == FOR_EVER else _span(typed[name], name)
    return kept or None


def _span(text: str, field: str = "") -> float:
    seconds = seconds_in(text)
    if seconds is None:
        raise UnreadableField("is not a length of time, such as 30 s, 5 min, 12 h or 7 d", field)
    return seconds


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as problem:
        raise UnreadableField(f"is not JSON: {problem}") from problem


def _parts(text: str) -> Any:
    return (
        _json(text) if text.startswith("[") else [each for each in map(str.strip, text.split("\n")) if each]
    )


def _pauses(text: str) -> Any:
    pauses = [_span(each.strip()) for each in text.split(",")]
    return pauses[0] if len(pauses) == 1 else pauses


_READ: dict[str, Callable[[str], Any]] = {
    "fair_by": str,
    "when_full": str,
    "stale_policy": str,
    "payload_schema": _json,
    "key": _parts,
    "lease_seconds": _span,
    "backoff_seconds": _pauses,
}


# -- what the API says of it --------------------------------------------------------------------------------


def problems_of(refusal: ForemanError) -> dict[str, str]:
    """By field of the form; what belongs to none of them is said above it."""
    said: dict[str, str] = {}
    for error in refusal.extra.get("errors", []):
        where, message = str(error.get("field", "")), str(error.get("message", ""))
        said[_field_of(where, message)] = re.sub(r" at `\$.*?`", "", message)
    return said


def _field_of(where: str, message: str) -> str:
    setting, _, part = where.partition(".")
    inner = re.search(r"`\$\.(\w+)", message) or re.match(r"(burst)\b", message)
    for name in (f"{setting}_{part}", f"{setting}_{inner[1]}" if inner else "", setting):
        if name in FIELDS:
            return name
    return _OF_SETTING[setting][0] if setting in _OF_SETTING else where


def unknown_settings(stored: Iterable[str]) -> list[str]:
    return sorted(set(stored) - set(QueueSettings.__struct_fields__))
