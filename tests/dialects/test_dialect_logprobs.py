"""Probabilities of the older completions: a list for each property of the tokens, where others have a token each."""

from typing import Any

import pytest

from app.dialects import TARGET_DIALECTS
from app.dialects.shapes import UntranslatableRequest
from app.dialects.translate import translate_request
from tests.dialects.frames import FINAL, make, run

OPENAI, OLLAMA = TARGET_DIALECTS["openai"], TARGET_DIALECTS["ollama"]


def asked(**fields: Any) -> dict[str, Any]:
    return translate_request("generate", {"model": "m", "prompt": "p", **fields}, OPENAI, OLLAMA)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (3, {"logprobs": True, "top_logprobs": 3}),
        (0, {"logprobs": True}),
        (True, {"logprobs": True}),
        (None, {}),
        (False, {}),
    ],
)
def test_a_number_of_tokens_becomes_ollamas_two_words(given: Any, wanted: dict[str, Any]) -> None:
    body = asked(logprobs=given)
    assert {name: body[name] for name in ("logprobs", "top_logprobs") if name in body} == wanted


@pytest.mark.parametrize("given", [-1, "2", 1.5, [1]])
def test_what_is_no_number_of_tokens_is_refused(given: Any) -> None:
    with pytest.raises(UntranslatableRequest) as refused:
        asked(logprobs=given)
    assert refused.value.param == "logprobs"


def entry(token: str, logprob: float) -> dict[str, Any]:
    tops = [{"token": token, "logprob": logprob, "bytes": []}, {"token": "?", "logprob": -9.0}]
    return {"token": token, "logprob": logprob, "bytes": [], "top_logprobs": tops}


def test_tokens_become_lists_with_their_place_in_the_text() -> None:
    frames = [
        {"response": "Hé", "done": False, "logprobs": [entry("Hé", -0.5)]},
        {"response": "llo", "done": False, "logprobs": [entry("l", -1.0), entry("lo", -2.0)]},
        {"response": "", **FINAL},
    ]
    chunks = run(make("generate", "ollama", "openai"), *frames)
    fold = OPENAI.fold("generate")
    for chunk in chunks:
        fold.feed(chunk)
    assert fold.response()["choices"][0]["logprobs"] == {
        "tokens": ["Hé", "l", "lo"],
        "token_logprobs": [-0.5, -1.0, -2.0],
        "top_logprobs": [{"Hé": -0.5, "?": -9.0}, {"l": -1.0, "?": -9.0}, {"lo": -2.0, "?": -9.0}],
        "text_offset": [0, 2, 3],
    }
    assert chunks[1]["choices"][0]["logprobs"]["text_offset"] == [2, 3]


def test_lists_become_tokens_again() -> None:
    lists = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}], "text_offset": [0]}
    choice = {"index": 0, "text": "a", "logprobs": lists, "finish_reason": "stop"}
    [frame, _] = run(make("generate", "openai", "ollama"), {"choices": [choice]})
    tops = [{"token": "a", "logprob": -1.0}]
    assert frame["logprobs"] == [{"token": "a", "logprob": -1.0, "top_logprobs": tops}]
