"""The completion is read out of an Ollama-shaped result; an LLM job always has one."""

import pytest

from app.jobs.artifacts import completion


@pytest.mark.parametrize(
    ("kind", "result", "text"),
    [
        ("chat", '{"message":{"role":"assistant","content":"hi"}}', "hi"),
        ("chat", '{"message":{"role":"assistant"}}', ""),
        ("chat", '{"message":{"content":null,"tool_calls":[1]}}', ""),
        ("chat", "{}", ""),
        ("generate", '{"response":"grüße"}', "grüße"),
        ("generate", '{"response":null}', ""),
        ("embed", '{"embeddings":[[0.10, 1e2]]}', "[[0.10, 1e2]]"),
        ("embed", '{"embeddings":null}', ""),
        ("chat", "[]", None),
        ("chat", '{"message":"not a message"}', None),
        ("chat", None, None),
        ("report", '{"response":"hi"}', None),
    ],
)
def test_the_completion_of_a_result(kind: str, result: str | None, text: str | None) -> None:
    assert completion(kind, result) == text
