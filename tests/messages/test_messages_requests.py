"""What Anthropic's callers send, in neutral words; and what is refused, each by its name."""

from typing import Any

import msgspec
import pytest

from app.dialects import ANTHROPIC, TARGET_DIALECTS
from app.dialects.neutral import Message, Request, ToolCall
from app.dialects.shapes import UntranslatableRequest
from app.dialects.translate import translate_request
from app.errors import InvalidRequest

HELLO = [{"role": "user", "content": "hello"}]
LOOK = {"name": "look", "description": "Looks", "input_schema": {"type": "object"}}
USED = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"n": 1}}],
}


def body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 16, "messages": HELLO, **more}


def read(**more: Any) -> Request:
    asked = body(**more)
    ANTHROPIC.read_body("chat", msgspec.json.encode(asked))
    return ANTHROPIC.read_request("chat", asked)


def messages(*given: dict[str, Any], **more: Any) -> list[Message]:
    return read(messages=list(given), **more).messages or []


def test_the_least_that_can_be_said() -> None:
    assert read() == Request(model="m", messages=[Message("user", "hello")], options={"num_predict": 16})


def test_sampling_and_limits_go_under_the_names_that_targets_know() -> None:
    options = read(temperature=1, top_p=0.5, top_k=40, stop_sequences=["END"]).options
    assert options == {"num_predict": 16, "temperature": 1.0, "top_p": 0.5, "top_k": 40, "stop": ["END"]}
    assert read(stop_sequences=[]).options == {"num_predict": 16}


def test_what_is_null_was_not_said() -> None:
    absent = dict.fromkeys(
        ("system", "tools", "tool_choice", "thinking", "metadata", "stream", "temperature", "service_tier")
    )
    assert read(**absent) == read()


@pytest.mark.parametrize(
    "harmless",
    [
        {"metadata": {"user_id": "u"}},
        {"service_tier": "standard_only"},
        {"cache_control": {"type": "ephemeral"}},
        {"speed": "standard"},
    ],
)
def test_what_is_harmless_changes_nothing(harmless: dict[str, Any]) -> None:
    assert read(**harmless) == read()


def test_system_blocks_are_one_message_before_all_others() -> None:
    blocks = [
        {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": "Be brief."},
    ]
    assert messages(*HELLO, system=blocks)[0] == Message("system", "Be kind.\nBe brief.")
    assert messages(*HELLO, system="Be kind.")[0] == Message("system", "Be kind.")
    assert messages(*HELLO, {"role": "system", "content": "Now."})[1] == Message("system", "Now.")


def test_pictures_come_as_data_or_as_addresses() -> None:
    data = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    link = {"type": "url", "url": "https://example.com/a.png"}
    content = [
        {"type": "image", "source": data},
        {"type": "text", "text": "What"},
        {"type": "image", "source": link},
        {"type": "text", "text": "is it?"},
    ]
    pictures = ["data:image/png;base64,iVBORw0KGgo=", "https://example.com/a.png"]
    assert messages({"role": "user", "content": content}) == [Message("user", "What\nis it?", pictures)]


def test_a_document_of_plain_text_is_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Once upon a time"}
    block = {"type": "document", "source": source, "title": "Tale", "citations": {"enabled": False}}
    assert messages({"role": "user", "content": [block]}) == [Message("user", "Tale\nOnce upon a time")]


def test_thoughts_and_calls_of_an_answer_come_back() -> None:
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "redacted_thinking", "data": "EuYB"},
        {"type": "text", "text": "Let me look.", "citations": None},
        {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "look",
            "input": {"n": 1},
            "caller": {"type": "direct"},
        },
    ]
    [said] = messages({"role": "assistant", "content": content}, tools=[LOOK])
    call = ToolCall("toolu_1", "look", {"n": 1})
    assert said == Message("assistant", "Let me look.", thinking="Hm.", calls=[call])


def test_the_results_of_tools_are_messages_of_their_own() -> None:
    picture = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    content = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"},
        {"type": "tool_result", "tool_use_id": "toolu_1"},
        {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "content": [{"type": "text", "text": "no such city"}, picture],
            "is_error": True,
        },
        {"type": "text", "text": "And now?"},
    ]
    results = messages(*HELLO, USED, {"role": "user", "content": content}, tools=[LOOK])[2:]
    assert results == [
        Message("tool", "sunny", call_id="toolu_1", tool_name="look"),
        Message("tool", "", call_id="toolu_1", tool_name="look"),
        Message(
            "tool", "Error: no such city", ["https://example.com/a.png"], call_id="toolu_1", tool_name="look"
        ),
        Message("user", "And now?"),
    ]


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "look"}, {"name": "look"}),
    ],
)
def test_tools_and_their_choice(choice: dict[str, Any], meant: Any) -> None:
    request = read(
        tools=[{**LOOK, "strict": True, "cache_control": {"type": "ephemeral"}}], tool_choice=choice
    )
    function = {"name": "look", "description": "Looks", "parameters": {"type": "object"}, "strict": True}
    assert request.tools == [{"type": "function", "function": function}]
    assert (request.tool_choice, request.parallel_tool_calls) == (meant, None)
    alone = read(tools=[LOOK], tool_choice={**choice, "disable_parallel_tool_use": True})
    assert alone.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("said", "think"),
    [
        ({}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"output_config": {"effort": "low"}}, "low"),
        (
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "max"}},
            "high",
        ),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "medium"}}, False),
    ],
)
def test_how_much_is_thought(said: dict[str, Any], think: bool | str | None) -> None:
    assert read(**said).think == think


def test_structured_output_is_a_format() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    wanted = {"type": "json_schema", "schema": schema}
    assert read(output_config={"format": wanted}).format == schema
    assert read(output_format=wanted).format == schema
    assert read(output_config={}).format is None


