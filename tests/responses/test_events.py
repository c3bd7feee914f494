"""The events of a response and the whole of it: functions of what was said, for every reader alike."""

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response

from app.dialects import DIALECTS, TARGET_DIALECTS
from app.dialects.responses_answers import ResponseEvents
from app.dialects.translate import ResponseTranslator
from app.dialects.usage import Usage

RESPONSES = DIALECTS["responses"]
ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
AT = datetime(2026, 1, 1, tzinfo=UTC)
USAGE: Usage = {
    "prompt_tokens": 3,
    "completion_tokens": 5,
    "load_seconds": 0.0,
    "prefill_seconds": 0.0,
    "decode_seconds": 0.0,
}
Frames = list[dict[str, Any]]

SAID = st.lists(
    st.one_of(
        st.fixed_dictionaries({"text": st.text(min_size=1, max_size=5)}),
        st.fixed_dictionaries({"thinking": st.text(min_size=1, max_size=5)}),
        st.fixed_dictionaries({"thinking": st.just("a"), "text": st.just("b")}),
        st.fixed_dictionaries(
            {"text": st.just("t"), "logprobs": st.just([{"token": "t", "logprob": -0.5, "bytes": [116]}])}
        ),
        st.fixed_dictionaries(
            {"tool_calls": st.just([{"id": "", "name": "f", "arguments": "{}"}, {"id": "c", "name": "g"}])}
        ),
    ),
    max_size=8,
)
ENDS = st.sampled_from(["stop", "length", "tool_calls"])
ASKED = st.sampled_from([{}, {"reasoning": {"summary": "auto"}}, {"background": True}])


def payload(**more: Any) -> dict[str, Any]:
    return {"model": "m", "input": "hi", **more}


def result_of(said: Frames, reason: str, asked: dict[str, Any]) -> dict[str, Any]:
    fold = RESPONSES.fold("chat")
    for frame in [*said, {"end": {"reason": reason, "usage": USAGE}}]:
        fold.feed(frame)
    whole: dict[str, Any] = json.loads(
        json.dumps(RESPONSES.identified("chat", fold.response(), ID, payload(**asked)))
    )
    return whole


def events_of(told: bytes) -> Frames:
    found = []
    for block in told.decode().split("\n\n")[:-1]:
        event, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert event == f"event: {found[-1]['type']}"
    return found


def told(said: Frames, result: dict[str, Any], asked: dict[str, Any], after: int = -1) -> Frames:
    events = ResponseEvents(RESPONSES, json.dumps(payload(**asked)), ID, after)
    writer = RESPONSES.writer("chat", "m", ID, AT)
    parts = [*(writer.say(part, AT) for part in said), *writer.ending(result, AT)]
    return events_of(b"".join([events.frame(part) for part in parts]) + events.end())


@given(SAID, ENDS, ASKED)
def test_the_events_make_up_the_whole(said: Frames, reason: str, asked: dict[str, Any]) -> None:
    result = result_of(said, reason, asked)
    events = told(said, result, asked)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"] == result
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == result["output"]
    texts = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert texts == Response.model_validate(result).output_text
    assert texts == "".join(frame.get("text", "") for frame in said)


@given(SAID, ENDS, ASKED, st.integers(-1, 60))
def test_a_reader_goes_on_behind_any_event(
    said: Frames, reason: str, asked: dict[str, Any], after: int
) -> None:
    result = result_of(said, reason, asked)
    every = told(said, result, asked)
    rest = told(said, result, asked, after)
    if after < len(every):
        assert rest == every[after + 1 :]
    else:
        assert [event["type"] for event in rest] == ["error"]


@given(SAID, ENDS, ASKED, st.integers(0, 8))
def test_what_the_log_has_lost_is_told_from_the_result(
    said: Frames, reason: str, asked: dict[str, Any], kept: int
) -> None:
    result = result_of(said, reason, asked)
    events = told(said[:kept], result, asked)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"] == result
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == result["output"]


def test_a_reader_whose_events_are_lost_is_not_told_others_under_their_numbers() -> None:
    said: Frames = [{"text": f"{number} "} for number in range(10)]
    [event] = told(said[:2], result_of(said, "stop", {}), {}, after=9)
    assert (event["type"], event["sequence_number"]) == ("error", 9)


