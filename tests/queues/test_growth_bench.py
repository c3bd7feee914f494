"""The growth benchmark runs, and tells a ratio."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_growth_benchmark_runs(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.growth", "--quick", "--json", str(numbers)],
        cwd=ROOT,
        check=True,
        timeout=100,
    )
    measured = json.loads(numbers.read_text())
    assert measured["rounds"] > 0
    assert measured["p50"]["ratio"] > 0
