"""Artifacts are put with a lease, got in ranges, shown inline when small, wherever they lie."""

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import httpx
import pytest

from tests.conftest import Server, wait_until
from tests.events.helpers import chat, job, read, running, settle, submit
from tests.sharing import FolderShare

LARGE = os.urandom(3_000_000)


def url_of(server: Server, claimed: dict[str, Any], name: str) -> str:
    return f"{server.url}/jobs/{claimed['job_id']}/artifacts/{name}"


def put(
    server: Server,
    claimed: dict[str, Any],
    name: str,
    content: Any,
    content_type: str = "text/plain",
    **headers: str,
) -> httpx.Response:
    return httpx.put(
        url_of(server, claimed, name),
        content=content,
        headers={"X-Foreman-Lease-Token": claimed["lease_token"], "Content-Type": content_type, **headers},
        timeout=30,
    )


def get(server: Server, claimed: dict[str, Any], name: str, **headers: str) -> httpx.Response:
    return httpx.get(url_of(server, claimed, name), headers=headers, timeout=30)


def listed(server: Server, claimed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in job(server, claimed["job_id"])["artifacts"]}


def test_a_small_text_is_shown_in_the_jobs_document(server: Server) -> None:
    claimed = running(server)
    answer = put(server, claimed, "notes.txt", "Grüße\n")
    assert answer.status_code == 201
    document = {"name": "notes.txt", "content_type": "text/plain", "size": 8, "inline": "Grüße\n"}
    assert answer.json() == document
    assert listed(server, claimed) == {"notes.txt": document}
    got = get(server, claimed, "notes.txt")
    assert got.content == "Grüße\n".encode()
    assert got.headers["content-type"] == "text/plain"
    assert got.headers["etag"] == answer.headers["etag"]


@pytest.mark.parametrize(
    ("content_type", "content", "inline"),
    [
        ("application/json", b'{"a": 1}', True),
        ("application/vnd.api+json", b"[]", True),
        ("text/csv; charset=utf-8", b"a,b\n", True),
        ("application/xml", b"<a/>", True),
        ("text/plain", b"", True),
        ("image/png", b"\x89PNG", False),
        ("application/octet-stream", b"plain, but nobody said so", False),
        ("text/plain", b"\xff\xfe not utf-8", False),
        ("text/plain", b"a\x00b", False),
    ],
)
def test_only_what_can_be_shown_as_text_is_inline(
    in_postgres: Server, content_type: str, content: bytes, inline: bool
) -> None:
    claimed = running(in_postgres)
    document = put(in_postgres, claimed, "a", content, content_type).json()
    assert document["content_type"] == content_type
    assert ("inline" in document) is inline
    assert ("url" in document) is not inline
    assert get(in_postgres, claimed, "a").content == content


@pytest.mark.parametrize(("size", "inline"), [(256 * 1024, True), (256 * 1024 + 1, False)])
def test_256_kilobytes_are_the_limit_of_what_is_inline(server: Server, size: int, inline: bool) -> None:
    claimed = running(server)
    document = put(server, claimed, "a.txt", "x" * size).json()
    assert ("inline" in document) is inline
    assert listed(server, claimed)["a.txt"] == document
    assert get(server, claimed, "a.txt").text == "x" * size


def test_a_large_artifact_comes_back_as_it_was(server: Server) -> None:
    claimed = running(server)

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(LARGE), 70_001):
            yield LARGE[start : start + 70_001]

    answer = put(server, claimed, "large.bin", pieces(), "application/octet-stream")
    assert answer.status_code == 201, answer.text
    document = answer.json()
    assert document["size"] == len(LARGE)
    assert document["url"] == f"/jobs/{claimed['job_id']}/artifacts/large.bin"
    got = httpx.get(server.url + document["url"], timeout=30)
    assert got.content == LARGE
    assert got.headers["content-length"] == str(len(LARGE))
    assert got.headers["accept-ranges"] == "bytes"
    head = httpx.head(server.url + document["url"])
    assert head.status_code == 200
    assert head.headers["content-length"] == str(len(LARGE))
    assert head.content == b""


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-262143", 0, 262144),
        ("bytes=262143-262144", 262143, 262145),
        ("bytes=1000000-1999999", 1_000_000, 2_000_000),
        ("bytes=2999990-", 2_999_990, 3_000_000),
        ("bytes=2999990-99999999", 2_999_990, 3_000_000),
        ("bytes=-7", 2_999_993, 3_000_000),
        ("bytes=-99999999", 0, 3_000_000),
    ],
)
def test_a_range_is_answered_with_206(
    large: tuple[Server, dict[str, Any]], asked: str, start: int, end: int
) -> None:
    server, claimed = large
    answer = get(server, claimed, "large.bin", Range=asked)
    assert answer.status_code == 206
    assert answer.content == LARGE[start:end]
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(LARGE)}"
    assert answer.headers["content-length"] == str(end - start)


