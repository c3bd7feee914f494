"""Files and batches from end to end, by OpenAI's own client, unmodified."""

from typing import Any

import httpx
import openai
import pytest

from tests.batches.conftest import CHAT, as_file, begun, client_of, line, lines_of, settled
from tests.conftest import Server, wait_until
from tests.fakes import FakeOllama


def test_a_batch_from_upload_to_answers(client: openai.OpenAI, foreman: Server) -> None:
    lines = [line(f"line {n}", f"this is {n}") for n in range(5)]
    file = client.files.create(file=as_file(*lines), purpose="batch")
    assert (file.purpose, file.status, file.filename, file.object) == (
        "batch",
        "processed",
        "lines.jsonl",
        "file",
    )
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"for": "a test"}
    )
    assert (batch.status, batch.endpoint, batch.input_file_id) == ("validating", CHAT, file.id)
    assert batch.metadata == {"for": "a test"}
    assert batch.expires_at == pytest.approx(batch.created_at + 86_400, abs=1)
    done = settled(client, batch)
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (5, 5, 0)
    assert done.in_progress_at is not None
    assert done.finalizing_at is not None
    assert done.completed_at is not None
    assert (done.error_file_id, done.errors, done.failed_at, done.cancelled_at) == (None, None, None, None)
    found = lines_of(client, done.output_file_id)
    for n in range(5):
        answer = found[f"line {n}"]
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        assert answer["response"]["body"]["object"] == "chat.completion"
        assert f"this is {n}" in answer["response"]["body"]["choices"][0]["message"]["content"]
        job = httpx.get(f"{foreman.url}/jobs/{answer['response']['request_id']}").json()
        assert (job["parent_id"], job["queue"]) == (batch.id.removeprefix("batch_"), "batch-lines")
        assert job["metadata"] == {"custom_id": f"line {n}"}
    output = client.files.retrieve(done.output_file_id or "")
    assert output.purpose == "batch_output"
    assert output.bytes == len(client.files.content(output.id).content)


def test_a_batch_is_a_job_with_its_lines_as_children(client: openai.OpenAI, foreman: Server) -> None:
    batch = settled(client, begun(client, line("one"), line("two")))
    job = httpx.get(f"{foreman.url}/jobs/{batch.id.removeprefix('batch_')}").json()
    assert (job["kind"], job["queue"], job["state"]) == ("batch", "batches", "done")
    assert job["result"]["output_file_id"] == batch.output_file_id
    assert job["result"]["request_counts"] == {"total": 2, "completed": 2, "failed": 0}


def test_completions_and_embeddings(client: openai.OpenAI) -> None:
    completion = {"model": "llama3.2", "prompt": "once upon a time"}
    embedding = {"model": "nomic-embed-text", "input": ["a", "b"]}
    for endpoint, body, kind in (
        ("/v1/completions", completion, "text_completion"),
        ("/v1/embeddings", embedding, "list"),
    ):
        batch = settled(client, begun(client, line("x", url=endpoint, body=body), endpoint=endpoint))
        answer = lines_of(client, batch.output_file_id)["x"]
        assert answer["response"]["body"]["object"] == kind


def test_what_fails_stands_in_the_error_file(client: openai.OpenAI) -> None:
    batch = settled(client, begun(client, line("good"), line("bad", model="nobody-has-this")))
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (
        2,
        1,
        1,
    )
    assert set(lines_of(client, batch.output_file_id)) == {"good"}
    [wrong] = lines_of(client, batch.error_file_id).values()
    assert (wrong["custom_id"], wrong["error"]) == ("bad", None)
    assert wrong["response"]["status_code"] == 404
    assert wrong["response"]["body"]["error"]["code"] == "model_not_found"


