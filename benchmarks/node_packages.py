"""Peers written for Node.js: their packages in a folder of their own, made on demand from exact versions.

`peers/node/package.json` is the complete list. A machine without a Node.js that is new enough, but with npm,
gets one from the npm registry, for this alone; without either the peers are left out, and the table says so.
"""

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from benchmarks.venvs import PEERS, VENVS, CannotInstall, run_to_end

OLDEST_NODE = (22, 18)
# The package of that name brings the program itself.
NODE_PACKAGE = "node@22.23.3"
MANIFEST = PEERS / "node" / "package.json"
FOLDER = VENVS / "node"
RUNTIME = VENVS / "node-runtime"


@dataclass(frozen=True)
class NodePackages:
    """`package` is its name in the manifest; `peers/node/<script>.mjs` has its verbs."""

    package: str
    script: str

    def is_ready(self) -> bool:
        return _stamp().exists() and _stamp().read_text() == _fingerprint() and _usable_node() is not None

    def make_ready(self) -> None:
        if self.is_ready():
            return
        npm = _npm()
        if _usable_node() is None:
            _install_node(npm)
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        shutil.copy(MANIFEST, FOLDER / "package.json")
        run_to_end([*npm, "install", "--no-audit", "--no-fund", "--no-package-lock"], cwd=FOLDER)
        _stamp().write_text(_fingerprint())

    def command(self, verb: str, arguments: dict[str, object]) -> list[str]:
        node = _usable_node()
        assert node is not None, "nobody asks a peer that is not ready"
        script = PEERS / "node" / f"{self.script}.mjs"
        return [str(node), str(script), str(FOLDER), verb, json.dumps(arguments)]

    def version(self) -> str:
        node = _usable_node()
        runs_on = f"node {'.'.join(map(str, _version_of(node)))}" if node else "not installed"
        return f"{json.loads(MANIFEST.read_text())['dependencies'][self.package]} ({runs_on})"


def _npm() -> list[str]:
    npm = shutil.which("npm")
    if npm is None:
        raise CannotInstall(_too_old("and there is no npm to install one with"))
    return [npm]


def _install_node(npm: list[str]) -> None:
    RUNTIME.mkdir(parents=True, exist_ok=True)
    (RUNTIME / "package.json").write_text('{"name": "foreman-bench-runtime", "private": true}\n')
    try:
        run_to_end(
            [*npm, "install", "--no-audit", "--no-fund", "--no-package-lock", NODE_PACKAGE], cwd=RUNTIME
        )
    except CannotInstall as problem:
        raise CannotInstall(_too_old(f"and npm brought none: {problem}")) from problem
    if _usable_node() is None:
        raise CannotInstall(_too_old(f"and {NODE_PACKAGE} does not run here"))


def _too_old(why: str) -> str:
    here = shutil.which("node")
    found = f"found {'.'.join(map(str, _version_of(Path(here))))}" if here else "found none"
    return f"needs node ≥ {'.'.join(map(str, OLDEST_NODE))}; {found}, {why}"


def _usable_node() -> Path | None:
    """The machine's own if it is new enough, else the one that was installed for this."""
    here = shutil.which("node")
    candidates = [Path(here)] if here else []
    candidates.append(RUNTIME / "node_modules" / "node" / "bin" / "node")
    return next((each for each in candidates if each.exists() and _version_of(each) >= OLDEST_NODE), None)


def _version_of(node: Path) -> tuple[int, ...]:
    try:
        said = run_to_end([str(node), "--version"])
    except (CannotInstall, OSError):
        return (0,)
    return tuple(int(part) for part in re.findall(r"\d+", said))


def _stamp() -> Path:
    return FOLDER / ".ready"


def _fingerprint() -> str:
    return hashlib.sha256(MANIFEST.read_bytes()).hexdigest()
