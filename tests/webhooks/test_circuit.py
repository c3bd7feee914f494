"""What one receiver may use of a process, walked with a clock in hand."""

import random

from app.webhooks.circuit import LONGEST_PAUSE_SECONDS, STARTING_ROOM, Receiver

IN_A_ROW = 14


def receiver(most: int = 32) -> Receiver:
    return Receiver("hooks.example:443", most)


def is_open(found: Receiver) -> bool:
    return found.is_open


def opened(at: float = 0.0) -> Receiver:
    found = receiver()
    for _ in range(IN_A_ROW):
        found.began(at)
        found.failed(at, 0.5, "refused")
        found.ended()
    return found


def test_a_receiver_that_nobody_knows_starts_small_and_earns_more_by_answering() -> None:
    found = receiver()
    assert found.free(0) == STARTING_ROOM
    for _ in range(100):
        found.answered()
    assert found.free(0) == 32


def test_never_more_than_the_setting_allows() -> None:
    assert receiver(most=2).free(0) == 2


def test_a_failure_halves_what_it_may_use() -> None:
    found = receiver()
    for _ in range(28):
        found.answered()
    found.failed(0, 0.5, "500")
    assert found.room == 16


def test_the_circuit_opens_after_a_row_of_failures_and_not_before() -> None:
    found = receiver()
    for _ in range(IN_A_ROW - 1):
        found.failed(0, 0.5, "refused")
    assert not is_open(found)
    found.failed(0, 0.5, "refused")
    assert is_open(found)
    assert found.free(0) == 0


def test_a_receiver_that_fails_every_third_time_is_not_left_alone() -> None:
    found, dice = receiver(), random.Random(7)
    for _ in range(5000):
        if dice.random() < 1 / 3:
            found.failed(0, 0.5, "500")
        else:
            found.answered()
        assert not is_open(found)


def test_after_the_pause_one_send_finds_out_and_no_second_beside_it() -> None:
    found = opened(at=100)
    assert found.free(100.9) == 0
    assert found.free(101.1) == 1
    found.began(101.1)
    assert found.free(102) == 0


def test_a_probe_that_is_answered_closes_the_circuit() -> None:
    found = opened()
    found.began(2)
    found.answered()
    found.ended()
    assert not is_open(found)
    assert found.free(2) > 1


def test_each_probe_that_fails_doubles_the_pause_up_to_a_limit() -> None:
    found = opened()
    now, pauses = 0.0, []
    for _ in range(8):
        now = found.open_until or 0
        found.began(now)
        found.failed(now, 0.5, "refused")
        found.ended()
        pauses.append((found.open_until or 0) - now)
    assert pauses == [2, 4, 8, 16, 30, 30, 30, 30]
    assert max(pauses) == LONGEST_PAUSE_SECONDS


def test_what_was_still_under_way_when_the_circuit_opened_does_not_lengthen_the_pause() -> None:
    found = receiver()
    for _ in range(20):
        found.began(0)
    for _ in range(20):
        found.failed(15, 0.5, "timed out")
        found.ended()
    assert found.open_until == 16


def test_an_answer_that_comes_late_closes_the_circuit_too() -> None:
    found = opened()
    found.answered()
    assert not is_open(found)