def test_cancelled_half_way_it_keeps_what_is_done(client: openai.OpenAI, fake: FakeOllama) -> None:
    # What is loaded goes first.
    settled(client, begun(client, line("loads")))
    fake.control(faults=[{"kind": "hang", "model": "qwen3:8b"}])
    batch = begun(
        client,
        *(line(f"{n}") for n in range(3)),
        line("slow", model="qwen3:8b"),
        line("later", model="qwen3:8b"),
    )
    wait_until(lambda: _counts(client, batch.id)[1] == 3 and fake.stats()["running"])
    cancelling = client.batches.cancel(batch.id)
    assert cancelling.status in {"cancelling", "cancelled"}
    ended = settled(client, batch, "cancelled")
    assert ended.cancelled_at is not None
    assert ended.cancelling_at is not None
    done, lost = lines_of(client, ended.output_file_id), lines_of(client, ended.error_file_id)
    assert (set(done), set(lost)) == ({"0", "1", "2"}, {"slow", "later"})
    assert all(each["error"]["code"] == "batch_cancelled" for each in lost.values())
    assert _counts(client, batch.id) == (5, 3, 2)
    # Once more changes nothing.
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_a_window_that_is_over_leaves_partial_results(client: openai.OpenAI, fake: FakeOllama) -> None:
    # What is loaded goes first.
    settled(client, begun(client, line("loads")))
    fake.control(faults=[{"kind": "hang", "model": "qwen3:8b"}])
    batch = begun(client, line("quick"), line("never", model="qwen3:8b"), window="6s")
    wait_until(lambda: _counts(client, batch.id)[1] == 1)
    ended = settled(client, batch, "expired")
    assert ended.expired_at is not None
    assert set(lines_of(client, ended.output_file_id)) == {"quick"}
    [late] = lines_of(client, ended.error_file_id).values()
    assert (late["custom_id"], late["response"], late["error"]["code"]) == ("never", None, "batch_expired")


def test_files_are_listed_read_and_deleted(client: openai.OpenAI) -> None:
    made = [client.files.create(file=as_file(line(f"{n}")), purpose="batch") for n in range(3)]
    ids = [file.id for file in made]
    assert [file.id for file in client.files.list(limit=2)][:3] == ids[::-1]
    oldest = [file.id for file in client.files.list(order="asc", purpose="batch")]
    assert [each for each in oldest if each in ids] == ids
    assert [file.id for file in client.files.list(after=ids[1], limit=1).data] == [ids[0]]
    assert client.files.content(ids[0]).content == as_file(line("0"))[1]
    assert client.files.delete(ids[0]).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(ids[0])
    with pytest.raises(openai.NotFoundError):
        client.files.delete(ids[0])


def test_batches_are_listed_newest_first(client: openai.OpenAI) -> None:
    made = [settled(client, begun(client, line("x"))) for _ in range(3)]
    ids = [batch.id for batch in made][::-1]
    assert [batch.id for batch in client.batches.list(limit=2)][:3] == ids
    assert client.batches.list(limit=1, after=ids[0]).data[0].id == ids[1]


def test_a_file_in_use_cannot_be_deleted(client: openai.OpenAI, fake: FakeOllama) -> None:
    fake.control(token_seconds=60)
    batch = begun(client, line("slow"))
    with pytest.raises(openai.ConflictError) as refused:
        client.files.delete(batch.input_file_id)
    assert refused.value.code == "file_in_use"
    client.batches.cancel(batch.id)
    settled(client, batch, "cancelled")
    assert client.files.delete(batch.input_file_id).deleted


def test_files_go_when_their_time_is_over(client: openai.OpenAI) -> None:
    file = client.files.create(
        file=as_file(line("x")), purpose="batch", expires_after={"anchor": "created_at", "seconds": 1}
    )
    assert file.expires_at == file.created_at + 1
    wait_until(lambda: file.id not in [each.id for each in client.files.list()])
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)


def _counts(client: openai.OpenAI, batch_id: str) -> tuple[int, int, int]:
    counts = client.batches.retrieve(batch_id).request_counts
    assert counts is not None
    return counts.total, counts.completed, counts.failed


def test_a_waiting_batch_does_not_hold_up_a_server_that_stops(make_server: Any) -> None:
    # Its target is asleep, and the grace of a run is longer than `stop` waits.
    settings = {"FOREMAN_OLLAMA_URL": "http://127.0.0.1:9", "FOREMAN_SHUTDOWN_GRACE_SECONDS": "3600"}
    server: Server = make_server(**settings)
    with client_of(server) as client:
        batch = begun(client, line("one"), line("two"))
        settled(client, batch, "in_progress")
        assert server.stop() == 0
        server.start()
        settled(client, batch, "in_progress")
        client.batches.cancel(batch.id)
        ended = settled(client, batch, "cancelled")
        assert set(lines_of(client, ended.error_file_id)) == {"one", "two"}
