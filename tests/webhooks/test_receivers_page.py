"""The example receivers of docs/receivers.md are real programs: each is run and sent real deliveries."""

import asyncio
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.jobs.signing import new_secret, sign
from app.outbound.client import GuardedClient
from app.outbound.errors import OutboundUnreachable
from app.outbound.guard import AddressPolicy
from tests.patience import until

PAGE = Path(__file__).parents[2] / "docs" / "receivers.md"
LANGUAGES = {"python": sys.executable, "js": shutil.which("node")}


def program(language: str) -> str:
    return "\n".join(
        re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )


class Correspondent:
    """Sends deliveries to a running example and reads what it prints."""

    def __init__(
        self, process: asyncio.subprocess.Process, port: int, secret: str, client: GuardedClient
    ) -> None:
        assert process.stdout is not None
        self._printed = process.stdout
        self._url = f"http://127.0.0.1:{port}/hooks"
        self._client = client
        self.secret = secret

    async def deliver(
        self, seq: int, *, secrets: list[str] | None = None, age: int = 0, **changed: str
    ) -> int:
        """The status answered to one delivery; `changed` replaces headers after signing, or drops them."""
        body = json.dumps({"type": "job.working", "data": {"job_id": "01J", "seq": seq, "state": "wörking"}})
        sent_at = int(time.time()) - age
        headers = {
            "webhook-id": f"01J-{seq}",
            "webhook-timestamp": str(sent_at),
            "webhook-signature": sign(secrets or [self.secret], f"01J-{seq}", sent_at, body.encode()),
        }
        headers |= {f"webhook-{name}": value for name, value in changed.items()}
        return await self._post({name: value for name, value in headers.items() if value}, body.encode())

    async def _post(self, headers: dict[str, str], body: bytes) -> int:
        response = await self._client.request(
            "POST", self._url, headers=headers, content=body, deadline_seconds=10, max_response_bytes=16384
        )
        return response.status

    async def printed(self) -> str:
        async with asyncio.timeout(10):
            return (await self._printed.readline()).decode().strip()


@asynccontextmanager
async def running(language: str, tmp_path: Path) -> AsyncIterator[Correspondent]:
    interpreter = LANGUAGES[language]
    if interpreter is None:
        pytest.skip("there is no node on this machine")
    source = tmp_path / f"receiver.{'py' if language == 'python' else 'cjs'}"
    source.write_text(program(language), "utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    secret = new_secret()
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PORT": str(port),
        "WEBHOOK_SECRET": secret,
        "PYTHONIOENCODING": "utf-8",
    }
    process = await asyncio.create_subprocess_exec(
        interpreter,
        str(source),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    client = GuardedClient(AddressPolicy(allow_loopback=True))
    try:
        correspondent = Correspondent(process, port, secret, client)
        await _until_it_listens(correspondent, process)
        yield correspondent
    finally:
        await client.aclose()
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _until_it_listens(correspondent: Correspondent, process: asyncio.subprocess.Process) -> None:
    async def it_listens() -> bool:
        assert process.returncode is None, "the example ended by itself"
        try:
            await correspondent.deliver(0, signature="v1,none")
            return True
        except OutboundUnreachable:
            return False

    await until(it_listens, 20)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_example_takes_what_is_signed_once_and_in_order(language: str, tmp_path: Path) -> None:
    async with running(language, tmp_path) as example:
        assert await example.deliver(1) == 204
        assert await example.printed() == "01J 1 wörking"
        assert await example.deliver(1) == 204  # again: acknowledged, not handled
        assert await example.deliver(3, secrets=[new_secret(), example.secret]) == 204  # rotating
        assert await example.printed() == "01J 3 wörking"
        assert await example.deliver(2) == 204  # late: acknowledged, not handled
        assert await example.deliver(4) == 204
        assert await example.printed() == "01J 4 wörking"


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_example_refuses_what_it_cannot_trust(language: str, tmp_path: Path) -> None:
    async with running(language, tmp_path) as example:
        assert await example.deliver(1, secrets=[new_secret()]) == 401
        assert await example.deliver(1, age=400) == 401
        assert await example.deliver(1, age=-400) == 401
        assert await example.deliver(1, id="01J-2") == 401
        assert await example.deliver(1, timestamp=str(int(time.time()) + 1)) == 401
        assert await example.deliver(1, timestamp="soon") == 401
        assert await example.deliver(1, id="") == 401  # not sent at all
        assert await example.deliver(1, timestamp="") == 401
        assert await example.deliver(1, signature="") == 401
        assert await example.deliver(1) == 204
        assert await example.printed() == "01J 1 wörking"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_verifying_part_of_the_example_is_about_ten_lines(language: str) -> None:
    source = program(language)
    verifying = source[source.index("verified(headers, body)") :].split("\n\n")[0].splitlines()
    assert len(verifying) <= 10
