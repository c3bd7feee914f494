"""Clients that build on responses: openai-agents running a tool, and langchain-openai."""

import asyncio
from typing import Any

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.conftest import Server
from tests.passthrough.conftest import jobs_of

MODEL = "llama3.2"
QUIET = RunConfig(tracing_disabled=True)


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def agent_on(server: Server, client: openai.AsyncOpenAI) -> Agent[Any]:
    return Agent(
        name="forecaster",
        instructions="Tell the weather.",
        model=OpenAIResponsesModel(model=MODEL, openai_client=client),
        tools=[get_weather],
        model_settings=ModelSettings(temperature=0.1, max_tokens=200),
    )


def test_an_agent_calls_its_tool_and_answers(foreman: Server) -> None:
    async def talk() -> str:
        async with openai.AsyncOpenAI(base_url=f"{foreman.url}/v1", api_key="none") as client:
            done = await Runner.run(agent_on(foreman, client), "use get_weather", run_config=QUIET)
            return str(done.final_output)

    assert asyncio.run(talk()).startswith("The tool says: sunny in")
    assert [job["state"] for job in jobs_of(foreman)] == ["done", "done"]


def test_an_agent_streams_and_goes_on_from_the_response_before(foreman: Server) -> None:
    async def talk() -> tuple[list[str], str, str]:
        async with openai.AsyncOpenAI(base_url=f"{foreman.url}/v1", api_key="none") as client:
            agent = agent_on(foreman, client)
            streamed = Runner.run_streamed(agent, "use get_weather", run_config=QUIET)
            raw = [each async for each in streamed.stream_events() if each.type == "raw_response_event"]
            deltas = [e.data.delta for e in raw if e.data.type == "response.output_text.delta"]
            more = await Runner.run(
                agent, "thanks", previous_response_id=streamed.last_response_id, run_config=QUIET
            )
            return deltas, str(streamed.final_output), str(more.final_output)

    deltas, final, more = asyncio.run(talk())
    assert len(deltas) > 1
    assert "".join(deltas) == final
    assert final.startswith("The tool says")
    assert more == "You said: thanks"


def chat_on(server: Server, model: str = MODEL, **more: Any) -> ChatOpenAI:
    settings = {"model": model, "base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0, **more}
    return ChatOpenAI(use_responses_api=True, **settings)


def test_langchain_invokes_and_streams(foreman: Server) -> None:
    chat = chat_on(foreman, temperature=0.5)
    answer = chat.invoke("Hello, world")
    assert answer.text == "You said: Hello, world"
    assert answer.usage_metadata
    assert answer.usage_metadata["total_tokens"] > 0
    assert str(answer.response_metadata["id"]).startswith("resp_")
    chunks = list(chat.stream("Hello, world"))
    assert len(chunks) > 3
    assert "".join(chunk.text for chunk in chunks) == "You said: Hello, world"


def test_langchain_shows_reasoning_as_a_summary(foreman: Server) -> None:
    chat = chat_on(foreman, model="qwen3:8b", reasoning={"effort": "medium", "summary": "auto"})
    whole: AIMessageChunk | None = None
    for chunk in chat.stream("Hello, world"):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    blocks = [block for block in whole.content_blocks if block["type"] == "reasoning"]
    assert "The user wants" in str(blocks)
    assert chat.invoke([HumanMessage("Hello"), whole, HumanMessage("again")]).text == "You said: again"


@tool
def look_up_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def test_langchain_binds_tools_and_goes_on_from_the_response_before(foreman: Server) -> None:
    chat = chat_on(foreman).bind_tools([look_up_weather])
    asked = HumanMessage("use look_up_weather")
    called = chat.invoke([asked])
    assert isinstance(called, AIMessage)
    [call] = called.tool_calls
    result = ToolMessage(look_up_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert chat.invoke([asked, called, result]).text.startswith("The tool says: sunny")
    again = chat.invoke([result], previous_response_id=called.response_metadata["id"])
    assert again.text.startswith("The tool says: sunny")
