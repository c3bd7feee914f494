"""Server-sent events, cut into pieces at every place."""

import json

import pytest

from foreman_client.events import Event, ServerSentEvents, output_text

FRAMES = [
    {"seq": 1, "type": "queued", "state": "queued", "data": None, "at": "2030-01-01T00:00:00Z"},
    {"seq": 2, "type": "output", "state": "working", "data": {"text": "grüße\nzwei"}},
    {"seq": 3, "type": "done", "state": "done"},
]
WIRE = b": hello\n\n" + b"".join(
    f"id: {frame['seq']}\nevent: {frame['type']}\ndata: {json.dumps(frame, ensure_ascii=False)}\n\n".encode()
    for frame in FRAMES
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_come_whole_however_the_bytes_are_cut(size: int, newline: bytes) -> None:
    wire = WIRE.replace(b"\n", newline)
    parser = ServerSentEvents()
    events = [e for at in range(0, len(wire), size) for e in parser.feed(wire[at : at + size])]
    assert [event.seq for event in events] == [1, 2, 3]
    assert events[1].text == "grüße\nzwei"
    assert [event.terminal for event in events] == [False, False, True]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("plain", "plain"),
        ({"text": "a"}, "a"),
        ({"message": {"role": "assistant", "content": "b"}}, "b"),
        ({"response": "c"}, "c"),
        ({"frames": [{"message": {"content": "d"}}, {"response": "e"}]}, "de"),
        (None, ""),
        ({"other": 1}, ""),
    ],
)
def test_text_is_found_in_every_shape_of_output(data: object, text: str) -> None:
    assert output_text(data) == text


def test_only_output_has_text() -> None:
    assert Event(1, "log", data={"text": "x"}).text == ""
