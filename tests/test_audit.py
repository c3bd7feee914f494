"""`make audit`: what it finds without a network, and what it says when there is none."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DIGEST = "0123456789abcdef" * 4
GOOD = f"a-package==1.2 ; python_version < '3.12' \\\n    --hash=sha256:{DIGEST} \\\n    --hash=sha256:{DIGEST}\n"


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_make_lists_it_and_hands_on_its_arguments() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"^  audit +\S", listed, re.MULTILINE)
    plan = subprocess.run(
        ["make", "--dry-run", "audit", "ARGS=--offline"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ".ci/audit.py --offline" in plan.stdout


def test_what_is_locked_here_passes_without_a_network() -> None:
    command = [sys.executable, str(ROOT / ".ci" / "audit.py"), "--offline"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not asked for" in done.stdout


def test_neither_it_nor_the_lock_files_name_a_package_index() -> None:
    for name in (".ci/audit.py", "requirements.lock", "requirements-dev.lock"):
        assert not re.search(r"https?://|pypi\.|index-url", (ROOT / name).read_text()), name


def test_it_is_no_dependency_of_the_project() -> None:
    for name in ("pyproject.toml", "requirements.lock", "requirements-dev.lock"):
        assert "pip-audit" not in (ROOT / name).read_text()


def test_a_good_lock_file_has_no_problems(audit: ModuleType) -> None:
    assert not list(audit.problems_of_lock(GOOD + GOOD))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a==1\n", "has no hash"),
        (f"{GOOD}b==1 ; sys_platform == 'win32'\n", "has no hash"),
        (f"a>=1 --hash=sha256:{DIGEST}\n", "not pinned"),
        (f"a --hash=sha256:{DIGEST}\n", "not pinned"),
        ("a==1 --hash=md5:0123\n", "not a SHA-256"),
        (f"a==1 --hash=sha256:{DIGEST[1:]}\n", "not a SHA-256"),
        (f"--index-url https://somewhere.example/simple\n{GOOD}", "address or an option"),
        (f"--extra-index-url=x\n{GOOD}", "address or an option"),
        (f"-e ./client\n{GOOD}", "address or an option"),
        (f"a @ https://somewhere.example/a.whl --hash=sha256:{DIGEST}\n", "address or an option"),
        (f"# from https://somewhere.example/simple\n{GOOD}", "names an address"),
        ("", "no entries"),
    ],
)
def test_a_lock_file_that_says_anything_else_has(audit: ModuleType, text: str, problem: str) -> None:
    (found,) = audit.problems_of_lock(text)
    assert problem in found


def checkout(folder: Path, lock: str, code: str) -> Path:
    for name in ("requirements.lock", "requirements-dev.lock"):
        (folder / name).write_text(lock)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "app").mkdir()
    (folder / "app" / "some.py").write_text(code)
    return folder


@pytest.mark.parametrize(
    ("lock", "code", "said"),
    [
        ("a==1\n", "", "has no hash: a==1"),
        (GOOD, "import subprocess\n\nsubprocess.run('ls *', shell=True, check=True)\n", "S602"),
        (GOOD, "import hashlib\n\nhashlib.md5(b'')\n", "S324"),
    ],
)
def test_what_it_finds_it_names_and_ends_with_1(
    audit: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], lock: str, code: str, said: str
) -> None:
    folder = checkout(tmp_path, lock, code)
    assert audit.main(["--offline", "--root", str(folder)]) == 1
    assert said in capsys.readouterr().out


def tool(folder: Path, script: str) -> Path:
    """In the place of pip-audit: a program that finds its report's place in `$report`."""
    path = folder / "pip-audit"
    path.write_text(f"#!/bin/sh\nfor report; do :; done\n{script}\n")
    path.chmod(0o755)
    return path


REPORT: dict[str, Any] = {
    "dependencies": [
        {"name": "sound", "version": "1", "vulns": []},
        {
            "name": "leaky",
            "version": "2",
            "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["3"]}],
        },
    ]
}
SKIPPED: dict[str, Any] = {"dependencies": [{"name": "unheard-of", "skip_reason": "not found"}]}
BOTH = REPORT["dependencies"] + SKIPPED["dependencies"]


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (f"echo '{json.dumps({'dependencies': REPORT['dependencies'][:1]})}' > $report", 0, "no known vuln"),
        (f"echo '{json.dumps(REPORT)}' > $report; exit 1", 1, "leaky 2: PYSEC-1, CVE-1; mended in 3"),
        (f"echo '{json.dumps(SKIPPED)}' > $report", 2, "2 are not known to the service"),
        (f"echo '{json.dumps({'dependencies': BOTH})}' > $report; exit 1", 1, "leaky 2: PYSEC-1"),
        ("echo 'ERROR: connection refused' >&2; exit 1", 2, "connection refused"),
        ("echo 'no such option' >&2; exit 2", 2, "no such option"),
    ],
    ids=["nothing", "something", "nothing known", "something and gaps", "service away", "tool broken"],
)
def test_what_pip_audit_says_is_told_and_silence_is_never_taken_for_health(
    audit: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    code: int,
    said: str,
) -> None:
    folder = checkout(tmp_path, GOOD, "")
    monkeypatch.setattr(audit, "install_tool", lambda _: tool(tmp_path, script))
    assert audit.main(["--root", str(folder)]) == code
    told = capsys.readouterr().out
    assert said in told
    assert ("could NOT be found out" in told) is (code == 2)


def test_an_index_that_cannot_be_reached_is_said_and_ends_with_2(
    audit: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = checkout(tmp_path, GOOD, "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert audit.main(["--root", str(folder)]) == 2
    assert "could NOT be found out" in capsys.readouterr().out
