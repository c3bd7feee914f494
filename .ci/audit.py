"""`make audit`: what can be known about the security of what we depend on, and of our own lines.

First what needs no network: every entry of the lock files has hashes, none names an index, and ruff's
security rules find nothing. Then the known vulnerabilities of what is locked, by pip-audit. That is no
dependency of the project: it is installed into an environment that is thrown away, by pip as it is
configured here.

Exit code 0: nothing found. 1: something was found. 2: the vulnerabilities could not be asked for, so
nobody knows.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOCKS = ("requirements.lock", "requirements-dev.lock")
FOUND, UNKNOWN = 1, 2
# Of each attempt to reach somebody; with the retries it is well under a minute.
CONNECT_SECONDS = "15"
ALL_SECONDS = 600

_ENTRY = re.compile(r"[A-Za-z0-9._-]+(\[[A-Za-z0-9,._-]+\])?==[^\s;]+\s*(;[^#]*)?")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class Unreachable(Exception):
    """Nobody could be asked; the message has the words of who tried."""


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def problems_of_lock(text: str) -> Iterator[str]:
    """Anything but `name==version ; marker --hash=sha256:…` is one: an index, a link, a loose version."""
    entries = 0
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            # A comment may not smuggle in an address either: some tools write the index there.
            if "://" in line:
                yield f"names an address: {line.strip()}"
            continue
        entry, *hashes = re.split(r"\s--hash[= ]", line)
        entry = entry.strip()
        if "://" in line or entry.startswith("-"):
            yield f"names an address or an option: {entry}"
        elif not _ENTRY.fullmatch(entry):
            yield f"is not pinned to one version: {entry}"
        elif not hashes:
            yield f"has no hash: {entry}"
        elif not all(_HASH.fullmatch(each.strip()) for each in hashes):
            yield f"has a hash that is not a SHA-256: {entry}"
        entries += 1
    if not entries:
        yield "has no entries"


def check_locks(root: Path) -> bool:
    good = True
    for name in LOCKS:
        problems = list(problems_of_lock((root / name).read_text()))
        say(f"{name}: {'every entry has hashes, none an address' if not problems else 'NOT as it must be'}")
        for problem in problems:
            say(f"  {problem}")
        good = good and not problems
    return good


def check_code(root: Path) -> bool:
    """With the exceptions of pyproject.toml, each of which has its reason there."""
    rules = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["ignore"]
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--quiet",
        "--output-format",
        "concise",
        "--select",
        "S",
    ]
    # Who selects anew has ignored nothing yet; what is said for each folder still holds.
    command += ["--ignore", ",".join(rules), "."]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    say(f"ruff, security rules: {'NOT clean' if done.returncode else 'clean'}")
    if done.returncode:
        say(done.stdout + done.stderr)
    return done.returncode == 0


def check_vulnerabilities(root: Path) -> bool:
    """Raises Unreachable when it cannot be known."""
    missed: list[str] = []
    good = True
    with tempfile.TemporaryDirectory(prefix="foreman-audit-") as folder:
        tool = install_tool(Path(folder))
        for name in LOCKS:
            report = asked(tool, root / name, Path(folder))
            found = list(vulnerabilities(report))
            good = good and not found
            skipped = [each["name"] for each in report["dependencies"] if "skip_reason" in each]
            missed += [f"{name}: {each}" for each in skipped]
            known = f"{len(report['dependencies']) - len(skipped)} of {len(report['dependencies'])} looked up"
            say(f"{name}: {len(found) or 'no'} known vulnerabilities ({known})")
            for line in found:
                say(f"  {line}")
    if good and missed:
        raise Unreachable(
            f"{len(missed)} are not known to the service that was asked (is it a mirror without "
            f"vulnerabilities?): {', '.join(missed[:5])} …"
        )
    return good


def install_tool(folder: Path) -> Path:
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    pip: list[str | Path] = [programs / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--timeout", CONNECT_SECONDS, "--retries", "1", "install", "pip-audit"])
    return programs / "pip-audit"


def asked(tool: Path, lock: Path, folder: Path) -> dict[str, Any]:
    """pip-audit's report on what is locked."""
    path = folder / f"{lock.name}.json"
    # Without pip: the lock file is all that there is to read, and nothing is downloaded or built.
    command: list[str | Path] = [tool, "--requirement", lock, "--require-hashes", "--disable-pip"]
    command += [
        "--progress-spinner",
        "off",
        "--timeout",
        CONNECT_SECONDS,
        "--format",
        "json",
        "--output",
        path,
    ]
    said = run(command, codes=(0, 1))
    # It ends with 1 as well when it could not ask, but then there is no report.
    try:
        report: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        raise Unreachable(said) from None
    return report


def vulnerabilities(report: dict[str, Any]) -> Iterator[str]:
    for each in report["dependencies"]:
        for known in each.get("vulns", ()):
            names = ", ".join([known["id"], *known.get("aliases", ())])
            mended = ", ".join(known.get("fix_versions", ())) or "no version yet"
            yield f"{each['name']} {each['version']}: {names}; mended in {mended}"


def run(command: list[str | Path], codes: tuple[int, ...] = (0,)) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as problem:
        raise Unreachable(f"no answer within {ALL_SECONDS} seconds") from problem
    said = (done.stderr + done.stdout).strip()
    if done.returncode not in codes:
        raise Unreachable(said)
    return said


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__.partition("\n")[0])
    parser.add_argument("--offline", action="store_true", help="only what needs no network")
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).resolve().parent.parent, help=argparse.SUPPRESS
    )
    given = parser.parse_args(arguments)
    good = all([check_locks(given.root), check_code(given.root)])
    if given.offline:
        say("Known vulnerabilities were not asked for (--offline).")
        return 0 if good else FOUND
    try:
        good = check_vulnerabilities(given.root) and good
    except Unreachable as problem:
        say(
            "\nWhether there are known vulnerabilities could NOT be found out: pip-audit, or the service that"
        )
        say("it asks, could not be reached. Who tried said:\n")
        say("\n".join(f"  {line}" for line in str(problem).splitlines()[-5:]))
        return UNKNOWN
    return 0 if good else FOUND


if __name__ == "__main__":
    sys.exit(main())
