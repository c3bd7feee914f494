"""From what targets say to Anthropic's answers: whole, as events, and the one the sum of the other."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects import ANTHROPIC, TARGET_DIALECTS
from app.dialects.shapes import Frame
from app.dialects.translate import ResponseTranslator

START = datetime(2026, 1, 1, tzinfo=UTC)
ASKED: Frame = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
COUNTS = {"prompt_eval_count": 7, "eval_count": 3}


def said(**message: Any) -> Frame:
    return {"model": "x", "message": {"role": "assistant", "content": "", **message}, "done": False}


def done(reason: str = "stop") -> Frame:
    return said() | {"done": True, "done_reason": reason, **COUNTS}


def call(name: str, arguments: Any, **more: Any) -> Frame:
    return {"function": {"name": name, "arguments": arguments}, **more}


def neutral(*frames: Frame, source: str = "ollama") -> list[Frame]:
    """As the log has them."""
    translator = ResponseTranslator("chat", TARGET_DIALECTS[source], ANTHROPIC, "m", "01J", START)
    later = START + timedelta(seconds=1)
    return [each for frame in frames for each in translator.feed(frame, later)] + translator.finish(later)


def whole(frames: list[Frame], **asked: Any) -> Frame:
    fold = ANTHROPIC.fold("chat")
    for frame in frames:
        fold.feed(frame)
    return ANTHROPIC.identified("chat", fold.response(), "01J", {**ASKED, **asked})


def events(frames: list[Frame], **asked: Any) -> list[Frame]:
    """As a caller gets them who streams."""
    given = {**ASKED, **asked}
    encoder = ANTHROPIC.encoder(json.dumps(given), "01J")
    writer = ANTHROPIC.writer("chat", "m", "01J", START)
    parts = [part for frame in frames if (part := ANTHROPIC.part_of("chat", frame)) is not None]
    sent = b"".join([encoder.frame(writer.say(part, START)) for part in parts])
    ending = writer.ending(whole(frames, **asked), START)
    sent += b"".join([encoder.frame(each) for each in ending]) + encoder.end()
    found = []
    for block in sent.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def summed_up(found: list[Frame]) -> Frame:
    """What a client makes of the events."""
    [first, *between, last_delta, last] = found
    assert (first["type"], last_delta["type"], last) == (
        "message_start",
        "message_delta",
        {"type": "message_stop"},
    )
    message: Frame = first["message"]
    content: list[Frame] = message["content"]
    is_open, argued = False, ""
    for event in between:
        match event["type"]:
            case "content_block_start":
                assert (is_open, event["index"]) == (False, len(content))
                content.append(event["content_block"])
                is_open, argued = True, ""
            case "content_block_delta":
                assert is_open
                delta, block = event["delta"], content[event["index"]]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "signature_delta":
                        block["signature"] = delta["signature"]
                    case "input_json_delta":
                        argued += delta["partial_json"]
                        block["input"] = json.loads(argued)
            case "content_block_stop":
                assert is_open
                is_open = False
    assert not is_open
    return {**message, **last_delta["delta"], "usage": {**message["usage"], **last_delta["usage"]}}


def test_a_whole_answer() -> None:
    answer = whole(neutral(said(content="Hello"), said(content=", you"), done()))
    assert answer == {
        "id": "msg_01J",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello, you"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 3,
        },
    }


def test_the_events_of_a_text() -> None:
    found = events(neutral(said(content="Hello"), said(content=", you"), done()))
    assert [each["type"] for each in found] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert found[0]["message"]["usage"]["input_tokens"] == 0
    assert found[-2]["usage"]["input_tokens"] == 7
    assert [each["delta"]["text"] for each in found[2:4]] == ["Hello", ", you"]


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal"), ("what?", "end_turn")],
)
def test_how_it_ended(reason: str, stop_reason: str) -> None:
    assert whole(neutral(said(content="x"), done(reason)))["stop_reason"] == stop_reason


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"stop_reason": "END"}, ("stop_sequence", "END")),
        ({"matched_stop": "END"}, ("stop_sequence", "END")),
        # A token of the model's own, or a word that the caller did not ask for.
        ({"stop_reason": 128009}, ("end_turn", None)),
        ({"matched_stop": "</s>"}, ("end_turn", None)),
        ({"stop_reason": None}, ("end_turn", None)),
        ({"finish_reason": "length", "stop_reason": "END"}, ("max_tokens", None)),
    ],
)
def test_which_stop_sequence_struck_is_told_where_the_target_does(
    told: Frame, expected: tuple[str, str | None]
) -> None:
    chunks = [{"choices": [{"index": 0, "delta": {"content": word}, "stop_reason": None}]} for word in "ab"]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", **told}]}
    frames = neutral(*chunks, last, source="openai")
    answer = whole(frames, stop_sequences=["STOP", "END"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == expected
    assert summed_up(events(frames, stop_sequences=["STOP", "END"])) == answer
    assert whole(frames)["stop_sequence"] is None


def test_what_else_the_target_said_stands_beside_under_its_own_name() -> None:
    last = {
        "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}],
        "timings": {"predicted_n": 1},
        "citations": ["a"],
        "type": "not ours",
    }
    frames = neutral(last, source="openai")
    answer = whole(frames)
    assert (answer["timings"], answer["citations"]) == ({"predicted_n": 1}, ["a"])
    assert (answer["type"], answer["stop_reason"]) == ("message", "end_turn")
    assert summed_up(events(frames)) == answer


def test_thoughts_and_calls_are_blocks_of_their_own() -> None:
    frames = neutral(
        said(thinking="Hm, "),
        said(thinking="well."),
        said(content="Let me look."),
        said(tool_calls=[call("look", {"n": 1}, id="call_7"), call("jump", {})]),
        done(),
    )
    answer = whole(frames)
    assert answer["content"] == [
        {"type": "thinking", "thinking": "Hm, well.", "signature": ""},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "call_7", "name": "look", "input": {"n": 1}},
        {"type": "tool_use", "id": "toolu_01J_2", "name": "jump", "input": {}},
    ]
    assert answer["stop_reason"] == "tool_use"
    assert summed_up(events(frames)) == answer


def test_fragments_of_calls_are_put_together() -> None:
    def chunk(delta: Frame, reason: str | None = None) -> Frame:
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    begun = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"n"'}}
    frames = neutral(
        chunk({"reasoning_content": "Hm."}),
        chunk({"tool_calls": [begun]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
        chunk({}, "tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6}},
        source="openai",
    )
    answer = whole(frames)
    assert answer["content"][1] == {"type": "tool_use", "id": "c1", "name": "look", "input": {"n": 1}}
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (5, 6)
    assert summed_up(events(frames)) == answer


def test_a_call_that_cannot_be_read_is_left_as_text() -> None:
    frames = neutral(said(content="So:"), said(tool_calls=[call("look", "{oh")]), said(content="."), done())
    answer = whole(frames)
    assert [block["text"] for block in answer["content"]] == [
        "So:",
        '{"name": "look", "arguments": {oh}',
        ".",
    ]
    assert answer["stop_reason"] == "end_turn"
    assert summed_up(events(frames)) == answer


def test_thoughts_that_are_to_be_omitted_leave_an_empty_block() -> None:
    frames = neutral(said(thinking="Secret"), said(content="Hi"), done())
    silent = {"thinking": {"type": "adaptive", "display": "omitted"}}
    answer = whole(frames, **silent)
    assert answer["content"][0] == {"type": "thinking", "thinking": "", "signature": ""}
    found = events(frames, **silent)
    assert "Secret" not in json.dumps(found)
    assert summed_up(found) == answer


def test_an_answer_that_says_nothing_has_no_content() -> None:
    frames = neutral(done())
    assert whole(frames)["content"] == []
    assert [each["type"] for each in events(frames)] == ["message_start", "message_delta", "message_stop"]


PIECES = st.lists(
    st.one_of(
        st.builds(lambda text: said(content=text), st.text(max_size=5)),
        st.builds(lambda text: said(thinking=text), st.text(max_size=5)),
        st.builds(
            lambda name, arguments: said(tool_calls=[call(name, arguments)]),
            st.text(max_size=5),
            st.one_of(st.text(max_size=5), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)),
        ),
    ),
    max_size=8,
)


@given(PIECES, st.sampled_from(["stop", "length"]))
def test_whatever_is_said_the_events_add_up_to_the_whole(pieces: list[Frame], reason: str) -> None:
    frames = neutral(*pieces, done(reason))
    assert summed_up(events(frames)) == whole(frames)


def test_what_keeps_a_connection_alive_and_what_ends_one_badly() -> None:
    encoder = ANTHROPIC.encoder(json.dumps(ASKED), "01J")
    assert encoder.silence({}) == b'event: ping\ndata: {"type":"ping"}\n\n'
    error = ANTHROPIC.error(500, "it broke")
    assert encoder.error(error) == b"event: error\ndata: " + msgspec.json.encode(error) + b"\n\n"
    assert error == {"type": "error", "error": {"type": "api_error", "message": "it broke"}}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_every_status_has_a_type_that_clients_know(status: int, kind: str) -> None:
    assert ANTHROPIC.error(status, "x")["error"]["type"] == kind


@pytest.mark.parametrize("reader", ["ollama", "openai"])
def test_who_attaches_in_another_dialect_hears_the_same(reader: str) -> None:
    frames = neutral(
        said(thinking="Hm."), said(content="Hi"), said(tool_calls=[call("look", {"n": 1})]), done("length")
    )
    to = TARGET_DIALECTS[reader]
    writer = ANTHROPIC.writer("chat", "m", "01J", START)
    translator = ResponseTranslator("chat", ANTHROPIC, to, "m", "01J", START)
    fold = to.fold("chat")
    parts = [part for frame in frames if (part := ANTHROPIC.part_of("chat", frame)) is not None]
    for frame in [*(writer.say(part, START) for part in parts), *writer.ending(whole(frames), START)]:
        for each in translator.feed(frame, START):
            fold.feed(each)
    for each in translator.finish(START):
        fold.feed(each)
    answer = fold.response()
    told = answer["message"] if reader == "ollama" else answer["choices"][0]["message"]
    reason = answer["done_reason"] if reader == "ollama" else answer["choices"][0]["finish_reason"]
    assert (told["content"], reason) == ("Hi", "length")
    assert told["thinking" if reader == "ollama" else "reasoning_content"] == "Hm."
    [called] = told["tool_calls"]
    assert called["function"]["name"] == "look"


def test_what_a_result_says_besides_its_text() -> None:
    frames = neutral(
        said(thinking="Hm."), said(content="Hi"), said(tool_calls=[call("look", {"n": 1})]), done()
    )
    assert ANTHROPIC.unsaid("chat", whole(frames)) == {
        "thinking": "Hm.",
        "tool_calls": [{"id": "toolu_01J_1", "name": "look", "arguments": '{"n":1}'}],
    }
    assert ANTHROPIC.unsaid("chat", whole(neutral(said(content="Hi"), done()))) is None
