"""Charts are markup: their paths, words and gaps."""

import itertools
import json
import re
from datetime import UTC, date, datetime
from html import unescape
from xml.etree import ElementTree

import pytest

from app.dashboard import charts
from app.dashboard.charts import Series, Span
from app.dashboard.words import duration, number


def parsed(drawn: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)  # noqa: S314  # we drew it ourselves


SPAN = Span(datetime(2026, 1, 1, tzinfo=UTC), 10, "15 min")


def test_a_sparkline_is_120_by_24_and_has_words() -> None:
    drawn = parsed(charts.sparkline([0, 1, 2], "Waiting"))
    assert (drawn.attrib["width"], drawn.attrib["height"]) == ("120", "24")
    assert drawn.attrib["aria-label"] == "Waiting"
    assert drawn[0].attrib["d"] == "M0 21L60 10.5L120 0"


@pytest.mark.parametrize("values", [[], [None, None], [0, 0], [5], [1e300, 0], [0.0001]])
def test_odd_values_are_drawn_all_the_same(values: list[float | None]) -> None:
    for drawn in (
        charts.sparkline(values, "x"),
        charts.line_chart("x", [Series("a", values, "done")], SPAN, number),
        charts.stacked_chart("x", [Series("a", [each or 0 for each in values], "done")], SPAN, number),
    ):
        parsed(drawn)
        assert not re.search(r"\bnan\b|\binf\b", drawn)


def test_where_there_is_no_value_there_is_a_gap_and_a_lonely_value_is_a_dot() -> None:
    drawn = charts.line_chart("x", [Series("a", [1, None, 1, 1, None, 0], "done")], SPAN, number)
    path = re.search(r'class="line done" d="([^"]*)"', drawn)
    assert path is not None
    assert path[1] == "M0 0h.01M2 0L3 0M5 100h.01"


def test_areas_lie_on_top_of_each_other() -> None:
    drawn = charts.stacked_chart(
        "x", [Series("a", [1, 1], "series-1"), Series("b", [1, 1], "series-2")], SPAN, number
    )
    paths = re.findall(r'class="area series-\d" d="([^"]*)"', drawn)
    assert paths == ["M0 50L1 50L1 100L0 100Z", "M0 0L1 0L1 50L0 50Z"]


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 1), (1, 1), (1.1, 2), (3, 5), (7, 10), (0.03, 0.05), (99_000, 100_000)]
)
def test_an_axis_ends_at_a_number_that_people_say(highest: float, top: float) -> None:
    assert charts.nice_top(highest) == pytest.approx(top)


def test_names_at_the_ends_of_lines_do_not_cover_each_other() -> None:
    lines = [Series(name, [5, 5], "done") for name in "abc"]
    drawn = charts.line_chart("x", lines, SPAN, number)
    heights = sorted(float(each) for each in re.findall(r'<text class="name done"[^>]* y="([\d.]+)%"', drawn))
    assert len(heights) == 3
    assert all(b - a >= 10.9 for a, b in itertools.pairwise(heights))


def test_what_the_script_says_is_what_the_axis_says() -> None:
    drawn = charts.line_chart('<b>"x"', [Series("<i>", [0.5, None, 90], "done")], SPAN, duration)
    told = re.search(r'data-chart="([^"]*)"', drawn)
    assert told is not None
    assert json.loads(unescape(told[1]))["lines"] == [
        {"name": "<i>", "look": "done", "said": ["500 ms", "–", "1 min 30 s"]}
    ]
    assert "<i>" not in drawn
    assert "<b>" not in drawn


DAYS = [date(2026, 2, 27), date(2026, 2, 28), date(2026, 3, 1)]


def test_bars_stand_side_by_side_and_their_parts_on_top_of_each_other() -> None:
    parts = [Series("a", [1, 0, 2], "series-1"), Series("b", [1, None, 0], "series-2")]
    drawn = charts.bar_chart("x", parts, DAYS, number)
    blocks = re.findall(
        r'class="block (series-\d)" x="([\d.]+)" width=".8" y="([\d.]+)" height="([\d.]+)"', drawn
    )
    assert blocks == [
        ("series-1", "0.10", "50.00", "50.00"),
        ("series-1", "2.10", "0.00", "100.00"),
        ("series-2", "0.10", "0.00", "50.00"),
    ]
    assert re.findall(r"<span>([\d-]+)</span>", drawn) == ["2026-02-27", "2026-02-28", "2026-03-01"]


def test_of_bars_the_script_says_the_sum_of_a_day_too() -> None:
    parts = [Series("a", [1, 0, 2], "series-1"), Series("<b>", [1, None, 0], "series-2")]
    drawn = charts.bar_chart("x", parts, DAYS, number)
    told = re.search(r'data-chart="([^"]*)"', drawn)
    assert told is not None
    said = json.loads(unescape(told[1]))
    assert (said["bars"], said["step"]) == (True, 86400)
    assert {each["name"]: each["said"] for each in said["lines"]} == {
        "a": ["1", "0", "2"],
        "<b>": ["1", "–", "0"],
        "all": ["2", "0", "2"],
    }
    assert "<b>" not in drawn
    assert "a: 3; &lt;b&gt;: 1." in drawn


def test_a_day_by_itself_and_days_without_anything_are_drawn() -> None:
    assert "<span>2026-02-27</span></div>" in charts.bar_chart("x", [], DAYS[:1], number)
    assert "block" not in charts.bar_chart("x", [Series("a", [0, 0, None], "series-1")], DAYS, number)


@pytest.mark.parametrize(
    ("highest", "said"),
    [
        (0, "1.0 s"),
        (45, "1 min"),
        (50_000, "1 d"),
        (20_000, "8 h"),
        (86_400 * 3, "5 d"),
        (86_400 * 700, "1000 d"),
    ],
)
def test_an_axis_of_time_ends_where_people_would_end_it(highest: float, said: str) -> None:
    assert duration(charts.nice_seconds(highest)) == said
