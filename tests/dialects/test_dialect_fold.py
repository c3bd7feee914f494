"""The frames of a stream fold into the object that the same request without stream would have got."""

from typing import Any

import pytest

from app.dialects.protocol import IncompleteAnswer
from tests.dialects.frames import FINAL, USAGE, chunk, fold, folder_of, is_complete, ollama_chat


def test_an_ollama_chat_folds_into_its_final_frame() -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    logprob = {"token": "x", "logprob": -1.0}
    frames = [
        ollama_chat(thinking="h"),
        ollama_chat(thinking="m"),
        ollama_chat("Hel") | {"logprobs": [logprob]},
        ollama_chat("lo") | {"logprobs": [logprob]},
        ollama_chat(tool_calls=[call]),
        ollama_chat("!", done=FINAL, tool_calls=[call]),
    ]
    assert fold("chat", "ollama", frames) == {
        "model": "t",
        "created_at": "2026-01-01T00:00:00Z",
        "message": {
            "role": "assistant",
            "content": "Hello!",
            "thinking": "hm",
            "tool_calls": [call, call],
        },
        **FINAL,
        "logprobs": [logprob, logprob],
    }


def test_an_ollama_generate_folds_with_its_context() -> None:
    frames: list[dict[str, Any]] = [
        {"model": "t", "response": "a", "thinking": "z", "done": False},
        {"model": "t", "response": "b", "done": False},
        {"model": "t", "response": "", "context": [1, 2], **FINAL},
    ]
    assert fold("generate", "ollama", frames) == {
        "model": "t",
        "response": "ab",
        "thinking": "z",
        "context": [1, 2],
        **FINAL,
    }


def test_chunks_fold_into_a_chat_completion_with_everything_a_server_said() -> None:
    frames = [
        chunk({"role": "assistant", "content": ""}, usage=None, service_tier="default"),
        chunk({"reasoning_content": "h"}),
        chunk({"reasoning_content": "m"}),
        chunk({"content": "Hel", "annotations": [1]}),
        chunk({"content": "lo", "annotations": [2]}),
        chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a"'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
        chunk({}, "tool_calls"),
        chunk(None, usage=USAGE, timings={"prompt_ms": 1}),
    ]
    assert fold("chat", "openai", frames) == {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "t",
        "service_tier": "default",
        "usage": USAGE,
        "timings": {"prompt_ms": 1},
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello",
                    "reasoning_content": "hm",
                    "annotations": [1, 2],
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"a":1}'},
                        }
                    ],
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
    }


def test_several_choices_stay_apart() -> None:
    def choice(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        each = chunk({"content": text}, finish)
        each["choices"][0]["index"] = index
        return each

    folded = fold(
        "chat", "openai", [choice(1, "b"), choice(0, "a"), choice(1, "B", "stop"), choice(0, "A", "length")]
    )
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in folded["choices"]] == [
        (0, "aA", "length"),
        (1, "bB", "stop"),
    ]


def test_a_message_without_words_has_null_content() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    folded = fold("chat", "openai", [chunk({"role": "assistant", "tool_calls": [call]}, "tool_calls")])
    assert folded["choices"][0]["message"]["content"] is None


def test_completion_chunks_fold_into_a_completion() -> None:
    def text(piece: str, finish: str | None = None) -> dict[str, Any]:
        each = {"text": piece, "index": 0, "finish_reason": finish, "logprobs": None}
        return {"id": "x", "object": "text_completion", "choices": [each]}

    folded = fold(
        "generate", "openai", [text("a"), text("b"), text("", "stop"), {"choices": [], "usage": USAGE}]
    )
    assert folded == {
        "id": "x",
        "object": "text_completion",
        "usage": USAGE,
        "choices": [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop"}],
    }


def test_logprobs_of_chunks_are_joined() -> None:
    first, second = chunk({"content": "a"}), chunk({"content": "b"}, "stop")
    first["choices"][0]["logprobs"] = {"content": [1], "refusal": None}
    second["choices"][0]["logprobs"] = {"content": [2], "refusal": None}
    folded = fold("chat", "openai", [first, second])
    assert folded["choices"][0]["logprobs"] == {"content": [1, 2], "refusal": None}


def test_embeddings_are_one_frame() -> None:
    assert fold("embed", "ollama", [{"embeddings": [[1.0]]}]) == {"embeddings": [[1.0]]}


@pytest.mark.parametrize(
    ("dialect", "frames"),
    [
        ("ollama", []),
        ("ollama", [ollama_chat("x")]),
        ("openai", []),
        ("openai", [chunk({"content": "x"})]),
        ("ollama", [ollama_chat(done=FINAL), {"error": "late"}]),
        ("openai", [chunk({"content": "x"}), {"error": {"message": "late"}}]),
    ],
)
def test_half_an_answer_is_no_answer(dialect: Any, frames: list[dict[str, Any]]) -> None:
    folder = folder_of("chat", dialect)
    for frame in frames:
        folder.feed(frame)
    assert not is_complete(folder)
    with pytest.raises(IncompleteAnswer):
        folder.response()
