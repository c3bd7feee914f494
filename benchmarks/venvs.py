"""A virtual environment for each Python peer, made on demand from exact versions, and never ours."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import script_command

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
VENVS = HERE / ".venvs"


class CannotInstall(RuntimeError):
    """The peer cannot be installed here; the message says why."""


@dataclass(frozen=True)
class PythonPackages:
    """`peers/<name>.txt` is its complete `pip freeze`, `peers/<name>.py` the script with its verbs."""

    name: str
    oldest_python: tuple[int, int] = (3, 11)

    @property
    def python(self) -> Path:
        return VENVS / self.name / "bin" / "python"

    def is_ready(self) -> bool:
        """Complete, and made from the list as it is now: the stamp is written last."""
        return self._stamp.exists() and self._stamp.read_text() == self._fingerprint()

    def make_ready(self) -> None:
        if self.is_ready():
            return
        python = suitable_python(self.oldest_python)
        shutil.rmtree(VENVS / self.name, ignore_errors=True)
        run_to_end([python, "-m", "venv", str(VENVS / self.name)])
        install = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        # Without dependencies: the list is complete, and nothing may be chosen beside it.
        run_to_end([*install, "--no-deps", "-r", str(self._versions)])
        self._stamp.write_text(self._fingerprint())

    def command(self, verb: str, arguments: dict[str, object]) -> list[str]:
        return script_command(self.python, f"benchmarks.peers.{self.name}", verb, arguments)

    def version(self) -> str:
        """Its own version, and what it runs on."""
        pins = dict(line.split("==") for line in self._versions.read_text().split())
        python = run_to_end([str(self.python), "--version"]) if self.is_ready() else "not installed"
        return f"{pins[self.name]} ({python})"

    @property
    def _versions(self) -> Path:
        return PEERS / f"{self.name}.txt"

    @property
    def _stamp(self) -> Path:
        return VENVS / self.name / ".ready"

    def _fingerprint(self) -> str:
        return hashlib.sha256(self._versions.read_bytes() + sys.version.encode()).hexdigest()


def suitable_python(oldest: tuple[int, int]) -> str:
    """Ours if it is new enough, so that all peers run on the same one; else whatever newer one is found."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    check = f"import ensurepip, sys, venv; sys.exit(sys.version_info < {oldest})"
    for python in _other_pythons(oldest):
        if subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0:
            return python
    found = ".".join(map(str, sys.version_info[:2]))
    raise CannotInstall(f"needs Python ≥ {oldest[0]}.{oldest[1]}; found {found}")


def _other_pythons(oldest: tuple[int, int]) -> Iterator[str]:
    for minor in range(oldest[1], oldest[1] + 5):
        name = f"python3.{minor}"
        if on_path := shutil.which(name):
            yield on_path
        yield from map(str, sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}")))


def run_to_end(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotInstall(f"{' '.join(command[1:])} failed: {done.stderr[-1500:].strip()}")
    return done.stdout.strip()
