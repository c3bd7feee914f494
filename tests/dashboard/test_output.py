"""What a job has said, as its page shows it: pure."""

import json
from typing import Any

import pytest

from app.dashboard.output import SHOWN_CHARACTERS, of_result, of_rows
from app.store.job_view import OutputRow, ViewedJob


def row(seq: int, offset: int, *parts: Any) -> OutputRow:
    text = "".join(part for part in parts if isinstance(part, str))
    told: dict[str, Any] = {"attempt": 1, "run": 2, "offset": offset, "text": text}
    if any(not isinstance(part, str) for part in parts):
        told["parts"] = list(parts)
    return OutputRow(seq, json.dumps(told))


def done(kind: str, result: Any) -> ViewedJob:
    text = json.dumps(result)
    values = dict.fromkeys(ViewedJob.__struct_fields__) | {
        "kind": kind, "result": text, "result_bytes": len(text)
    }  # fmt: skip
    return ViewedJob(**values)  # type: ignore[arg-type]  # all else is not looked at


def test_rows_keep_their_place_so_that_new_ones_come_below() -> None:
    said = of_rows([row(4, 17, "Hello ", "you"), row(5, 26, "!")])
    assert said.text == "Hello you!"
    assert said.before == 17
    assert [piece.place for piece in said.pieces] == ["4-0", "5-0"]


def test_thoughts_and_calls_are_told_apart_in_either_dialect() -> None:
    ollama = {"message": {"role": "assistant", "content": "", "thinking": "hm"}}
    call = {"message": {"tool_calls": [{"function": {"name": "look", "arguments": {"at": 1}}}]}}
    openai = {"choices": [{"delta": {"reasoning_content": "so", "content": "yes"}}]}
    said = of_rows([row(4, 0, ollama, ollama, "a", call, openai)])
    assert [(piece.kind, piece.text) for piece in said.pieces] == [
        ("thinking", "hmhm"),
        ("text", "a"),
        ("call", 'look({"at":1})'),
        ("thinking", "so"),
        ("text", "yes"),
    ]
    assert len({piece.place for piece in said.pieces}) == 5


def test_the_answer_is_found_in_the_result_of_either_dialect() -> None:
    found = of_result(done("chat", {"message": {"content": "yes", "thinking": "hm"}}))
    assert found is not None
    assert [(piece.kind, piece.text) for piece in found.pieces] == [("thinking", "hm"), ("text", "yes")]
    found = of_result(done("chat", {"choices": [{"message": {"content": "yes"}}]}))
    assert found is not None
    assert found.text == "yes"
    assert of_result(done("my_kind", {"message": {"content": "no"}})) is None


def test_thoughts_and_calls_among_the_blocks_of_a_message_are_found() -> None:
    job = done(
        "chat",
        {
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "yes"},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": 1}},
            ]
        },
    )
    job.dialect = "anthropic"
    found = of_result(job)
    assert found is not None
    assert [(piece.kind, piece.text) for piece in found.pieces] == [
        ("thinking", "hm"),
        ("call", 'look({"at":1})'),
        ("text", "yes"),
    ]


def test_a_long_answer_is_cut_and_one_that_was_not_read_is_none() -> None:
    found = of_result(done("generate", {"response": "x" * (SHOWN_CHARACTERS + 7)}))
    assert found is not None
    assert (len(found.text), found.after) == (SHOWN_CHARACTERS, 7)
    cut = done("generate", {"response": "yes"})
    cut.result_bytes = 2_000_000
    assert of_result(cut) is None


@pytest.mark.parametrize(
    "data", ["", "null", "[]", "{", '{"parts":7}', '{"parts":[7,null,[]]}', '{"text":{}}']
)
def test_odd_rows_are_borne(data: str) -> None:
    assert of_rows([OutputRow(1, data)]).text == ""