@pytest.mark.parametrize("asked", ["bytes=3000000-", "bytes=3000000-3000001", "bytes=-0"])
def test_a_range_behind_the_end_is_answered_with_416(
    large: tuple[Server, dict[str, Any]], asked: str
) -> None:
    server, claimed = large
    answer = get(server, claimed, "large.bin", Range=asked)
    assert answer.status_code == 416
    assert answer.headers["content-range"] == f"bytes */{len(LARGE)}"
    assert answer.json()["code"] == "range_not_satisfiable"


@pytest.mark.parametrize(
    "asked", ["bytes=5-2", "bytes=0-1,5-6", "bytes=x-y", "items=0-1", "bytes=-", "nonsense"]
)
def test_what_is_no_single_range_is_answered_with_the_whole(
    large: tuple[Server, dict[str, Any]], asked: str
) -> None:
    server, claimed = large
    answer = get(server, claimed, "large.bin", Range=asked)
    assert answer.status_code == 200
    assert len(answer.content) == len(LARGE)


@pytest.fixture(params=["in_postgres", "in_folder", "in_bucket"])
def large(request: pytest.FixtureRequest, share: FolderShare) -> tuple[Server, dict[str, Any]]:
    """A job with a large artifact, in each of the places."""
    server = request.getfixturevalue(request.param)

    def put_once() -> AbstractContextManager[dict[str, Any]]:
        claimed = running(server)
        assert put(server, claimed, "large.bin", LARGE, "application/octet-stream").status_code == 201
        return nullcontext(claimed)

    return server, share.get(f"large artifact {request.param}", put_once)


def test_an_unchanged_artifact_is_not_sent_again(large: tuple[Server, dict[str, Any]]) -> None:
    server, claimed = large
    etag = get(server, claimed, "large.bin", Range="bytes=0-0").headers["etag"]
    for given in (etag, f"W/{etag}", f'"other", {etag}'):
        answer = get(server, claimed, "large.bin", **{"If-None-Match": given})
        assert answer.status_code == 304
        assert answer.content == b""
    matching = get(server, claimed, "large.bin", Range="bytes=0-9", **{"If-Range": etag})
    assert matching.status_code == 206
    outdated = get(server, claimed, "large.bin", Range="bytes=0-9", **{"If-Range": '"older"'})
    assert outdated.status_code == 200


def test_an_artifact_of_the_same_name_is_replaced(server: Server) -> None:
    claimed = running(server)
    first = put(server, claimed, "a", LARGE, "application/octet-stream")
    second = put(server, claimed, "a", "now a text")
    third = put(server, claimed, "a", LARGE[:1_000_000], "application/octet-stream")
    assert [each.status_code for each in (first, second, third)] == [201, 200, 200]
    assert len({each.headers["etag"] for each in (first, second, third)}) == 3
    assert get(server, claimed, "a").content == LARGE[:1_000_000]
    assert list(listed(server, claimed)) == ["a"]


def test_a_new_artifact_changes_the_jobs_etag_and_stands_in_its_log(in_postgres: Server) -> None:
    claimed = running(in_postgres)
    url = f"{in_postgres.url}/jobs/{claimed['job_id']}"
    before = httpx.get(url).headers["etag"]
    put(in_postgres, claimed, "report.txt", "done")
    assert httpx.get(url, headers={"If-None-Match": before}).status_code == 200
    [event] = read(in_postgres, claimed["job_id"], after=2)["events"]
    assert event["type"] == "log"
    assert event["data"]["artifact"] == {"name": "report.txt", "content_type": "text/plain", "size": 4}


def test_only_the_holder_of_the_lease_may_put(server: Server) -> None:
    claimed = running(server)
    answer = put(server, {**claimed, "lease_token": "wrong"}, "a", "x")
    assert answer.status_code == 409
    assert answer.json()["code"] == "lease_lost"
    answer = httpx.put(url_of(server, claimed, "a"), content="x")
    assert answer.status_code == 422
    by_query = httpx.put(
        url_of(server, claimed, "a"), content="x", params={"lease_token": claimed["lease_token"]}
    )
    assert by_query.status_code == 422, "what stands in a URL is written down by every proxy"
    assert put(server, claimed, "a", "x").status_code == 201
    settle(server, claimed, "complete", result=1)
    for content in ("late", LARGE):
        late = put(server, claimed, "b", content)
        assert late.status_code == 409
        assert late.json()["code"] == "lease_lost"
    assert list(listed(server, claimed)) == ["a"]


def test_a_lease_that_is_lost_during_the_upload_leaves_nothing(server: Server) -> None:
    claimed = running(server)

    def pieces() -> Iterator[bytes]:
        yield LARGE[:1_000_000]
        settle(server, claimed, "release")
        yield LARGE[1_000_000:]

    answer = put(server, claimed, "a", pieces())
    assert answer.status_code == 409
    assert answer.json()["code"] == "lease_lost"
    assert listed(server, claimed) == {}


