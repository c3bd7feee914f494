"""Bytes become frames in whatever pieces they arrive, and what is no frame is called garbage."""

from typing import Any

import pytest

from app.dialects import SSE_DONE, SSE_KEEP_ALIVE, FrameDecoder, GarbledAnswer, encode_frame, parse_frame
from app.dialects.framing import MAX_LINE_BYTES

FRAMES: list[dict[str, Any]] = [{"a": "ä\n"}, {"b": [1, 2.5, None]}, {"done": True}]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("dialect", ["ollama", "openai"])
def test_what_is_encoded_is_decoded_in_pieces_of_any_size(dialect: Any, size: int) -> None:
    data = b"".join(encode_frame(frame, dialect) for frame in FRAMES)
    if dialect == "openai":
        data = SSE_KEEP_ALIVE + data + SSE_DONE
    decoder = FrameDecoder(dialect)
    frames = [each for at in range(0, len(data), size) for each in decoder.feed(data[at : at + size])]
    assert frames == FRAMES
    assert decoder.finish() == []
    assert decoder.done is (dialect == "openai")


def test_the_wire_is_what_the_real_servers_send() -> None:
    assert encode_frame({"a": "ä"}, "ollama") == '{"a":"ä"}\n'.encode()
    assert encode_frame({"a": 1}, "openai") == b'data: {"a":1}\n\n'


def test_a_last_line_without_newline_counts() -> None:
    decoder = FrameDecoder("ollama")
    assert decoder.feed(b'{"a":1}') == []
    assert decoder.finish() == [{"a": 1}]


def test_the_rest_of_the_sse_grammar_is_passed_over() -> None:
    decoder = FrameDecoder("openai")
    data = b': ping\r\nevent: message\r\nid: 5\r\nretry: 10\r\ndata:{"a":1}\r\n\r\nerror: {"error":"x"}\n\n'
    assert decoder.feed(data) == [{"a": 1}, {"error": "x"}]


@pytest.mark.parametrize(
    "data",
    [
        b"<html>502</html>\n",
        b"[1]\n",
        b"5\n",
        b'{"a":NaN}\n',
        b'{"a":"\xff"}\n',
        b'{"a":"\\ud800"}\n',
        b"[" * 5000 + b"\n",
        b'{"a":' * 5000 + b"\n",
    ],
)
@pytest.mark.parametrize("dialect", ["ollama", "openai"])
def test_garbage_is_named_with_a_piece_of_it(dialect: Any, data: bytes) -> None:
    with pytest.raises(GarbledAnswer) as garbled:
        FrameDecoder(dialect).feed(data)
    assert len(str(garbled.value)) < 600


def test_a_line_without_end_is_garbage() -> None:
    with pytest.raises(GarbledAnswer, match="a line longer than"):
        FrameDecoder("ollama").feed(b"x" * (MAX_LINE_BYTES + 1))


def test_a_whole_body_is_parsed_alike() -> None:
    assert parse_frame(b' {"a": 1} ') == {"a": 1}
    with pytest.raises(GarbledAnswer, match="no JSON: <html>"):
        parse_frame(b"<html>")
