"""Tables on a screen of a certain width: nothing runs over the edge, and nothing is lost."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from app.cli.output import Output
from app.cli.table import Cell, Column, cut, folded_into, lines_of

WIDE = "設定ファイル"
TEXTS = st.text(alphabet=st.sampled_from("ab -_xyz0設定👩é"), max_size=60).map(
    lambda text: " ".join(text.split())
)


class Screen(Output):
    """Output to a terminal that is so wide."""

    is_terminal = True

    def __init__(self, width: int | None, *, utc: bool = False) -> None:
        super().__init__(as_json=False, utc=utc)
        self._width = width

    @property
    def width(self) -> int | None:
        return self._width


@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), min_size=1, max_size=4),
    width=st.integers(min_value=20, max_value=120),
)
def test_no_line_is_wider_than_the_screen_and_no_word_is_lost(
    rows: list[tuple[str, str, str, str]], width: int
) -> None:
    columns = [
        Column(name, folds=True, cells=[Cell(row[place]) for row in rows])
        for place, name in enumerate(("first", "second one", "third", "fourth"))
    ]
    lines = lines_of(columns, width, colours=False)
    assert all(cell_len(line) <= width for line in lines)
    shown = sorted(re.sub(r"[\s·]", "", "".join(lines)))
    for row in rows:
        for text in row:
            for letter in set(text) - {" "}:
                assert shown.count(letter) >= sum(each.count(letter) for line in rows for each in line)


def test_what_does_not_fit_stands_below_its_row_with_its_name() -> None:
    screen = Screen(24)
    lines = screen.table(
        [
            {"name": "a" * 12, "queued": 12, "max_depth": 100_000},
            {"name": "b", "queued": 3, "max_depth": None},
        ],
        "name queued max_depth",
    )
    assert lines[0].split() == ["name", "queued"]
    assert lines[1].split() == ["a" * 12, "12"]
    assert lines[2] == "    max depth 100000"
    assert lines[3].split() == ["b", "3"]
    assert len(lines) == 4


def test_a_long_remark_goes_below_and_is_cut_and_a_short_one_stays() -> None:
    long = "it broke " * 100
    lines = Screen(60).table([{"job_id": "x", "error": long}, {"job_id": "y", "error": None}], "job_id error")
    assert lines[1] == "x"
    assert [len(line) <= 60 for line in lines] == [True] * len(lines)
    assert lines[3].endswith("…")
    assert lines[4] == "y"
    assert Screen(60).table([{"job_id": "x", "error": "it broke"}], "job_id error")[1].endswith("it broke")
    # Into a pipe goes all of it, on one line.
    [_, line] = _piped([{"job_id": "x", "error": long}], "job_id error")
    assert line.endswith(long.strip())


def _piped(rows: list[dict[str, object]], columns: str) -> list[str]:
    class Pipe(Screen):
        is_terminal = False

    return Pipe(None).table(rows, columns)


def test_a_number_of_ten_thousand_digits_is_told_by_its_size_on_a_screen_and_whole_in_a_pipe() -> None:
    from foreman_client.wire import decode

    number = decode("7" * 10_000)
    rows: list[dict[str, object]] = [{"name": "q", "queued": number, "done": 10**14}]
    lines = Screen(80).table(rows, "name queued done")
    assert lines[1].split() == ["q", "7.78e+9999", "100000000000000"]
    assert "7" * 10_000 in _piped(rows, "name queued done")[1]
    assert Screen(80).table([{"queued": decode("1e999999999999999999999")}], "queued")[1]


def test_wide_characters_take_two_places() -> None:
    rows = [{"name": WIDE, "queued": 1}, {"name": "abc", "queued": 2}]
    lines = Screen(80).table(rows, "name queued")
    places = [cell_len(line[: line.index(digit)]) for line, digit in zip(lines[1:], "12", strict=True)]
    assert places == [14, 14]
    assert [cell_len(line) for line in folded_into(WIDE * 3, 7)] == [6] * 6
    assert cell_len(cut(WIDE * 10, 21)) <= 21


def test_control_characters_and_line_ends_do_not_break_the_rows() -> None:
    lines = Screen(80).table([{"name": "a\nb\tc\x1b[2J", "queued": 1}], "name queued")
    assert len(lines) == 2
    assert "\x1b" not in lines[1]
    assert lines[1].startswith("a b c")


def test_columns_that_no_row_has_are_left_out() -> None:
    lines = Screen(80).table(
        [{"name": "a", "tags": [], "rate": {}, "next_at": None}], "name tags rate next_at"
    )
    assert [line.rstrip() for line in lines] == ["name", "a"]


@pytest.mark.parametrize("width", [1, 2, 5, 13])
def test_a_screen_that_is_too_narrow_for_anything_is_no_error(width: int) -> None:
    rows = [{"job_id": "01M7P9TPVBBRW7M0DY7CMFT8NX", "state": "done", "note": WIDE}]
    assert Screen(width).table(rows, "job_id state note")


def test_moments_are_relative_or_exact_and_durations_are_said() -> None:
    rows: list[dict[str, object]] = [
        {"name": "n", "next_at": "2020-01-31T12:00:00+00:00", "oldest_queued_seconds": 200}
    ]
    shown = Screen(80).table(rows, "name next_at oldest_queued_seconds")
    assert shown[0].split() == ["name", "next", "oldest", "queued"]
    assert "d ago" in shown[1]
    assert shown[1].endswith("3 min 20 s")
    assert "2020-01-31T12:00:00.000Z" in Screen(80, utc=True).table(rows, "name next_at")[1]
