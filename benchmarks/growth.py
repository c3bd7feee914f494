"""Does anything get slower as the tables grow? Claims on an empty and on a grown database, in turns.

`make bench-growth`, or `python -m benchmarks.growth --help`. Both databases live on one PostgreSQL of ours.
The grown one has millions of finished jobs, a million scheduled ones, a hundred thousand behind two busy
keys, and a transaction held open all along, so that nothing dead can be cleaned away. In each the same little
work is done over and over, a few jobs in and out, and the claims are timed. Only the ratio means anything.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from app.embedded import EmbeddedPostgres
from app.jobs.ids import new_id
from app.jobs.states import Verb
from app.jobs.submission import NewJob
from app.store.claims import Claimant, Claims
from app.store.database import Database
from app.store.enqueue import enqueue
from app.store.idempotency import Submission
from app.store.migrate import migrate
from app.store.queues import QueueBook
from app.store.settle import Settlement, settle

BATCH = 10
STEP = 200_000
WARM_UP_ROUNDS = 50

FILL = """
INSERT INTO jobs (id, tenant, queue, lane, kind, state, reason, payload, run_at, completed_at, started_at,
                  gate, concurrency_key, seq)
SELECT lpad(to_hex(n + $1::bigint), 26, '0'), 'default',
    CASE WHEN $2 = 'gated' THEN 'keyed' ELSE 'default' END, 'noop', 'noop',
    CASE WHEN $2 = 'done' THEN 'done' ELSE 'queued' END,
    CASE $2 WHEN 'scheduled' THEN 'scheduled' WHEN 'gated' THEN 'key_busy' END, $3,
    CASE WHEN $2 = 'scheduled' THEN now() + interval '30 days' + n * interval '1 second' ELSE now() END,
    CASE WHEN $2 = 'done' THEN now() END, CASE WHEN $2 = 'done' THEN now() END,
    CASE WHEN $2 = 'gated' THEN 'key' END, CASE WHEN $2 = 'gated' THEN 'busy/' || n % 2 END, 4
FROM generate_series(1, $4::int) n
"""
PAYLOAD = json.dumps({"note": "x" * 100})


@dataclass
class Side:
    """One of the two databases, and what its claims took."""

    name: str
    database: Database
    claims: Claims
    seconds: list[float] = field(default_factory=list)

    @classmethod
    async def open(cls, name: str, dsn: str) -> "Side":
        database = Database(dsn, size=2)
        await database.open()
        return cls(name, database, Claims(database, QueueBook(database)))

    async def round(self) -> float:
        """A few jobs in, claimed, and out; what the claim took."""
        jobs = [NewJob(new_id(), "default", "default", "noop", "noop", PAYLOAD) for _ in range(BATCH)]
        await enqueue(self.database, [Submission([job]) for job in jobs])
        began = time.perf_counter()
        claimed = await self.claims.claim("default", ["noop"], [Claimant("bench", BATCH, 60)])
        took = time.perf_counter() - began
        assert len(claimed.answers) == BATCH
        done = [Settlement(job.id, job.lease_token, Verb.COMPLETE, result="null") for job in claimed.answers]
        await settle(self.database, done)
        return took


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    add = parser.add_argument
    add("--finished", type=int, default=10_000_000, help="finished jobs (10 million)")
    add("--scheduled", type=int, default=1_000_000, help="jobs scheduled for next month (1 million)")
    add("--gated", type=int, default=100_000, help="jobs behind two busy keys of another queue (100,000)")
    add(
        "--seconds",
        type=float,
        default=300,
        help="how long the transaction is held open (300)",
    )
    add("--quick", action="store_true", help="small numbers: shows that it runs, no more")
    add("--json", type=Path, help="where the numbers go")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.finished, chosen.scheduled, chosen.gated, chosen.seconds = 20_000, 5_000, 2_000, 5
    return chosen


async def make(server: EmbeddedPostgres, name: str) -> str:
    admin = await asyncpg.connect(server.dsn)
    await admin.execute(f'CREATE DATABASE "{name}"')
    await admin.close()
    await migrate(server.dsn_for(name))
    return server.dsn_for(name)


async def grow(dsn: str, chosen: argparse.Namespace) -> None:
    connection = await asyncpg.connect(dsn)
    first = 0
    for kind in ("done", "scheduled", "gated"):
        wanted = {"done": chosen.finished, "scheduled": chosen.scheduled, "gated": chosen.gated}[kind]
        print(f"filling in {wanted:,} jobs ({kind}) …", flush=True)
        for start in range(0, wanted, STEP):
            number = min(STEP, wanted - start)
            await connection.execute(FILL, first, kind, PAYLOAD, number, timeout=600)
            first += number
    await connection.execute("VACUUM ANALYZE jobs", timeout=3600)
    await connection.close()


async def hold_open(dsn: str) -> asyncpg.Connection:
    """A transaction that sees everything as it is now, for as long as the connection lives."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await connection.fetch("SELECT 1 FROM jobs LIMIT 1")
    return connection


async def measure(sides: list[Side], seconds: float) -> None:
    """In turns, so that whatever else the machine does falls on both alike."""
    for side in sides:
        for _ in range(WARM_UP_ROUNDS):
            await side.round()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for side in sides:
            side.seconds.append(await side.round())


def report(sides: list[Side]) -> dict[str, Any]:
    empty, grown = sides
    numbers: dict[str, Any] = {"rounds": len(empty.seconds)}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        took = [sorted(side.seconds)[int(len(side.seconds) * share)] * 1000 for side in sides]
        numbers[name] = {"empty_ms": took[0], "grown_ms": took[1], "ratio": took[1] / took[0]}
    fifth = max(1, len(grown.seconds) // 5)
    # A claim that grows with time would show between the first and the last fifth.
    numbers["drift"] = statistics.median(grown.seconds[-fifth:]) / statistics.median(grown.seconds[:fifth])
    return numbers


async def run(server: EmbeddedPostgres, chosen: argparse.Namespace) -> dict[str, Any]:
    empty = await make(server, "empty")
    grown = await make(server, "grown")
    await grow(grown, chosen)
    holder = await hold_open(grown)
    sides = [await Side.open("empty", empty), await Side.open("grown", grown)]
    print(f"timing claims for {chosen.seconds:g} s, with a transaction held open …", flush=True)
    try:
        await measure(sides, chosen.seconds)
    finally:
        for side in sides:
            await side.database.close()
        holder.terminate()
    return report(sides)


def main() -> None:
    chosen = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="foreman-growth-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "data") as server:
            numbers = asyncio.run(run(server, chosen))
    for name in ("p50", "p99"):
        each = numbers[name]
        print(
            f"claim of {BATCH}, {name}: {each['empty_ms']:.2f} ms empty, {each['grown_ms']:.2f} ms grown,"
            f" ratio {each['ratio']:.2f}"
        )
    print(f"last fifth against first fifth: {numbers['drift']:.2f} ({numbers['rounds']} rounds)")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(numbers, indent=2))


if __name__ == "__main__":
    main()
