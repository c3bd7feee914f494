"""Charts, drawn here as SVG: sparklines for a figure, lines and areas for the overview, bars for days.

Pure: values in, markup out. A plot is as wide as its place, so what lies in it is drawn in a box of its own
that is stretched, and words are put beside it by percentages. Nothing is told by colour alone: each line has
its name at its end, and the script (static/foreman.js) says the values under the pointer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import msgspec
from markupsafe import Markup

SPARK_WIDTH, SPARK_HEIGHT = 120, 24
# Of the stretched box. Its width is the number of steps.
BOX_HEIGHT = 100
PLOT_HEIGHT = 132
# In percent of the plot's height: nearer to each other two names could not be read.
NAME_HEIGHT = 11.0
DAY_SECONDS = 86_400.0
NICE_SECONDS = (1, 2, 10, 20, 60, 120, 600, 1200, 3600, 7200, 14_400, 28_800, 43_200, 86_400)

Values = Sequence[float | None]
Say = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    values: Values
    # The class that has its colour: a state, or series-1 to series-7.
    look: str


@dataclass(frozen=True, slots=True)
class Span:
    """The time that a chart shows."""

    began: datetime
    step_seconds: float
    # As people call it: 15 min.
    label: str


def sparkline(values: Values, label: str) -> Markup:
    """A line of 120 × 24 beside a figure."""
    known = [value for value in values if value is not None]
    highest = max(known, default=0) or 1
    points = _points(
        [None if value is None else 1 - value / highest for value in values],
        width=SPARK_WIDTH,
        height=SPARK_HEIGHT - 3,
    )
    return Markup(
        '<svg class="spark" width="{w}" height="{h}" viewBox="0 -1 {w} {h}" role="img" aria-label="{label}">'
        '<path d="{path}" fill="none"/></svg>'
    ).format(w=SPARK_WIDTH, h=SPARK_HEIGHT, label=label, path=_path(points))


def line_chart(title: str, series: Sequence[Series], span: Span, say: Say) -> Markup:
    """Lines over time, from zero on."""
    top = nice_top(max((value for each in series for value in each.values if value is not None), default=0))
    lines = Markup("").join(
        Markup('<path class="line {}" d="{}" vector-effect="non-scaling-stroke"/>').format(
            each.look, _path(_points([None if v is None else 1 - v / top for v in each.values]))
        )
        for each in series
    )
    return _chart(title, series, span, say, top, lines, _names_at_ends(series, top))


def stacked_chart(title: str, series: Sequence[Series], span: Span, say: Say) -> Markup:
    """Areas on top of each other, the first at the bottom."""
    steps = max((len(each.values) for each in series), default=0)
    sums = [0.0] * steps
    areas = []
    bounds = []
    for each in series:
        below = list(sums)
        sums = [low + (value or 0) for low, value in zip(below, each.values, strict=True)]
        bounds.append((each, below, sums))
    top = nice_top(max(sums, default=0))
    for each, low, high in bounds:
        upper = _points([1 - value / top for value in high])
        lower = _points([1 - value / top for value in low])
        path = _path(upper) + "L" + "L".join(_pair(point) for point in reversed(lower) if point) + "Z"
        areas.append(Markup('<path class="area {}" d="{}"/>').format(each.look, path))
    # An area may be too thin for its name.
    swatches = Markup("").join(
        Markup('<li class="{}">{}</li>').format(each.look, each.name) for each in reversed(series)
    )
    names = Markup('<ul class="swatches">{}</ul>').format(swatches) if len(series) > 1 else Markup("")
    return _chart(title, series, span, say, top, Markup("").join(areas), Markup(""), names)


def bar_chart(
    title: str, series: Sequence[Series], days: Sequence[date], say: Say, *, of_seconds: bool = False
) -> Markup:
    """A bar for each day, the series on top of each other, the first at the bottom."""
    sums = [0.0] * len(days)
    for each in series:
        sums = [low + (value or 0) for low, value in zip(sums, each.values, strict=True)]
    top = (nice_seconds if of_seconds else nice_top)(max(sums, default=0))
    blocks = []
    below = [0.0] * len(days)
    for each in series:
        for place, value in enumerate(each.values):
            if value:
                below[place] += value
                blocks.append(_block(each.look, place, below[place] / top, value / top))
    told = [*series, *([Series("all", sums, "muted")] if len(series) > 1 else [])]
    began = datetime(days[0].year, days[0].month, days[0].day, tzinfo=UTC)
    return _figure(
        title,
        data=_data(told, Span(began, DAY_SECONDS, ""), say, bars=True),
        summary=_summary_of_days(title, series, days, say),
        axis=_axis(top, say),
        width=len(days),
        drawn=Markup("").join(blocks),
        names=Markup(""),
        times=[f"{day:%Y-%m-%d}" for day in dict.fromkeys((days[0], days[len(days) // 2], days[-1]))],
    )


def _block(look: str, place: int, upper: float, share: float) -> Markup:
    return Markup('<rect class="block {}" x="{:.2f}" width=".8" y="{:.2f}" height="{:.2f}"/>').format(
        look, place + 0.1, (1 - upper) * BOX_HEIGHT, share * BOX_HEIGHT
    )


def _summary_of_days(title: str, series: Sequence[Series], days: Sequence[date], say: Say) -> str:
    said = "; ".join(f"{each.name}: {say(sum(value or 0 for value in each.values))}" for each in series)
    return f"{title}, {days[0]} to {days[-1]}. {said or 'Nothing'}."


def nice_top(highest: float) -> float:
    """The end of an axis: one, two or five of something, not below the highest value."""
    if highest <= 0 or not math.isfinite(highest):
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= highest * 0.999)


def nice_seconds(highest: float) -> float:
    """The same of a duration, so that it is a whole number of what people count in."""
    if not math.isfinite(highest):
        return 1.0
    whole = next((step for step in NICE_SECONDS if step >= highest * 0.999), None)
    return float(whole) if whole else nice_top(highest / DAY_SECONDS) * DAY_SECONDS


def _chart(
    title: str,
    series: Sequence[Series],
    span: Span,
    say: Say,
    top: float,
    drawn: Markup,
    names: Markup,
    below: Markup = Markup(""),  # noqa: B008  # it never changes
) -> Markup:
    steps = max((len(each.values) for each in series), default=0)
    return _figure(
        title,
        data=_data(series, span, say),
        summary=_summary(title, series, say),
        axis=_axis(top, say),
        width=max(1, steps - 1),
        drawn=drawn,
        names=names,
        times=(f"{span.label} ago", "now"),
        below=below,
    )


def _figure(  # noqa: PLR0913  # one for each of its parts
    title: str,
    *,
    data: str,
    summary: str,
    axis: Markup,
    width: int,
    drawn: Markup,
    names: Markup,
    times: Sequence[str],
    below: Markup = Markup(""),  # noqa: B008  # it never changes
) -> Markup:
    return Markup(
        '<figure class="chart" tabindex="0" data-chart="{data}"><figcaption>{title}</figcaption>'
        '<svg class="plot" width="100%" height="{height}" role="img" aria-label="{summary}">{grid}'
        '<svg viewBox="0 0 {width} {box}" width="100%" height="100%" preserveAspectRatio="none">{drawn}</svg>'
        '{axis}{names}</svg><div class="times" aria-hidden="true">{times}</div>{below}</figure>'
    ).format(
        data=data,
        title=title,
        height=PLOT_HEIGHT,
        summary=summary,
        grid=_grid(),
        axis=axis,
        width=width,
        box=BOX_HEIGHT,
        drawn=drawn,
        names=names,
        below=below,
        times=Markup("").join(Markup("<span>{}</span>").format(each) for each in times),
    )


def _grid() -> Markup:
    return Markup("").join(
        Markup('<line class="grid" x1="0" x2="100%" y1="{y}%" y2="{y}%"/>').format(y=y) for y in (100, 50, 0)
    )


def _axis(top: float, say: Say) -> Markup:
    """Over what is drawn, so that it can be read there, too."""
    return Markup("").join(
        Markup('<text class="axis" x="2" y="{}%" dy="-3">{}</text>').format(y, say(top * share))
        for y, share in ((50, 0.5), (0, 1))
    )


def _points(
    shares: Values, *, width: float | None = None, height: float = BOX_HEIGHT
) -> list[tuple[float, float] | None]:
    """From shares of the height, counted from the top."""
    across = 1.0 if width is None else width / max(1, len(shares) - 1)
    return [None if share is None else (index * across, share * height) for index, share in enumerate(shares)]


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """Where there is no value, there is a gap; a value between two gaps is a dot."""
    parts = []
    pen_is_down = False
    for index, point in enumerate(points):
        if point is None:
            pen_is_down = False
            continue
        alone = not pen_is_down and (index + 1 == len(points) or points[index + 1] is None)
        parts.append(("L" if pen_is_down else "M") + _pair(point) + ("h.01" if alone else ""))
        pen_is_down = True
    return "".join(parts)


def _pair(point: tuple[float, float]) -> str:
    return f"{_round(point[0])} {_round(point[1])}"


def _round(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _last(values: Values) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _names_at_ends(series: Sequence[Series], top: float) -> Markup:
    """Each name at the end of its line, moved apart where they would cover each other."""
    ends = [(each, last) for each in series if (last := _last(each.values)) is not None]
    ends.sort(key=lambda end: end[1])
    heights: list[float] = []
    for _, last in ends:
        beside = 97 - last / top * 100
        heights.append(min(beside, heights[-1] - NAME_HEIGHT) if heights else beside)
    # Those that were moved out at the top go down again, and push the others before them.
    highest = NAME_HEIGHT
    for place in reversed(range(len(heights))):
        heights[place] = max(heights[place], highest)
        highest = heights[place] + NAME_HEIGHT
    return Markup("").join(
        Markup('<text class="name {}" x="100%" dx="-2" y="{}%" text-anchor="end">{}</text>').format(
            each.look, _round(height), each.name
        )
        for (each, _), height in zip(ends, heights, strict=True)
    )


def _summary(title: str, series: Sequence[Series], say: Say) -> str:
    said = []
    for each in series:
        known = [value for value in each.values if value is not None]
        if known:
            said.append(f"{each.name}: {say(known[-1])} now, at most {say(max(known))}")
    return f"{title}. {'; '.join(said) or 'Nothing yet'}."


class _Line(msgspec.Struct):
    name: str
    look: str
    said: list[str]


class _Told(msgspec.Struct):
    began: float
    step: float
    lines: list[_Line]
    # Bars stand beside each other, each a day of UTC; points lie from one edge to the other.
    bars: bool = False


def _data(series: Sequence[Series], span: Span, say: Say, *, bars: bool = False) -> str:
    """What the script says under the pointer, in the very words of the axis."""
    lines = [
        _Line(each.name, each.look, ["–" if value is None else say(value) for value in each.values])
        for each in series
    ]
    return msgspec.json.encode(
        _Told(span.began.astimezone(UTC).timestamp(), span.step_seconds, lines, bars)
    ).decode()
