"""The settings of a queue, and what they mean for a job on its way in.

`QueueSettings` is what an operator wrote; `QueueRules` is the same, made ready for use. Pure: who counts,
waits and locks is the store.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
import orjson
from msgspec import Meta

from app.errors import InvalidRequest
from app.jobs import verbatim
from app.jobs.explain import explain
from app.jobs.keys import concurrency_key
from app.jobs.payload_schema import compile_schema
from app.jobs.states import TERMINAL, State
from app.jobs.submission import NO_NUL, Backoff, NewJob, Seconds, invalid
from app.jobs.tenants import scoped

MAX_SETTINGS_BYTES = 512 * 1024
BY_TENANT = "tenant"
# A job without the metadata that its queue is fair by takes its turn under this value.
NOBODY = ""
# How much of its limit a rate may catch up on at once.
BURST_SHARE = 0.2
MAX_FAIR_VALUE = 40
# Who wants less makes `per_seconds` longer. Far smaller ones are no numbers to compute moments with.
MIN_RATE_LIMIT = 0.001

Part = Annotated[str, Meta(min_length=1, max_length=256, pattern=NO_NUL)]
Positive = Annotated[int, Meta(ge=1, le=10_000_000)]
Retention = Annotated[
    dict[str, Seconds],
    Meta(
        description="Seconds after its end that a job is kept, by state; 0: for ever. A state that is not "
        "named has the server's default: a week, or 30 days for failed and dismissed ones.",
        # Described, and checked by hand: the error then names the state.
        extra_json_schema={"propertyNames": {"enum": sorted(TERMINAL)}},
    ),
]


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Claims per time, over the whole fleet: `limit` per `per_seconds`, at most `burst` of them at once."""

    limit: Annotated[float, Meta(ge=MIN_RATE_LIMIT, le=1_000_000)]
    per_seconds: Annotated[float, Meta(ge=0.001, le=31_557_600)] = 1.0
    burst: (
        Annotated[float, Meta(ge=1, le=1_000_000, description="At once; a fifth of limit if absent.")] | None
    ) = None

    @property
    def per_second(self) -> float:
        return self.limit / self.per_seconds

    @property
    def capacity(self) -> float:
        return self.burst or max(1.0, self.limit * BURST_SHARE)


class QueueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All the settings of a queue, flat; whatever is absent has its default."""

    max_depth: (
        Annotated[Positive, Meta(description="Jobs that may wait; one more is refused with 429 queue_full.")]
        | None
    ) = None
    max_running: (
        Annotated[Positive, Meta(description="Jobs that run at once, over the whole fleet.")] | None
    ) = None
    rate: Rate | None = None
    fair_by: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=128,
                pattern=NO_NUL,
                description="A metadata key, or `tenant`: its values take turns.",
            ),
        ]
        | None
    ) = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    backoff_seconds: Seconds | Backoff | None = None
    lease_seconds: Annotated[float, Meta(ge=0.2, le=86_400)] | None = None
    retention: Retention | None = None
    payload_schema: Annotated[
        dict[str, Any] | bool | None, Meta(description="JSON Schema that every payload must satisfy.")
    ] = None
    key: (
        Annotated[
            list[Part],
            Meta(
                min_length=1,
                max_length=16,
                description="Concurrency key: constants, and JSON pointers (leading slash) into the payload.",
            ),
        ]
        | None
    ) = None
    max_active: (
        Annotated[Positive, Meta(description="Jobs of one key that run at once; 1 if absent.")] | None
    ) = None
    max_queued: (
        Annotated[int, Meta(ge=0, le=10_000_000, description="Jobs of one key that wait; 0 if absent.")]
        | None
    ) = None
    when_full: Literal["reject", "coalesce", "replace-oldest"] | None = None
    stale_policy: Literal["fail-stale", "block"] | None = None


KEY_SETTINGS = ("max_active", "max_queued", "when_full", "stale_policy")
KEY_DEFAULTS: Mapping[str, Any] = {
    "max_active": 1,
    "max_queued": 0,
    "when_full": "reject",
    "stale_policy": "fail-stale",
}
NO_SETTINGS = QueueSettings()
DAY_SECONDS = 86_400.0


def usual_retention(days: float, dead_letter_days: float) -> dict[str, float]:
    """For how many seconds an ended job is kept, by state, unless its queue says otherwise; 0: for ever."""
    dead = (State.FAILED, State.DISMISSED)
    return {
        str(state): DAY_SECONDS * (dead_letter_days if state in dead else days) for state in sorted(TERMINAL)
    }


def parse_settings(body: bytes, max_depth: int = verbatim.DEFAULT_MAX_DEPTH) -> dict[str, Any]:
    """The settings that an operator sent, checked. Raises InvalidRequest naming what is wrong."""
    if len(body) > MAX_SETTINGS_BYTES:
        raise InvalidRequest(f"The settings may have at most {MAX_SETTINGS_BYTES} bytes.")
    parts = verbatim.members(body, max_depth)
    unknown = sorted(parts.keys() - set(QueueSettings.__struct_fields__))
    if unknown:
        raise invalid(unknown[0], "is not a setting of a queue")
    try:
        settings = msgspec.json.decode(body, type=QueueSettings)
    except msgspec.ValidationError as problem:
        raise explain(parts, QueueSettings) from problem
    except msgspec.DecodeError as problem:
        raise InvalidRequest(f"The settings cannot be read: {problem}.") from problem
    _check(settings)
    return {name: value for name, value in orjson.loads(body).items() if value is not None}


def load_settings(stored: str, unreadable: Callable[[str], None] = lambda _: None) -> QueueSettings:
    """Settings from the database. What a newer version wrote there and we do not know is left alone; what
    cannot be read (an older one took more) is told to `unreadable` and has its default.
    """
    try:
        # Not msgspec: in jsonb 1e300 became an integer of 301 digits, and is to be a float again.
        given = orjson.loads(stored)
    except orjson.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        unreadable("settings")
        return NO_SETTINGS
    known = {name: given[name] for name in QueueSettings.__struct_fields__ if name in given}
    try:
        return msgspec.convert(known, QueueSettings)
    except msgspec.ValidationError:
        return msgspec.convert(_readable(known, unreadable), QueueSettings)


def _readable(given: dict[str, Any], unreadable: Callable[[str], None]) -> dict[str, Any]:
    kept = {}
    for name, value in given.items():
        try:
            msgspec.convert({name: value}, QueueSettings)
        except msgspec.ValidationError:
            unreadable(name)
        else:
            kept[name] = value
    return kept


def _check(settings: QueueSettings) -> None:
    if settings.key is None:
        for name in KEY_SETTINGS:
            if getattr(settings, name) is not None:
                raise invalid(name, "means nothing without key")
    if settings.max_running is not None and (settings.max_active or 0) > settings.max_running:
        raise invalid("max_active", "cannot be reached: max_running of the whole queue is smaller")
    if settings.max_depth is not None and (settings.max_queued or 0) > settings.max_depth:
        raise invalid("max_queued", "cannot be reached: max_depth of the whole queue is smaller")
    if settings.rate is not None and (settings.rate.burst or 0) > max(1, settings.rate.limit):
        raise invalid("rate", "burst must not be larger than limit")
    for state in settings.retention or {}:
        if state not in TERMINAL:
            raise invalid(f"retention.{state}", f"must be one of {', '.join(sorted(TERMINAL))}")
    if settings.payload_schema is not None:
        try:
            text = orjson.dumps(settings.payload_schema).decode()
        except TypeError as problem:
            raise invalid("payload_schema", "has an integer of more than 64 bits") from problem
        if "\0" in text.replace("\\u0000", "\0"):
            raise invalid("payload_schema", "has a NUL character, which cannot be kept")
        compile_schema(settings.payload_schema)


def in_force(stored: Mapping[str, Any], usual: Mapping[str, float]) -> dict[str, Any]:
    """Every setting of a queue as it was written, or its default."""
    defaults = KEY_DEFAULTS if stored.get("key") is not None else {}
    shown = {name: stored.get(name, defaults.get(name)) for name in QueueSettings.__struct_fields__}
    return shown | {"retention": {**usual, **(stored.get("retention") or {})}}


class QueueRules:
    """A queue's settings, ready for use. Made once per change."""

    def __init__(self, name: str, settings: QueueSettings, *, paused: bool = False) -> None:
        self.name = name
        self.settings = settings
        self.paused = paused
        self.max_active = settings.max_active or 1
        self.max_queued = settings.max_queued or 0
        self.when_full = settings.when_full or "reject"
        self.lease_seconds = settings.lease_seconds
        # Whether its jobs must be counted on their way in, or only looked at.
        self.counts_admission = settings.key is not None or settings.max_depth is not None
        self.is_managed = self.counts_admission or settings.fair_by is not None
        self.limits_claims = settings.max_running is not None or settings.rate is not None
        self.shapes_claims = self.limits_claims or settings.fair_by is not None

    @cached_property
    def _check_payload(self) -> Any:
        schema = self.settings.payload_schema
        return None if schema is None else compile_schema(schema)

    def retention(self, usual: Mapping[str, float]) -> dict[str, float]:
        """For how many seconds an ended job is kept, by state; 0: for ever."""
        return {**usual, **(self.settings.retention or {})}

    def apply(self, job: NewJob) -> None:
        """Check a job against the rules and give it what the queue decides. Raises InvalidRequest."""
        settings = self.settings
        if self._check_payload is not None:
            self._check_payload(job.payload)
        if job.max_attempts is None:
            job.max_attempts = settings.max_attempts
        if job.backoff_seconds is None and settings.backoff_seconds is not None:
            given = settings.backoff_seconds
            job.backoff_seconds = [given] if isinstance(given, int | float) else given
        if settings.key is not None:
            job.concurrency_key = scoped(job.tenant, concurrency_key(settings.key, job.payload))
        if settings.fair_by is not None:
            job.fair_value = self.fair_value(job.tenant, job.metadata)

    def fair_value(self, tenant: str, metadata: str | None) -> str:
        """Whose turn a job takes."""
        if self.settings.fair_by == BY_TENANT:
            return tenant
        value = str((orjson.loads(metadata) if metadata else {}).get(self.settings.fair_by, NOBODY))
        if len(value) > MAX_FAIR_VALUE:
            # It is part of an index; whose turn it is does not depend on how it is spelled.
            value = f"{value[:MAX_FAIR_VALUE]}…{hashlib.sha256(value.encode()).hexdigest()}"
        return scoped(tenant, value)
