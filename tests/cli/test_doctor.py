"""foreman doctor: each thing that can be wrong is named, with what to do."""

import json
import shutil
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli import checkup
from app.store.checkup import Checkup
from tests.cli.conftest import Foreman, Outcome
from tests.client.wire_stub import Answer, Seen, WireStub, problem, running_stub

HEALTHY: dict[str, Answer] = {
    "/healthz": Answer(200, {"status": "ok"}),
    "/version": Answer(200, {"name": "foreman", "version": "0.1.0"}),
    "/readyz": Answer(200, {"status": "ready", "revision": "0022"}),
    "/jobs": Answer(200, {"jobs": [], "next_cursor": None}),
    "/targets": Answer(200, {"targets": []}),
    "/webhooks": Answer(200, {"deliveries": []}),
}
Examined = Callable[..., Outcome]


@pytest.fixture
def examined(foreman: Foreman, monkeypatch: pytest.MonkeyPatch) -> Examined:
    """The doctor's findings of a server that gives these answers, and healthy ones else."""

    def examine(*arguments: str, **ill: Answer) -> Outcome:
        answers = HEALTHY | {f"/{name}": answer for name, answer in ill.items()}

        def next_answer(_: WireStub, seen: Seen) -> Answer:
            return answers[seen.path.partition("?")[0]]

        monkeypatch.setattr(WireStub, "next_answer", next_answer)
        with running_stub() as stub:
            return foreman("doctor", "--server", stub.url, *arguments)

    return examine


def finding(outcome: Outcome, check: str) -> dict[str, Any]:
    [found] = [each for each in outcome.json()["findings"] if each["check"] == check]
    return dict(found)


def test_a_healthy_server_has_nothing_wrong(examined: Examined) -> None:
    outcome = examined("--json")
    assert outcome.code == 0
    assert {each["outcome"] for each in outcome.json()["findings"]} == {"ok"}


