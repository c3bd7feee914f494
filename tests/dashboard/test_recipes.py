"""The same job once more, as a command and as a program."""

import ast
import json
import shlex
from datetime import UTC, datetime
from typing import Any

from app.dashboard.recipes import as_curl, as_python, body
from app.dashboard.texts import LAID_OUT_BYTES, SHOWN_CHARACTERS, shown, visible
from app.store.job_view import ViewedJob

AT = datetime(2026, 1, 1, tzinfo=UTC)


def job(payload: str, **fields: Any) -> ViewedJob:
    values: dict[str, Any] = dict.fromkeys(ViewedJob.__struct_fields__) | {
        "kind": "my_kind", "queue": "default", "priority": 0, "payload": payload, "payload_bytes": len(payload.encode()),
        "dialect": "ollama",
    }  # fmt: skip
    return ViewedJob(**(values | fields))


def sent_by(command: str) -> tuple[list[str], Any]:
    words = shlex.split(command.replace("\\\n", " "))
    return words, json.loads(words[words.index("-d") + 1])


def test_curl_sends_the_payload_as_it_was_written_and_what_was_said_beside_it() -> None:
    payload = """{"b": 1.10, "a": "it's \\u0000 $HOME `id` \\" \\\\"}"""
    made = as_curl(
        job(payload, queue="q", priority=3, target="gpu", metadata='{"k":"v\'"}'), "http://x:1", with_key=True
    )
    words, given = sent_by(made)
    assert given == {
        "kind": "my_kind", "queue": "q", "priority": 3, "target": "gpu", "metadata": {"k": "v'"},
        "payload": json.loads(payload),
    }  # fmt: skip
    assert "http://x:1/jobs" in words
    assert payload in body(job(payload))
    assert "$FOREMAN_API_KEY" in made
    assert "KEY" not in as_curl(job(payload), "http://x:1", with_key=False)


def test_the_payload_of_a_model_job_is_the_body_itself() -> None:
    chat = job('{"model":"m","messages":[]}', kind="chat", model="m")
    assert sent_by(as_curl(chat, "http://x", with_key=False))[1] == {"model": "m", "messages": []}
    generate = job('{"model":"m","prompt":"p"}', kind="generate", priority=1)
    given = sent_by(as_curl(generate, "http://x", with_key=False))[1]
    assert given == {"model": "m", "prompt": "p", "kind": "generate", "priority": 1}
    assert json.loads(body(job("{}", kind="chat"))) == {}


def test_what_came_in_by_openais_surface_goes_there_again() -> None:
    words, given = sent_by(
        as_curl(job('{"model":"m"}', kind="chat", dialect="openai", queue="q"), "http://x", with_key=False)
    )
    assert "http://x/v1/chat/completions" in words
    assert given == {"model": "m"}
    assert "X-Foreman-Queue:q" in words
    assert as_python(job("{}", dialect="openai"), "http://x", with_key=False) is None


def test_python_is_a_program_with_the_same_payload() -> None:
    payload = {"a": [1, 2.5, None, True, 'quo"te', "it's", "\n"], "b": {}}
    made = as_python(job(json.dumps(payload), queue="q"), "http://x", with_key=True)
    assert made is not None
    tree = ast.parse(made)
    [given] = [each for each in tree.body if isinstance(each, ast.Assign)]
    assert ast.literal_eval(given.value) == payload
    assert "foreman.submit('my_kind', payload, queue='q')" in made


def test_a_long_payload_is_taken_from_a_file() -> None:
    long = job(json.dumps({"a": "x" * 20_000}))
    assert as_curl(long, "http://x", with_key=False).endswith("--data-binary @job.json")
    made = as_python(long, "http://x", with_key=False)
    assert made is not None
    ast.parse(made)
    assert "json.load(file)" in made


def test_json_is_laid_out_with_its_numbers_and_order_as_they_came() -> None:
    text = '{"b":1.10,"a":[1e400,123456789012345678901234567890]}'
    made = shown(text, len(text), is_whole=True, laid_out=True)
    assert (
        made.text.index('"b": 1.10')
        < made.text.index("1e400")
        < made.text.index("123456789012345678901234567890")
    )
    assert not made.is_cut
    assert shown(text, len(text), is_whole=True, laid_out=False).text == text


def test_what_is_large_nested_or_no_json_is_shown_as_it_begins() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for text in (deep, "no json", '{"a":', json.dumps(["x" * LAID_OUT_BYTES])):
        made = shown(text, len(text), is_whole=True, laid_out=True)
        assert len(made.text) <= SHOWN_CHARACTERS
        assert made.is_cut == (len(text) > SHOWN_CHARACTERS)


def test_characters_that_hide_or_turn_others_are_named() -> None:
    assert visible("a\u202eb\0c\u2066\x1b[31m\r\nd\te") == "a⟨U+202E⟩b⟨U+0000⟩c⟨U+2066⟩⟨U+001B⟩[31m\nd\te"
    assert visible("שלום עולם, مرحبا") == "שלום עולם, مرحبا"
