"""What importing the client costs, and what it must not bring along."""

import subprocess
import sys

import pytest


def modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nsys.stdout.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_next_to_nothing() -> None:
    loaded = modules_after("import foreman_client")
    assert not loaded & {"httpx", "asyncio", "tenacity", "pydantic", "app"}


def test_client_and_worker_come_without_server_and_pydantic() -> None:
    loaded = modules_after(
        "from foreman_client import AsyncForeman, Foreman, Worker, verify_webhook\nForeman()"
    )
    assert "httpx" in loaded
    assert not {name for name in loaded if name == "app" or name.startswith("app.")}
    assert not loaded & {"pydantic", "fastapi", "starlette", "sqlalchemy", "asyncpg", "msgspec", "orjson"}


def test_checking_webhooks_needs_no_http_client() -> None:
    assert "httpx" not in modules_after("from foreman_client import verify_webhook")


def test_whoever_brings_a_transport_needs_no_other() -> None:
    code = "from foreman_client import Foreman\nForeman(transport_class=lambda *_: None)"
    assert not modules_after(code) & {"httpx", "asyncio"}


def test_every_public_name_is_there() -> None:
    import foreman_client

    for name in foreman_client.__all__:
        assert getattr(foreman_client, name) is not None
    with pytest.raises(AttributeError):
        foreman_client.no_such_name  # noqa: B018
