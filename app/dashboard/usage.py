"""/ui/usage: what was used, by model, key or day: a chart, a table to copy, and the same as CSV."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import Depends
from starlette.responses import Response

from app.api import targets
from app.api.parameters import KnownFilters
from app.api.routes import Reply, Routes
from app.dashboard import words
from app.dashboard.charts import Series, bar_chart
from app.dashboard.page import Page, Visit
from app.errors import InvalidRequest
from app.identity.scopes import Scope
from app.store.usage import KeyUsage, Usage

routes = Routes("dashboard")

WINDOWS = (7, 30, 90)
USUAL_WINDOW = 30
# A chart of more days could not be read.
MOST_DAYS = 366
BY = {"model": "model", "key": "key", "day": "day"}
# What the chart shows: how it is called, and how its values are said.
SHOW: dict[str, tuple[str, Callable[[float], str]]] = {
    "tokens": ("Tokens per day", words.number),
    "jobs": ("Jobs per day", words.number),
    "seconds": ("Time on targets per day", words.duration),
}
# As many as there are colours; what is left is shown as one.
MOST_SERIES = 6
MOST_ROWS = 400
LONGEST_NAME = 40
NO_MODEL = "(no model)"
NO_KEY = "(no key)"
EXAMPLE = (
    "curl {server}/api/chat{key} "
    """-d '{{"model": "echo", "stream": false, "messages": [{{"role": "user", "content": "hello"}}]}}'"""
)
# What a spreadsheet would take for a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(slots=True)
class Sum:
    """Of some jobs."""

    jobs: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    load_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def add(self, row: "Usage | Sum") -> None:
        for each in fields(Sum):
            setattr(self, each.name, getattr(self, each.name) + getattr(row, each.name))

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def seconds(self) -> float:
        return self.load_seconds + self.prefill_seconds + self.decode_seconds

    @property
    def tokens_per_second(self) -> float | None:
        return self.completion_tokens / self.decode_seconds if self.decode_seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Whose:
    """What a row is of: a model, a key, or a whole day."""

    name: str
    # A key's.
    id: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks for."""

    first: date
    last: date
    by: str = "model"
    show: str = "tokens"
    model: str = ""
    # One of the usual windows, up to today; 0 where days are named.
    days: int = USUAL_WINDOW

    @property
    def dates(self) -> list[date]:
        return [self.first + timedelta(days=each) for each in range((self.last - self.first).days + 1)]

    def address(self, path: str = "/ui/usage", **changes: Any) -> str:
        """With what is not as usual."""
        asked = replace(self, **changes)
        window = {"days": asked.days} if asked.days else {"since": asked.first, "until": asked.last}
        given = {**window, "by": asked.by, "show": asked.show, "model": asked.model}
        usual = {"days": USUAL_WINDOW, "by": "model", "show": "tokens", "model": ""}
        query = urlencode({name: value for name, value in given.items() if value != usual.get(name)})
        return f"{path}?{query}" if query else path


@dataclass(slots=True)
class Typed:
    """The query as it came, and what is wrong with it."""

    days: str
    since: str
    until: str
    by: str
    show: str
    model: str
    errors: dict[str, str] = field(default_factory=dict)

    def read(self, today: date) -> Asked:
        """What is wrong is as usual, and noted."""
        first, last = self._day("since", self.since), self._day("until", self.until) or today
        days = 0 if first or self.until else USUAL_WINDOW
        if self.days and (first or self.until):
            self.errors["days"] = "goes without since and until"
        elif self.days and self.days not in map(str, WINDOWS):
            self.errors["days"] = f"must be one of {', '.join(map(str, WINDOWS))}"
        elif self.days:
            days = int(self.days)
        if first is None:
            first = date.fromordinal(max(1, last.toordinal() - (days or USUAL_WINDOW) + 1))
        if first > last:
            self.errors["since"] = "must not be after until"
        elif (last - first).days >= MOST_DAYS:
            self.errors["since"] = f"must be within {MOST_DAYS} days of until"
        if "since" in self.errors:
            first = date.fromordinal(max(1, last.toordinal() - USUAL_WINDOW + 1))
        by, show = self._one_of("by", self.by, BY), self._one_of("show", self.show, SHOW)
        return Asked(first, last, by, show, self.model, days)

    def _day(self, name: str, given: str) -> date | None:
        if not given:
            return None
        try:
            return date.fromisoformat(given)
        except ValueError:
            self.errors[name] = "must be a date such as 2026-01-31"
            return None

    def _one_of(self, name: str, given: str, known: Iterable[str]) -> str:
        if given and given not in known:
            self.errors[name] = f"must be one of {', '.join(known)}"
        return given if given in known else next(iter(known))

    @property
    def problem(self) -> InvalidRequest | None:
        if not self.errors:
            return None
        named = "; ".join(f"{name}: {message}" for name, message in self.errors.items())
        errors = [{"field": name, "message": message} for name, message in self.errors.items()]
        return InvalidRequest(f"{named}.", errors=errors)


async def _typed(
    _known: Annotated[None, Depends(KnownFilters())],
    days: str = "",
    since: str = "",
    until: str = "",
    by: str = "",
    show: str = "",
    model: str = "",
) -> Typed:
    return Typed(days.strip(), since.strip(), until.strip(), by.strip(), show.strip(), model)


FromQuery = Annotated[Typed, Depends(_typed)]
Sums = dict[tuple[date, Whose], Sum]


