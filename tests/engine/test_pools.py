"""Slots: a finished run makes room at once, but settlements that lag behind are bounded."""

import pytest

from app.engine.pools import Pool, is_llm_lane
from app.executors.noop import NoopExecutor


@pytest.mark.parametrize(
    ("running", "settling", "free"),
    [
        (0, 0, 4),
        (1, 0, 3),
        (4, 0, 0),
        (0, 4, 4),
        (2, 4, 2),
        (0, 6, 2),
        (0, 8, 0),
        (4, 4, 0),
        (0, 20, 0),
        (9, 0, 0),
    ],
)
def test_free_slots(running: int, settling: int, free: int) -> None:
    pool = Pool("p", NoopExecutor(), 4, lambda _: True)
    pool.running, pool.settling = running, settling
    assert pool.free == free


def test_a_pool_takes_the_lanes_it_accepts() -> None:
    pool = Pool("p", NoopExecutor(), 4, is_llm_lane)
    assert pool.lanes(["noop", "llm|||m", "llm", "acme/llm", "llm|t|o|m|n"]) == ["llm|||m", "llm|t|o|m|n"]
