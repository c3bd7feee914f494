"""Which lane goes next: a table, and then a target with one slot and dear swaps."""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.jobs.lanes import llm_lane
from app.store.heads import Head
from app.targets.affinity import affinity_of, choose
from tests.conftest import Server, wait_until
from tests.fakes import FakeOllama

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE = 30.0


def head(model: str, waited: float, rank: int = 0, options: str = "") -> Head:
    return Head("default", llm_lane(model, options), rank, NOW - timedelta(seconds=waited), waited)


A, B = affinity_of(llm_lane("a")), affinity_of(llm_lane("b"))


@pytest.mark.parametrize(
    ("heads", "resident", "chosen", "swaps", "avoided"),
    [
        pytest.param([head("a", 1), head("b", 2)], None, "b", True, False, id="nothing resident: the oldest"),
        pytest.param(
            [head("a", 1), head("b", 2)], A, "a", False, True, id="the resident one before the oldest"
        ),
        pytest.param([head("a", 2), head("b", 1)], A, "a", False, False, id="resident and oldest anyway"),
        pytest.param([head("a", 1), head("b", 31)], A, "b", True, False, id="patience is over: the oldest"),
        pytest.param([head("a", 1), head("b", 30)], A, "a", False, True, id="patience is just not over"),
        pytest.param(
            [head("a", 1, -200), head("b", 99, -200)], A, "a", False, True, id="nobody waits for batches"
        ),
        pytest.param([head("a", 1, -200), head("b", 3601, -200)], A, "b", True, False, id="but not for ever"),
        pytest.param([head("a", 1), head("b", 2, 1)], A, "b", True, False, id="priority before affinity"),
        pytest.param([head("a", 99), head("b", 2, 1)], A, "b", True, False, id="priority before patience"),
        pytest.param(
            [head("a", 1, 1), head("b", 2, 1)], A, "a", False, True, id="affinity within a priority"
        ),
        pytest.param(
            [head("c", 3), head("b", 2)], A, "c", True, False, id="resident has no work: the oldest"
        ),
        pytest.param(
            [head("A:latest", 1), head("b", 2)], A, "A:latest", False, True, id="spellings of one model"
        ),
    ],
)
def test_the_next_lane(
    heads: list[Head], resident: str | None, chosen: str, swaps: bool, avoided: bool
) -> None:
    choice = choose(heads, resident, PATIENCE)
    assert choice is not None
    assert choice.head.lane == llm_lane(chosen)
    assert (choice.swaps, choice.avoided) == (swaps, avoided)


def test_other_runner_options_are_another_resident() -> None:
    choice = choose([head("a", 1, options="num_ctx=8192"), head("b", 2)], A, PATIENCE)
    assert choice is not None
    assert choice.head.lane == llm_lane("b")
    assert choose([], A, PATIENCE) is None


SWAP_SECONDS = 0.25
JOBS = 60


def run_sixty_jobs(make_server: Callable[..., Server], patience: float) -> tuple[int, float, float]:
    """Swaps, the longest wait for a claim, and how long it all took, on a target with one slot."""
    with FakeOllama(models=["a", "b", "c"], swap_seconds=SWAP_SECONDS, parallel=1, max_resident=1) as fake:
        server = make_server(
            FOREMAN_OLLAMA_URL=fake.url,
            FOREMAN_OLLAMA_SLOTS="1",
            FOREMAN_AFFINITY_PATIENCE_SECONDS=str(patience),
        )
        models = ["a", "b", "c"] * (JOBS // 3)
        random.Random(4).shuffle(models)
        said = [{"role": "user", "content": "hi"}]
        run = {"metadata": {"patience": str(patience)}}
        jobs = [{"model": model, "messages": said, **run} for model in models]
        began = time.monotonic()
        answer = httpx.post(f"{server.url}/jobs/batch", json={"jobs": jobs})
        ids = [each["job_id"] for each in answer.json()["jobs"]]
        assert len(ids) == JOBS

        def listed() -> list[dict[str, Any]]:
            query: dict[str, str | int] = {"state": "done", "limit": 200, "metadata.patience": str(patience)}
            answered: list[dict[str, Any]] = httpx.get(f"{server.url}/jobs", params=query).json()["jobs"]
            return answered

        wait_until(lambda: len(listed()) == JOBS, 90)
        took = time.monotonic() - began
        assert {job["attempt"] for job in listed()} == {1}
        stats = fake.stats()
        assert stats["max_running"] == 1
        metrics = httpx.get(f"{server.url}/metrics").text
        avoided = [
            line for line in metrics.splitlines() if line.startswith("foreman_model_swaps_avoided_total{")
        ]
        assert avoided or patience == 0
        longest = max(job["timings"]["queued_seconds"] for job in listed())
        server.stop()
        return stats["loads"], longest, took


def test_sixty_jobs_over_three_models_swap_six_times_at_most_where_first_come_first_served_swaps_forty_times(
    make_server: Callable[..., Server], record_property: Callable[[str, object], None]
) -> None:
    with_affinity, longest, took = run_sixty_jobs(make_server, patience=30)
    in_order, _, took_in_order = run_sixty_jobs(make_server, patience=0)
    record_property("loads_with_affinity", with_affinity)
    record_property("loads_in_order", in_order)
    record_property("seconds", f"{took:.1f} with affinity, {took_in_order:.1f} in order")
    assert with_affinity <= 6
    assert longest <= 30 + 1
    assert 30 <= in_order <= 50


def test_a_job_waits_no_longer_than_the_patience_while_another_model_is_in_use(
    make_server: Callable[..., Server],
) -> None:
    with FakeOllama(models=["a", "b"], swap_seconds=0.05, parallel=1, prefill_seconds=0.1) as fake:
        server = make_server(
            FOREMAN_OLLAMA_URL=fake.url, FOREMAN_OLLAMA_SLOTS="1", FOREMAN_AFFINITY_PATIENCE_SECONDS="1"
        )

        wanted = [
            {"model": model, "messages": [{"role": "user", "content": "hi"}]} for model in ["b"] + ["a"] * 60
        ]
        with_a = httpx.post(f"{server.url}/jobs", json=wanted[1], headers={"prefer": "wait=20"}, timeout=30)
        assert with_a.json()["state"] == "done"
        answer = httpx.post(f"{server.url}/jobs/batch", json={"jobs": wanted})
        other, *busy = [each["job_id"] for each in answer.json()["jobs"]]
        job = httpx.get(f"{server.url}/jobs/{other}", params={"wait": 30}, timeout=40).json()
        assert job["state"] == "done"
        assert job["timings"]["queued_seconds"] > 0.5
        # Within the patience there is time for ten of the others, and for fewer on a busy machine: it did not wait
        # for much more of them.
        later = httpx.get(f"{server.url}/jobs/{busy[25]}", params={"wait": 60}, timeout=70).json()
        assert job["started_at"] < later["started_at"]
