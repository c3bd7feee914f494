"""Any replica tells of any job: by hints, without them, and through a PgBouncer that swallows them.

The times here are generous, because the machine may be busy; benchmarks/events.py measures them.
"""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server, free_port, wait_until
from tests.events.conftest import QUICK, Pair, replicas
from tests.events.helpers import chat, held, job, post_event, read, running, settle, words
from tests.events.pgbouncer import binary, pgbouncer
from tests.events.sse import STREAM, Parser, blocks
from tests.events.test_streaming import Listener
from tests.sharing import FolderShare


@contextmanager
def bounced(postgres: EmbeddedPostgres, folder: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        # Started once directly, so that there is a migrated database; it is not used otherwise.
        [direct] = stack.enter_context(replicas(postgres, folder, {"FOREMAN_ROLE": "api"}))
        url = stack.enter_context(pgbouncer(direct.database_url, folder))
        servers = []
        for name, ways in (
            ("a", {"FOREMAN_LISTEN_DATABASE_URL": direct.database_url}),
            ("b", {"FOREMAN_LISTEN": "off", "FOREMAN_ROLE": "api"}),
        ):
            server = Server(url, free_port(), {**QUICK, **ways}, log_path=folder / f"{name}.log")
            servers.append(server.start())
            stack.callback(server.stop)
        yield Pair(*servers)


@pytest.fixture
def bounced_pair(
    share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    """Both go through a PgBouncer in transaction mode; A has a direct way for LISTEN, B has none."""
    if binary() is None:
        pytest.skip("there is no pgbouncer on this machine")
    return share.get("bounced pair", lambda: bounced(postgres, tmp_path_factory.mktemp("bounced")))


PAIRS = ["pair", "deaf_pair", "bounced_pair"]


@pytest.fixture(params=PAIRS)
def any_pair(request: pytest.FixtureRequest) -> Pair:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Pair)
    return found


def test_a_job_submitted_on_one_replica_is_followed_on_the_other(any_pair: Pair) -> None:
    job_id = chat(any_pair.a, words(30), delay_ms=20)
    listener = Listener(blocks(f"{any_pair.b.url}/jobs/{job_id}/events"))
    assert listener.ended.wait(30)
    page = read(any_pair.a, job_id)
    assert [block.json for block in listener.blocks] == page["events"]
    said = "".join(event["data"]["text"] for event in page["events"] if event["type"] == "output")
    assert said == words(30)


def test_each_event_reaches_the_other_replica_before_long(any_pair: Pair) -> None:
    """Without LISTEN it is found by polling once a second."""
    job_id = held(any_pair.a)
    seen: set[int] = set()

    def follow() -> None:
        for block in blocks(f"{any_pair.b.url}/jobs/{job_id}/events"):
            seen.add(block.json["seq"])

    threading.Thread(target=follow, daemon=True).start()
    wait_until(lambda: 1 in seen)
    for _ in range(5):
        seq = post_event(any_pair.a, job_id, "note").json()["seq"]
        wait_until(lambda seq=seq: seq in seen, 10)  # type: ignore[misc]


def test_a_worker_on_one_replica_gets_what_was_posted_on_the_other(any_pair: Pair) -> None:
    claimed = running(any_pair.a)
    found: list[dict[str, object]] = []
    worker = threading.Thread(
        target=lambda: found.extend(
            read(any_pair.a, claimed["job_id"], after=2, types="approve", wait=20)["events"]
        )
    )
    worker.start()
    post_event(any_pair.b, claimed["job_id"], "approve", {"by": "ann"})
    worker.join(10)
    assert [event["data"] for event in found] == [{"by": "ann"}]
    assert settle(any_pair.b, claimed, "complete", result="ok").status_code == 200


def test_waiting_for_a_job_ends_with_it_on_any_replica(any_pair: Pair) -> None:
    job_id = chat(any_pair.a, words(20), delay_ms=20)
    done = httpx.get(f"{any_pair.b.url}/jobs/{job_id}", params={"wait": 20}, timeout=30).json()
    assert done["state"] == "done"


@pytest.mark.parametrize("path", ["events", "stream"])
def test_a_reader_cut_twenty_times_misses_no_token_and_gets_none_twice(pair: Pair, path: str) -> None:
    """Each time it resumes on the other replica with the id of the last frame it has."""
    dice = random.Random(20)
    job_id = chat(pair.a, words(500), delay_ms=8)
    said: list[str] = []
    last_id: str | None = None
    cuts = 0
    ended = False
    while not ended:
        server = pair[cuts % 2]
        # Twenty cuts fall into the first half of what there is to read, however few frames it comes in.
        pieces = dice.randint(1, 20) if cuts < 20 else None
        last_id, ended = _read_some(server, f"/jobs/{job_id}/{path}", last_id, pieces, said)
        cuts += 0 if ended else 1
    assert cuts == 20
    done = job(pair.a, job_id, wait=10)
    assert "".join(said) == done["result"]["message"]["content"] == words(500)


def _read_some(
    server: Server, path: str, last_id: str | None, pieces: int | None, said: list[str]
) -> tuple[str | None, bool]:
    """Read so many pieces and cut the line; the last id, and whether the end was seen."""
    headers = {**STREAM, **({} if last_id is None else {"Last-Event-ID": last_id})}
    parser = Parser()
    with httpx.stream("GET", server.url + path, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200
        # By a few letters, so that the cut may fall anywhere, also into the middle of a frame.
        for number, text in enumerate(answer.iter_text(7), 1):
            for block in parser.feed(text):
                last_id = block.id
                frame = block.json
                if block.event == "output":
                    said.append(frame["data"]["text"])
                elif "message" in frame:
                    said.append(frame["message"]["content"])
                if frame.get("done") or block.event == "done":
                    return last_id, True
            if number == pieces:
                return last_id, False
    return last_id, False


async def cut_connections(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(
            await connection.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    finally:
        await connection.close()


def test_a_stream_outlives_the_database_connections_of_its_server(pair: Pair) -> None:
    job_id = held(pair.a)
    listener = Listener(blocks(f"{pair.b.url}/jobs/{job_id}/events"))
    listener.until(1)
    assert asyncio.run(cut_connections(pair.b.database_url)) >= 4
    wait_until(lambda: all(httpx.get(f"{server.url}/readyz").status_code == 200 for server in pair))
    for count in range(2, 6):
        post_event(pair.a, job_id, "note")
        listener.until(count)
    assert listener.seqs() == [1, 2, 3, 4, 5]
