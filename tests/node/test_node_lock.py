"""What is installed from npm: exactly what the lock file says, from wherever npm is told to."""

import json
import re
from pathlib import Path

import pytest

from tests.node import clients
from tests.node.clients import HERE, NotInstalled

LOCK = json.loads((HERE / "package-lock.json").read_text())
WANTED = json.loads((HERE / "package.json").read_text())


def test_the_lock_names_no_registry_and_has_a_digest_for_all_it_names() -> None:
    assert not re.search(r"https?:|resolved", (HERE / "package-lock.json").read_text())
    packages = {name: entry for name, entry in LOCK["packages"].items() if name}
    assert packages
    for name, entry in packages.items():
        assert entry["integrity"].startswith("sha512-"), name


def test_clients_are_wanted_in_one_version_and_locked_in_it() -> None:
    assert set(WANTED["dependencies"]) == {"@anthropic-ai/sdk", "ollama", "openai"}
    for name, version in WANTED["dependencies"].items():
        assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", version)
        assert LOCK["packages"][f"node_modules/{name}"]["version"] == version
    assert LOCK["packages"][""]["dependencies"] == WANTED["dependencies"]


def program(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return str(path)


def test_they_are_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "KEPT_IN", tmp_path)
    npm = program(tmp_path / "npm", f'echo "$@" >> {tmp_path}/asked', "mkdir node_modules")
    first = clients.install(npm, "node")
    assert clients.install(npm, "node") == first
    [asked] = (tmp_path / "asked").read_text().splitlines()
    assert asked.startswith("ci --ignore-scripts --no-audit --no-fund")
    kept = {each.name for each in first.folder.iterdir()}
    assert kept == {".npmrc", "node_modules", "package-lock.json", "package.json"}


def test_what_cannot_be_fetched_leaves_nothing_behind_that_looks_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "KEPT_IN", tmp_path)
    npm = program(tmp_path / "npm", "mkdir node_modules", "echo npm error code ENOTFOUND >&2", "exit 1")
    with pytest.raises(NotInstalled, match="npm ci failed: npm error code ENOTFOUND"):
        clients.install(npm, "node")
    mended = program(tmp_path / "npm", "mkdir node_modules")
    assert (clients.install(mended, "node").folder / "node_modules").exists()