@pytest.mark.parametrize(
    ("ill", "check", "found", "code", "advice"),
    [
        (
            {"readyz": problem(503, "unavailable", "The database schema is not current: run `foreman migrate`.")},
            "database", "failed", 4, "run `foreman migrate`",
        ),
        (
            {"readyz": problem(503, "unavailable", "The database's disk is full.")},
            "database", "failed", 4, "make room",
        ),
        (
            {"readyz": problem(503, "unavailable", "The database is not reachable right now.")},
            "database", "failed", 4, "the server's log",
        ),
        ({"jobs": problem(401, "unauthorized")}, "API key", "failed", 5, "FOREMAN_API_KEY"),
        ({"jobs": problem(403, "forbidden")}, "API key", "warning", 0, "a key with that scope"),
        ({"targets": problem(403, "forbidden")}, "targets", "skipped", 0, ""),
        ({"version": Answer(200, {"version": "9.9"})}, "version", "warning", 0, "the same release"),
        (
            {"healthz": Answer(200, {}, {"Date": formatdate(time.time() - 3600, usegmt=True)})},
            "clocks", "failed", 1, "NTP",
        ),
        (
            {"targets": Answer(200, {"targets": [{"name": "laptop", "state": "asleep", "url": "http://l:1"}]})},
            "targets", "warning", 0, "wake laptop, or see that http://l:1 answers; `foreman targets set laptop",
        ),
        (
            {"targets": Answer(200, {"targets": [{"name": "gpu", "state": "awake", "breaker": "open"}]})},
            "targets", "warning", 0, "gpu broke off too often",
        ),
        (
            {"webhooks": Answer(200, {"deliveries": [{"host": "10.0.0.9", "last_error": "private address"}]})},
            "webhooks", "warning", 0, "FOREMAN_OUTBOUND_ALLOW",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_to_do(
    examined: Examined, ill: dict[str, Answer], check: str, found: str, code: int, advice: str
) -> None:
    outcome = examined("--json", **ill)
    assert outcome.code == code
    said = finding(outcome, check)
    assert said["outcome"] == found
    assert advice in said["advice"]
    # The others are not to blame.
    others = [each for each in outcome.json()["findings"] if each["outcome"] == "failed"]
    assert others == ([said] if found == "failed" else [])
    for_people = examined(**ill).out
    assert not advice or f"   → {said['advice']}" in for_people


def test_a_server_that_is_not_there_is_told_how_to_find_it(foreman: Foreman) -> None:
    outcome = foreman("doctor", "--server", "http://127.0.0.1:1", "--json")
    assert outcome.code == 4
    assert "FOREMAN_URL" in finding(outcome, "reachable")["advice"]


def test_where_the_settings_are_the_database_is_looked_at_itself(
    foreman: Foreman, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREMAN_DATABASE_URL", database_url)
    outcome = foreman("doctor", "--json")
    assert outcome.code == 0, outcome.out
    for check in ("settings", "files", "schema", "database clock", "notifications"):
        assert finding(outcome, check)["outcome"] == "ok"
    assert "This machine, for postgresql://" in foreman("doctor").out
    monkeypatch.setenv("FOREMAN_DATABASE_URL", "postgresql://nobody:topsec@127.0.0.1:1/none")
    away = foreman("doctor", "--json")
    assert away.code == 4
    assert finding(away, "schema")["outcome"] == "failed"
    assert "topsec" not in away.out + away.err
    assert finding(away, "reachable")["outcome"] == "ok"


def test_wrong_settings_are_named(foreman: Foreman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREMAN_PROT", "8080")
    outcome = foreman("doctor", "--json")
    assert outcome.code == 1
    assert "did you mean FOREMAN_PORT?" in finding(outcome, "settings")["detail"]
    monkeypatch.delenv("FOREMAN_PROT")
    targets = tmp_path / "targets.toml"
    targets.write_text('[targets.gpu]\nurl = "http://gpu:1"\nwake = {url = "http://10.0.0.9/wake"}\n')
    monkeypatch.setenv("FOREMAN_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("FOREMAN_TARGETS", str(targets))
    blocked = finding(foreman("doctor", "--json"), "settings")
    assert blocked["outcome"] == "failed"
    assert "the outbound guard blocks the wake URL of gpu" in blocked["detail"]
    assert "FOREMAN_OUTBOUND_ALLOW" in blocked["advice"]
    monkeypatch.setenv("FOREMAN_OUTBOUND_ALLOW", "10.0.0.0/8")
    assert finding(foreman("doctor", "--json"), "settings")["outcome"] == "ok"


@pytest.mark.parametrize(
    ("revision", "ahead", "found"),
    [
        ("0021", 0.0, ("failed", "ok")),
        (None, 0.0, ("failed", "ok")),
        ("9999", 0.0, ("warning", "ok")),
        ("0022", 5.0, ("ok", "warning")),
        ("0022", -60.0, ("ok", "failed")),
    ],
)
def test_an_old_schema_and_a_clock_that_is_wrong_are_found(
    foreman: Foreman,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    revision: str | None,
    ahead: float,
    found: tuple[str, str],
) -> None:
    async def examine(_: str) -> Checkup:
        return Checkup(revision, "18", ahead, 0.001)

    monkeypatch.setattr("app.store.checkup.examine", examine)
    monkeypatch.setattr("app.store.migrate.newest_revision", lambda: "0022")
    monkeypatch.setenv("FOREMAN_DATABASE_URL", database_url)
    outcome = foreman("doctor", "--json")
    assert tuple(finding(outcome, check)["outcome"] for check in ("schema", "database clock")) == found
    assert outcome.code == (1 if "failed" in found else 0)


def test_a_connection_that_hears_nothing_is_found(
    foreman: Foreman, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a PgBouncer: whoever listens there is not told."""
    monkeypatch.setattr("app.store.checkup.NOTIFY", "SELECT $1::text")
    monkeypatch.setattr("app.store.checkup.HEAR_SECONDS", 0.1)
    monkeypatch.setenv("FOREMAN_DATABASE_URL", database_url)
    heard = finding(foreman("doctor", "--json"), "notifications")
    assert heard["outcome"] == "warning"
    assert "FOREMAN_LISTEN_DATABASE_URL" in heard["advice"]
    monkeypatch.setenv("FOREMAN_LISTEN", "off")
    assert finding(foreman("doctor", "--json"), "notifications")["outcome"] == "ok"


@pytest.mark.parametrize(("free", "found"), [(0.5, "ok"), (0.02, "warning"), (0.001, "failed")])
def test_a_disk_that_is_nearly_full_is_found_and_a_database_that_does_not_run_is_no_error(
    foreman: Foreman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, found: str
) -> None:
    (tmp_path / "data" / "postgres").mkdir(parents=True)
    monkeypatch.setenv("FOREMAN_DATA_DIR", str(tmp_path / "data"))
    total = 20 * 2**30
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=total, free=int(free * total)))
    outcome = foreman("doctor", "--json")
    assert finding(outcome, "disk")["outcome"] == found
    assert outcome.code == (1 if found == "failed" else 0)
    skipped = [each for each in json.loads(outcome.out)["findings"] if each["outcome"] == "skipped"]
    assert any("is not running" in each["detail"] for each in skipped)


def test_too_few_files_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 1024))
    assert checkup._files(20_000)[0] == "warning"
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 65_536))
    assert checkup._files(20_000)[0] == "ok"
