"""The settings: one frozen object, read from FOREMAN_* once. Nothing else reads the environment.

But for what others have names for: the libraries of OpenTelemetry read OTEL_* themselves, where traces are
exported. Here it is only decided whether they are.
"""

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

PREFIX = "FOREMAN_"
# Variables that belong to the command-line client, not to the server.
CLIENT_VARIABLES = frozenset({"FOREMAN_URL", "FOREMAN_API_KEY"})
# Where a collector is, in the words of OpenTelemetry.
COLLECTOR_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

Role = Literal["all", "api", "worker"]
Value = TypeVar("Value")


class SettingsError(Exception):
    """A setting is wrong or unknown; the message names it."""


def _setting(default: Value, meaning: str, **limits: Any) -> Value:
    field: Value = Field(default, description=meaning, **limits)
    return field


class Settings(BaseModel):
    """Every setting, with its meaning. The environment variable is FOREMAN_ and the name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    database_url: str | None = _setting(None, "PostgreSQL to use; without it an embedded one is started")
    listen_database_url: str | None = _setting(
        None, "direct URL for LISTEN when the first goes through PgBouncer"
    )
    database_connections: int = _setting(10, "size of each process's connection pool", ge=2, le=500)
    data_dir: Path = _setting(Path(".foreman"), "where the embedded PostgreSQL keeps its data")
    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(8080, "port to listen on; 0 takes a free one", ge=0, le=65535)
    tls_cert: Path | None = _setting(
        None, "PEM file with the certificate and its chain: serves HTTPS; read again when it changes"
    )
    tls_key: Path | None = _setting(None, "PEM file with the certificate's private key, not encrypted")
    auth: Literal["on", "off"] | None = _setting(
        None,
        "whether callers need an API key: on, unless it is the embedded development mode on a loopback "
        "address; off is for loopback addresses only",
    )
    admin_key_file: Path | None = _setting(
        None,
        "file with the first admin key; where there is none, it is made, and a new key written to it "
        "instead of being printed",
    )
    row_security: Literal["on", "off"] = _setting(
        "off",
        "on: what is read for a caller is read as a role that PostgreSQL shows that tenant's rows only",
    )
    session_hours: float = _setting(
        12, "how long a person who signed in to the dashboard stays so", ge=0.01, le=8760
    )
    key_requests_per_second: int = _setting(
        20_000, "requests per second of a key without a limit of its own; 0: any number", ge=0, le=1_000_000
    )
    key_requests: int = _setting(
        5000,
        "requests of such a key at the same time, those that wait or stream included",
        ge=0,
        le=1_000_000,
    )
    key_connections: int = _setting(5000, "open connections of such a key", ge=0, le=1_000_000)
    key_streams: int = _setting(
        2000, "event and token streams of such a key at the same time", ge=0, le=1_000_000
    )
    key_long_polls: int = _setting(2000, "requests of such a key that wait for something", ge=0, le=1_000_000)
    key_body_bytes: int = _setting(
        128 * 1024 * 1024,
        "bytes of such a key's request bodies that one process holds at the same time",
        ge=0,
        le=1 << 40,
    )
    key_jobs: int = _setting(0, "jobs of such a key that have not ended; 0: any number", ge=0, le=1 << 40)
    role: Role = _setting("all", "what this process does: all, api or worker")
    processes: int = _setting(1, "how many processes serve", ge=1, le=64)
    worker_slots: int = _setting(64, "jobs that one process runs at the same time", ge=1, le=10_000)
    lease_seconds: float = _setting(30, "how long a claim holds without renewal", ge=0.2, le=86_400)
    sweep_seconds: float = _setting(5, "how often overdue jobs are looked for", ge=0.05, le=3600)
    poll_seconds: float = _setting(1, "how often work is looked for when no notice came", ge=0.02, le=60)
    cancel_grace_seconds: float = _setting(10, "time a worker has to confirm a cancel", ge=0, le=3600)
    database_patience_seconds: float = _setting(
        30,
        "how long a database may refuse us at the start (wrong role, name or host) before we end",
        ge=0,
        le=3600,
    )
    shutdown_grace_seconds: float = _setting(
        20, "time that running jobs have to finish at shutdown", ge=0, le=3600
    )
    max_body_bytes: int = _setting(16 * 1024 * 1024, "largest request body", ge=1024, le=1 << 30)
    max_bytes_in_flight: int = _setting(
        256 * 1024 * 1024,
        "bytes of request bodies that one process holds at the same time; at least one body",
        ge=1024,
        le=1 << 40,
    )
    max_json_depth: int = _setting(64, "deepest nesting of a JSON body", ge=4, le=500)
    request_timeout_seconds: float = _setting(
        20, "time a client has to send its headers, and each further part of its body", ge=0.1, le=600
    )
    listen: Literal["on", "off"] = _setting(
        "on", "off: no LISTEN, polling alone; behind a PgBouncer with no direct way past it"
    )
    max_streams: int = _setting(
        10_000, "event and token streams that one process serves at a time", ge=1, le=1_000_000
    )
    max_connections: int = _setting(
        20_000,
        "open connections of one process, as far as the operating system allows; when there are more, those "
        "who have said nothing for longest are hung up on",
        ge=8,
        le=1_000_000,
    )
    keep_alive_seconds: float = _setting(
        15, "how often a stream on which nothing happens says so", ge=0.05, le=300
    )
    plain_keep_alive_seconds: float = _setting(
        45,
        "after how long a call without a stream gets its first sign of life, and with it a status that no "
        "error can change any more; 0: never",
        ge=0,
        le=86_400,
    )
    slow_reader_seconds: float = _setting(
        30, "a connection whose reader takes nothing for so long is closed", ge=0.1, le=3600
    )
    retention_days: float = _setting(
        7, "days for which ended jobs are kept, unless their queue says otherwise; 0: for ever", ge=0, le=3650
    )
    dead_letter_days: float = _setting(30, "the same for jobs that failed or were dismissed", ge=0, le=3650)
    chatter_days: int = _setting(
        14, "days for which output, progress and logs of jobs are kept", ge=1, le=3650
    )
    artifacts_url: str | None = _setting(
        None, "where artifacts lie: file:///folder or s3://bucket/prefix; without it, in PostgreSQL"
    )
    max_artifact_bytes: int = _setting(256 * 1024 * 1024, "largest artifact", ge=1024, le=1 << 40)
    max_artifacts: int = _setting(1000, "artifacts that one job may have", ge=1, le=1_000_000)
    max_file_bytes: int = _setting(
        200 * 1024 * 1024, "largest file that batches are made of", ge=1024, le=1 << 40
    )
    outbound_allow: str = _setting(
        "",
        "networks, addresses and hosts, separated by commas, that webhooks and http jobs may "
        "call although they are not on the public internet",
    )
    secret_key: str | None = _setting(
        None,
        "key that seals webhook secrets and what targets have: base64 of 32 bytes or a long passphrase; "
        "several, separated by commas, while it is being replaced",
        repr=False,
    )
    webhook_secret: str | None = _setting(
        None,
        "whsec_… that signs webhooks of jobs without a secret of their own; several, separated "
        "by commas, while it is being replaced",
        repr=False,
    )
    webhook_host_concurrency: int = _setting(
        64, "webhooks that one process sends to one receiver at the same time", ge=1, le=384
    )
    webhook_shape: Literal["foreman", "openai"] = _setting(
        "foreman", "what the webhooks of responses and batches look like, unless a header says otherwise"
    )
    openai_webhook_url: str | None = _setting(
        None,
        "where the events of background responses and of batches go, unless a header names another receiver",
    )
    ollama_url: str | None = _setting(None, "an Ollama to use: makes the target `default`")
    ollama_slots: int = _setting(4, "jobs that the target `default` gets at the same time", ge=1, le=10_000)
    targets: Path | None = _setting(None, "TOML file with more targets")
    inventory_seconds: float = _setting(30, "how often a target is asked what it has", ge=0.05, le=3600)
    affinity_patience_seconds: float = _setting(
        30, "how long a job may wait while others use the model that is loaded", ge=0, le=86_400
    )
    target_timeout_seconds: float = _setting(
        300, "how long a target may say nothing in the middle of a job", ge=0.1, le=86_400
    )
    target_answer_seconds: float = _setting(
        3600, "how long a target may take for an answer that is not streamed", ge=0.1, le=86_400
    )
    allowed_hosts: str = _setting(
        "", "names, separated by commas, that this server is called by besides the loopback ones"
    )
    cors_origins: str = _setting("", "origins of browser clients, separated by commas")
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "least severe log line to write"
    )
    log_format: Literal["auto", "json", "console"] = _setting(
        "auto", "JSON lines, or for people on a terminal"
    )

    traces: Literal["auto", "on", "off"] = _setting(
        "auto",
        "whether traces are exported: auto, where OTEL_EXPORTER_OTLP_ENDPOINT or "
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT says where to",
    )

    @field_validator("database_url", "listen_database_url")
    @classmethod
    def _is_postgres(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.startswith(("postgresql://", "postgres://", "postgresql+asyncpg://")):
            raise ValueError("must begin with postgresql://")
        if not _is_url(value):
            raise ValueError("is not a URL; is each @ / ? # [ ] in the password escaped (%40 for @)?")
        if not _has_good_ports(value):
            raise ValueError("has a port that is not a number from 1 to 65535")
        return value

    @field_validator("tls_key")
    @classmethod
    def _has_its_certificate(cls, value: Path | None, others: ValidationInfo) -> Path | None:
        if "tls_cert" in others.data and (value is None) is not (others.data["tls_cert"] is None):
            missing = "FOREMAN_TLS_KEY" if value is None else "FOREMAN_TLS_CERT"
            raise ValueError(f"HTTPS needs both the certificate and its key; {missing} is not set")
        return value

    @field_validator("artifacts_url")
    @classmethod
    def _is_artifact_place(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"file:///.|s3://[^/]+", value):
            raise ValueError("must be file:///folder or s3://bucket/prefix")
        return value

    @field_validator("auth")
    @classmethod
    def _is_safe(cls, value: str | None, others: ValidationInfo) -> str | None:
        if "host" not in others.data:
            return value
        if value is None:
            is_development = others.data.get("database_url", "") is None and is_loopback(others.data["host"])
            return "off" if is_development else "on"
        if value == "off" and not is_loopback(others.data["host"]):
            raise ValueError(
                "off is for this machine only, and others can reach the address in FOREMAN_HOST: leave it on "
                "(the first key is printed at the start), or listen on 127.0.0.1"
            )
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
                raise ValueError("must name the origins: any other web page could try to drive this server")
            if not re.fullmatch(r"[a-z][a-z0-9+.\-]*://[^/,\s]+", origin):
                raise ValueError("must be origins like https://chat.example, separated by commas")
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
    return all(re.fullmatch("[0-9]{0,5}", port) and 1 <= int(port or 1) <= 65535 for port in ports)


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
    given = {name: name.removeprefix(PREFIX).lower() for name in environment if name.startswith(PREFIX)}
    unknown = sorted(name for name in given.keys() - CLIENT_VARIABLES if given[name] not in known)
    problems = [_unknown(name, known) for name in unknown]
    values: dict[str, Any] = {
        setting: environment[name]
        for name, setting in given.items()
        if setting in known and environment[name]
    }
    values.update({name: value for name, value in flags.items() if value is not None})
    if values.get("traces", "auto") == "auto":
        values["traces"] = "on" if _has_collector(environment) else "off"
    try:
        settings = Settings(**values)
    except ValidationError as error:
        problems += [f"{PREFIX}{str(each['loc'][0]).upper()}: {_words(each)}" for each in error.errors()]
    if problems:
        raise SettingsError("\n".join(problems))
    return settings


def _has_collector(environment: Mapping[str, str]) -> bool:
    """Whether the variables that all programs with OpenTelemetry share want traces, and say where."""
    return (
        any(environment.get(name) for name in COLLECTOR_VARIABLES)
        and environment.get("OTEL_SDK_DISABLED", "").lower() != "true"
        and environment.get("OTEL_TRACES_EXPORTER", "").lower() != "none"
    )


def _unknown(name: str, known: set[str]) -> str:
    candidates = [f"{PREFIX}{each.upper()}" for each in known]
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.4)
    return f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ".")


def _words(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    # Never repeat a value: it may be a URL with a password in it.
    return message if message[:2].isupper() else message[:1].lower() + message[1:]
