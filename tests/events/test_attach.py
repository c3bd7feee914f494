"""GET /jobs/{id}/stream: a dropped token stream is picked up where it broke off, in both dialects."""

import json
import threading
import uuid
from typing import Any

import httpx
import pytest

from tests.conftest import MakeServer, Server, wait_until
from tests.events.conftest import Pair
from tests.events.helpers import chat, held, job, read, submit, words
from tests.events.sse import STREAM, Block, all_blocks, blocks


def url_of(server: Server, job_id: str) -> str:
    return f"{server.url}/jobs/{job_id}/stream"


def frames(server: Server, job_id: str, **headers: str) -> list[dict[str, Any]]:
    """Ollama's frames, as NDJSON."""
    answer = httpx.get(url_of(server, job_id), headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["x-foreman-job-id"] == job_id
    lines = answer.text.split("\n")
    assert lines.pop() == ""
    # Never an empty line: it breaks the Python client.
    assert all(lines)
    return [json.loads(line) for line in lines]


def content(told: list[dict[str, Any]]) -> str:
    return "".join(each["message"]["content"] for each in told if "message" in each)


def test_ollama_frames_are_replayed_and_end_with_the_counts_of_the_result(pair: Pair) -> None:
    job_id = chat(pair.a, words(12), delay_ms=20)
    done = job(pair.a, job_id, wait=20)
    for server in pair:
        told = frames(server, job_id)
        assert content(told) == words(12) == done["result"]["message"]["content"]
        assert [each["done"] for each in told] == [False] * (len(told) - 1) + [True]
        last = told[-1]
        assert last["message"] == {"role": "assistant", "content": ""}
        for name in ("done_reason", "eval_count", "prompt_eval_count", "total_duration"):
            assert last[name] == done["result"][name]


def test_a_generate_job_streams_responses(shared: Server) -> None:
    job_id = submit(shared, {"kind": "generate", "model": "echo", "prompt": words(5)})
    told = frames(shared, job_id)
    assert "".join(each["response"] for each in told) == words(5)
    assert told[-1]["done"] is True


def test_a_run_that_left_no_rows_is_replayed_from_its_result(shared: Server) -> None:
    job_id = chat(shared, "quick")
    job(shared, job_id, wait=20)
    assert "output" not in {event["type"] for event in read(shared, job_id)["events"]}
    assert content(frames(shared, job_id)) == "quick"


def test_tokens_come_one_by_one_where_the_job_runs(pair: Pair) -> None:
    """In the same process each token is told at once; elsewhere they come in rows."""
    job_id = chat(pair.a, words(20), delay_ms=30)
    told = frames(pair.a, job_id)
    assert len(told) == 21
    assert content(told) == words(20)


def test_a_follower_on_another_replica_gets_all_of_it(pair: Pair) -> None:
    job_id = chat(pair.a, words(40), delay_ms=10)
    told = frames(pair.b, job_id)
    assert content(told) == words(40)
    assert told[-1]["done"] is True


def test_openai_chunks_end_with_done(pair: Pair) -> None:
    job_id = chat(pair.a, words(12), delay_ms=20)
    for server in pair:
        told = all_blocks(f"{url_of(server, job_id)}?dialect=openai")
        assert told[-1].data == "[DONE]"
        chunks = [block.json for block in told[:-1]]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert {chunk["id"] for chunk in chunks} == {f"chatcmpl-{job_id}"}
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert "".join(delta.get("content") or "" for delta in deltas) == words(12)
        assert deltas[0]["role"] == "assistant"
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert reasons == [None] * (len(chunks) - 1) + ["stop"]


def test_usage_comes_when_the_job_asked_for_it(shared: Server) -> None:
    job_id = chat(shared, words(3), stream_options={"include_usage": True})
    told = all_blocks(f"{url_of(shared, job_id)}?dialect=openai")
    usage = told[-2].json
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("dialect", ["ollama", "openai"])
def test_every_id_that_was_given_out_can_be_resumed_from(pair: Pair, dialect: str) -> None:
    job_id = chat(pair.a, words(30), delay_ms=10)
    url = f"/jobs/{job_id}/stream?dialect={dialect}"
    live = all_blocks(pair.a.url + url)
    text = [_text(block) for block in live]
    for n, block in enumerate(live):
        if block.id is None:
            continue
        rest = all_blocks(pair.b.url + url, headers={"Last-Event-ID": block.id})
        assert "".join(map(_text, rest)) == "".join(text[n + 1 :])
        assert _is_end(rest, dialect)


def _text(block: Block) -> str:
    if block.data == "[DONE]":
        return ""
    frame = block.json
    if "message" in frame:
        return str(frame["message"]["content"])
    return "".join(choice["delta"].get("content") or "" for choice in frame["choices"])


def _is_end(told: list[Block], dialect: str) -> bool:
    return told[-1].data == "[DONE]" if dialect == "openai" else told[-1].json["done"] is True


def test_ndjson_resumes_too(shared: Server) -> None:
    job_id = chat(shared, words(30), delay_ms=10)
    job(shared, job_id, wait=20)
    told = all_blocks(url_of(shared, job_id))
    middle = told[len(told) // 2]
    rest = frames(shared, job_id, **{"Last-Event-ID": middle.id or ""})
    before = "".join(_text(block) for block in told[: len(told) // 2 + 1])
    assert before + content(rest) == words(30)


def test_a_waiting_stream_is_kept_alive_in_its_framing(shared: Server) -> None:
    """The job is let go only when its reader has been kept alive twice."""
    queue = f"paused-{uuid.uuid4().hex[:12]}"
    httpx.post(f"{shared.url}/queues/{queue}/pause").raise_for_status()
    with httpx.stream("GET", url_of(shared, chat(shared, "soon", queue=queue)), timeout=60) as answer:
        lines = answer.iter_lines()
        for _ in range(2):
            told = json.loads(next(lines))
            assert (told["done"], content([told])) == (False, "")
        httpx.post(f"{shared.url}/queues/{queue}/resume").raise_for_status()
        assert content([json.loads(line) for line in lines]) == "soon"
    httpx.post(f"{shared.url}/queues/{queue}/pause").raise_for_status()
    url = f"{url_of(shared, chat(shared, 'soon', queue=queue))}?dialect=openai"
    with httpx.stream("GET", url, timeout=60) as answer:
        pieces = answer.iter_text()
        text = ""
        while text.count(": still here\n") < 2:
            text += next(pieces)
        assert "data:" not in text
        httpx.post(f"{shared.url}/queues/{queue}/resume").raise_for_status()
        text += "".join(pieces)
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("dialect", ["ollama", "openai"])
def test_a_failed_job_ends_with_exactly_one_error_frame(shared: Server, dialect: str) -> None:
    job_id = chat(shared, "x", options={"echo_fail": "permanent"})
    told = all_blocks(f"{url_of(shared, job_id)}?dialect={dialect}")
    [block] = told
    error = block.json["error"]
    message = error if dialect == "ollama" else error["message"]
    assert message == "Failed on purpose: options.echo_fail is permanent."


@pytest.mark.parametrize(
    ("how", "says"), [("cancel", "cancelled"), ("expire", "deadline")], ids=["cancelled", "expired"]
)
def test_a_job_that_never_came_to_its_end_says_why(shared: Server, how: str, says: str) -> None:
    more = {"deadline_seconds": 0.3} if how == "expire" else {}
    job_id = chat(shared, words(500), delay_ms=20, **more)
    if how == "cancel":
        wait_until(lambda: job(shared, job_id)["state"] == "working")
        threading.Timer(0.3, lambda: httpx.post(f"{shared.url}/jobs/{job_id}/cancel")).start()
    told = frames(shared, job_id)
    assert says in told[-1]["error"]
    assert not any("error" in each or each["done"] for each in told[:-1])


@pytest.mark.parametrize("query", [{"dialect": "gemini"}, {"dialect": ""}, {"after": "1"}])
def test_a_wrong_question_is_refused_with_422(shared: Server, query: dict[str, str]) -> None:
    answer = httpx.get(url_of(shared, chat(shared, "x")), params=query)
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid_request"


@pytest.mark.parametrize("seen", ["", "x", "2", "2.", ".5", "1.0", "3.0", "2.5.6", "-2.5", "9" * 12 + ".1"])
def test_an_id_that_was_never_given_out_is_refused(shared: Server, seen: str) -> None:
    """Run 2 is the only one: its claim is the second event."""
    job_id = chat(shared, "x y z")
    job(shared, job_id, wait=20)
    answer = httpx.get(url_of(shared, job_id), headers={"Last-Event-ID": seen})
    assert answer.status_code == 422


def test_jobs_without_tokens_have_no_stream(shared: Server) -> None:
    for job_id in (held(shared), submit(shared, {"kind": "embed", "model": "echo", "input": "x"})):
        answer = httpx.get(url_of(shared, job_id))
        assert answer.status_code == 422
    assert httpx.get(url_of(shared, "01ARZ3NDEKTSV4RRFFQ69G5FAV")).status_code == 404


def test_a_deleted_jobs_stream_ends_with_an_error(shared: Server) -> None:
    job_id = chat(shared, "later", delay_seconds=60)
    told: list[Block] = []
    reader = threading.Thread(target=lambda: told.extend(blocks(url_of(shared, job_id))))
    reader.start()
    httpx.post(f"{shared.url}/jobs/{job_id}/cancel")
    httpx.delete(f"{shared.url}/jobs/{job_id}")
    reader.join(10)
    assert "error" in told[-1].json


def test_a_stream_goes_on_through_the_death_of_the_worker(make_server: MakeServer) -> None:
    """The second run says the same from the start; the reader gets each word once."""
    quick = {"FOREMAN_LEASE_SECONDS": "0.6", "FOREMAN_SWEEP_SECONDS": "0.1"}
    first, reader = make_server(**quick), make_server(FOREMAN_ROLE="api", **quick)
    job_id = chat(first, words(60), delay_ms=25)
    told: list[Block] = []
    thread = threading.Thread(target=lambda: told.extend(blocks(url_of(reader, job_id))))
    thread.start()
    wait_until(lambda: len(told) >= 3)
    first.kill()
    make_server(**quick)
    thread.join(30)
    assert told[-1].json["done"] is True
    assert "".join(map(_text, told)) == words(60)
    runs = {(block.id or "").split(".")[0] for block in told}
    assert len(runs) == 2, "the job was not run twice"
    # And one who was cut off in the first run resumes in the second.
    early = told[1]
    rest = all_blocks(url_of(reader, job_id), headers={"Last-Event-ID": early.id or ""})
    assert "".join(map(_text, told[:2])) + "".join(map(_text, rest)) == words(60)


def test_a_stream_goes_on_through_a_shutdown_that_gives_the_job_back(make_server: MakeServer) -> None:
    """A release gives the attempt back, so both runs have the same number: the ids tell them apart."""
    first = make_server(FOREMAN_SHUTDOWN_GRACE_SECONDS="0.2")
    reader = make_server(FOREMAN_ROLE="api")
    job_id = chat(first, words(60), delay_ms=25)
    told: list[Block] = []
    thread = threading.Thread(target=lambda: told.extend(blocks(url_of(reader, job_id))))
    thread.start()
    wait_until(lambda: len(told) >= 3)
    assert first.stop() == 0
    make_server()
    thread.join(30)
    assert "".join(map(_text, told)) == words(60)
    assert job(reader, job_id)["attempt"] == 1


def test_a_run_that_finishes_within_the_shutdown_grace_is_streamed_to_its_end(
    make_server: MakeServer,
) -> None:
    server = make_server(FOREMAN_SHUTDOWN_GRACE_SECONDS="10")
    job_id = chat(server, words(40), delay_ms=25)
    told: list[Block] = []
    thread = threading.Thread(target=lambda: told.extend(blocks(url_of(server, job_id))))
    thread.start()
    wait_until(lambda: len(told) >= 3)
    assert server.stop() == 0
    thread.join(10)
    assert "".join(map(_text, told)) == words(40)
    assert told[-1].json["done"] is True


def test_a_stream_whose_job_goes_on_elsewhere_ends_with_an_honest_error(make_server: MakeServer) -> None:
    worker, reader = make_server(), make_server(FOREMAN_ROLE="api")
    job_id = chat(worker, words(100), delay_ms=25)
    told: list[Block] = []
    thread = threading.Thread(target=lambda: told.extend(blocks(url_of(reader, job_id))))
    thread.start()
    wait_until(lambda: len(told) >= 2)
    assert reader.stop() == 0
    thread.join(10)
    assert "attach again" in told[-1].json["error"]
    rest = all_blocks(url_of(worker, job_id), headers={"Last-Event-ID": told[-1].id or ""})
    assert "".join(map(_text, told[:-1])) + "".join(map(_text, rest)) == words(100)


def test_a_reader_that_hangs_up_does_not_end_the_job(shared: Server) -> None:
    job_id = chat(shared, words(20), delay_ms=20)
    with httpx.stream("GET", url_of(shared, job_id), headers=STREAM) as answer:
        pieces = answer.iter_bytes()
        next(pieces)
    done = job(shared, job_id, wait=20)
    assert done["state"] == "done"