def test_an_artifact_beyond_the_limit_is_refused_while_it_comes(server: Server) -> None:
    claimed = running(server)
    too_much = 20_000_001
    declared = put(server, claimed, "a", b"x" * too_much)
    assert declared.status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(too_much // 100_000 + 1):
            yield b"x" * 100_000

    undeclared = put(server, claimed, "a", pieces())
    assert undeclared.status_code == 413
    assert undeclared.json()["code"] == "payload_too_large"
    assert listed(server, claimed) == {}
    # More than any other body may have.
    assert put(server, claimed, "a", b"x" * 19_000_000).status_code == 201


def test_an_upload_that_breaks_off_leaves_nothing(server: Server) -> None:
    claimed = running(server)
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(
            f"PUT /jobs/{claimed['job_id']}/artifacts/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n"
            f"X-Foreman-Lease-Token: {claimed['lease_token']}\r\n\r\n".encode()
            + LARGE[:1_500_000]
        )
    assert put(server, claimed, "b", "whole").status_code == 201
    assert list(listed(server, claimed)) == ["b"]
    assert get(server, claimed, "a").status_code == 404


@pytest.mark.parametrize("name", [".hidden", "a b", "a%00b", "é", "x" * 129, "-a", "%2e%2e"])
def test_names_are_plain(in_postgres: Server, name: str) -> None:
    claimed = running(in_postgres)
    answer = put(in_postgres, claimed, name, "x")
    assert answer.status_code == 422, answer.text
    assert get(in_postgres, claimed, name).status_code == 404


@pytest.mark.parametrize("name", ["a/b", "..%2f..%2fetc%2fpasswd"])
def test_a_name_with_a_slash_is_another_path(in_postgres: Server, name: str) -> None:
    claimed = running(in_postgres)
    assert put(in_postgres, claimed, name, "x").status_code == 404
    assert get(in_postgres, claimed, name).status_code == 404


@pytest.mark.parametrize("content_type", ["nonsense", "text/", "/plain", "text/plain; ü", "x" * 300 + "/y"])
def test_a_content_type_is_a_media_type(in_postgres: Server, content_type: str) -> None:
    claimed = running(in_postgres)
    headers = {"X-Foreman-Lease-Token": claimed["lease_token"], "Content-Type": content_type.encode()}
    answer = httpx.put(url_of(in_postgres, claimed, "a"), content=b"x", headers=headers)
    assert answer.status_code == 422


def test_without_a_content_type_it_is_bytes(in_postgres: Server) -> None:
    claimed = running(in_postgres)
    answer = httpx.put(
        url_of(in_postgres, claimed, "a"),
        content=b"x",
        headers={"X-Foreman-Lease-Token": claimed["lease_token"]},
    )
    assert answer.json()["content_type"] == "application/octet-stream"


def test_a_page_that_a_worker_wrote_is_not_run_in_this_servers_name(in_postgres: Server) -> None:
    claimed = running(in_postgres)
    put(in_postgres, claimed, "page.html", "<script>alert(1)</script>", "text/html")
    answer = get(in_postgres, claimed, "page.html")
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("job_id", ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "nonsense"])
def test_an_unknown_job_has_no_artifacts(in_postgres: Server, job_id: str) -> None:
    nobody = {"job_id": job_id, "lease_token": "x"}
    assert put(in_postgres, nobody, "a", "x").status_code == 404
    assert get(in_postgres, nobody, "a").status_code == 404
    assert get(in_postgres, nobody, "completion").status_code == 404


def test_an_llm_jobs_answer_is_the_artifact_completion(in_postgres: Server) -> None:
    text = "some words " * 10
    done = job(in_postgres, chat(in_postgres, text), wait=20)
    answer = get(in_postgres, done, "completion")
    assert answer.text == text
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    [document] = done["artifacts"]
    assert document["inline"] == text
    assert get(in_postgres, done, "completion", Range="bytes=5-9").text == "words"[:5]
    etag = answer.headers["etag"]
    assert get(in_postgres, done, "completion", **{"If-None-Match": etag}).status_code == 304


def test_a_long_answer_is_not_inline_but_can_be_got(in_postgres: Server) -> None:
    text = "x" * 300_000
    done = job(in_postgres, chat(in_postgres, text), wait=20)
    [document] = done["artifacts"]
    assert "inline" not in document
    assert httpx.get(in_postgres.url + document["url"]).text == text


def test_a_job_that_has_not_answered_yet_has_no_completion(in_postgres: Server) -> None:
    job_id = chat(in_postgres, "later", delay_seconds=60)
    assert get(in_postgres, {"job_id": job_id}, "completion").status_code == 404
    embedded = job(
        in_postgres, submit(in_postgres, {"kind": "embed", "model": "echo", "input": "x"}), wait=20
    )
    answer = get(in_postgres, embedded, "completion")
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.json()) == 1


def test_many_texts_do_not_make_a_document_of_any_size(in_postgres: Server) -> None:
    claimed = running(in_postgres)
    for number in range(8):
        put(in_postgres, claimed, f"part-{number}", "x" * 200_000)
    documents = listed(in_postgres, claimed)
    assert len(documents) == 8
    assert 1 <= sum("inline" in each for each in documents.values()) <= 5
    for each in documents.values():
        assert ("url" in each) is ("inline" not in each)
    wait_until(lambda: get(in_postgres, claimed, "part-7").text == "x" * 200_000)
