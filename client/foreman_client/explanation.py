"""Why a job waits, what it is at, or how it went, as `GET /jobs/{id}/explain` tells it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from foreman_client.wire import moment


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: `code` is for programs, `message` for people; whatever else it says is in `raw`."""

    code: str
    message: str
    since: datetime | None = None
    until: datetime | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> "Reason":
        since, until = moment(data.get("since")), moment(data.get("until"))
        return cls(data.get("code", ""), data.get("message", ""), since, until, data)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A snapshot. Of several reasons the one that decides comes first; `next_at` is when something will next
    happen by itself, None when nobody knows."""

    state: str
    headline: str
    because: tuple[Reason, ...] = ()
    since: datetime | None = None
    position: int | None = None
    next_at: datetime | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> "Explanation":
        return cls(
            data["state"],
            data.get("headline", ""),
            tuple(Reason.from_wire(each) for each in data["because"]),
            moment(data.get("since")),
            data.get("position"),
            moment(data.get("next_at")),
            data,
        )
