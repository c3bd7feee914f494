"""A server that cannot read what is stored does not start, says what it is about, and changes nothing."""

import asyncio
import base64
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from app.secretbox import SecretBox
from app.store.database import Database
from app.store.secrets import JOB, TOKEN
from app.store.targets import put_target
from tests.conftest import ROOT, MakeServer, free_port, wait_until
from tests.store.making import job, put
from tests.test_serve import embedded, environment, failing

OLD, NEW = (base64.b64encode(bytes([each] * 32)).decode() for each in (1, 2))
URL = "https://receiver.example/hook"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def _fill(url: str, key: str) -> str:
    """A job and a target, each with a secret."""
    box = SecretBox.from_setting(key)
    database = Database(url)
    await database.open()
    try:
        made = job(webhook_url=URL, kind="nobody")
        made.sealed_webhook_secret = box.seal(SECRET, JOB.aad(made.id))
        token = box.seal("geheim", TOKEN.aad("gpu"))
        await put_target(database, "gpu", {"url": "http://127.0.0.1:9"}, token, keep_token_of=None)
        return (await put(database, made))[0]
    finally:
        await database.close()


async def _stored(url: str) -> list[bytes]:
    database = Database(url)
    await database.open()
    try:
        rows = await database.fetch(
            "SELECT webhook_secret AS secret FROM jobs UNION ALL SELECT token FROM targets"
        )
        return [row["secret"] for row in rows]
    finally:
        await database.close()


@pytest.mark.parametrize(("given", "processes"), [(NEW, 1), (NEW, 2), (None, 1)])
def test_a_server_with_a_wrong_key_or_none_does_not_start_and_says_why(
    database_url: str, given: str | None, processes: int
) -> None:
    job_id = asyncio.run(_fill(database_url, OLD))
    before = asyncio.run(_stored(database_url))
    ended = failing(
        FOREMAN_DATABASE_URL=database_url,
        FOREMAN_PORT="0",
        FOREMAN_PROCESSES=str(processes),
        **({} if given is None else {"FOREMAN_SECRET_KEY": given}),
    )
    assert ended.returncode == 1
    key = SecretBox.from_setting(OLD).key_ids[0].hex()
    for said in (
        "FOREMAN_SECRET_KEY",
        f"1 webhook secret of a job ({job_id}), sealed with the key {key}",
        f"1 token of a target (gpu), sealed with the key {key}",
        "there is none" if given is None else SecretBox.from_setting(NEW).key_ids[0].hex(),
        f"foreman secrets forget {key}",
    ):
        assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not any(each in ended.stderr for each in (OLD, NEW, SECRET, "geheim"))
    assert asyncio.run(_stored(database_url)) == before


def test_with_both_keys_it_starts_in_either_order(database_url: str, make_server: MakeServer) -> None:
    asyncio.run(_fill(database_url, OLD))
    for keys in (f"{OLD},{NEW}", f"{NEW},{OLD}"):
        server = make_server(FOREMAN_SECRET_KEY=keys, FOREMAN_AUTH="off")
        assert httpx.get(f"{server.url}/targets/gpu").json()["has_token"] is True
        assert server.stop() == 0


def test_without_a_key_it_starts_where_nothing_is_sealed_and_refuses_what_would_be(
    make_server: MakeServer,
) -> None:
    server = make_server(FOREMAN_AUTH="off")
    refused = httpx.post(
        f"{server.url}/jobs", json={"kind": "noop", "state_webhook_url": URL, "webhook_secret": SECRET}
    )
    assert refused.status_code == 422
    assert "FOREMAN_SECRET_KEY" in refused.text
    target = httpx.put(f"{server.url}/targets/gpu", json={"url": "http://127.0.0.1:9", "token": "geheim"})
    assert target.status_code == 422
    assert "FOREMAN_SECRET_KEY" in target.text


def test_in_the_embedded_mode_the_key_file_is_the_key(tmp_path: Path) -> None:
    data_dir, log, port = tmp_path / "data", tmp_path / "log", free_port()
    body = {"kind": "nobody", "state_webhook_url": f"http://127.0.0.1:{port}/", "webhook_secret": SECRET}

    def check() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "app", "secrets", "check", "--json"],
            cwd=ROOT,
            env=environment(FOREMAN_DATA_DIR=str(data_dir)),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    with embedded(data_dir, log, FOREMAN_PORT=str(port), FOREMAN_AUTH="off") as process:
        wait_until(lambda: "Submit a job" in log.read_text() or process.poll() is not None, 60, log.read_text)
        submitted = httpx.post(f"http://127.0.0.1:{port}/jobs", json=body, timeout=60)
        assert submitted.status_code == 202, submitted.text
        # The folder is the server's own: whoever else comes is told.
        beside = check()
        assert beside.returncode == 1
        assert "another foreman serve" in beside.stderr
    assert check().returncode == 0

    (data_dir / "secret.key").rename(tmp_path / "kept")
    ended = failing(FOREMAN_DATA_DIR=str(data_dir), FOREMAN_PORT="0")
    assert ended.returncode == 1
    assert submitted.json()["job_id"] in ended.stderr
    assert "secret.key" in ended.stderr
    assert check().returncode == 1
    # Brought back behind the one that was made meanwhile, it is read again.
    key_file = data_dir / "secret.key"
    key_file.write_text(f"{key_file.read_text().strip()},{(tmp_path / 'kept').read_text()}")
    assert check().returncode == 0
