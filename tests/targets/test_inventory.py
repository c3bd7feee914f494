"""What a target says of the models in its memory, whatever it says."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.dialects import TARGET_DIALECTS
from app.targets.inventory import Inventory


def resident(**said: Any) -> Any:
    [found] = Inventory(TARGET_DIALECTS["ollama"], running=[{"name": "llama3.2:latest", **said}]).residents
    return found


def test_residents_are_told_with_their_memory_and_when_they_are_unloaded() -> None:
    found = resident(size=3_000, size_vram=2_000, expires_at="2026-01-01T12:00:00.123456789+02:00")
    assert (found.model, found.size_bytes, found.vram_bytes) == ("llama3.2:latest", 3_000, 2_000)
    assert found.unloads_at == datetime(2026, 1, 1, 10, 0, 0, 123456, tzinfo=UTC)


@pytest.mark.parametrize("size", [None, "3 GB", -1, float("nan"), [], True, 0])
def test_a_size_that_is_none_is_not_told(size: Any) -> None:
    assert resident(size=size, size_vram=size).size_bytes is None


@pytest.mark.parametrize(
    "moment",
    [None, "", "soon", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", 5, {}, "2026-13-01"],
)
def test_a_moment_that_is_none_is_not_told(moment: Any) -> None:
    assert resident(expires_at=moment).unloads_at is None


def test_a_moment_without_a_zone_is_taken_for_utc() -> None:
    assert resident(expires_at="2026-01-01T12:00:00").unloads_at == datetime(2026, 1, 1, 12, tzinfo=UTC)


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expires_at", "told_seconds_ago", "shown"),
    [
        ("2026-01-01T12:00:01Z", None, True),
        ("2026-01-01T12:00:00Z", None, False),
        ("2026-01-01T11:00:00Z", None, False),
        # Unloaded since it was told, by its own word.
        ("2026-01-01T11:59:59.8Z", 0.5, False),
        # Told although it was past its time: it is in use, or the clocks differ.
        ("2026-01-01T11:59:58Z", 0.5, True),
        ("0001-01-01T00:00:00Z", 0.5, True),
        ("2318-01-01T00:00:00Z", None, True),
        ("whenever", None, True),
        (None, None, True),
    ],
)
def test_what_was_to_be_unloaded_by_now_is_not_shown(
    expires_at: Any, told_seconds_ago: float | None, shown: bool
) -> None:
    inventory = Inventory(TARGET_DIALECTS["ollama"], running=[{"name": "m", "expires_at": expires_at}])
    told_at = None if told_seconds_ago is None else NOW - timedelta(seconds=told_seconds_ago)
    assert (inventory.running_at(NOW, told_at) != []) is shown
