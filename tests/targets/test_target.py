"""What a target is believed to hold, between two looks at it."""

import time

import pytest
from structlog.testing import capture_logs

from app.dialects import TARGET_DIALECTS
from app.outbound.client import GuardedClient
from app.outbound.guard import ANY_ADDRESS
from app.targets.breaker import FAILURES
from app.targets.config import TargetConfig, TargetFields
from app.targets.inventory import Inventory
from app.targets.target import Target


@pytest.fixture
def target() -> Target:
    target = Target(
        TargetConfig.of("a", TargetFields(url="http://127.0.0.1:1"), "api"), GuardedClient(ANY_ADDRESS), 1.0
    )
    target.inventory = Inventory(TARGET_DIALECTS["ollama"], [{"model": "m:latest"}], [{"model": "m:latest"}])
    return target


def test_only_what_the_inventory_does_not_know_yet_is_worth_a_look(target: Target) -> None:
    looks: list[str] = []
    target.on_residents = lambda: looks.append("look")
    for _ in range(10):
        target.loaded("m:latest num_ctx=4096")
    assert looks == []
    target.loaded("n:latest")
    assert looks == ["look"]
    target.unloaded("other:latest")
    assert looks == ["look"]
    target.unloaded("m:latest num_ctx=4096")
    assert looks == ["look"] * 2


def test_an_answer_to_an_older_question_takes_nothing_away_that_was_loaded_since(target: Target) -> None:
    asked_at = time.monotonic()
    target.loaded("n:latest")
    target.settle_residents(asked_at)
    assert target.is_resident("n:latest")
    target.settle_residents(time.monotonic() + 1)
    assert not target.is_resident("n:latest")


def test_a_breaker_that_opens_or_closes_is_told_once(target: Target) -> None:
    with capture_logs() as lines:
        target.answered()
        for _ in range(FAILURES - 1):
            target.failed("time-out")
        assert lines == []
        for _ in range(3):
            target.failed("time-out")
        for _ in range(2):
            target.answered()
    assert [(line["event"], line["log_level"], line["target"]) for line in lines] == [
        ("target.breaker_opened", "warning", "a"),
        ("target.breaker_closed", "info", "a"),
    ]
    assert (lines[0]["problem"], lines[0]["seconds"]) == ("time-out", 5.0)


def test_errors_that_come_at_once_do_not_open_the_breaker_but_are_told(target: Target) -> None:
    looks: list[str] = []
    target.on_trouble = lambda each: looks.append(each.name)
    for _ in range(FAILURES - 1):
        target.answered_badly("target_error: HTTP 500")
    assert (target.trouble, target.keeps_failing) == (None, False)
    for _ in range(100):
        target.answered_badly("target_error: HTTP 500")
    assert (target.trouble, target.keeps_failing) == ("target_error: HTTP 500", True)
    assert target.breaker.is_closed
    assert len(looks) == FAILURES - 1 + 100
    target.answered()
    assert (target.trouble, target.keeps_failing) == (None, False)


def test_an_error_is_an_answer_and_closes_the_breaker(target: Target) -> None:
    for _ in range(FAILURES):
        target.failed("target_timeout: silent")
    assert not target.breaker.is_closed
    target.answered_badly("target_error: HTTP 500")
    assert target.breaker.is_closed
    assert target.trouble == "target_error: HTTP 500", "it has not done well yet"


def test_a_failing_target_says_why_also_while_it_tells_of_its_models(target: Target) -> None:
    target.failed("target_timeout: silent")
    assert target.trouble is None, "once is nothing"
    for _ in range(FAILURES):
        target.failed("target_timeout: silent")
    target.warning = None
    assert target.trouble == "target_timeout: silent"
    target.answered()
    assert (target.trouble, target.failure) == (None, None)
    target.warning = "could not connect"
    assert target.trouble == "could not connect"