def test_a_begun_answer_is_passed_on_as_it_is() -> None:
    begun = {"role": "assistant", "content": "The answer is ("}
    for dialect in TARGET_DIALECTS.values():
        sent = translate_request("chat", body(messages=[*HELLO, begun]), ANTHROPIC, dialect)
        assert sent["messages"][-1] == begun


NAMED: list[tuple[str, dict[str, Any]]] = [
    ("model", {"model": 5}),
    ("model", {"model": ""}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": "16"}),
    ("max_tokens", {"max_tokens": 10**30}),
    ("temperature", {"temperature": "hot"}),
    ("top_k", {"top_k": -1}),
    ("stop_sequences[1]", {"stop_sequences": ["a", 1]}),
    ("stream", {"stream": "yes"}),
    ("service_tier", {"service_tier": "priority"}),
    ("speed", {"speed": "fast"}),
    ("container", {"container": "c"}),
    ("mcp_servers", {"mcp_servers": []}),
    ("context_management", {"context_management": {}}),
    ("inference_geo", {"inference_geo": "eu"}),
    ("frequency_penalty", {"frequency_penalty": 1}),
    ("metadata.session", {"metadata": {"session": 1}}),
    ("thinking.type", {"thinking": {"type": "between_tools"}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled"}}),
    ("output_config.format.type", {"output_config": {"format": {"type": "regex"}}}),
    ("system[0].type", {"system": [{"type": "image"}]}),
    ("messages", {"messages": []}),
    ("messages", {"messages": "hello"}),
    ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": ""}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": []}]}),
    ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"type": "video"}]}]}),
    ("messages[0].content[0].type", {"messages": [{"role": "user", "content": USED["content"]}]}),
    ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("tools[0].input_schema", {"tools": [{"name": "look"}]}),
    ("tools[0].name", {"tools": [{**LOOK, "name": ""}]}),
    ("tools[0].defer_loading", {"tools": [{**LOOK, "defer_loading": True}]}),
    ("tools[0].input_examples", {"tools": [{**LOOK, "input_examples": []}]}),
    ("tools[1]", {"tools": [LOOK, 5]}),
    ("tool_choice", {"tool_choice": {"type": "any"}}),
    ("tool_choice.name", {"tools": [LOOK], "tool_choice": {"type": "tool", "name": "jump"}}),
    ("tool_choice.type", {"tools": [LOOK], "tool_choice": {"type": "some"}}),
]
BLOCKS: list[tuple[str, dict[str, Any]]] = [
    ("source.type", {"type": "image", "source": {"type": "file", "file_id": "f"}}),
    (
        "source.media_type",
        {"type": "image", "source": {"type": "base64", "media_type": "image/x", "data": ""}},
    ),
    ("source.type", {"type": "document", "source": {"type": "base64", "data": "", "media_type": "x"}}),
    (
        "citations.enabled",
        {
            "type": "document",
            "source": {"type": "text", "data": "", "media_type": "text/plain"},
            "citations": {"enabled": True},
        },
    ),
    ("tool_use_id", {"type": "tool_result", "tool_use_id": "of nobody"}),
    ("mood", {"type": "text", "text": "hi", "mood": "good"}),
]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *NAMED,
        *[
            (f"messages[0].content[0].{name}", {"messages": [{"role": "user", "content": [block]}]})
            for name, block in BLOCKS
        ],
    ],
)
def test_what_is_wrong_or_not_offered_is_refused_by_its_name(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ANTHROPIC.read_body("chat", msgspec.json.encode(body(**wrong)))
    assert refused.value.detail.startswith((f"{name}: ", f"{name} is required"))
    if name != "model":
        # A job that came in before the rule was there.
        with pytest.raises(UntranslatableRequest):
            ANTHROPIC.read_request("chat", body(**wrong))


@pytest.mark.parametrize("missing", ["model", "max_tokens", "messages"])
def test_what_is_missing_is_named(missing: str) -> None:
    given = {name: value for name, value in body().items() if name != missing}
    with pytest.raises(InvalidRequest, match=f"{missing}: required"):
        ANTHROPIC.read_body("chat", msgspec.json.encode(given))


def test_a_name_of_any_length_is_told_in_a_few_words() -> None:
    with pytest.raises(InvalidRequest) as refused:
        ANTHROPIC.read_body("chat", msgspec.json.encode(body(**{"x" * 100_000: 1})))
    assert len(refused.value.detail) < 300


def test_what_a_target_cannot_do_is_refused_by_its_name() -> None:
    ollama = TARGET_DIALECTS["ollama"]
    for choice in ({"type": "any"}, {"type": "tool", "name": "look"}):
        with pytest.raises(UntranslatableRequest, match="tool_choice"):
            translate_request("chat", body(tools=[LOOK], tool_choice=choice), ANTHROPIC, ollama)
    alone = {"type": "auto", "disable_parallel_tool_use": True}
    with pytest.raises(UntranslatableRequest, match="disable_parallel_tool_use"):
        translate_request("chat", body(tools=[LOOK], tool_choice=alone), ANTHROPIC, ollama)


def test_only_who_wants_an_answer_has_to_bound_it() -> None:
    asked = {"model": "m", "messages": HELLO, "system": "Be kind."}
    assert ANTHROPIC.read_count(msgspec.json.encode(asked)).messages == [
        Message("system", "Be kind."),
        Message("user", "hello"),
    ]
    for name, wrong in (("max_tokens", 1), ("temperature", 1), ("messages", [])):
        with pytest.raises(InvalidRequest, match=name):
            ANTHROPIC.read_count(msgspec.json.encode({**asked, name: wrong}))
