"""/targets and /usage over HTTP, and what happens when targets come, change and go."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.config import SettingsError
from app.embedded import EmbeddedPostgres
from app.secretbox import SecretBox
from app.store.database import Database
from app.targets.config import from_environment
from app.targets.wake import magic_packet
from tests.conftest import Server, free_port, wait_until
from tests.fakes import FakeOllama
from tests.patience import until
from tests.serving import serving

HELLO = [{"role": "user", "content": "Hello, world"}]
KEY = {"FOREMAN_SECRET_KEY": "a passphrase for the tests"}


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeOllama]:
    with FakeOllama() as running:
        yield running


@pytest.fixture(scope="module")
def keyed(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that can keep tokens, for tests that clean up after themselves."""
    with serving(postgres, tmp_path_factory.mktemp("keyed"), **KEY) as server:
        yield server


def put(server: Server, name: str, **fields: object) -> httpx.Response:
    return httpx.put(f"{server.url}/targets/{name}", json=fields, timeout=60)


def remove(server: Server, name: str) -> None:
    assert httpx.delete(f"{server.url}/targets/{name}", timeout=60).status_code == 204


def get(server: Server, name: str) -> dict[str, Any]:
    answered: dict[str, Any] = httpx.get(f"{server.url}/targets/{name}", timeout=60).json()
    return answered


def submit(server: Server, **more: object) -> str:
    answered: str = httpx.post(
        f"{server.url}/jobs", json={"model": "llama3.2", "messages": HELLO, **more}
    ).json()["job_id"]
    return answered


def job(server: Server, job_id: str, wait: float = 0) -> dict[str, Any]:
    answered: dict[str, Any] = httpx.get(
        f"{server.url}/jobs/{job_id}", params={"wait": wait}, timeout=60
    ).json()
    return answered


def test_a_target_is_made_used_changed_and_removed(
    make_server: Callable[..., Server], fake: FakeOllama
) -> None:
    server = make_server(**KEY)
    assert [each["name"] for each in httpx.get(f"{server.url}/targets").json()["targets"]] == ["echo"]
    assert httpx.get(f"{server.url}/api/tags").json()["models"][0]["name"] == "echo"

    made = put(server, "laptop", url=fake.url, slots=2, token="secret", tags=["gpu"])
    assert made.status_code == 201
    assert "secret" not in made.text
    wait_until(lambda: get(server, "laptop")["state"] == "awake")
    target = get(server, "laptop")
    assert (target["slots"], target["has_token"], target["origin"]) == (2, True, "api")
    assert "llama3.2:latest" in target["models"]
    assert job(server, submit(server), 20)["target"] == "laptop"
    assert [each["name"] for each in httpx.get(f"{server.url}/targets").json()["targets"]] == ["laptop"]

    # A change that does not speak of the token keeps it, as long as it is for the same server.
    assert put(server, "laptop", url=fake.url, slots=3).status_code == 200
    assert get(server, "laptop")["has_token"] is True
    assert put(server, "laptop", url=fake.url, token=None).json()["has_token"] is False

    assert httpx.delete(f"{server.url}/targets/laptop").status_code == 204
    assert httpx.get(f"{server.url}/targets/laptop").status_code == 404
    assert httpx.delete(f"{server.url}/targets/laptop").status_code == 404
    assert [each["name"] for each in httpx.get(f"{server.url}/targets").json()["targets"]] == ["echo"]


