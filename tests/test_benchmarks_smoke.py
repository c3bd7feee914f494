"""The benchmark harness still runs and counts honestly. How fast anything is, is not a test's business."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import node_packages, smoke, venvs
from benchmarks.harness import Benchmark, Metric, Results, System, run_rounds, take_turn
from benchmarks.http_load import load, with_keys
from benchmarks.lab import FULL, QUICK, Lab
from benchmarks.measuring import closed_loop, departures, percentile
from benchmarks.node_packages import MANIFEST
from benchmarks.peering import PG_BOSS, QUEUES
from benchmarks.steal import Meter
from tests.patience import pretend_to_work

ROOT = Path(__file__).resolve().parent.parent
RATE = Metric("per_second", "jobs/s", "higher")
DELAY = Metric("p50_ms", "p50 ms", "lower")


def test_a_quick_run_brings_numbers_out_of_every_benchmark(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    done = subprocess.run(
        smoke.bench_command(numbers),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(numbers.read_text())["benchmarks"]
    for system in smoke.SYSTEMS:
        assert measured["enqueue"]["medians"][system]["per_second"] > 0
    assert measured["enqueue"]["ratios"]["bare route"]["per_second"] > 0
    assert measured["enqueue"]["medians"]["foreman"]["peak_mb"] > 10
    assert measured["bulk"]["ratios"]["raw inserts"]["per_second"] > 0
    assert measured["drain"]["medians"]["foreman"]["finished"] == QUICK.drain_jobs
    assert measured["workers"]["medians"]["foreman"]["finished"] == QUICK.drain_jobs
    assert measured["replay"]["medians"]["foreman"]["per_second"] > 0
    assert measured["latency"]["medians"]["foreman"]["p50_ms"] > 0
    assert measured["busy"]["medians"]["foreman"]["p50_ms"] > 0
    assert measured["webhooks"]["medians"]["foreman"]["per_second"] > 0
    assert measured["passthrough"]["medians"]["foreman"]["ttft_p50_ms_1"] > 70
    assert measured["passthrough"]["medians"]["foreman"]["cpu_ms_1"] > 0
    assert measured["memory"]["medians"]["foreman"]["rest_mb"] > 10
    assert "`POST /jobs`" in done.stdout, "the goals are printed"


def test_a_quick_growth_run_brings_numbers_of_both_databases(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"

    done = subprocess.run(
        smoke.growth_command(numbers), cwd=ROOT, capture_output=True, text=True, check=False, timeout=800
    )

    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(numbers.read_text())
    sides = document["queues"]["fair"]
    sizes = document["sizes"]
    for side, seconds in (("empty", sizes["empty_seconds"]), ("grown", sizes["seconds"])):
        # What of it ended within the window is the machine's business.
        assert sides[side]["jobs"] == sizes["rate"] * seconds
        assert sides[side]["per_second"] >= 0
        assert sides[side]["p99_ms"] > 0
        assert len(sides[side]["timeline"]) > 1
    assert sides["grown"]["dead_tuples"] >= 0
    assert "growth, queue with `fair_by`" in done.stdout, "the goals are printed"


def test_an_unknown_benchmark_is_refused_with_the_names_there_are() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "speed"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    for name in (
        "enqueue",
        "bulk",
        "drain",
        "memory",
        "latency",
        "busy",
        "workers",
        "webhooks",
        "passthrough",
        "relay",
        "fanout",
        "streams",
    ):
        assert name in done.stderr


@asynccontextmanager
async def answering(answer: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that reads whole requests, keeps their bodies and lets `answer` write the responses."""
    bodies: list[bytes] = []
    connections: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d+)", head)
                assert length is not None
                bodies.append(await reader.readexactly(int(length[1])))
                answer(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], bodies
    finally:
        server.close()
        await asyncio.gather(*(connection for connection in connections if connection is not None))


async def short_load(port: int) -> Any:
    return await load(
        port=port,
        body='{"kind":"noop"}',
        connections=3,
        warmup=0.05,
        seconds=0.2,
        server_pid=-1,
        key=None,
    )