@routes.get(
    "/ui/usage",
    Scope.ADMIN_READ,
    "Usage",
    Reply("The page", str, media_type="text/html"),
    documented=False,
)
async def usage_page(visit: Visit, typed: FromQuery) -> Response:
    asked = typed.read(datetime.now(UTC).date())
    sums = await _sums(visit, asked)
    totals: dict[Whose, Sum] = {}
    everything = Sum()
    for (_, whose), each in sums.items():
        totals.setdefault(whose, Sum()).add(each)
        everything.add(each)
    ranked = sorted(totals.items(), key=lambda item: (-_measure(asked.show, item[1]), item[0].name))
    series = (
        _split(asked, sums) if asked.by == "day" else _stacked(asked, sums, [whose for whose, _ in ranked])
    )
    title, say = SHOW[asked.show]
    return await visit.show(
        "usage.html",
        status=422 if typed.errors else 200,
        asked=asked,
        typed=typed,
        problem=typed.problem,
        windows=WINDOWS,
        by=BY,
        shows=SHOW,
        chart=bar_chart(title, series, asked.dates, say, of_seconds=asked.show == "seconds"),
        totals=ranked,
        looks=_looks(len(ranked)),
        highest=max((_measure(asked.show, each) for _, each in ranked), default=0),
        measure=lambda each: _measure(asked.show, each),
        say=say,
        everything=everything,
        rows=list(sums.items())[:MOST_ROWS],
        row_count=len(sums),
        models=sorted({whose.name for whose in totals if asked.by == "model" and whose.name != NO_MODEL}),
        series=series,
        example=EXAMPLE.format(server=str(visit.request.base_url).rstrip("/"), key=_key_header(visit)),
    )


@routes.get(
    "/ui/usage.csv",
    Scope.ADMIN_READ,
    "Usage as CSV",
    Reply("The table", str, media_type="text/csv"),
    documented=False,
)
async def usage_csv(visit: Visit, typed: FromQuery) -> Response:
    asked = typed.read(datetime.now(UTC).date())
    if typed.problem is not None:
        raise typed.problem
    whose = {"model": ["model"], "key": ["key", "key_id"], "day": []}[asked.by]
    figures = [each.name for each in fields(Sum)]
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["day", *whose, *figures, "tokens_per_second"])
    for (day, owner), each in (await _sums(visit, asked)).items():
        named = [_harmless(owner.name), owner.id][: len(whose)]
        speed = "" if each.tokens_per_second is None else round(each.tokens_per_second, 3)
        table.writerow([day, *named, *(getattr(each, name) for name in figures), speed])
    name = f"foreman-usage-by-{asked.by}-{asked.first}-{asked.last}.csv"
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return Response(text.getvalue(), headers=headers, media_type="text/csv")


async def _sums(visit: Page, asked: Asked) -> Sums:
    """Newest first; of a day in the order of their names."""
    by: Literal["key"] | None = "key" if asked.by == "key" else None
    found = await targets.usage(
        visit.services, visit.tenant, None, asked.first, asked.last, asked.model or None, by
    )
    sums: Sums = {}
    for row in found.usage:
        sums.setdefault((row.day, _whose(asked, row)), Sum()).add(row)
    return dict(sorted(sums.items(), key=lambda item: (-item[0][0].toordinal(), item[0][1].name)))


def _whose(asked: Asked, row: Usage) -> Whose:
    if asked.by == "model":
        return Whose(row.model or NO_MODEL)
    if isinstance(row, KeyUsage):
        return Whose(NO_KEY) if row.key_id is None else Whose(row.name or row.key_id, row.key_id)
    return Whose("")


def _measure(show: str, of: Sum) -> float:
    return {"tokens": of.tokens, "jobs": of.jobs, "seconds": of.seconds}[show]


def _stacked(asked: Asked, sums: Sums, ranked: Sequence[Whose]) -> list[Series]:
    """The largest each by itself, the others together."""
    look_of = dict(zip(ranked, _looks(len(ranked)), strict=True))
    named = {look: _short(whose.name) for whose, look in reversed(look_of.items())}
    if len(ranked) > MOST_SERIES:
        named[_looks(len(ranked))[-1]] = words.counted(len(ranked) - MOST_SERIES, "other")
    values = {look: dict.fromkeys(asked.dates, 0.0) for look in sorted(named)}
    for (day, whose), each in sums.items():
        values[look_of[whose]][day] += _measure(asked.show, each)
    return [Series(named[look], list(of_days.values()), look) for look, of_days in values.items()]


def _looks(count: int) -> list[str]:
    return [f"series-{min(place, MOST_SERIES) + 1}" for place in range(count)]


def _split(asked: Asked, sums: Sums) -> list[Series]:
    """Of whole days: by what they were spent on."""
    parts = {
        "tokens": ("prompt_tokens", "completion_tokens"),
        "jobs": ("jobs",),
        "seconds": ("load_seconds", "prefill_seconds", "decode_seconds"),
    }[asked.show]
    of_day = {day: each for (day, _), each in sums.items()}
    nothing = Sum()
    return [
        Series(
            part.partition("_")[0],
            [getattr(of_day.get(day, nothing), part) for day in asked.dates],
            f"series-{place}",
        )
        for place, part in enumerate(parts, start=1)
    ]


def _key_header(visit: Page) -> str:
    return "" if visit.services.authenticator is None else ' -H "Authorization: Bearer $FOREMAN_API_KEY"'


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def _harmless(name: str) -> str:
    return f"'{name}" if name.startswith(FORMULA) else name
