"""Bytes become frames in whatever pieces they arrive, and what is no frame is called garbage."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects import TARGET_DIALECTS
from app.dialects.framing import MAX_LINE_BYTES, SSE_DONE, SSE_KEEP_ALIVE, parse_frame
from app.dialects.shapes import Frame, GarbledAnswer

FRAMES: list[dict[str, Any]] = [{"a": "ä\n"}, {"b": [1, 2.5, None]}, {"done": True}]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("dialect", ["ollama", "openai"])
def test_what_is_encoded_is_decoded_in_pieces_of_any_size(dialect: Any, size: int) -> None:
    data = b"".join(TARGET_DIALECTS[dialect].encode(frame) for frame in FRAMES)
    if dialect == "openai":
        data = SSE_KEEP_ALIVE + data + SSE_DONE
    decoder = TARGET_DIALECTS[dialect].decoder()
    frames = [each for at in range(0, len(data), size) for each in decoder.feed(data[at : at + size])]
    assert frames == FRAMES
    assert decoder.finish() == []
    assert decoder.done is (dialect == "openai")


def test_the_wire_is_what_the_real_servers_send() -> None:
    assert TARGET_DIALECTS["ollama"].encode({"a": "ä"}) == '{"a":"ä"}\n'.encode()
    assert TARGET_DIALECTS["openai"].encode({"a": 1}) == b'data: {"a":1}\n\n'


def test_a_last_line_without_newline_counts() -> None:
    decoder = TARGET_DIALECTS["ollama"].decoder()
    assert decoder.feed(b'{"a":1}') == []
    assert decoder.finish() == [{"a": 1}]


def test_the_rest_of_the_sse_grammar_is_passed_over() -> None:
    decoder = TARGET_DIALECTS["openai"].decoder()
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
        TARGET_DIALECTS[dialect].decoder().feed(data)
    assert len(str(garbled.value)) < 600


def test_a_line_without_end_is_garbage() -> None:
    with pytest.raises(GarbledAnswer, match="a line longer than"):
        TARGET_DIALECTS["ollama"].decoder().feed(b"x" * (MAX_LINE_BYTES + 1))


def test_a_whole_body_is_parsed_alike() -> None:
    assert parse_frame(b' {"a": 1} ') == {"a": 1}
    with pytest.raises(GarbledAnswer, match="no JSON: <html>"):
        parse_frame(b"<html>")


def chunk(text: str, **beside: Any) -> Frame:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **beside}


def test_of_a_frame_that_is_the_last_one_again_only_the_text_is_read() -> None:
    decoder = TARGET_DIALECTS["openai"].text_decoder("chat")
    data = b"".join(TARGET_DIALECTS["openai"].encode(chunk(text)) for text in ("a", 'b "ü\\', "", "d"))
    assert decoder.hear(data) == [chunk("a"), 'b "ü\\', "", "d"]


def test_where_anything_else_differs_the_whole_frame_is_read() -> None:
    decoder = TARGET_DIALECTS["openai"].text_decoder("chat")
    frames = [chunk("a"), chunk("b", model="other"), chunk("c"), chunk("d", usage={"prompt_tokens": 1})]
    assert decoder.hear(b"".join(map(TARGET_DIALECTS["openai"].encode, frames))) == frames


def test_a_line_that_only_begins_and_ends_alike_is_no_repetition() -> None:
    decoder = TARGET_DIALECTS["openai"].text_decoder("chat")
    line = TARGET_DIALECTS["openai"].encode(chunk("TEXT"))
    assert decoder.hear(line) == [chunk("TEXT")]
    odd = line.replace(b"TEXT", b'b"},"odd":{"content":"c')
    [frame] = decoder.hear(odd)
    assert isinstance(frame, dict)
    assert frame["choices"][0]["odd"] == {"content": "c"}
    with pytest.raises(GarbledAnswer):
        decoder.hear(line.replace(b'"TEXT"', b'"a" "b"'))


# Texts that look like what stands around them, and objects with texts of the same name elsewhere.
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ['"content":', '{"content":"a"}', '\\"content\\":\\"a', "\\", '"', "a\nb"]
)
ELSEWHERE = st.sampled_from(
    [{}, {}, {"odd": {"content": "z"}}, {"content": "z"}, {"usage": {"content": "z"}}]
)


@given(said=st.lists(st.tuples(TEXTS, ELSEWHERE)), ascii_only=st.booleans(), spaced=st.booleans())
def test_texts_and_frames_together_say_what_the_frames_do(
    said: list[tuple[str, Frame]], ascii_only: bool, spaced: bool
) -> None:
    frames = [chunk(text, **beside) for text, beside in said]
    lines = []
    for frame in frames:
        written = json.dumps(frame, ensure_ascii=ascii_only, separators=None if spaced else (",", ":"))
        lines.append(b"data: " + written.encode() + b"\n\n")
    decoder = TARGET_DIALECTS["openai"].text_decoder("chat")
    told: list[Frame] = []
    for line in lines:
        for heard in decoder.hear(line):
            if isinstance(heard, str):
                again = copy.deepcopy(told[-1])
                again["choices"][0]["delta"]["content"] = heard
                told.append(again)
            else:
                told.append(heard)
    assert told == [each for line in lines for each in TARGET_DIALECTS["openai"].decoder().feed(line)]