async def test_the_load_generator_counts_answers_that_arrive_in_pieces_once() -> None:
    def in_pieces(writer: asyncio.StreamWriter) -> None:
        for piece in (b"HTTP/1.1 202 Accepted\r\nConte", b"nt-Length: 4\r\n", b"\r\nab", b"cd"):
            writer.write(piece)

    async with answering(in_pieces) as (port, bodies):
        numbers = await short_load(port)

    assert 0 < numbers["per_second"] * 0.2 <= len(bodies)
    assert set(bodies) == {b'{"kind":"noop"}'}


async def test_a_refusal_is_an_error_and_not_a_fast_answer() -> None:
    def busy(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy")

    async with answering(busy) as (port, _):
        with pytest.raises(RuntimeError, match="expected 202, got 503"):
            await short_load(port)


async def test_only_calls_that_end_inside_the_window_count() -> None:
    ended = 0

    async def call() -> None:
        nonlocal ended
        await pretend_to_work(0.01)
        ended += 1

    numbers = await closed_loop([call] * 4, warmup=0.1, seconds=0.2)

    assert 4 <= numbers["per_second"] * 0.2 < ended
    assert numbers["p50_ms"] >= 10


def test_departures_keep_the_rate_and_their_order() -> None:
    moments = departures(rate=50, seconds=10)

    assert len(moments) == 500
    assert moments == sorted(moments)
    assert moments[0] >= 0
    assert moments[-1] <= 10


def test_a_percentile_is_a_value_that_was_seen() -> None:
    assert percentile([4, 1, 3, 2], 0.5) == 3
    assert percentile(range(100), 0.99) == 99
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def results_of(*rounds: dict[str, float]) -> Results:
    async def never(_: Lab) -> dict[str, float]:
        raise AssertionError

    benchmark = Benchmark("b", "?", (RATE, DELAY), (System("ours", never), System("theirs", never)))
    measured = [{name: {"per_second": rate} for name, rate in numbers.items()} for numbers in rounds]
    return Results(benchmark, rounds=measured)


def test_ratios_are_taken_within_a_round() -> None:
    results = results_of({"ours": 10, "theirs": 5}, {"ours": 30, "theirs": 10}, {"ours": 8, "theirs": 8})

    assert results.ratios("theirs", "per_second") == [2, 3, 1]
    assert results.median("ours", "per_second") == 10


def test_a_round_in_which_one_was_missing_makes_no_ratio() -> None:
    results = results_of({"ours": 10}, {"theirs": 5}, {"ours": 9, "theirs": 3})

    assert results.ratios("theirs", "per_second") == [3]
    assert results.ratios("theirs", "p50_ms") == []


async def test_systems_take_turns_and_one_that_fails_leaves_the_others_their_numbers(tmp_path: Path) -> None:
    turns: list[str] = []

    def system(name: str, *, fails: bool = False) -> System:
        async def run_once(_: Lab) -> dict[str, float]:
            turns.append(name)
            if fails:
                raise RuntimeError("out of order")
            return {"per_second": 1.0}

        return System(name, run_once)

    benchmark = Benchmark("b", "?", (RATE,), (system("a"), system("b", fails=True), system("c")))
    results = Results(benchmark)
    await run_rounds([results], Lab("", QUICK, tmp_path), rounds=2, announce=lambda _: None)

    assert turns == ["a", "b", "c", "a", "c"]
    assert results.failures == {"b": "RuntimeError: out of order"}
    assert results.values("c", "per_second") == [1.0, 1.0]


async def test_benchmarks_take_turns_by_rounds_and_one_that_stands_aside_has_one(tmp_path: Path) -> None:
    turns: list[str] = []

    def benchmark(name: str, *, is_aside: bool = False) -> Results:
        async def run_once(_: Lab) -> dict[str, float]:
            turns.append(name)
            return {"per_second": 1.0}

        return Results(Benchmark(name, "?", (RATE,), (System("s", run_once),), is_aside=is_aside))

    both = [benchmark("a"), benchmark("aside", is_aside=True)]
    lab = Lab("", QUICK, tmp_path)

    assert await run_rounds(both, lab, rounds=2, announce=lambda _: None) == 2
    assert turns == ["a", "aside", "a"]
    assert await run_rounds(both, lab, rounds=5, announce=lambda _: None, seconds=0) == 1


@pytest.mark.parametrize(
    ("stolen", "taken", "kept"),
    [([0, 1], 1, 1.0), ([9, 0.5], 2, 2.0), ([9, 3, 7, 8, 0], 4, 2.0)],
    ids=["left alone", "disturbed once", "never left alone"],
)
async def test_a_turn_that_the_host_disturbed_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stolen: list[float], taken: int, kept: float
) -> None:
    percents = iter(stolen)
    monkeypatch.setattr(Meter, "percent", lambda _: float(next(percents)))
    turns: list[float] = []

    async def run_once(_: Lab) -> dict[str, float]:
        turns.append(len(turns) + 1.0)
        return {"per_second": turns[-1]}

    numbers = await take_turn(System("a", run_once), Lab("", FULL, tmp_path), lambda _: None)
    assert (len(turns), numbers["turns"], numbers["per_second"]) == (taken, taken, kept)


