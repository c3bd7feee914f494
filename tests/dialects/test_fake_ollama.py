"""The fake loads, swaps, queues, fails and goes away as the real thing does, and tells tests what it saw."""

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest

from tests.fakes import FakeOllama


def chat(fake: FakeOllama, model: str = "llama3.2", **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "one two three"}], **fields}
    return httpx.post(f"{fake.url}/api/chat", json=body, timeout=10)


def load(fake: FakeOllama, model: str = "llama3.2", **fields: Any) -> dict[str, Any]:
    answered: dict[str, Any] = httpx.post(
        f"{fake.url}/api/chat", json={"model": model, "messages": [], **fields}, timeout=10
    ).json()
    return answered


def resident(fake: FakeOllama) -> list[str]:
    return [model["name"] for model in httpx.get(f"{fake.url}/api/ps").json()["models"]]


def test_it_answers_head_and_get_at_the_root_as_ollama_does(fake: FakeOllama) -> None:
    assert httpx.get(fake.url).text == "Ollama is running"
    assert httpx.head(fake.url).status_code == 200
    assert httpx.get(f"{fake.url}/api/version").json() == {"version": "0.33.0"}
    assert httpx.post(f"{fake.url}/api/pull", json={}).text == "404 page not found"


def test_an_empty_chat_loads_and_with_keep_alive_zero_unloads(fake: FakeOllama) -> None:
    loaded = load(fake)
    assert (loaded["done"], loaded["done_reason"]) == (True, "load")
    assert resident(fake) == ["llama3.2:latest"]
    assert load(fake, keep_alive=0)["done_reason"] == "unload"
    assert resident(fake) == []
    assert [entry["event"] for entry in fake.log()] == ["load", "loaded", "unload", "unloaded"]


def test_an_empty_prompt_and_an_empty_embed_load_as_well(fake: FakeOllama) -> None:
    generate = httpx.post(f"{fake.url}/api/generate", json={"model": "qwen3:8b"}).json()
    assert generate["done_reason"] == "load"
    assert resident(fake) == ["qwen3:8b"]
    embed = httpx.post(f"{fake.url}/api/embed", json={"model": "nomic-embed-text", "input": []}).json()
    assert embed == {"model": "nomic-embed-text", "embeddings": []}
    assert resident(fake) == ["nomic-embed-text:latest"]


def test_another_model_evicts_the_resident_one_and_counts_as_a_swap(fake: FakeOllama) -> None:
    load(fake)
    chat(fake)
    assert fake.stats()["swaps"] == 0
    load(fake, "qwen3:8b")
    assert resident(fake) == ["qwen3:8b"]
    stats = fake.stats()
    assert (stats["loads"], stats["swaps"]) == (2, 1)


def test_two_models_stay_when_there_is_room_for_two(fake: FakeOllama) -> None:
    fake.control(max_resident=2)
    load(fake)
    load(fake, "qwen3:8b")
    load(fake)
    stats = fake.stats()
    assert (stats["loads"], stats["swaps"]) == (2, 0)


@pytest.mark.parametrize(
    ("options", "reloads"),
    [
        ({}, False),
        ({"temperature": 0.5, "num_predict": 3}, False),
        ({"num_ctx": 4096}, False),
        ({"num_gpu": -1}, False),
        ({"num_ctx": 8192}, True),
        ({"num_batch": 1}, True),
        ({"num_gpu": 3}, True),
        ({"main_gpu": 1}, True),
        ({"use_mmap": False}, True),
        ({"num_thread": 2}, True),
    ],
)
def test_only_runner_options_reload_the_model(
    fake: FakeOllama, options: dict[str, Any], reloads: bool
) -> None:
    load(fake)
    assert chat(fake, options=options).status_code == 200
    assert fake.stats()["loads"] == (2 if reloads else 1)


def test_loading_takes_its_time_and_shows_in_the_figures(fake: FakeOllama) -> None:
    fake.control(swap_seconds=0.2)
    final = json.loads(chat(fake).text.splitlines()[-1])
    assert 0.2e9 <= final["load_duration"] <= final["total_duration"]
    again = json.loads(chat(fake).text.splitlines()[-1])
    assert again["load_duration"] < final["total_duration"]
    assert fake.stats()["loads"] == 1


def test_a_model_leaves_when_its_keep_alive_is_over(fake: FakeOllama) -> None:
    load(fake, keep_alive="50ms")
    assert fake.wait_for(lambda stats: not stats["resident"])["unloads"] == 1
    chat(fake, keep_alive=0)
    assert resident(fake) == []
    load(fake, keep_alive=-1)
    assert resident(fake) == ["llama3.2:latest"]
    assert load(fake, keep_alive="soon")["error"] == 'time: invalid duration "soon"'