@pytest.mark.parametrize(
    "elsewhere",
    ["http://127.0.0.1:9", "https://127.0.0.1:{port}", "http://127.0.0.2:{port}", "http://localhost:{port}"],
)
def test_a_token_never_follows_the_target_to_another_server(keyed: Server, elsewhere: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert put(keyed, "moving", url=f"http://127.0.0.1:{port}", token="tell-nobody").status_code == 201
    refused = put(keyed, "moving", url=elsewhere.format(port=port))
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "token"
    assert get(keyed, "moving")["url"] == f"http://127.0.0.1:{port}"
    # Another path of the same server is the same server; and whoever says so may take the token away.
    assert put(keyed, "moving", url=f"http://127.0.0.1:{port}/below").json()["has_token"] is True
    moved = put(keyed, "moving", url=elsewhere.format(port=port), token=None)
    assert (moved.status_code, moved.json()["has_token"]) == (200, False)
    assert put(keyed, "moving", url="http://127.0.0.1:8").json()["has_token"] is False
    assert httpx.delete(f"{keyed.url}/targets/moving", timeout=60).status_code == 204


def _says(content: bytes, listener: socket.socket) -> None:
    """Answer whoever comes with this, until the listener is closed."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(content)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"SSH-2.0-hunter2\r\n", "no HTTP"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html; x=hunter2\r\ncontent-length: 13\r\n\r\n<b>hunter2</b",
            "text/html of 13",
        ),
        (
            b'HTTP/1.1 200 OK\r\ncontent-type: hunter2\r\ncontent-length: 15\r\n\r\n{"is":"hunter2"',
            "untyped of 15",
        ),
        (b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{"is":"hunter2"}', "no list of models"),
        (b"HTTP/1.1 500 hunter2\r\ncontent-length: 7\r\n\r\nhunter2", "500"),
    ],
)
def test_what_answers_in_place_of_a_target_is_described_and_not_repeated(
    keyed: Server, content: bytes, told: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_says, args=(content, listener), daemon=True).start()
        put(keyed, "imposter", url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        wait_until(
            lambda: told in (get(keyed, "imposter")["warning"] or ""),
            explain=lambda: str(get(keyed, "imposter")),
        )
        assert "hunter2" not in httpx.get(f"{keyed.url}/targets", timeout=60).text
        listener.shutdown(socket.SHUT_RDWR)
    assert httpx.delete(f"{keyed.url}/targets/imposter", timeout=60).status_code == 204
    assert "hunter2" not in keyed.log()


def test_the_token_goes_to_the_target_and_lies_sealed_in_the_table(
    make_server: Callable[..., Server], database_url: str
) -> None:
    import asyncio

    import asyncpg

    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = make_server(**KEY)
        put(server, "guarded", url=f"http://127.0.0.1:{listener.getsockname()[1]}", token="tell-nobody")
        connection, _ = listener.accept()
        with connection:
            seen.append(connection.recv(65536))

    async def sealed() -> bytes:
        connection = await asyncpg.connect(database_url)
        try:
            return bytes(await connection.fetchval("SELECT token FROM targets WHERE name = 'guarded'"))
        finally:
            await connection.close()

    assert b"authorization: Bearer tell-nobody" in seen[0]
    assert b"tell-nobody" not in asyncio.run(sealed())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "url"),
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://x", "slots": 0}, "slots"),
        ({"url": "http://x", "dialect": "klingon"}, "dialect"),
        ({"url": "http://x", "colour": "red"}, "colour"),
        ({"url": "http://x", "wake": {}}, "wake"),
        ({"url": "http://x", "wake": {"mac": "nonsense"}}, "wake"),
        ({"url": "http://x", "wake": {"mac": "aa:bb:cc:dd:ee:ff", "url": "http://y"}}, "wake"),
    ],
)
def test_wrong_fields_are_named(server: Server, fields: dict[str, Any], named: str) -> None:
    refused = httpx.put(f"{server.url}/targets/some", json=fields)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == named


def test_a_target_of_the_settings_cannot_be_changed_over_http(
    make_server: Callable[..., Server], fake: FakeOllama
) -> None:
    server = make_server(FOREMAN_OLLAMA_URL=fake.url)
    assert put(server, "default", url="http://elsewhere").status_code == 409
    assert httpx.delete(f"{server.url}/targets/default").status_code == 409


def test_targets_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "targets.toml"
    file.write_text(
        """
        [targets.gpu]
        url = "http://10.0.0.5:11434/"
        slots = 2
        wake = { mac = "aa:bb:cc:dd:ee:ff", address = "10.0.0.255" }

        [targets.llamacpp]
        url = "http://localhost:8000/v1"
        dialect = "openai"
        token = "sk-x"
        """
    )
    gpu, llamacpp = from_environment(None, 4, file)
    assert gpu.wake is not None
    assert (gpu.url, gpu.slots, gpu.wake.address) == ("http://10.0.0.5:11434", 2, "10.0.0.255")
    assert (llamacpp.url, llamacpp.dialect, llamacpp.token) == ("http://localhost:8000", "openai", "sk-x")


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[other]\nx=1",
        "[targets.a]\nslots=1",
        "[targets.a]\nurl='http://x'\nslot=1",
        "[targets.echo]\nurl='http://x'",
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "targets.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match="FOREMAN_TARGETS"):
        from_environment(None, 4, file)


def test_a_magic_packet_is_what_network_cards_wait_for() -> None:
    packet = magic_packet("AA-bb-cc-dd-ee-ff")
    assert packet == b"\xff" * 6 + bytes.fromhex("aabbccddeeff") * 16


def test_a_sleeping_target_is_sent_a_magic_packet_once_somebody_waits_for_it(
    make_server: Callable[..., Server],
) -> None:
    server = make_server(**KEY)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as network:
        network.bind(("127.0.0.1", 0))
        network.settimeout(15)
        wake = {"mac": "aa:bb:cc:dd:ee:ff", "address": "127.0.0.1", "port": network.getsockname()[1]}
        put(server, "laptop", url="http://127.0.0.1:9", wake=wake)
        wait_until(lambda: get(server, "laptop")["state"] == "asleep")
        job_id = submit(server)
        assert network.recv(200) == magic_packet("aa:bb:cc:dd:ee:ff")
        assert job(server, job_id)["reason"] == "target_asleep"


def test_a_wake_address_that_cannot_be_reached_is_a_recorded_warning(
    make_server: Callable[..., Server],
) -> None:
    server = make_server(**KEY)
    put(server, "laptop", url="http://127.0.0.1:9", wake={"url": "http://127.0.0.1:1/wake"})
    submit(server)
    wait_until(lambda: (get(server, "laptop")["warning"] or "").startswith("wake:"), 15)


def test_a_job_for_a_removed_target_is_not_left_behind(
    make_server: Callable[..., Server], fake: FakeOllama
) -> None:
    server = make_server(**KEY)
    put(server, "laptop", url="http://127.0.0.1:9")
    put(server, "desktop", url=fake.url)
    pinned, free = submit(server, target="laptop"), submit(server, model="nowhere")
    wait_until(lambda: job(server, pinned)["reason"] == "target_asleep")
    wait_until(lambda: job(server, free)["reason"] == "target_asleep")
    httpx.delete(f"{server.url}/targets/laptop")
    assert job(server, pinned, 20)["error"]["code"] == "model_not_found"
    assert job(server, free, 20)["error"]["code"] == "model_not_found"


def test_usage_is_summed_by_model_and_day(make_server: Callable[..., Server], fake: FakeOllama) -> None:
    server = make_server(FOREMAN_OLLAMA_URL=fake.url)
    jobs = [submit(server) for _ in range(3)]
    used = [job(server, job_id, 20)["usage"] for job_id in jobs]

    def sums() -> dict[str, Any]:
        found: dict[str, Any]
        (found,) = httpx.get(f"{server.url}/usage").json()["usage"]
        return found

    expected = sum(each["completion_tokens"] for each in used)
    assert (sums()["model"], sums()["jobs"], sums()["completion_tokens"]) == ("llama3.2", 3, expected)
    import asyncio

    import asyncpg

    async def booked() -> int:
        connection = await asyncpg.connect(server.database_url)
        try:
            return int(await connection.fetchval("SELECT coalesce(sum(jobs), 0) FROM usage_days"))
        finally:
            await connection.close()

    wait_until(lambda: asyncio.run(booked()) == 3, 15)
    assert (sums()["jobs"], sums()["completion_tokens"]) == (3, expected)
    assert httpx.get(f"{server.url}/usage", params={"model": "other"}).json()["usage"] == []
    assert httpx.get(f"{server.url}/usage", params={"since": "yesterday"}).status_code == 422


async def test_a_wake_url_is_sealed_where_there_is_a_key_and_read_as_it_was(
    keyed: Server, fake: FakeOllama
) -> None:
    url = f"{fake.url}/wake?token=geheim"
    assert put(keyed, "sleepy", url=fake.url, wake={"url": url, "method": "PUT"}).status_code == 201
    database = Database(keyed.database_url)
    await database.open()
    try:
        [row] = await database.fetch("SELECT settings, wake_url FROM targets WHERE name = 'sleepy'")
        assert "geheim" not in row["settings"]
        assert b"geheim" not in row["wake_url"]
        # Read from the table, by this process and every other.
        # It is shown without what it takes to use it; sent back like that, it stays as it is.
        assert get(keyed, "sleepy")["wake"] == {"url": f"{fake.url}/…", "method": "PUT"}
        assert put(keyed, "sleepy", url=fake.url, wake={"url": f"{fake.url}/…"}).status_code == 200
        box = SecretBox.from_setting(keyed.environment["FOREMAN_SECRET_KEY"])
        [row] = await database.fetch("SELECT settings, wake_url FROM targets WHERE name = 'sleepy'")
        assert box.open(row["wake_url"], "target-wake:sleepy") == url
        # As a version before this one would write it: the newer one counts, whatever lies beside it.
        await database.execute(
            "UPDATE targets SET settings = jsonb_set(settings, '{wake,url}', to_jsonb($1::text)) "
            "WHERE name = 'sleepy'",
            "http://127.0.0.1:1/",
        )
        await until(lambda: get(keyed, "sleepy")["wake"]["url"] == "http://127.0.0.1:1/")
        # Another wake takes it away.
        assert put(keyed, "sleepy", url=fake.url, wake={"mac": "00:11:22:33:44:55"}).status_code == 200
        [row] = await database.fetch("SELECT wake_url FROM targets WHERE name = 'sleepy'")
        assert row["wake_url"] is None
    finally:
        await database.close()
        remove(keyed, "sleepy")


def test_a_target_that_falls_asleep_or_wakes_up_is_told_once(keyed: Server) -> None:
    def told() -> list[tuple[str, bool]]:
        lines = [json.loads(line) for line in keyed.log().splitlines() if line.startswith("{")]
        return [
            (line["event"], line.get("problem") is not None or line.get("asleep_seconds") is not None)
            for line in lines
            if line.get("target") == "sleeper"
        ]

    port = free_port()
    assert put(keyed, "sleeper", url=f"http://127.0.0.1:{port}").status_code == 201
    wait_until(lambda: told() == [("target.asleep", True)])
    with FakeOllama(port=port):
        wait_until(lambda: len(told()) == 2)
        assert get(keyed, "sleeper")["state"] == "awake"
    remove(keyed, "sleeper")
    assert told() == [("target.asleep", True), ("target.answers", True)]


def test_a_target_is_asked_at_once_when_somebody_wants_to_know(keyed: Server, fake: FakeOllama) -> None:
    put(keyed, "asked", url=fake.url)
    asked = httpx.post(f"{keyed.url}/targets/asked/probe", timeout=60)
    assert (asked.status_code, asked.json()["state"]) == (200, "awake")
    put(keyed, "asked", url="http://127.0.0.1:9")
    asked = httpx.post(f"{keyed.url}/targets/asked/probe", timeout=60)
    assert (asked.status_code, asked.json()["state"]) == (200, "asleep")
    assert "could not connect" in asked.json()["warning"]
    remove(keyed, "asked")
    for verb in ("probe", "wake"):
        for name in ("asked", "echo", "no name"):
            assert httpx.post(f"{keyed.url}/targets/{name}/{verb}").status_code == 404


def test_a_target_is_woken_at_once_when_somebody_wants_it(keyed: Server) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(60)
        port = listener.getsockname()[1]
        wake = {"mac": "01-23-45-67-89-ab", "address": "127.0.0.1", "port": port}
        put(keyed, "woken", url="http://127.0.0.1:9", wake=wake)
        # Nobody waits for it; and the pause between tries is for those that nobody asked for.
        for _ in range(3):
            assert httpx.post(f"{keyed.url}/targets/woken/wake", timeout=60).status_code == 200
            assert listener.recv(200) == magic_packet("01-23-45-67-89-ab")
    put(keyed, "woken", url="http://127.0.0.1:9", wake={"url": "http://127.0.0.1:9/secret"})
    refused = httpx.post(f"{keyed.url}/targets/woken/wake", timeout=60)
    assert refused.status_code == 409
    assert "the wake URL was not reached" in refused.json()["detail"]
    assert "secret" not in refused.text
    put(keyed, "woken", url="http://127.0.0.1:9")
    refused = httpx.post(f"{keyed.url}/targets/woken/wake", timeout=60)
    assert refused.status_code == 409
    assert "no wake action" in refused.json()["detail"]
    remove(keyed, "woken")
