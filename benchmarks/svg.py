"""Bar and line charts as SVG, readable on light and on dark pages; no more than the benchmarks need."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH = 720
LABEL_WIDTH = 170
RIGHT = 90
ROW = 26
BAR = 16
TOP = 54
# Of middling lightness, so that they stand out from white and from black alike.
COLOURS = {"ours": "#3b82c4", "theirs": "#8b929c", "bound": "#c28a2e", "third": "#2f9e83"}
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.title { font-size: 15px; font-weight: 600; }
.note { font-size: 12px; fill: #57606a; }
.grid { stroke: #8b949e; stroke-opacity: .3; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .note { fill: #9ea7b3; } }
"""


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    colour: str = "theirs"


@dataclass(frozen=True)
class Line:
    label: str
    points: Sequence[tuple[float, float]]
    colour: str = "ours"
    dashed: bool = False


@dataclass
class Drawing:
    title: str
    height: float
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> None:
        attributes = f' class="{kind}"' if kind else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{attributes}>{escape(words)}</text>'
        )

    def bar(self, x: float, y: float, width: float, colour: str) -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{BAR}" rx="2"'
            f' fill="{COLOURS[colour]}"/>'
        )

    def rule(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.parts.append(f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def curve(self, points: Sequence[tuple[float, float]], colour: str, *, dashed: bool) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{COLOURS[colour]}" stroke-width="2"{dashes}/>'
        )

    def render(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:.0f}"'
            f' width="{WIDTH}" height="{self.height:.0f}" role="img" aria-label="{escape(self.title)}">'
        )
        return "\n".join([head, f"<style>{STYLE}</style>", *self.parts, "</svg>", ""])


def bar_chart(title: str, axis: str, bars: Sequence[Bar], *, logarithmic: bool = False) -> str:
    """Horizontal bars, each with its value; the axis says in what."""
    drawing = Drawing(title, TOP + ROW * len(bars) + 40)
    drawing.text(12, 24, title, kind="title")
    drawing.text(12, 42, axis + (", logarithmic" if logarithmic else ""), kind="note")
    scale = _Scale([bar.value for bar in bars], WIDTH - LABEL_WIDTH - RIGHT, logarithmic=logarithmic)
    bottom = TOP + ROW * len(bars)
    for tick in scale.ticks():
        x = LABEL_WIDTH + scale.place(tick)
        drawing.rule(x, TOP, x, bottom)
        drawing.text(x, bottom + 18, _short(tick), "middle", "note")
    for number, bar in enumerate(bars):
        y = TOP + ROW * number + (ROW - BAR) / 2
        width = scale.place(bar.value)
        drawing.text(LABEL_WIDTH - 8, y + BAR - 3, bar.label, "end")
        drawing.bar(LABEL_WIDTH, y, width, bar.colour)
        drawing.text(LABEL_WIDTH + max(width, 1) + 6, y + BAR - 3, _short(bar.value))
    return drawing.render()


def line_chart(
    title: str, across: str, upward: str, lines: Sequence[Line], *, logarithmic: bool = False
) -> str:
    """Lines over one horizontal axis; the legend stands below."""
    left, plot_height = 64, 240
    drawing = Drawing(title, TOP + plot_height + 44 + 20 * len(lines))
    drawing.text(12, 24, title, kind="title")
    drawing.text(12, 42, upward + (", logarithmic" if logarithmic else ""), kind="note")
    bottom = TOP + plot_height
    width = WIDTH - left - 20
    vertical = _Scale([y for line in lines for _, y in line.points], plot_height, logarithmic=logarithmic)
    horizontal = _Scale([x for line in lines for x, _ in line.points], width)
    for tick in vertical.ticks():
        y = bottom - vertical.place(tick)
        drawing.rule(left, y, left + width, y)
        drawing.text(left - 6, y + 4, _short(tick), "end", "note")
    for tick in horizontal.ticks():
        drawing.text(left + horizontal.place(tick), bottom + 18, _short(tick), "middle", "note")
    drawing.text(left + width, bottom + 34, across, "end", "note")
    for number, line in enumerate(lines):
        points = [(left + horizontal.place(x), bottom - vertical.place(y)) for x, y in line.points]
        drawing.curve(points, line.colour, dashed=line.dashed)
        y = bottom + 44 + 20 * number
        drawing.curve([(left, y), (left + 28, y)], line.colour, dashed=line.dashed)
        drawing.text(left + 36, y + 4, line.label)
    return drawing.render()


class _Scale:
    """From values to lengths: from nought, or from a power of ten below them all."""

    def __init__(self, values: Sequence[float], length: float, *, logarithmic: bool = False) -> None:
        self._length = length
        self._logarithmic = logarithmic
        self._most = max(values, default=1.0) or 1.0
        if logarithmic:
            positive = [value for value in values if value > 0] or [1.0]
            self._low = math.floor(math.log10(min(positive)))
            self._high = max(math.ceil(math.log10(self._most)), self._low + 1)

    def place(self, value: float) -> float:
        if not self._logarithmic:
            return self._length * value / self._most
        if value <= 0:
            return 0.0
        return self._length * max(0.0, (math.log10(value) - self._low) / (self._high - self._low))

    def ticks(self) -> Iterator[float]:
        if self._logarithmic:
            yield from (10.0**power for power in range(self._low, self._high + 1))
            return
        rough = self._most / 4
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough)
        yield from (step * number for number in range(int(self._most / step + 1e-9) + 1))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
