"""Do the benchmarks still run? A few small systems of our own, and a grown database that is hardly grown.

`make bench-smoke`. The suite does the same and looks at the numbers (tests/test_benchmarks_smoke.py).
"""

import subprocess
import sys
from pathlib import Path

SYSTEMS = ("foreman", "bare route", "raw inserts")
BENCHMARKS = (
    "enqueue",
    "bulk",
    "drain",
    "workers",
    "latency",
    "busy",
    "webhooks",
    "passthrough",
    "memory",
    "replay",
)


def bench_command(numbers: Path | None = None) -> list[str]:
    only = [word for system in SYSTEMS for word in ("--only", system)]
    return [sys.executable, "-m", "benchmarks", *BENCHMARKS, "--quick", *only, *_into(numbers)]


def growth_command(numbers: Path | None = None) -> list[str]:
    return [sys.executable, "-m", "benchmarks.growth", "--quick", "--only", "fair", *_into(numbers)]


def _into(numbers: Path | None) -> list[str]:
    return ["--json", str(numbers)] if numbers else []


def main() -> int:
    return max(
        subprocess.run(command, check=False).returncode for command in (bench_command(), growth_command())
    )


if __name__ == "__main__":
    sys.exit(main())
