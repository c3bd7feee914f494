"""The settings: one frozen object, read from FOREMAN_* once. Nothing else reads the environment."""

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX = "FOREMAN_"
# Variables that belong to the command-line client, not to the server.
CLIENT_VARIABLES = frozenset({"FOREMAN_URL", "FOREMAN_API_KEY"})

Role = Literal["all", "api", "worker"]


class SettingsError(Exception):
    """A setting is wrong or unknown; the message names it."""


class Settings(BaseSettings):
    """Every setting, with its meaning. The environment variable is FOREMAN_ and the name in capitals."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    database_url: str | None = Field(
        None, description="PostgreSQL to use; without it an embedded one is started"
    )
    listen_database_url: str | None = Field(
        None, description="direct URL for LISTEN when the first goes through PgBouncer"
    )
    database_connections: int = Field(10, ge=2, le=500, description="size of each process's connection pool")
    data_dir: Path = Field(Path(".foreman"), description="where the embedded PostgreSQL keeps its data")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    auth: Literal["on", "off"] = Field(
        "off", description="only off for now: there are no API keys yet, so only this machine is served"
    )
    role: Role = Field("all", description="what this process does: all, api or worker")
    processes: int = Field(1, ge=1, le=64, description="how many processes serve")
    worker_slots: int = Field(64, ge=1, le=10_000, description="jobs that one process runs at the same time")
    lease_seconds: float = Field(30, ge=0.2, le=86_400, description="how long a claim holds without renewal")
    sweep_seconds: float = Field(5, ge=0.05, le=3600, description="how often overdue jobs are looked for")
    poll_seconds: float = Field(
        1, ge=0.02, le=60, description="how often work is looked for when no notice came"
    )
    cancel_grace_seconds: float = Field(
        10, ge=0, le=3600, description="time a worker has to confirm a cancel"
    )
    database_patience_seconds: float = Field(
        30,
        ge=0,
        le=3600,
        description="how long a database may refuse us at the start (wrong role, name or host) before we end",
    )
    shutdown_grace_seconds: float = Field(
        20, ge=0, le=3600, description="time that running jobs have to finish at shutdown"
    )
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024, le=1 << 30, description="largest request body")
    max_bytes_in_flight: int = Field(
        256 * 1024 * 1024,
        ge=1024,
        le=1 << 40,
        description="bytes of request bodies that one process holds at the same time; at least one body",
    )
    max_json_depth: int = Field(64, ge=4, le=500, description="deepest nesting of a JSON body")
    request_timeout_seconds: float = Field(
        20,
        ge=0.1,
        le=600,
        description="time a client has to send its headers, and each further part of its body",
    )
    listen: Literal["on", "off"] = Field(
        "on", description="off: no LISTEN, polling alone; behind a PgBouncer with no direct way past it"
    )
    max_streams: int = Field(
        10_000, ge=1, le=1_000_000, description="event and token streams that one process serves at a time"
    )
    keep_alive_seconds: float = Field(
        15, ge=0.05, le=300, description="how often a stream on which nothing happens says so"
    )
    slow_reader_seconds: float = Field(
        30, ge=0.1, le=3600, description="a connection whose reader takes nothing for so long is closed"
    )
    retention_days: float = Field(
        7,
        ge=0,
        le=3650,
        description="days for which ended jobs are kept, unless their queue says otherwise; 0: for ever",
    )
    dead_letter_days: float = Field(
        30, ge=0, le=3650, description="the same for jobs that failed or were dismissed"
    )
    chatter_days: int = Field(
        14, ge=1, le=3650, description="days for which output, progress and logs of jobs are kept"
    )
    artifacts_url: str | None = Field(
        None,
        description="where artifacts lie: file:///folder or s3://bucket/prefix; without it, in PostgreSQL",
    )
    max_artifact_bytes: int = Field(256 * 1024 * 1024, ge=1024, le=1 << 40, description="largest artifact")
    outbound_allow: str = Field(
        "",
        description="networks, addresses and hosts, separated by commas, that webhooks and http jobs may "
        "call although they are not on the public internet",
    )
    secret_key: str | None = Field(
        None,
        repr=False,
        description="key that keeps webhook secrets safe at rest: base64 of 32 bytes or a long passphrase; "
        "several, separated by commas, while it is being replaced",
    )
    webhook_secret: str | None = Field(
        None,
        repr=False,
        description="whsec_… that signs webhooks of jobs without a secret of their own; several, separated "
        "by commas, while it is being replaced",
    )
    webhook_host_concurrency: int = Field(
        64, ge=1, le=384, description="webhooks that one process sends to one receiver at the same time"
    )
    ollama_url: str | None = Field(None, description="an Ollama to use: makes the target `default`")
    ollama_slots: int = Field(
        4, ge=1, le=10_000, description="jobs that the target `default` gets at the same time"
    )
    targets: Path | None = Field(None, description="TOML file with more targets")
    inventory_seconds: float = Field(
        30, ge=0.05, le=3600, description="how often a target is asked what it has"
    )
    affinity_patience_seconds: float = Field(
        30,
        ge=0,
        le=86_400,
        description="how long a job may wait while others use the model that is loaded",
    )
    target_timeout_seconds: float = Field(
        300, ge=0.1, le=86_400, description="how long a target may say nothing in the middle of a job"
    )
    allowed_hosts: str = Field(
        "",
        description="names, separated by commas, that this server is called by besides the loopback ones",
    )
    cors_origins: str = Field("", description="origins of browser clients, separated by commas")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe log line to write"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="JSON lines, or for people on a terminal"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """load_settings is the sole reader of the environment, and of the one it is given."""
        return (init_settings,)

    @field_validator("database_url", "listen_database_url")
    @classmethod
    def _is_postgres(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(
            ("postgresql://", "postgres://", "postgresql+asyncpg://")
        ):
            raise ValueError("must begin with postgresql://")
        if value is not None and not _is_url(value):
            raise ValueError("is not a URL; is each @ / ? # [ ] in the password escaped (%40 for @)?")
        if value is not None and not _has_good_ports(value):
            raise ValueError("has a port that is not a number from 1 to 65535")
        return value

    @field_validator("artifacts_url")
    @classmethod
    def _is_artifact_place(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"file:///.|s3://[^/]+", value):
            raise ValueError("must be file:///folder or s3://bucket/prefix")
        return value

    @field_validator("auth")
    @classmethod
    def _is_built(cls, value: str) -> str:
        # Better refused than believed to be on.
        if value == "on":
            raise ValueError("API keys are not built yet; leave it off and serve this machine only")
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, value: str) -> str:
        for name in listed(value):
            if not re.fullmatch(r"[A-Za-z0-9._\-]+|\[?[0-9A-Fa-f:.]+\]?", name):
                raise ValueError("must be names without a port, separated by commas")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: str) -> str:
        for origin in listed(value):
            if origin in {"*", "null"}:
                raise ValueError(
                    "must name the origins: without authentication, any web page could drive this server"
                )
            if not re.fullmatch(r"[a-z][a-z0-9+.\-]*://[^/,\s]+", origin):
                raise ValueError("must be origins like https://chat.example, separated by commas")
        return value

    @field_validator("host")
    @classmethod
    def _is_loopback(cls, value: str) -> str:
        # There are no API keys yet, so nobody but this machine may reach us.
        if not is_loopback(value):
            raise ValueError(
                "must be a loopback address (127.0.0.1, ::1 or localhost) while there is no authentication"
            )
        return value


def listed(value: str) -> list[str]:
    """The entries of a setting that is a list separated by commas."""
    return [each.strip() for each in value.split(",") if each.strip()]


def _is_url(url: str) -> bool:
    """What the driver would end with a traceback over, and perhaps with a piece of the password in it."""
    try:
        parts = urlsplit(url)
        parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        return False
    user, _, hosts = parts.netloc.rpartition("@")
    return "@" not in user and ("," not in hosts or all(hosts.split(",")))


def _has_good_ports(url: str) -> bool:
    """Several hosts, each with a port of its own; or `port` and `host` among the parameters."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    ports = []
    for name, value in parse_qsl(parts.query):
        if name == "port":
            ports += value.split(",")
        elif name == "host":
            hosts += value.split(",")
    for host in hosts:
        # A socket's folder has no port; an IPv6 address has colons of its own.
        behind = host.rpartition("]")[2]
        if not host.startswith("/") and behind.count(":") == 1:
            ports.append(behind.partition(":")[2])
    return all(port == "" or _is_port(port) for port in ports)


