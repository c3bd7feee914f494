"""Answers in one piece: whole chats and embeddings."""

import json
from typing import Any

import pytest

from app.dialects.shapes import GarbledAnswer
from tests.dialects.frames import (
    CREATED,
    FINAL,
    PAIRS,
    START,
    TIMINGS,
    USAGE,
    chunk,
    fold,
    is_error,
    make,
    ollama_chat,
    run,
    translate_response,
)


def test_whole_answers_cross_both_ways() -> None:
    ollama_answer = ollama_chat("hi", thinking="hm", done=FINAL)
    to_openai = translate_response(
        "chat", ollama_answer, "ollama", "openai", model="my-model", answer_id="01J0", at=START
    )
    assert to_openai == {
        "id": "chatcmpl-01J0",
        "object": "chat.completion",
        "created": CREATED,
        "model": "my-model",
        "system_fingerprint": "fp_ollama",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "hi",
                    "reasoning": "hm",
                    "reasoning_content": "hm",
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
        "timings": TIMINGS,
    }
    back = translate_response("chat", to_openai, "openai", "ollama", model="t", answer_id="y", at=START)
    assert back["message"] == ollama_answer["message"]
    assert (back["done"], back["prompt_eval_count"], back["eval_count"]) == (True, 5, 7)
    error = translate_response("chat", {"error": "x"}, "ollama", "openai", model="m", answer_id="i", at=START)
    assert error["error"]["message"] == "x"


def test_a_server_that_does_not_stream_is_understood_as_well() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    message = {"role": "assistant", "content": "hi", "tool_calls": [call]}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": USAGE}
    frames = run(make("chat", "openai", "ollama"), answer)
    folded = fold("chat", "ollama", frames)
    assert folded["message"]["content"] == "hi"
    assert folded["message"]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_embeddings_cross_in_the_form_their_caller_wants() -> None:
    ollama_answer = {"model": "t", "embeddings": [[0.5, -1.0], [2.0, 0.25]], "prompt_eval_count": 3}
    (floats,) = run(make("embed", "ollama", "openai"), ollama_answer)
    assert floats == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]},
            {"object": "embedding", "index": 1, "embedding": [2.0, 0.25]},
        ],
        "model": "my-model",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    (packed,) = run(make("embed", "ollama", "openai", asked={"encoding_format": "base64"}), ollama_answer)
    assert packed["data"][0]["embedding"] == "AAAAPwAAgL8="
    packed["data"].reverse()
    (back,) = run(make("embed", "openai", "ollama"), packed)
    assert back == ollama_answer | {
        "model": "my-model",
        "total_duration": 1_000_000_000,
        "load_duration": 0,
    }
    (legacy,) = run(make("embed", "openai", "ollama", asked={"prompt": "x"}), floats)
    assert legacy == {"embedding": [0.5, -1.0]}


@pytest.mark.parametrize(("source", "to"), PAIRS)
def test_json_that_holds_no_embeddings_is_garbage(source: Any, to: Any) -> None:
    with pytest.raises(GarbledAnswer, match="hello"):
        make("embed", source, to).feed({"hello": "world"}, START)
    translator = make("embed", source, to)
    assert is_error(translator.finish(START)[0], to)


def test_an_embedding_of_nonsense_is_garbage() -> None:
    with pytest.raises(GarbledAnswer):
        make("embed", "ollama", "openai", asked={"encoding_format": "base64"}).feed(
            {"embeddings": [["x"]]}, START
        )
    with pytest.raises(GarbledAnswer):
        make("embed", "openai", "ollama").feed({"data": [{"embedding": "%%%"}]}, START)


def test_the_form_of_embeddings_is_read_from_their_request() -> None:
    asked = {"input": "x", "encoding_format": "BASE64"}
    (packed,) = run(make("embed", "ollama", "openai", asked=asked), {"embeddings": [[0.5, -1.0]]})
    assert packed["data"][0]["embedding"] == "AAAAPwAAgL8="
    asked = {"model": "m", "prompt": "x"}
    (legacy,) = run(make("embed", "openai", "ollama", asked=asked), packed)
    assert legacy == {"embedding": [0.5, -1.0]}
    (plain,) = run(make("embed", "openai", "ollama", asked=asked | {"input": "x"}), packed)
    assert plain["embeddings"] == [[0.5, -1.0]]


def test_every_frame_is_json() -> None:
    frames = run(make("chat", "openai", "ollama"), chunk({"content": "x"}), chunk({}, "stop"))
    assert json.loads(json.dumps(frames)) == frames
