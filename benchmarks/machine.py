"""What was measured on, and with which versions: a number without them says nothing."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.lab import ROOT
from benchmarks.peering import EVERYONE


async def describe(dsn: str) -> dict[str, Any]:
    """Told at the end of a run, because the load average of the last minutes is part of it."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": {
            "cpus": os.cpu_count(),
            "processor": _processor(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
            "system": f"{platform.system()} {_version()} {platform.machine()}",
            "python": platform.python_version(),
            "postgres": await _postgres_version(dsn),
            # What else went on: over the last 15 minutes there is more in it than our own run.
            "load_average": [round(each, 2) for each in os.getloadavg()],
        },
        "peers": {peer.name: peer.packages.version() for peer in EVERYONE},
    }


def _version() -> str:
    """Of the kernel, without what its builder calls it."""
    return ".".join(platform.release().split(".")[:2])


def _commit() -> str:
    git = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        return subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


async def _postgres_version(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        return str(await connection.fetchval("SHOW server_version"))
    finally:
        await connection.close()