def test_an_answer_that_does_not_fit_the_result_is_never_continued_with_it() -> None:
    events = told([{"text": "Good "}], result_of([{"text": "Bad"}], "stop", {}), {})
    assert events[-1]["type"] == "error"
    assert events[-1]["sequence_number"] == events[-2]["sequence_number"]


def test_reasoning_is_told_as_text_or_as_the_summary_that_was_asked_for() -> None:
    said = [{"thinking": "Hm"}, {"text": "Yes"}]
    plain = told(said, result_of(said, "stop", {}), {})
    assert [event["type"] for event in plain if "reasoning" in event["type"]] == [
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
    ]
    assert plain[-1]["response"]["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm"}]
    asked = {"reasoning": {"summary": "auto"}}
    summary = told(said, result_of(said, "stop", asked), asked)
    assert [event["type"] for event in summary if "reasoning" in event["type"]] == [
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
    ]
    assert summary[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "Hm"}]


def test_an_answer_that_was_cut_off_is_incomplete() -> None:
    said: Frames = [{"thinking": "Hm"}, {"text": "Ye"}]
    result = result_of(said, "length", {})
    assert (result["status"], result["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in result["output"]] == ["completed", "incomplete"]
    assert told(said, result, {})[-1]["type"] == "response.incomplete"


def test_an_empty_answer_is_an_empty_message() -> None:
    result = result_of([], "stop", {})
    assert [item["type"] for item in result["output"]] == ["message"]


def test_in_the_background_it_is_queued_first_and_told_at_once() -> None:
    events = ResponseEvents(RESPONSES, json.dumps(payload(background=True)), ID)
    opening = events_of(events.opening())
    assert [event["type"] for event in opening] == ["response.created", "response.queued"]
    assert {event["response"]["status"] for event in opening} == {"queued"}
    assert events.opening() == b""
    waited_for = ResponseEvents(RESPONSES, json.dumps(payload()), ID)
    assert waited_for.opening() == b""
    # A caller who has waited for a while may know as well.
    assert [event["type"] for event in events_of(waited_for.silence({}))] == ["response.created"]
    assert waited_for.silence({}).startswith(b":")


def test_how_it_failed() -> None:
    for code, type_, status in (
        ("target_error", "response.failed", "failed"),
        ("cancelled", "response.failed", "cancelled"),
    ):
        events = ResponseEvents(RESPONSES, json.dumps(payload()), ID)
        last = events_of(events.error(RESPONSES.error(500, "Oh no", code=code)))[-1]
        assert (last["type"], last["response"]["status"]) == (type_, status)
    assert last["response"]["error"] is None
    events = ResponseEvents(RESPONSES, json.dumps(payload()), ID)
    last = events_of(events.error(RESPONSES.error(400, "Not that", code="x", param="tools")))[-1]
    assert last["response"]["error"] == {"code": "invalid_prompt", "message": "Not that", "param": "tools"}


def test_that_the_server_closes_has_no_number_of_its_own() -> None:
    events = ResponseEvents(RESPONSES, json.dumps(payload()), ID)
    first = events_of(events.frame({"text": "a"}))
    error = events_of(events.error(RESPONSES.error(503, "closing", code="unavailable")))
    assert [(each["type"], each["sequence_number"]) for each in error] == [
        ("error", first[-1]["sequence_number"])
    ]


def test_a_reader_of_an_earlier_run_hears_of_the_failure_of_the_last() -> None:
    events = ResponseEvents(RESPONSES, json.dumps(payload()), ID, 20)
    [failed] = events_of(events.error(RESPONSES.error(500, "Oh no", code="target_error")))
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 21)


def test_what_a_target_tells_beyond_its_words_is_in_the_response() -> None:
    counts = {
        "prompt_tokens": 9,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 6, "audio_tokens": None},
    }
    last = {
        "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}],
        "usage": counts,
        "citations": ["a"],
        "status": "what only Foreman may say",
    }
    translator = ResponseTranslator("chat", TARGET_DIALECTS["openai"], RESPONSES, "m", ID, AT)
    fold = RESPONSES.fold("chat")
    for frame in [*translator.feed(last, AT), *translator.finish(AT)]:
        fold.feed(frame)
    whole = RESPONSES.identified("chat", fold.response(), ID, payload())
    assert (whole["citations"], whole["status"]) == (["a"], "completed")
    assert whole["usage"]["input_tokens_details"]["cached_tokens"] == 8
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == 6
    assert Response.model_validate(whole).usage is not None