def test_what_is_stolen_is_a_share_of_all_processor_time() -> None:
    assert 0 <= Meter().percent() <= 100


def test_every_keyed_request_has_a_key_and_a_trace_of_its_own() -> None:
    made = with_keys(b"POST /jobs HTTP/1.1\r\nContent-Length: 7\r\n\r\n100 % x")
    first, second = made(), made()

    for request in (first, second):
        assert request.startswith(b"POST /jobs HTTP/1.1\r\nIdempotency-Key: bench-")
        assert re.search(rb"\r\ntraceparent: 00-[0-9a-f]{32}-[0-9a-f]{16}-01\r\n", request)
        assert request.endswith(b"Content-Length: 7\r\n\r\n100 % x")
    assert first != second


def test_a_peer_that_needs_a_newer_python_than_there_is_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venvs, "_other_pythons", lambda _: iter(()))

    with pytest.raises(venvs.CannotInstall, match=r"needs Python ≥ 3\.99; found 3\."):
        venvs.suitable_python((3, 99))


def test_a_peer_for_node_on_a_machine_with_an_old_one_and_no_npm_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\necho v20.20.2\n")
    node.chmod(0o755)
    monkeypatch.setattr(node_packages, "RUNTIME", tmp_path / "runtime")
    monkeypatch.setattr(node_packages, "FOLDER", tmp_path / "packages")
    monkeypatch.setenv("PATH", f"{tmp_path}")

    with pytest.raises(
        venvs.CannotInstall, match=r"needs node ≥ 22\.18; found 20\.20\.2, and there is no npm"
    ):
        PG_BOSS.packages.make_ready()


def test_what_the_peers_for_node_need_is_pinned_to_exact_versions() -> None:
    pinned = json.loads(MANIFEST.read_text())["dependencies"]

    assert {"graphile-worker", "pg-boss", "pg"} <= pinned.keys()
    for version in pinned.values():
        assert re.fullmatch(r"[0-9][0-9A-Za-z.-]*", version)


def test_every_queue_that_is_measured_has_a_script() -> None:
    scripts = {
        each.stem for each in (ROOT / "benchmarks" / "peers").rglob("*") if each.suffix in {".py", ".mjs"}
    }

    for peer in QUEUES:
        assert peer.name.replace("-", "_") in scripts


@pytest.mark.parametrize("peer", ["pgqueuer", "procrastinate", "oban", "saq", "litellm"])
def test_a_peer_is_pinned_to_exact_versions_and_nothing_else(peer: str) -> None:
    lines = (ROOT / "benchmarks" / "peers" / f"{peer}.txt").read_text().splitlines()

    assert any(line.startswith(f"{peer}==") for line in lines)
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.+]*", line)
