"""Real clients from npm: installed once, and called from tests.

    node.call("openai", server.url, "chat.completions.create", {"model": …, "messages": …})

Each call is a process of node, and what it comes to is what run.mjs tells of it.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

HERE = Path(__file__).parent
LISTED = ("package.json", "package-lock.json", ".npmrc")
# With the environment, which is ignored by git and made anew now and then.
KEPT_IN = Path(sys.prefix)
# What would have a client call somebody else, or say something else.
_NAMES = ("OPENAI_", "ANTHROPIC_", "OLLAMA_", "NODE_OPTIONS")
INSTALL_SECONDS = 600


class NotInstalled(Exception):
    """The clients could not be installed; the text says why."""


class NodeError(Exception):
    """What a client raised, and what it had told before."""

    def __init__(self, failed: dict[str, Any], said: list[Any]) -> None:
        super().__init__(f"{failed['name']}: {failed['message']}")
        self.name: str = failed["name"]
        self.message: str = failed["message"]
        self.status: int | None = failed["status"]
        self.code: str | None = failed["code"]
        self.type: str | None = failed["type"]
        self.body: Any = failed["body"]
        self.said = said


@dataclass(frozen=True)
class NodeClients:
    node: str
    folder: Path

    def call(
        self,
        client: str,
        url: str,
        method: str,
        *arguments: Any,
        then: str | None = None,
        most: int | None = None,
        **options: Any,
    ) -> list[Any]:
        """All that is said; of a stream at most so many pieces. Raises NodeError where the client raises.

        `then` is what the gathering helper is asked that the method returns, and `options` are the client's.
        """
        asked = {
            "client": client,
            "url": url,
            "method": method,
            "arguments": arguments,
            "then": then,
            "most": most,
            "options": options,
        }
        ran = subprocess.run(
            [self.node, str(HERE / "run.mjs")],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
            env=_environment() | {"NODE_CLIENTS": str(self.folder)},
            check=False,
        )
        if ran.returncode != 0:
            raise AssertionError(f"node ended with {ran.returncode}:\n{ran.stderr}")
        lines = [json.loads(line) for line in ran.stdout.splitlines()]
        said = [line["said"] for line in lines if "said" in line]
        for line in lines:
            if "failed" in line:
                raise NodeError(line["failed"], said)
        return said

    def one(self, client: str, url: str, method: str, *arguments: Any, **more: Any) -> Any:
        """The same for an answer that comes as a whole."""
        [said] = self.call(client, url, method, *arguments, **more)
        return said


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_NAMES)}


def found(name: str) -> str | None:
    return shutil.which(name)


def install(npm: str, node: str) -> NodeClients:
    """Those of the lock file, once for each environment. Raises NotInstalled."""
    digest = hashlib.sha256(b"\0".join((HERE / name).read_bytes() for name in LISTED)).hexdigest()[:16]
    folder = KEPT_IN / f"node-clients-{digest}"
    with (KEPT_IN / "node-clients.lock").open("w") as lock:
        # Several test processes ask at once: one of them installs.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(npm, folder)
    return NodeClients(node, folder)


def _install(npm: str, folder: Path) -> None:
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    for name in LISTED:
        shutil.copy(HERE / name, fresh)
    try:
        # Nothing of theirs is run, and the registry is the one that npm is configured for here.
        ran = subprocess.run(
            [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"],
            cwd=fresh,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"npm ci was not done within {INSTALL_SECONDS} s") from None
    if ran.returncode != 0:
        errors = [line for line in ran.stderr.splitlines() if line.startswith("npm error")]
        raise NotInstalled("npm ci failed: " + "; ".join(errors[:3]))
    # All or nothing: whoever is killed in the middle leaves nothing that looks finished.
    fresh.rename(folder)
