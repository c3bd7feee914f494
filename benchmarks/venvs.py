"""A virtual environment for each peer, made on demand from its list of exact versions, and never ours."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
VENVS = HERE / ".venvs"


class VenvError(RuntimeError):
    """The peer cannot be installed here; the message is the installer's."""


def python_of(peer: str) -> Path:
    return VENVS / peer / "bin" / "python"


def is_ready(peer: str) -> bool:
    """Complete, and made from the list as it is now: the stamp is written last."""
    stamp = _stamp(peer)
    return stamp.exists() and stamp.read_text() == _fingerprint(peer)


def make_ready(peer: str) -> None:
    if is_ready(peer):
        return
    shutil.rmtree(VENVS / peer, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(VENVS / peer)])
    install = [str(python_of(peer)), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    # Without dependencies: the list is complete, and nothing may be chosen beside it.
    _run([*install, "--no-deps", "-r", str(_versions(peer))])
    _stamp(peer).write_text(_fingerprint(peer))


def _versions(peer: str) -> Path:
    return PEERS / f"{peer}.txt"


def _stamp(peer: str) -> Path:
    return VENVS / peer / ".ready"


def _fingerprint(peer: str) -> str:
    return hashlib.sha256(_versions(peer).read_bytes() + sys.version.encode()).hexdigest()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise VenvError(f"{' '.join(command[1:])} failed: {done.stderr[-1500:].strip()}")
