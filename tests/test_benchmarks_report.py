"""What the benchmarks make of their numbers: goals, the arithmetic of growth, plots, and the page."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import document, plots
from benchmarks.goals import GOALS, Goal, Measured, best_ratio, grown_ratio, highest, middle, ratio, rows
from benchmarks.growth import summary, timeline
from benchmarks.growth_database import Run


def test_a_goal_knows_which_way_is_better() -> None:
    at_least = Goal("rate", "÷ theirs", "≥", 0.4, " ×", lambda _: None)
    at_most = Goal("delay", "÷ theirs", "≤", 1.0, " ×", lambda _: None)

    assert at_least.verdict(0.5) == "reached"
    assert at_least.verdict(0.3) == "not reached"
    assert at_most.verdict(0.5) == "reached"
    assert at_most.verdict(1.5) == "not reached"
    assert at_most.verdict(None) == "not measured"


def bench_of(*rounds: dict[str, dict[str, float]]) -> Measured:
    return Measured(bench={"benchmarks": {"b": {"rounds": list(rounds)}}})


def test_goals_are_found_in_the_rounds() -> None:
    measured = bench_of(
        {"foreman": {"per_second": 10, "peak_mb": 90}, "a": {"per_second": 5}, "b": {"per_second": 20}},
        {"foreman": {"per_second": 30, "peak_mb": 120}, "a": {"per_second": 10}, "b": {"per_second": 5}},
        {"foreman": {"per_second": 20, "peak_mb": 80}, "a": {"per_second": 20}},
    )

    assert middle("b", "per_second")(measured) == 20
    assert ratio("b", "a")(measured) == 2
    assert best_ratio("b", ("a", "b"))(measured) == 1
    assert highest("peak_mb")(measured) == 120
    assert ratio("b", "nobody")(measured) is None
    assert middle("another", "per_second")(measured) is None


def test_growth_is_compared_with_the_empty_database() -> None:
    queues = {"plain": {"empty": {"p99_ms": 10, "peak_mb": 1}, "grown": {"p99_ms": 25, "peak_mb": 130}}}
    measured = Measured(growth={"queues": queues})

    assert grown_ratio("plain", "p99_ms")(measured) == 2.5
    assert grown_ratio("fair", "p99_ms")(measured) is None
    assert highest("peak_mb")(measured) == 130


def test_every_goal_stands_in_the_table_even_when_nothing_was_measured() -> None:
    found = rows(Measured())

    assert len(found) == len(GOALS)
    assert {verdict for *_, verdict in found} == {"not measured"}


def test_a_grown_queue_is_judged_by_the_end_of_its_window_and_by_whoever_waited() -> None:
    held = [Run(at, at + 0.01, at + 0.02) for at in range(8)]
    late = [Run(8.0, 12.0, 12.5), Run(9.0, None, None)]

    numbers = summary(held + late, began=0.0, ended=10.0)

    assert numbers["per_second"] == 0
    assert numbers["backlog_seconds"] == 2.0
    assert numbers["p50_ms"] == pytest.approx(10)
    assert numbers["p99_ms"] > 100_000, "one that never began counts as waiting still"
    assert summary(held, began=0.0, ended=10.0)["backlog_seconds"] == 0


def test_a_timeline_puts_each_job_where_it_was_sent_and_where_it_ended() -> None:
    parts = timeline([Run(0.1, 0.2, 1.5), Run(1.1, 1.3, 1.6)], began=0.0, ended=2.0)

    assert [part["second"] for part in parts] == [0.5, 1.5]
    assert [part["per_second"] for part in parts] == [0, 2]
    assert [part["p50_ms"] for part in parts] == pytest.approx([100, 200])


A_RUN = {
    "at": "2026-01-02T03:04:05+00:00",
    "commit": "abcdef",
    "quick": False,
    "peers": {"pgqueuer": "1.6.0 (Python 3.11)"},
    "machine": {
        "cpus": 2,
        "processor": "a fast one",
        "memory_gb": 8,
        "system": "Linux",
        "python": "3.11",
        "postgres": "18",
        "load_average": [0.1, 0.2, 0.3],
    },
}


def a_run() -> Measured:
    metrics = [{"name": "per_second", "title": "jobs/s", "better": "higher", "compared": True}]
    numbers = {"foreman": {"per_second": 900.0}, "pgqueuer": {"per_second": 1000.0}}
    drain = {
        "question": "no-ops done",
        "metrics": metrics,
        "subject": "foreman",
        "medians": numbers,
        "ratios": {"pgqueuer": {"per_second": 0.9}},
        "rounds": [numbers],
        "skipped": {"pg-boss": "needs node ≥ 22.18; found 20.1"},
        "failures": {},
    }
    part = {"second": 1, "per_second": 8, "p99_ms": 3}
    side = {"per_second": 800.0, "p50_ms": 2.0, "p99_ms": 9.0, "timeline": [part]}
    sizes = {"finished": 10, "scheduled": 5, "queues": 2, "rate": 800, "seconds": 3, "empty_seconds": 2}
    growth = {**A_RUN, "sizes": sizes, "queues": {"plain": {"empty": side, "grown": side}}}
    return Measured({**A_RUN, "benchmarks": {"drain": drain}}, growth)


def test_plots_are_well_formed_and_have_their_words_in_them(tmp_path: Path) -> None:
    drawn = plots.write(a_run(), tmp_path)

    assert drawn == ["drain", "growth-rate", "growth-wait"]
    for name in drawn:
        svg = ElementTree.parse(tmp_path / f"{name}.svg")  # noqa: S314 - our own
        words = " ".join(svg.getroot().itertext())
        assert "prefers-color-scheme: dark" in words
        assert ("pgqueuer" if name == "drain" else "plain queue") in words


def test_a_plot_that_is_no_longer_drawn_does_not_stay_behind(tmp_path: Path) -> None:
    (tmp_path / "bulk.svg").write_text("old")
    plots.write(a_run(), tmp_path)

    assert not (tmp_path / "bulk.svg").exists()


def test_the_page_gets_its_results_and_keeps_its_words() -> None:
    generated = document.written(a_run(), ["drain"])
    page = f"before\n{document.BEGIN}\nstale\n{document.END}\nafter\n"

    renewed = document.put_into(page, generated)

    assert renewed.startswith("before\n")
    assert renewed.endswith("\nafter\n")
    assert "stale" not in renewed
    assert "| drain, in-process `noop` | ÷ PgQueuer | 0.9 × | ≥ 1.7 × | **not reached** |" in renewed
    assert "pg-boss was not measured: needs node ≥ 22.18; found 20.1" in renewed
    assert "`drain`, jobs/s: 0.90 × pgqueuer's" in renewed, "where we lose is said"
    assert document.put_into(renewed, generated) == renewed


def test_the_page_in_the_documentation_has_its_marks_and_its_plots() -> None:
    page = document.PAGE.read_text()

    document.put_into(page, "")
    for plot in re.findall(r"!\[.*?\]\((.*?\.svg)\)", page):
        assert (document.PAGE.parent / plot).exists(), plot
