"""Lanes say who may claim a job; they can be read back whatever a caller calls a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.jobs.lanes import LlmLane, kind_lane, llm_lane, parse_llm_lane

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,20}", fullmatch=True)


@given(st.text(min_size=1), st.sampled_from(["", "num_ctx=1", "num_ctx=1,use_mmap=True"]), st.none() | names)
def test_an_llm_lane_can_be_read_back_whatever_the_model_is_called(
    model: str, options: str, target: str | None
) -> None:
    assert parse_llm_lane(llm_lane(model, options, target)) == LlmLane(target or "", options, model)


def test_work_for_the_same_model_and_options_shares_a_lane_and_other_work_does_not() -> None:
    assert llm_lane("m", "num_ctx=1") == llm_lane("m", "num_ctx=1")
    assert len({llm_lane("m"), llm_lane("n"), llm_lane("m", "num_ctx=1"), llm_lane("m", target="t")}) == 4


@given(names, names)
def test_a_kind_is_never_taken_for_an_llm_lane(kind: str, tenant: str) -> None:
    assert parse_llm_lane(kind_lane(kind, tenant)) is None


@pytest.mark.parametrize(
    ("kind", "tenant", "lane"),
    [
        ("report", "default", "report"),
        ("report", "acme", "acme/report"),
        # Those that Foreman runs itself, too: a worker that asks for them gets no other tenant's.
        ("noop", "acme", "acme/noop"),
        ("http", "acme", "acme/http"),
    ],
)
def test_kinds_run_by_workers_are_claimable_by_their_own_tenants_workers(
    kind: str, tenant: str, lane: str
) -> None:
    assert kind_lane(kind, tenant) == lane
