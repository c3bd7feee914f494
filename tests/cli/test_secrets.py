"""foreman secrets: on the database itself, while servers work and while they do not."""

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from typer.testing import CliRunner

from app.cli.root import build
from app.secretbox import SecretBox, key_id_of
from app.store.database import Database
from app.store.secrets import BATCH, JOB, TOKEN
from app.store.targets import put_target
from tests.cli.conftest import Outcome
from tests.conftest import ROOT
from tests.patience import wait_until
from tests.store.making import job, put

OLD, NEW = (base64.b64encode(bytes([each] * 32)).decode() for each in (1, 2))
OLD_ID, NEW_ID = (SecretBox.from_setting(each).key_ids[0].hex() for each in (OLD, NEW))

Secrets = Callable[..., Outcome]


@pytest.fixture
def secrets(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Secrets:
    """`foreman secrets …` with these keys, in a process of its own kind only by its settings."""
    for name in [each for each in os.environ if each.startswith("FOREMAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("app.telemetry.configure_logging", lambda *_: None)

    def run(*arguments: str, keys: str = "") -> Outcome:
        monkeypatch.setenv("FOREMAN_DATABASE_URL", database_url)
        monkeypatch.setenv("FOREMAN_SECRET_KEY", keys)
        words = ["secrets", *arguments]
        result = CliRunner().invoke(build(words), words)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


async def _with_database(url: str, work: Callable[[Database], Any]) -> Any:
    database = Database(url)
    await database.open()
    try:
        return await work(database)
    finally:
        await database.close()


def fill(url: str, number: int, key: str = OLD) -> list[str]:
    """So many jobs, and a target, with secrets."""
    box = SecretBox.from_setting(key)

    async def work(database: Database) -> list[str]:
        made = [job(webhook_url="https://receiver.example/") for _ in range(number)]
        for each in made:
            each.sealed_webhook_secret = box.seal(f"secret of {each.id}", JOB.aad(each.id))
        token = box.seal("geheim", TOKEN.aad("gpu"))
        await put_target(database, "gpu", {"url": "http://127.0.0.1:9"}, token, keep_token_of=None)
        return await put(database, *made)

    found: list[str] = asyncio.run(_with_database(url, work))
    return found


def stored(url: str) -> dict[str, bytes]:
    async def work(database: Database) -> dict[str, bytes]:
        rows = await database.fetch("SELECT id, webhook_secret FROM jobs ORDER BY id")
        return {row["id"]: row["webhook_secret"] for row in rows}

    found: dict[str, bytes] = asyncio.run(_with_database(url, work))
    return found


def keys_of(url: str) -> list[str]:
    return [key_id_of(each).hex() for each in stored(url).values()]


def test_a_key_is_replaced_as_the_page_for_operators_says(secrets: Secrets, database_url: str) -> None:
    made = fill(database_url, 3)
    looked = secrets("check", "--json", keys=f"{NEW},{OLD}")
    assert looked.code == 0
    assert looked.json()["keys"] == [NEW_ID, OLD_ID]
    assert {
        (each["kind"], each["key"], each["is"], each["secrets"]) for each in looked.json()["secrets"]
    } == {
        ("job", OLD_ID, "old", 3),
        ("target", OLD_ID, "old", 1),
    }

    tried = secrets("rotate", "--dry-run", keys=f"{NEW},{OLD}")
    assert tried.code == 0
    assert "webhook secrets of jobs: 3 would be resealed, 0 were right already" in tried.out
    assert "Nothing was changed" in tried.out
    assert keys_of(database_url) == [OLD_ID] * 3

    done = secrets("rotate", keys=f"{NEW},{OLD}")
    assert done.code == 0
    assert "webhook secrets of jobs: 3 resealed, 0 were right already" in done.out
    assert "tokens of targets: 1 resealed" in done.out
    assert "Now remove the old key" in done.out.splitlines()[-1]
    box = SecretBox.from_setting(NEW)
    assert {each: box.open(secret, each) for each, secret in stored(database_url).items()} == {
        each: f"secret of {each}" for each in made
    }

    again = secrets("rotate", "--json", keys=f"{NEW},{OLD}").json()
    assert (again["key"], again["done"], again["dry_run"]) == (NEW_ID, True, False)
    assert [(each["kind"], each["resealed"], each["current"]) for each in again["kinds"]] == [
        ("job", 0, 3),
        ("target", 0, 1),
        ("wake", 0, 0),
    ]
    assert secrets("check", keys=NEW).code == 0
    gone = secrets("check", keys=OLD)
    assert gone.code == 1
    assert "unknown" in gone.out


def test_what_cannot_be_read_is_told_and_ends_with_1(secrets: Secrets, database_url: str) -> None:
    made = fill(database_url, 2)
    before = stored(database_url)
    for keys in (NEW, ""):
        looked = secrets("check", "--json", keys=keys)
        assert looked.code == 1
        assert looked.json()["readable"] is False
        of_jobs = next(each for each in looked.json()["secrets"] if each["kind"] == "job")
        assert (of_jobs["unreadable"], of_jobs["key"], of_jobs["is"]) == (2, OLD_ID, "unknown")
        assert of_jobs["examples"] == made
    done = secrets("rotate", keys=NEW)
    assert done.code == 1
    assert f"2 cannot be read, sealed with the key {OLD_ID}" in done.out
    assert "Remove no key yet" in done.out
    assert stored(database_url) == before
    without = secrets("rotate")
    assert without.code == 2
    assert "FOREMAN_SECRET_KEY is not set" in without.err
    wrong = secrets("rotate", keys="short")
    assert wrong.code == 2
    assert "FOREMAN_SECRET_KEY" in wrong.err


def test_a_lost_key_is_forgotten_only_when_it_is_lost(secrets: Secrets, database_url: str) -> None:
    fill(database_url, 2)
    assert secrets("forget", OLD_ID, "--yes", keys=f"{NEW},{OLD}").code == 2
    assert secrets("forget", "nonsense", "--yes", keys=NEW).code == 2
    # Not asked, nothing is done.
    assert secrets("forget", OLD_ID, keys=NEW).code == 1
    assert keys_of(database_url) == [OLD_ID] * 2
    done = secrets("forget", OLD_ID, "--yes", "--json", keys=NEW)
    assert done.json()["given_up"]["webhook secrets of jobs"] == 2
    assert keys_of(database_url) == [""] * 2
    assert secrets("check", keys=NEW).code == 0


def test_one_that_was_killed_in_the_middle_is_run_again(secrets: Secrets, database_url: str) -> None:
    """Held up by somebody who holds a row of its second batch, so that it is in the middle for sure."""
    made = fill(database_url, 2 * BATCH + 7)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREMAN_")}
    environment |= {"FOREMAN_DATABASE_URL": database_url, "FOREMAN_SECRET_KEY": f"{NEW},{OLD}"}

    async def kill_in_the_middle() -> None:
        somebody = await asyncpg.connect(database_url)
        holding = somebody.transaction()
        await holding.start()
        await somebody.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", sorted(made)[BATCH + 3])
        command = [sys.executable, "-m", "app", "secrets", "rotate"]
        process = await asyncio.to_thread(subprocess.Popen, command, cwd=ROOT, env=environment)
        try:
            await asyncio.to_thread(wait_until, lambda: NEW_ID in keys_of(database_url), 30)
        finally:
            process.kill()
            process.wait()
        await holding.rollback()
        await somebody.close()

    asyncio.run(kill_in_the_middle())
    # Whole batches, each a commit.
    assert keys_of(database_url).count(NEW_ID) == BATCH
    [jobs, *_] = secrets("rotate", "--json", keys=f"{NEW},{OLD}").json()["kinds"]
    assert (jobs["resealed"], jobs["current"], jobs["remaining"]) == (BATCH + 7, BATCH, 0)
    box = SecretBox.from_setting(NEW)
    assert {each: box.open(secret, each) for each, secret in stored(database_url).items()} == {
        each: f"secret of {each}" for each in made
    }


def test_a_database_that_is_not_up_to_it_or_not_there_is_said_in_a_sentence(
    secrets: Secrets, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def revision(_: Any) -> str:
        return "0017"

    monkeypatch.setattr("app.store.migrate.current_revision", revision)
    old = secrets("check", keys=NEW)
    assert old.code == 2
    assert "foreman migrate" in old.err
    away = secrets("check", "--database-url", "postgresql://nobody@127.0.0.1:1/none", keys=NEW)
    assert away.code == 1
    assert away.err.startswith("foreman: ")


def test_json_is_all_that_stdout_has(database_url: str) -> None:
    fill(database_url, 1)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREMAN_")}
    environment |= {"FOREMAN_DATABASE_URL": database_url, "FOREMAN_SECRET_KEY": NEW}
    done = subprocess.run(
        [sys.executable, "-m", "app", "secrets", "check", "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["readable"] is False
    assert "cannot be read" in done.stderr
