"""The settings of a queue in a form, and as sentences."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dashboard import queue_form, queue_sentences
from app.dashboard.spans import seconds_in, span
from app.errors import InvalidRequest
from app.jobs.queue_settings import QueueSettings, parse_settings

FULL: dict[str, Any] = {
    "max_depth": 1000,
    "max_running": 4,
    "rate": {"limit": 100, "per_seconds": 60, "burst": 20},
    "fair_by": "customer",
    "max_attempts": 3,
    "backoff_seconds": [5, 30.5, 120],
    "lease_seconds": 0.5,
    "retention": {"done": 86400, "failed": 0, "cancelled": 90},
    "payload_schema": {"type": "object", "required": ["origin"]},
    "key": ["zendesk", "/origin", "tickets"],
    "max_active": 2,
    "max_queued": 5,
    "when_full": "coalesce",
    "stale_policy": "block",
}


def test_the_form_has_every_setting_of_a_queue() -> None:
    assert set(FULL) == set(QueueSettings.__struct_fields__)
    assert {field.setting for field in queue_form.FIELDS.values()} == set(FULL)
    assert set(queue_sentences.LABELS) == set(FULL)


@pytest.mark.parametrize("setting", FULL)
def test_what_is_not_touched_stays_as_it_was_written(setting: str) -> None:
    texts = queue_form.texts(FULL)
    wanted, problems = queue_form.settings_in(texts, FULL)
    assert (wanted, problems) == (FULL, {})
    # And what is typed anew in the same words means the same.
    without = {name: value for name, value in FULL.items() if name != setting}
    again, problems = queue_form.settings_in(texts, without)
    assert (again, problems) == (FULL, {})


def test_settings_without_a_field_are_not_lost() -> None:
    stored = {"max_running": 4, "of_a_newer_version": {"x": 1}, "retention": {"done": 60, "resting": 5}}
    typed = queue_form.texts(stored) | {"max_running": "5", "retention_done": "2 min"}
    wanted, _ = queue_form.settings_in(typed, stored)
    assert wanted == {
        "max_running": 5,
        "of_a_newer_version": {"x": 1},
        "retention": {"done": 120, "resting": 5},
    }
    assert queue_form.unknown_settings(stored) == ["of_a_newer_version"]


def test_an_empty_field_takes_a_setting_back() -> None:
    wanted, problems = queue_form.settings_in(dict.fromkeys(queue_form.FIELDS, ""), FULL)
    assert (wanted, problems) == ({}, {})


@pytest.mark.parametrize(
    "parts",
    [
        ["one"],
        ["two words", "/a/b"],
        ["[bracket]", "/x"],
        [" blank ", "/x"],
        ["line\nbreak"],
        ["a", "b", "a"],
    ],
)
def test_any_key_survives_the_form(parts: list[str]) -> None:
    texts = queue_form.texts({"key": parts})
    assert queue_form.settings_in(texts, {})[0] == {"key": parts}


@pytest.mark.parametrize(
    ("field", "typed", "said"),
    [
        ("max_running", "many", "integer"),
        ("max_running", "0", ">= 1"),
        ("rate_limit", "x", "number"),
        ("rate_per_seconds", "a while", "length of time"),
        ("rate_burst", "1000", "larger than limit"),
        ("retention_done", "a week", "length of time"),
        ("backoff_seconds", "5 s, soon", "length of time"),
        ("payload_schema", "{", "not JSON"),
        ("payload_schema", "[]", "object"),
        ("key", "[1]", "string"),
        ("when_full", "explode", "enum"),
        ("max_active", "5", "max_running"),
    ],
)
def test_what_is_wrong_is_told_at_its_field(field: str, typed: str, said: str) -> None:
    stored = {name: value for name, value in FULL.items() if name != "max_active"}
    texts = queue_form.texts(stored) | {field: typed}
    wanted, problems = queue_form.settings_in(texts, stored)
    if not problems:
        with pytest.raises(InvalidRequest) as refused:
            parse_settings(orjson.dumps(wanted))
        problems = queue_form.problems_of(refused.value)
    assert list(problems) == [field]
    assert said in problems[field]


def test_settings_read_as_a_sentence() -> None:
    settings = queue_sentences.loaded(FULL | {"max_active": 1, "stale_policy": "fail-stale"})
    assert queue_sentences.summary(settings) == (
        "at most 4 at once, 100 per minute with up to 20 in one go, fair by <em>customer</em>, "
        "at most 1\u202f000 waiting, keyed by <em>zendesk/{/origin}/tickets</em> one at a time "
        "with 5 more waiting (more are coalesced)"
    )
    assert queue_sentences.summary(queue_sentences.loaded({})) == "no limits"
    hostile = queue_sentences.loaded({"fair_by": "<script>", "key": ["<img>"]})
    assert "<script>" not in queue_sentences.summary(hostile)
    assert "<img>" not in queue_sentences.summary(hostile)


def test_a_change_is_told_setting_by_setting() -> None:
    told = queue_sentences.changes(FULL, {**FULL, "max_running": 8, "fair_by": None, "payload_schema": True})
    assert [(each.label, each.before, each.after) for each in told] == [
        ("Running at once", "at most 4 at once", "at most 8 at once"),
        ("Fairness", "fair by <em>customer</em>", "first come, first served"),
        ("Payloads", "payloads checked by a schema", "payloads checked by a schema"),
    ]
    assert '"required"' in told[2].old
    assert told[2].new == "true"
    # Each of them can be said, from nothing and to nothing.
    assert len(queue_sentences.changes({}, FULL)) == len(FULL)
    assert len(queue_sentences.changes(FULL, {})) == len(FULL)


@given(st.integers(0, 10**9) | st.floats(0.001, 10**6).map(lambda value: round(value, 3)))
def test_a_length_of_time_is_typed_as_it_is_shown(seconds: float) -> None:
    assert seconds_in(span(seconds)) == seconds


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [("90", 90), ("1.5 s", 1.5), ("2min", 120), ("12 h", 43_200), ("7 d", 604_800), ("250 ms", 0.25)],
)
def test_lengths_of_time_are_read(typed: str, seconds: float) -> None:
    assert seconds_in(typed) == seconds


@pytest.mark.parametrize("typed", ["", "-1", "soon", "1 week", "1e3", "9" * 400, "1 d 2 h", "NaN", "٣ s"])
def test_what_is_no_length_of_time_is_not_guessed_at(typed: str) -> None:
    assert seconds_in(typed) is None