def _is_port(text: str) -> bool:
    return re.fullmatch("[0-9]{1,5}", text) is not None and 1 <= int(text) <= 65535


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load_settings(environment: Mapping[str, str] | None = None, **flags: Any) -> Settings:
    """Flags win over the environment. Raises SettingsError naming every wrong or unknown setting."""
    environment = os.environ if environment is None else environment
    known = set(Settings.model_fields)
    problems = [_unknown(name, known) for name in sorted(environment) if _is_unknown(name, known)]
    values: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and name.removeprefix(PREFIX).lower() in known and value != ""
    }
    values.update({name: value for name, value in flags.items() if value is not None})
    try:
        settings = Settings(**values)
    except ValidationError as error:
        problems += [f"{PREFIX}{str(each['loc'][0]).upper()}: {_words(each)}" for each in error.errors()]
    if problems:
        raise SettingsError("\n".join(problems))
    return settings


def _is_unknown(name: str, known: set[str]) -> bool:
    return (
        name.startswith(PREFIX)
        and name not in CLIENT_VARIABLES
        and name.removeprefix(PREFIX).lower() not in known
    )


def _unknown(name: str, known: set[str]) -> str:
    candidates = [f"{PREFIX}{each.upper()}" for each in known]
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.4)
    return f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ".")


def _words(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    # Never repeat a value: it may be a URL with a password in it.
    return message if message[:2].isupper() else message[:1].lower() + message[1:]
