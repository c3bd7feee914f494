"""The lines of a batch: cut out of pieces, checked one by one, grouped by model."""

import json
import random
from typing import Any

import pytest

from app.jobs.batch_lines import (
    ENDPOINTS,
    MAX_LINES,
    Checker,
    LineSplitter,
    Place,
    chunks,
    read_line,
    spans,
    window_seconds,
)

CHAT = ENDPOINTS["/v1/chat/completions"]


def line(custom_id: str, model: str = "m", **body: Any) -> bytes:
    asked = {"model": model, "messages": [{}], **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT.path, "body": asked}).encode()


def checked(data: bytes, piece: int = 1000, longest: int = 1000) -> Checker:
    checker = Checker(CHAT, 64, longest)
    for start in range(0, len(data), piece):
        checker.feed(data[start : start + piece])
    checker.end()
    return checker


@pytest.mark.parametrize(
    ("window", "seconds"),
    [("24h", 86_400), ("30m", 1800), ("90s", 90), ("7d", 604_800), ("1h30m", 5400), ("1d1h1m1s", 90_061)],
)
def test_a_window_is_any_duration(window: str, seconds: float) -> None:
    assert window_seconds(window) == seconds


@pytest.mark.parametrize(
    "window", ["", "0h", "h", "24", "24 h", "-1h", "1.5h", "1s1h", "1h\n", "9999999d", "٣h"]
)
def test_what_is_no_window(window: str) -> None:
    assert window_seconds(window) is None


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_lines_are_the_same_however_the_file_comes(ending: bytes) -> None:
    data = b"\n".join([b"first", b"", b"  \r", b"x" * 60, b"fifth\r"]) + ending
    for piece in (1, 2, 7, 1000):
        splitter = LineSplitter(50)
        found = []
        for start in range(0, len(data), piece):
            found += splitter.feed(data[start : start + piece])
        found += splitter.rest()
        assert [(each.number, each.data) for each in found] == [(1, b"first"), (4, None), (5, b"fifth\r")]
        for each in found:
            assert data[each.offset : each.offset + each.length].strip() == (each.data or b"x" * 60).strip()


def test_lines_are_grouped_by_model_and_runner_options_as_they_first_appear() -> None:
    models = ["b", "a", "b:latest", "a", "c", "b"]
    found = checked(b"\n".join(line(f"{n}", model) for n, model in enumerate(models)), piece=10)
    assert [place.number for place in found.grouped()] == [1, 3, 6, 2, 4, 5]


def test_too_many_lines_are_one_error_and_are_not_all_looked_at() -> None:
    found = checked(b"{}\n" * (MAX_LINES + 10), piece=1 << 20)
    assert found.is_over
    assert [each.code for each in found.errors] == ["too_many_lines"]


def test_a_line_that_is_too_long_is_named_and_not_kept() -> None:
    found = checked(line("good") + b"\n" + line("long", x="y" * 2000) + b"\n" + line("last"))
    assert [(each.line, each.code) for each in found.errors] == [(2, "line_too_long")]
    assert [place.number for place in found.places] == [1, 3]


def test_a_body_stays_as_it_was_written() -> None:
    body = b'{"model" : "m", "messages":[{}], "b":1.10, "a":"\\u00e9"}'
    written = b'{"custom_id":"x","method":"POST","url":"%b","body":%b}' % (CHAT.path.encode(), body)
    job = read_line(written, CHAT, 64).as_job(CHAT, "parent", "tenant")
    assert job.payload == body.decode()
    assert (job.priority, job.interactive, job.queue, job.parent_id) == (-100, False, "batch-lines", "parent")


def test_chunks_keep_the_order_and_spans_find_all_lines_again() -> None:
    chance = random.Random(7)
    places, offset = [], 0
    for number in range(1, 500):
        length = chance.randint(1, 400)
        places.append(Place(chance.randint(0, 5), number, offset, length))
        offset += length + 1
    grouped = sorted(places)
    cut = chunks(grouped, most=50, most_bytes=5000)
    assert [place for chunk in cut for place in chunk] == grouped
    for chunk in cut:
        assert len(chunk) <= 50
        assert sum(place.length for place in chunk) <= 5000
        found = spans(chunk, gap=1000, most=3000)
        assert sorted(place for span in found for place in span.places) == sorted(chunk)
        for span in found:
            assert span.length <= 3000
            for place in span.places:
                assert span.offset <= place.offset
                assert place.offset + place.length <= span.offset + span.length