async def test_over_its_slots_it_queues_and_over_its_queue_it_is_busy(fake: FakeOllama) -> None:
    fake.control(parallel=1, max_queue=1, token_seconds=0.1)
    body = {"model": "llama3.2", "messages": [{"role": "user", "content": "one two three"}]}
    async with httpx.AsyncClient(base_url=fake.url, timeout=10) as client:
        answers = await asyncio.gather(*(client.post("/api/chat", json=body) for _ in range(3)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 503]
    busy = next(answer for answer in answers if answer.status_code == 503)
    assert busy.json() == {"error": "server busy, please try again.  maximum pending requests exceeded"}
    stats = fake.stats()
    assert (stats["max_running"], stats["finished"], stats["failed"]) == (1, 2, 1)


async def test_requests_for_two_models_on_one_place_swap_each_time_they_alternate(fake: FakeOllama) -> None:
    fake.control(models=["a", "b"])
    for model in ("a", "b", "a", "b", "b"):
        await asyncio.to_thread(chat, fake, model)
    assert fake.stats()["swaps"] == 3
    assert [entry["model"] for entry in fake.log("loaded")] == [
        "a:latest",
        "b:latest",
        "a:latest",
        "b:latest",
    ]


@pytest.mark.parametrize("when", ["loading", "before the first token", "in mid-stream", "without stream"])
async def test_a_client_that_goes_away_ends_its_request_at_once(fake: FakeOllama, when: str) -> None:
    fake.control(
        swap_seconds=30 if when == "loading" else 0,
        prefill_seconds=30 if when == "before the first token" else 0,
        token_seconds=0.1,
        reply_tokens=1000,
    )
    body: dict[str, Any] = {"model": "llama3.2", "messages": [{"role": "user", "content": "x"}]}
    if when == "without stream":
        body["stream"] = False
    async with httpx.AsyncClient(base_url=fake.url, timeout=10) as client:
        task = asyncio.create_task(_read_one_line(client, body))
        busy = "waiting" if when == "loading" else "running"
        await asyncio.to_thread(fake.wait_for, lambda stats: stats[busy] == 1)
        if when == "in mid-stream":
            await task
        else:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    stats = await asyncio.to_thread(fake.wait_for, lambda stats: stats["aborted"] == 1, 1.0)
    assert (stats["running"], stats["waiting"], stats["finished"]) == (0, 0, 0)
    assert bool(stats["resident"]) is (when != "loading")


async def _read_one_line(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    async with client.stream("POST", "/api/chat", json=body) as answer:
        async for _ in answer.aiter_lines():
            return


def test_an_error_before_the_first_byte_is_a_status_and_after_it_a_line(fake: FakeOllama) -> None:
    fake.control(faults=[{"kind": "error", "times": 1}, {"kind": "error", "after": 2, "times": 1}])
    early = chat(fake)
    assert (early.status_code, early.json()["error"]) == (
        500,
        "llama runner process has terminated: exit status 2",
    )
    lines = [json.loads(line) for line in chat(fake).text.splitlines()]
    assert len(lines) == 3
    assert lines[-1] == {"error": "llama runner process has terminated: exit status 2"}
    assert chat(fake).status_code == 200


def test_it_can_cut_truncate_and_talk_garbage(fake: FakeOllama) -> None:
    fake.control(
        faults=[
            {"kind": "cut", "times": 1},
            {"kind": "cut", "after": 2, "times": 1},
            {"kind": "truncate", "after": 2, "times": 1},
            {"kind": "garbage", "after": 1, "times": 1},
        ]
    )
    for _ in range(2):
        with pytest.raises(httpx.RemoteProtocolError):
            chat(fake)
    assert [json.loads(line)["done"] for line in chat(fake).text.splitlines()] == [False, False]
    assert chat(fake).text.splitlines()[-1].startswith("<html>")
    assert fake.stats()["failed"] == 4


def test_it_can_hang_before_and_amid_the_answer_and_while_loading(fake: FakeOllama) -> None:
    for fault in ({"after": 0}, {"after": 2}, {"phase": "load"}):
        fake.control(faults=[{"kind": "hang", "times": 1, **fault}], unload=["llama3.2"])
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{fake.url}/api/chat",
                json={"model": "llama3.2", "messages": [{"role": "user", "content": "x y z"}]},
                timeout=0.3,
            )
    fake.wait_for(lambda stats: stats["aborted"] == 3)
    assert chat(fake).status_code == 200


def test_a_load_can_fail_and_leaves_nothing_behind(fake: FakeOllama) -> None:
    fake.control(faults=[{"kind": "error", "phase": "load", "times": 1, "message": "no more memory"}])
    assert load(fake) == {"error": "no more memory"}
    assert resident(fake) == []
    assert load(fake)["done_reason"] == "load"


def test_faults_can_be_meant_for_one_path_or_one_model(fake: FakeOllama) -> None:
    fake.control(faults=[{"kind": "error", "path": "/api/tags"}, {"kind": "busy", "model": "qwen3:8b"}])
    assert httpx.get(f"{fake.url}/api/tags").status_code == 500
    assert httpx.get(f"{fake.url}/api/ps").status_code == 200
    assert chat(fake).status_code == 200
    assert chat(fake, "qwen3:8b").status_code == 503


def test_bad_requests_are_refused_in_the_shape_of_their_surface(fake: FakeOllama) -> None:
    assert httpx.post(f"{fake.url}/api/chat").json() == {"error": "missing request body"}
    assert httpx.post(f"{fake.url}/api/chat", content=b"{").status_code == 400
    assert httpx.post(f"{fake.url}/api/chat", json={"messages": []}).json() == {"error": "model is required"}
    refused = httpx.post(f"{fake.url}/v1/chat/completions", json={"model": "llama3.2", "messages": []})
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"
    with pytest.raises(ValueError, match="no such knob: colour"):
        fake.control(colour="blue")


def test_it_goes_away_and_comes_back_on_the_same_port_with_its_knobs() -> None:
    with FakeOllama(models=["solo"]) as fake:
        url = fake.url
        assert chat(fake, "solo").status_code == 200
        fake.stop()
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
        fake.start()
        assert fake.url == url
        assert resident(fake) == []
        assert chat(fake, "solo").status_code == 200
        fake.kill()
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
        fake.start()
        assert httpx.get(url).status_code == 200


def test_it_can_be_put_to_sleep_in_mid_air() -> None:
    with FakeOllama() as fake:
        fake.pause()
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{fake.url}/api/tags", timeout=0.3)
        fake.resume()
        assert httpx.get(f"{fake.url}/api/tags", timeout=5).status_code == 200
