"""How much memory a server has that was just started and is left alone.

What it has at most in the other benchmarks is measured there: `peak_mb` of every turn.
"""

import asyncio

from benchmarks import foreman, procfs
from benchmarks.harness import Benchmark, Metric, System
from benchmarks.lab import QUICK, Lab
from benchmarks.measuring import Numbers

# Longer than all that looks for work in turns takes for its first round.
REST_SECONDS = 6.0


async def run_foreman(lab: Lab) -> Numbers:
    dsn = await lab.fresh_database("foreman")
    async with foreman.running(lab, dsn, "all") as server:
        await asyncio.sleep(0.2 if lab.scale == QUICK else REST_SECONDS)
        resident = procfs.resident_megabytes(server.service.pid)
    if resident is None:
        raise RuntimeError("this system does not tell how much memory a process has")
    return {"rest_mb": resident}


BENCHMARK = Benchmark(
    name="memory",
    question="of a server at rest, and the most it had in the others",
    metrics=(Metric("rest_mb", "at rest, MB", "lower"),),
    systems=(System("foreman", run_foreman),),
)
