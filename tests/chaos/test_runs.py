"""Two minutes of `make chaos`: real processes, real faults, and nothing in any column; and the bugs that it must find."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.plans import CUT, PLANTED, ROLLING, planted
from tests.chaos.run import Report, run
from tests.chaos.scorecard import lines

# A bug that needs bad luck to show has three chances of it.
SEEDS = (1, 2, 3)


def told(report: Report) -> str:
    return "\n".join([*lines(report), *report.score.problems[:50]])


def test_whatever_goes_wrong_no_promise_is_broken(tmp_path: Path) -> None:
    report = run(replace(CUT, seed=20), tmp_path)
    assert report.score.is_clean, told(report)
    assert report.score.counts["jobs acknowledged"] >= CUT.jobs
    assert {each.name for each in report.struck} == set(CUT.faults), report.not_here
    # The seed says which faults come in which order, and the load went on all the while.
    assert report.score.counts["leases lost"] > 0
    assert report.score.counts["webhooks received"] > 0


def test_callers_and_jobs_notice_nothing_of_a_rolling_restart_with_a_migration(tmp_path: Path) -> None:
    report = run(ROLLING, tmp_path)
    assert report.score.is_clean, told(report)
    [rolled] = report.rolled
    assert rolled.failed == 0, told(report)
    assert rolled.requests > 0


@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_that_was_planted_is_found(bug: str, tmp_path: Path) -> None:
    found: list[str] = []
    for seed in SEEDS:
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        report = run(replace(planted(bug), seed=seed), folder)
        found = report.score.columns[PLANTED[bug]]
        if found:
            break
    assert found, told(report)
