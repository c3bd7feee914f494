"""What a target is: from FOREMAN_OLLAMA_URL, from the file that FOREMAN_TARGETS names, or over HTTP."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, structs

from app.config import SettingsError
from app.dialects import DEFAULT_DIALECT, TargetDialectName
from app.jobs.submission import NAME, NO_NUL, Name
from app.outbound.headers import token_problem
from app.outbound.urls import parse_url, url_problem

DEFAULT_SLOTS = 4
MAX_SLOTS = 10_000
DEFAULT_NAME = "default"
ECHO_NAME = "echo"

_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}[:-]?){5}[0-9A-Fa-f]{2}\Z")
_NAME = re.compile(NAME)

Origin = Literal["environment", "file", "api", "builtin"]


class WakeAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How to wake it: a magic packet to `mac` (by way of `address`), or a call of `url`."""

    mac: str | None = None
    address: Annotated[str, Meta(min_length=1, max_length=255, pattern=NO_NUL)] = "255.255.255.255"
    port: Annotated[int, Meta(ge=1, le=65535)] = 9
    url: Annotated[str, Meta(max_length=2048)] | None = None
    method: Literal["GET", "POST", "PUT"] = "POST"

    def shown(self) -> "WakeAction":
        """For those who may read it: a URL without what is often all it takes to switch a machine on."""
        if self.url is None:
            return self
        parts = urlsplit(self.url)
        origin = f"{parts.scheme}://{parts.netloc}"
        return self if self.url in {origin, f"{origin}/"} else structs.replace(self, url=f"{origin}/…")


TargetUrl = Annotated[str, Meta(min_length=1, max_length=2048)]
Slots = Annotated[int, Meta(ge=1, le=MAX_SLOTS)]
Tags = Annotated[list[Name], Meta(max_length=64)]


class TargetFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target as it is written in the file and in a PUT."""

    url: TargetUrl
    dialect: TargetDialectName = DEFAULT_DIALECT.name
    token: Annotated[str, Meta(min_length=1, max_length=4096, description="Kept sealed.")] | None = None
    slots: Slots = DEFAULT_SLOTS
    tags: Tags = []
    wake: WakeAction | None = None


@dataclass(frozen=True, slots=True)
class TargetConfig:
    name: str
    url: str
    dialect: TargetDialectName = DEFAULT_DIALECT.name
    token: str | None = None
    slots: int = DEFAULT_SLOTS
    tags: tuple[str, ...] = ()
    wake: WakeAction | None = None
    origin: Origin = "environment"

    @classmethod
    def of(cls, name: str, fields: TargetFields, origin: Origin) -> "TargetConfig":
        return cls(
            name,
            base_url(fields.url),
            fields.dialect,
            fields.token,
            fields.slots,
            tuple(fields.tags),
            fields.wake,
            origin,
        )

    def settings(self) -> dict[str, Any]:
        """What is kept in the table: all but the token."""
        kept: dict[str, Any] = {
            "url": self.url,
            "dialect": self.dialect,
            "slots": self.slots,
            "tags": list(self.tags),
        }
        if self.wake is not None:
            kept["wake"] = msgspec.to_builtins(self.wake)
        return kept


def base_url(url: str) -> str:
    """Without the slash at the end, and without the /v1 that OpenAI's clients want to be told."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def same_server(one: str, other: str) -> bool:
    """Whether what is meant for the one may be sent to the other: same scheme, host and port."""
    return parse_url(one).origin == parse_url(other).origin


def problem_with(fields: TargetFields) -> tuple[str, str] | None:
    """The field that cannot be right, and why; None when all can."""
    problem = url_problem(fields.url)
    if problem is not None:
        return "url", problem
    if fields.token is not None and token_problem(fields.token) is not None:
        return "token", "has a character that a header cannot carry"
    wake = fields.wake
    if wake is None:
        return None
    if (wake.mac is None) == (wake.url is None):
        return "wake", "needs a mac or a url, and not both"
    if wake.mac is not None and not _MAC.match(wake.mac):
        return "wake", "mac is not a MAC address"
    if wake.url is not None and url_problem(wake.url) is not None:
        return "wake", url_problem(wake.url) or ""
    return None


def from_environment(ollama_url: str | None, slots: int, file: Path | None) -> list[TargetConfig]:
    """The targets that settings make. Raises SettingsError that names what is wrong."""
    configured: list[TargetConfig] = []
    if ollama_url is not None:
        problem = url_problem(ollama_url)
        if problem is not None:
            raise SettingsError(f"FOREMAN_OLLAMA_URL: {problem}")
        configured.append(TargetConfig(DEFAULT_NAME, base_url(ollama_url), slots=slots))
    if file is not None:
        configured += _from_file(file)
    names = [config.name for config in configured]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"FOREMAN_TARGETS: {name} is also made by FOREMAN_OLLAMA_URL")
    return configured


def _from_file(path: Path) -> list[TargetConfig]:
    try:
        document = tomllib.loads(path.read_text())
    except OSError as problem:
        raise SettingsError(f"FOREMAN_TARGETS: cannot read {path}: {problem.strerror}") from problem
    except ValueError as problem:
        raise SettingsError(f"FOREMAN_TARGETS: {path} is not TOML: {problem}") from problem
    tables = document.get("targets")
    if not isinstance(tables, dict) or set(document) != {"targets"}:
        raise SettingsError(
            f"FOREMAN_TARGETS: {path} must have tables named [targets.<name>] and nothing else"
        )
    return [_from_table(name, table) for name, table in tables.items()]


def _from_table(name: str, table: Any) -> TargetConfig:
    where = f"FOREMAN_TARGETS: [targets.{name}]"
    if not _NAME.match(name) or name == ECHO_NAME:
        raise SettingsError(f"{where}: this is not a name that a target can have")
    try:
        fields = msgspec.convert(table, TargetFields)
    except msgspec.ValidationError as problem:
        raise SettingsError(f"{where}: {problem}") from problem
    wrong = problem_with(fields)
    if wrong is not None:
        raise SettingsError(f"{where}: {wrong[0]}: {wrong[1]}")
    return TargetConfig.of(name, fields, "file")
