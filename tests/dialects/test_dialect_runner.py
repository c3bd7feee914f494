"""Model names, what forces a reload, how a model is loaded, what an answer cost, and how errors look."""

from datetime import UTC, datetime
from typing import Any

import pytest

from app.dialects import TARGET_DIALECTS
from app.dialects.models import canonical_model, find_model, model_key
from app.dialects.protocol import TargetDialect
from app.dialects.runner import affinity_key, runner_options
from app.dialects.shapes import error_message
from app.dialects.usage import Usage
from tests.dialects.frames import FINAL, START, USAGE, at, chunk

OLLAMA, OPENAI = TARGET_DIALECTS["ollama"], TARGET_DIALECTS["openai"]
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("llama3.2", "llama3.2:latest"),
        ("llama3.2:latest", "llama3.2:latest"),
        ("llama3.2:3b", "llama3.2:3b"),
        ("library/llama3.2", "llama3.2:latest"),
        ("registry.ollama.ai/library/llama3.2:3b", "llama3.2:3b"),
        ("me/mine", "me/mine:latest"),
        ("localhost:5000/me/mine", "localhost:5000/me/mine:latest"),
        ("hf.co/Me/Mine-GGUF:Q4_K_M", "hf.co/Me/Mine-GGUF:Q4_K_M"),
        (" spaced ", "spaced:latest"),
    ],
)
def test_a_model_has_one_canonical_name(name: str, canonical: str) -> None:
    assert canonical_model(name) == canonical
    assert canonical_model(canonical) == canonical


def test_models_are_found_by_any_spelling_and_keep_the_targets_own() -> None:
    available = ["Llama3.2:latest", "qwen3:8b", "Qwen/Qwen3-8B"]
    assert find_model("llama3.2", available) == "Llama3.2:latest"
    assert find_model("QWEN3:8B", available) == "qwen3:8b"
    assert find_model("Qwen/Qwen3-8B:latest", available) == "Qwen/Qwen3-8B"
    assert find_model("qwen3", available) is None
    assert find_model("x", ["X:latest", "x"]) == "x"
    assert model_key("X") == model_key("x:latest")


def test_runner_options_are_those_that_force_a_reload() -> None:
    options = {
        "temperature": 1,
        "num_thread": 4,
        "num_ctx": 8192.0,
        "use_mmap": False,
        "num_gpu": -1,
        "main_gpu": None,
        "num_batch": 0,
    }
    assert runner_options(options) == {"num_ctx": 8192, "num_batch": 0, "use_mmap": False, "num_thread": 4}
    assert list(runner_options(options)) == ["num_ctx", "num_batch", "use_mmap", "num_thread"]
    assert runner_options(None) == {}


def test_an_affinity_key_is_equal_exactly_when_no_reload_is_needed() -> None:
    assert affinity_key("Llama3.2", {"num_ctx": 8192, "seed": 1}) == "llama3.2:latest num_ctx=8192"
    assert affinity_key("x", {"num_thread": 2, "num_ctx": 1}) == affinity_key(
        "x:latest", {"num_ctx": 1.0, "num_thread": 2}
    )
    assert affinity_key("x", {}) == affinity_key("x", None) == "x:latest"
    assert affinity_key("x", {"num_ctx": 1}) != affinity_key("x", {"num_ctx": 2})
    assert affinity_key("x", {"use_mmap": True}) != affinity_key("x", {"use_mmap": False})


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("chat", {"messages": [{"role": "user"}]}, {"messages": [], "stream": False}),
        ("generate", {"prompt": "x"}, {"prompt": "", "stream": False}),
        ("embed", {"input": "x"}, {"input": []}),
        ("embed", {"prompt": "x"}, {"prompt": ""}),
        (
            "chat",
            {"options": {"num_ctx": 9, "seed": 1}, "keep_alive": "1h"},
            {"messages": [], "stream": False, "options": {"num_ctx": 9}, "keep_alive": "1h"},
        ),
        ("chat", {"keep_alive": 0}, {"messages": [], "stream": False}),
        ("chat", {"keep_alive": "0s"}, {"messages": [], "stream": False}),
        ("chat", {"keep_alive": -1}, {"messages": [], "stream": False, "keep_alive": -1}),
        ("chat", {"keep_alive": "10s"}, {"messages": [], "stream": False, "keep_alive": "10s"}),
    ],
)
def test_the_load_call_carries_the_jobs_own_runner_options(
    kind: Any, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert OLLAMA.load_request(kind, {"model": "m", **body}) == {"model": "m", **expected}


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("chat", {"messages": []}, "load"),
        ("chat", {}, "load"),
        ("chat", {"messages": [{}]}, None),
        ("generate", {"prompt": ""}, "load"),
        ("generate", {"prompt": "x", "keep_alive": 0}, None),
        ("generate", {"keep_alive": 0}, "unload"),
        ("chat", {"keep_alive": "0m"}, "unload"),
        ("chat", {"keep_alive": "5m"}, "load"),
        ("embed", {"input": ""}, None),
    ],
)
def test_requests_that_only_load_or_unload_are_recognised(
    kind: Any, body: dict[str, Any], expected: str | None
) -> None:
    assert OLLAMA.only_loads(kind, body) == expected


