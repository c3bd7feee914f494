"""One server for the tests of a file: commands only look at their own jobs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.root import build
from app.embedded import EmbeddedPostgres
from tests.conftest import ROOT, Server
from tests.serving import serving

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def shared_server(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(postgres, tmp_path_factory.mktemp("cli")) as server:
        yield server


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Foreman = Callable[..., Outcome]


@pytest.fixture
def foreman(shared_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Foreman:
    """The command in this process; as fast as it gets, and the same code."""
    monkeypatch.setenv("FOREMAN_URL", shared_server.url)
    # No data of a server that was tried out in this checkout.
    monkeypatch.setenv("FOREMAN_DATA_DIR", str(tmp_path / "none"))

    def run(*arguments: str, stdin: str | None = None) -> Outcome:
        result = CliRunner().invoke(build(arguments), list(arguments), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def start(shared_server: Server) -> Iterator[Start]:
    """The command as a process of its own, for what needs one."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "FOREMAN_URL": shared_server.url, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "app", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
