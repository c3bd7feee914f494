"""The settings of a queue as a person would say them, and what a change of them changes. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from markupsafe import Markup

from app.api.operator_documents import Queue
from app.dashboard.spans import span
from app.dashboard.words import counted, listed, number
from app.jobs.queue_settings import BY_TENANT, QueueSettings, Rate, load_settings
from app.jobs.retry import DEFAULT_BACKOFF_SECONDS, DEFAULT_MAX_ATTEMPTS
from app.store.census import Gate

_PER = {1: "second", 60: "minute", 3600: "hour", 86_400: "day"}
_WHEN_FULL = {
    "reject": "more are refused",
    "coalesce": "more are coalesced",
    "replace-oldest": "more replace the oldest that waits",
}
_STALE = {
    "fail-stale": "one that loses its lease is stale, and the next may run",
    "block": "one that loses its lease keeps its key until it is cancelled",
}
GATES: Mapping[Gate, str] = {
    "paused": "paused",
    "max_running": "as many run as may",
    "rate": "waits for its rate",
    "key": "all that wait, wait for their keys",
}


def settings_of(queue: Queue, usual_retention: Mapping[str, float]) -> QueueSettings:
    """Those of a queue as the API shows it, but for how long jobs are usually kept."""
    given = {name: getattr(queue, name) for name in QueueSettings.__struct_fields__}
    kept = {
        state: value for state, value in given["retention"].items() if usual_retention.get(state) != value
    }
    return load_settings(orjson.dumps(given | {"retention": kept or None}).decode())


def loaded(settings: Mapping[str, Any]) -> QueueSettings:
    return load_settings(orjson.dumps(settings).decode())


def summary(settings: QueueSettings) -> Markup:
    """What shapes the flow of its jobs, in one line."""
    said = [_TELL[name](settings) for name in _FLOW if getattr(settings, name) is not None]
    return Markup(", ").join(said) if said else Markup("no limits")


def template_text(parts: list[str]) -> str:
    """zendesk/{/origin}/tickets: what comes from the payload in brackets."""
    return "/".join(f"{{{part}}}" if part.startswith("/") else part for part in parts)


def _rate(settings: QueueSettings) -> Markup:
    rate = settings.rate or Rate(1)
    per = _PER.get(int(rate.per_seconds)) if rate.per_seconds.is_integer() else None
    said = f"{number(rate.limit)} per {per}" if per else f"{number(rate.limit)} in {span(rate.per_seconds)}"
    return _plain(said if rate.burst is None else f"{said} with up to {number(rate.burst)} in one go")


def _key(settings: QueueSettings) -> Markup:
    said = Markup("keyed by <em>{}</em> {}").format(template_text(settings.key or []), _at_a_time(settings))
    if settings.max_queued:
        said += f" with {number(settings.max_queued)} more waiting"
    if settings.when_full not in {None, "reject"}:
        said += f" ({_WHEN_FULL[str(settings.when_full)]})"
    if settings.stale_policy == "block":
        said += " and kept when a lease is lost"
    return said


def _at_a_time(settings: QueueSettings) -> str:
    most = settings.max_active or 1
    return "one at a time" if most == 1 else f"{number(most)} at a time"


def _backoff(settings: QueueSettings) -> Markup:
    given = settings.backoff_seconds
    pauses = given if isinstance(given, list) else [given]
    return _plain(f"tried again after {listed([span(each) for each in pauses])}")


def _retention(settings: QueueSettings) -> Markup:
    kept = settings.retention or {}
    by_length: dict[float, list[str]] = {}
    for state, seconds in kept.items():
        by_length.setdefault(seconds, []).append(state)
    said = [
        f"{listed(states)} kept {f'for {span(seconds)}' if seconds else 'for ever'}"
        for seconds, states in by_length.items()
    ]
    return _plain("; ".join(said))


def _plain(text: str) -> Markup:
    return Markup.escape(text)


_TELL: dict[str, Callable[[QueueSettings], Markup]] = {
    "max_running": lambda of: _plain(f"at most {number(of.max_running)} at once"),
    "rate": _rate,
    "fair_by": lambda of: (
        _plain("fair by tenant")
        if of.fair_by == BY_TENANT
        else Markup("fair by <em>{}</em>").format(of.fair_by)
    ),
    "max_depth": lambda of: _plain(f"at most {number(of.max_depth)} waiting"),
    "key": _key,
    "max_active": lambda of: _plain(f"{_at_a_time(of)} of each key"),
    "max_queued": lambda of: _plain(f"{counted(of.max_queued or 0, 'more job')} of each key may wait"),
    "when_full": lambda of: _plain(_WHEN_FULL[str(of.when_full)]),
    "stale_policy": lambda of: _plain(_STALE[str(of.stale_policy)]),
    "max_attempts": lambda of: _plain(counted(of.max_attempts or 0, "attempt")),
    "backoff_seconds": _backoff,
    "lease_seconds": lambda of: _plain(f"leases of {span(of.lease_seconds)}"),
    "payload_schema": lambda _: _plain("payloads checked by a schema"),
    "retention": _retention,
}
_FLOW = ("max_running", "rate", "fair_by", "max_depth", "key")
# Said together with it.
_WITH_KEY = frozenset({"max_active", "max_queued", "when_full", "stale_policy"})

LABELS = {
    "max_running": "Running at once",
    "rate": "Rate",
    "fair_by": "Fairness",
    "max_depth": "Waiting",
    "payload_schema": "Payloads",
    "key": "Key",
    "max_active": "Running of a key",
    "max_queued": "Waiting of a key",
    "when_full": "When a key is full",
    "stale_policy": "When a lease is lost",
    "max_attempts": "Attempts",
    "backoff_seconds": "Between attempts",
    "lease_seconds": "Leases",
    "retention": "Ended jobs",
}
_USUAL = {
    "max_running": "as many at once as there are workers",
    "rate": "as fast as workers ask for them",
    "fair_by": "first come, first served",
    "max_depth": "any number may wait",
    "payload_schema": "any payload",
    "key": "no key",
    "max_active": "one at a time of each key",
    "max_queued": "no more jobs of a key may wait",
    "when_full": _WHEN_FULL["reject"],
    "stale_policy": _STALE["fail-stale"],
    "max_attempts": f"{DEFAULT_MAX_ATTEMPTS} attempts",
    "backoff_seconds": f"tried again after {listed([span(each) for each in DEFAULT_BACKOFF_SECONDS])}",
    "lease_seconds": "leases as long as the server's are",
    "retention": "kept for as long as the server keeps them",
}


def sentence(name: str, settings: QueueSettings) -> Markup:
    """One setting, said even where it is as usual."""
    value = getattr(settings, name)
    return _plain(_USUAL[name]) if value is None else _TELL[name](settings)


def sentences(settings: QueueSettings) -> list[tuple[str, Markup]]:
    """All that is not as usual, each with what it is about."""
    return [
        (label, _TELL[name](settings))
        for name, label in LABELS.items()
        if getattr(settings, name) is not None and name not in _WITH_KEY
    ]


@dataclass(frozen=True, slots=True)
class Change:
    label: str
    before: Markup
    after: Markup
    # What the sentences do not show, as JSON.
    old: str = ""
    new: str = ""


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """What is not as it was, setting by setting."""
    old, new = loaded(before), loaded(after)
    return [
        Change(
            LABELS[name],
            sentence(name, old),
            sentence(name, new),
            _shown(name, before),
            _shown(name, after),
        )
        for name in LABELS
        if before.get(name) != after.get(name)
    ]


def _shown(name: str, settings: Mapping[str, Any]) -> str:
    value = settings.get(name)
    if name != "payload_schema" or value is None:
        return ""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
