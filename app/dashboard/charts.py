"""Charts, drawn here as SVG: sparklines for a figure, lines and stacked areas for the overview.

Pure: values in, markup out. A plot is as wide as its place, so what lies in it is drawn in a box of its own
that is stretched, and words are put beside it by percentages. Nothing is told by colour alone: each line has
its name at its end, and the script (static/foreman.js) says the values under the pointer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from markupsafe import Markup

SPARK_WIDTH, SPARK_HEIGHT = 120, 24
# Of the stretched box. Its width is the number of steps.
BOX_HEIGHT = 100
PLOT_HEIGHT = 132
# In percent of the plot's height: nearer to each other two names could not be read.
NAME_HEIGHT = 11.0

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


def nice_top(highest: float) -> float:
    """The end of an axis: one, two or five of something, not below the highest value."""
    if highest <= 0 or not math.isfinite(highest):
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= highest * 0.999)


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
    grid = Markup("").join(
        Markup(
            '<line class="grid" x1="0" x2="100%" y1="{y}%" y2="{y}%"/>'
            '<text class="axis" x="2" y="{y}%" dy="-3">{said}</text>'
        ).format(y=_round(100 - share * 100), said=say(top * share) if share else "")
        for share in (0, 0.5, 1)
    )
    return Markup(
        '<figure class="chart" tabindex="0" data-chart="{data}"><figcaption>{title}</figcaption>'
        '<svg class="plot" width="100%" height="{height}" role="img" aria-label="{summary}">{grid}'
        '<svg viewBox="0 0 {width} {box}" width="100%" height="100%" preserveAspectRatio="none">{drawn}</svg>'
        '{names}</svg><div class="times" aria-hidden="true"><span>{label} ago</span><span>now</span></div>'
        "{below}</figure>"
    ).format(
        data=_data(series, span, say),
        title=title,
        height=PLOT_HEIGHT,
        summary=_summary(title, series, say),
        grid=grid,
        width=max(1, steps - 1),
        box=BOX_HEIGHT,
        drawn=drawn,
        names=names,
        label=span.label,
        below=below,
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


def _data(series: Sequence[Series], span: Span, say: Say) -> str:
    """What the script says under the pointer, in the very words of the axis."""
    lines = [
        _Line(each.name, each.look, ["–" if value is None else say(value) for value in each.values])
        for each in series
    ]
    return msgspec.json.encode(
        _Told(span.began.astimezone(UTC).timestamp(), span.step_seconds, lines)
    ).decode()
