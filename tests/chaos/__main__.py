"""`make chaos`: break it on purpose, and print the score.

make chaos ARGS="--seed 7"              the same faults again
make chaos ARGS="--faults failover"     only those whose names have one of these words
make chaos ARGS="--plant settle-by-id"  with a known bug in the servers: the checker must find it
"""

import argparse
import random
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests import forkserver
from tests.chaos.faults import FAULTS
from tests.chaos.plans import CUT, WHOLE, planted
from tests.chaos.run import Plan, Report, run
from tests.chaos.scorecard import goals, lines, publish
from tests.conftest import ROOT
from tests.signals import let_children_hear

SHOWN = 20
PAGE = ROOT / "docs" / "reliability.md"


def main() -> int:
    options = _options()
    plan = _plan(options)
    let_children_hear()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        report = run(plan, folder, _say)
    except BaseException:
        _say(f"Logs and records are in {folder}.")
        raise
    finally:
        forkserver.close()
    _show(report)
    kept = all(goals(report).values())
    if kept and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        _say(f"Logs and records are in {folder}.")
    if options.publish:
        publish(report, PAGE)
        _say(f"The scorecard is in {PAGE.relative_to(ROOT)}.")
    if options.plant:
        _say(
            "The planted bug was caught." if not report.score.is_clean else "The planted bug was NOT caught."
        )
        return int(report.score.is_clean)
    return int(not kept)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make chaos", description="Break Foreman on purpose and print the score."
    )
    parser.add_argument("--seed", type=int, help="the same faults in the same order; without it, a new one")
    parser.add_argument("--seconds", type=float, help="how long faults go on at least")
    parser.add_argument("--jobs", type=int, help="how many jobs have to be acknowledged at least")
    parser.add_argument("--cut", action="store_true", help="the two minutes that are part of the test suite")
    parser.add_argument("--faults", nargs="+", metavar="WORD", help="only faults with one of these words")
    parser.add_argument("--plant", metavar="BUG", help="start the servers with a known bug")
    parser.add_argument("--publish", action="store_true", help="write the scorecard into docs/reliability.md")
    parser.add_argument("--keep", action="store_true", help="leave logs and records behind")
    return parser.parse_args()


def _plan(options: argparse.Namespace) -> Plan:
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    plan = planted(options.plant) if options.plant else CUT if options.cut else WHOLE
    if options.faults:
        names = tuple(name for name in FAULTS if any(word in name for word in options.faults))
        if not names:
            sys.exit("No fault has such a word in its name. There are: " + "; ".join(FAULTS))
        plan = replace(plan, faults=names, seconds=30, jobs=1000)
    if options.seconds is not None:
        plan = replace(plan, seconds=options.seconds)
    if options.jobs is not None:
        plan = replace(plan, jobs=options.jobs)
    return replace(plan, seed=seed)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - for whoever typed `make chaos`


def _show(report: Report) -> None:
    for line in lines(report):
        _say(line)
    for problem in report.score.problems[:SHOWN]:
        _say(f"✗ {problem}")
    if len(report.score.problems) > SHOWN:
        _say(f"✗ and {len(report.score.problems) - SHOWN} more")


if __name__ == "__main__":
    sys.exit(main())