def test_the_answer_to_an_empty_request_is_ollamas() -> None:
    assert OLLAMA.loading_answer("chat", "m", NOW, "load") == {
        "model": "m",
        "created_at": "2026-01-02T00:00:00Z",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "load",
    }
    assert OLLAMA.loading_answer("generate", "m", NOW, "unload")["response"] == ""


def usage_of(dialect: TargetDialect, *frames: dict[str, Any]) -> Usage:
    """The n-th frame arrives n seconds after the start."""
    reader = dialect.reader("chat", START)
    for n, frame in enumerate(frames):
        reader.note(frame, at(n + 1))
    return reader.usage()


def test_usage_is_read_from_ollamas_final_frame_with_any_field_absent() -> None:
    assert dict(usage_of(OLLAMA, FINAL)) == {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "load_seconds": 1e-9,
        "prefill_seconds": 1.0,
        "decode_seconds": 2.0,
    }
    nothing = {
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "load_seconds": 0.0,
        "prefill_seconds": 0.0,
        "decode_seconds": 0.0,
    }
    for frame in ({}, {"eval_count": None, "load_duration": "x", "eval_duration": -5}):
        assert dict(usage_of(OLLAMA, {"done": True, **frame})) == nothing


def test_usage_is_read_from_openai_with_and_without_timings() -> None:
    timed = {"usage": USAGE, "timings": {"prompt_ms": 10, "predicted_ms": 20}}
    assert usage_of(OPENAI, timed)["prefill_seconds"] == 0.01
    assert usage_of(OPENAI, timed)["decode_seconds"] == 0.02
    said = chunk({"content": "x"})
    plain = usage_of(OPENAI, {}, said, {}, {}, said | {"usage": USAGE})
    assert plain == {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "load_seconds": 0.0,
        "prefill_seconds": 2.0,
        "decode_seconds": 3.0,
    }
    assert usage_of(OPENAI, {"usage": None})["prompt_tokens"] == 0


def test_the_meter_times_what_openai_does_not() -> None:
    meter = OPENAI.reader("chat", START)
    meter.note(chunk({"role": "assistant", "content": ""}), at(0.5))
    meter.note(chunk({"content": "x"}), at(2))
    meter.note(chunk({"content": "y"}), at(5))
    meter.note(chunk({}, "stop"), at(6))
    meter.note(chunk(None, usage=USAGE), at(7))
    usage = meter.usage()
    assert (usage["prefill_seconds"], usage["decode_seconds"]) == (2.0, 3.0)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 7)


def test_the_meter_believes_ollama_and_counts_nothing_when_nothing_came() -> None:
    meter = OLLAMA.reader("chat", START)
    assert meter.usage()["completion_tokens"] == 0
    meter.note({"done": False, "eval_count": 99}, at(1))
    meter.note(FINAL, at(2))
    assert meter.usage()["completion_tokens"] == 7
    embedding = OLLAMA.reader("embed", START)
    embedding.note({"embeddings": [[1.0]], "prompt_eval_count": 3}, at(1))
    assert embedding.usage()["prompt_tokens"] == 3
    assert OPENAI.reader("chat", START).usage()["decode_seconds"] == 0.0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (418, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "api_error"),
    ],
)
def test_errors_have_the_shape_of_their_surface(status: int, kind: str) -> None:
    assert OLLAMA.error(status, "no") == {"error": "no"}
    expected = {"error": {"message": "no", "type": kind, "param": None, "code": None}}
    assert OPENAI.error(status, "no") == expected


def test_an_error_can_say_more() -> None:
    error = OPENAI.error(422, "no", param="model", code="bad")["error"]
    assert error == {
        "message": "no",
        "type": "invalid_request_error",
        "param": "model",
        "code": "bad",
    }
    assert OLLAMA.model_not_found("x") == {"error": "model 'x' not found"}
    assert OPENAI.model_not_found("x")["error"] == {
        "message": "model 'x' not found",
        "type": "not_found_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": "no"}, "no"),
        ({"error": {"message": "no"}}, "no"),
        ({"object": "error", "message": "no"}, "no"),
        ({"error": {"code": 5}}, "the target reported an error without a message"),
        ({"error": None, "choices": []}, None),
        ({"error": ""}, None),
        ({"done": True}, None),
        ("error", None),
        (None, None),
    ],
)
def test_the_message_is_found_in_any_error(body: Any, message: str | None) -> None:
    assert error_message(body) == message
