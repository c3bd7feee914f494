"""Commands load what they need, and nothing else: a person is waiting."""

import os
import subprocess
import sys

import pytest

from app.cli.root import MODULES, arguments_of, build
from tests.cli.conftest import Foreman
from tests.conftest import ROOT, Server

SERVERS_OWN = {
    "fastapi", "starlette", "sqlalchemy", "asyncpg", "alembic", "uvicorn", "msgspec", "orjson",
    "prometheus_client", "structlog", "cryptography", "opentelemetry", "app.config",
}  # fmt: skip
SLOW = {"httpx", "pydantic", "asyncio", "rich.console", "rich.table", "rich.progress", "pygments"}


def loaded_by(server: str, *arguments: str, **environment: str) -> set[str]:
    """The modules that a command has loaded by its end."""
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(' '.join(sys.modules), file=sys.stderr))\n"
        "from app.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env={**os.environ, "FOREMAN_URL": server, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.splitlines()[-1].split())


def test_what_only_reads_loads_neither_the_server_nor_anything_slow(
    foreman: Foreman, shared_server: Server
) -> None:
    job_id = foreman("submit", "--kind", "noop").out.strip()
    for arguments in (
        ("get", job_id),
        ("get", job_id, "--json"),
        ("list",),
        ("submit", "--kind", "x"),
        ("queues",),
    ):
        loaded = loaded_by(shared_server.url, *arguments)
        assert not loaded & (SERVERS_OWN | SLOW), arguments
        assert "app.cli.quick_transport" in loaded


def test_a_proxy_and_a_password_in_the_address_go_by_httpx(foreman: Foreman, shared_server: Server) -> None:
    assert "httpx" in loaded_by(shared_server.url.replace("://", "://me:secret@"), "list")
    assert "httpx" in loaded_by(shared_server.url, "list", http_proxy=shared_server.url)
    assert "httpx" not in loaded_by(shared_server.url, "list", http_proxy="")


def test_each_command_is_named_where_it_lives() -> None:
    """Whoever adds one says so in MODULES; without that it is found all the same, only later."""
    for module, names in MODULES.items():
        cli = build(names[:1])
        found = [each.name for each in cli.registered_commands]
        found += [str(each.name) for each in cli.registered_groups]
        assert found == list(names), module


@pytest.mark.parametrize(
    ("typed", "arguments"),
    [
        ("foreman get ", ["get"]),
        ("foreman get 01M", ["get"]),
        ("foreman ge", []),
        ("foreman ", []),
        ("foreman 'ge", []),
    ],
)
def test_completion_loads_the_command_that_is_being_typed(typed: str, arguments: list[str]) -> None:
    asked = {"_FOREMAN_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": typed}
    assert list(arguments_of([], asked)) == arguments
    asked = {"_FOREMAN_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    assert list(arguments_of([], asked)) == arguments
    assert list(arguments_of([], {"COMP_WORDS": typed})) == []
    assert list(arguments_of(["list"], asked)) == ["list"]
