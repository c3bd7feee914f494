"""What the project is delivered in: lock files, Makefile, wheel, image and compose file.

No container engine is needed. The files are read and everything they name is looked for; what can be run
without an engine (the health check, the wheel's own migrations, the Makefile's choices) is run.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLIENT: dict[str, Any] = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())
WHEEL: dict[str, Any] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
LOCKS = ["requirements.lock", "requirements-dev.lock"]
TARGETS = ["setup", "run", "test", "lint", "format", "build", "openapi", "bench", "clean", "lock"]


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    # Under `make test` the outer make's flags and choices would reach the inner ones.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHON"))}
    return subprocess.run(
        command,
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# --- lock files -------------------------------------------------------------------------------------------


class Pin(NamedTuple):
    name: str
    version: Version
    markers: str
    hashes: list[str]


def pins(lock: str) -> list[Pin]:
    """The requirements of a lock file; anything in it that is not a pinned one fails here."""
    text = (ROOT / lock).read_text().replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        requirement, *hashes = line.split(" --hash=sha256:")
        pin = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;]+)\s*(;.*)?", requirement.strip())
        assert pin, f"{lock}: {line[:80]!r} is not name==version with hashes"
        found.append(
            Pin(canonicalize_name(pin[1]), Version(pin[2]), pin[3] or "", [h.strip() for h in hashes])
        )
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_requirement_has_one_version_and_its_hashes(lock: str) -> None:
    locked = pins(lock)

    assert len(locked) > 20
    for pin in locked:
        assert pin.hashes, f"{pin.name} has no hash"
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in pin.hashes), pin.name


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_names_no_index(lock: str) -> None:
    text = (ROOT / lock).read_text()

    assert not re.findall(
        r"https?://|file:|--index-url|--extra-index-url|--find-links|^-", text, re.MULTILINE
    )


@pytest.mark.parametrize(("lock", "groups"), [(LOCKS[0], ["build"]), (LOCKS[1], ["build", "dev"])])
def test_a_lock_file_answers_what_the_project_asks_for(lock: str, groups: list[str]) -> None:
    wanted = [each for project in (PYPROJECT, CLIENT) for each in project["project"]["dependencies"]]
    wanted += [each for project in (PYPROJECT, CLIENT) for each in project["build-system"]["requires"]]
    for group in groups:
        wanted += PYPROJECT["dependency-groups"][group]
    locked: dict[str, list[Version]] = {}
    for pin in pins(lock):
        locked.setdefault(pin.name, []).append(pin.version)

    for requirement in map(Requirement, wanted):
        if requirement.name == CLIENT["project"]["name"]:
            continue
        versions = locked.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement.name} is not locked: make lock"
        assert all(requirement.specifier.contains(version) for version in versions), (
            f"{requirement}: make lock"
        )


def test_whoever_has_the_development_environment_has_the_very_server_that_users_run() -> None:
    assert {pin[:3] for pin in pins("requirements.lock")} <= {
        pin[:3] for pin in pins("requirements-dev.lock")
    }


@pytest.mark.parametrize("lock", LOCKS)
def test_what_is_installed_from_the_tree_is_in_no_lock_file(lock: str) -> None:
    assert not {"foreman", "foreman-client"} & {pin.name for pin in pins(lock)}


# --- Makefile and CI --------------------------------------------------------------------------------------


def listed_targets() -> list[str]:
    answer = run("make", "help")
    assert answer.returncode == 0, answer.stderr
    return re.findall(r"^  ([a-z-]+) +\S", answer.stdout, re.MULTILINE)


def test_make_lists_every_target_that_the_project_promises() -> None:
    assert set(TARGETS) <= set(listed_targets())


def test_make_alone_is_make_help() -> None:
    assert run("make").stdout == run("make", "help").stdout


def test_ci_lints_and_tests_from_any_folder(tmp_path: Path) -> None:
    script = ROOT / ".ci" / "run"
    commands = [line for line in script.read_text().splitlines() if line.startswith("make ")]
    # A make that only says where it was called and with what.
    echo = tmp_path / "make"
    echo.write_text('#!/bin/sh\necho "$(pwd -P) $*"\n')
    echo.chmod(0o755)

    answer = run(script, cwd=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")

    assert answer.stdout.splitlines() == [f"{ROOT} lint", f"{ROOT} test"], answer.stderr
    assert {command.split()[1] for command in commands} <= set(listed_targets())


def test_ci_stops_at_the_first_failure(tmp_path: Path) -> None:
    failing = tmp_path / "make"
    failing.write_text('#!/bin/sh\necho "$*"\nexit 1\n')
    failing.chmod(0o755)

    answer = run(ROOT / ".ci" / "run", cwd=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")

    assert answer.returncode != 0
    assert answer.stdout.splitlines() == ["lint"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without an environment, in a folder with a space in its name."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    for name in ["Makefile", "pyproject.toml", *LOCKS]:
        shutil.copy(ROOT / name, folder)
    (folder / "client").mkdir()
    shutil.copy(ROOT / "client" / "pyproject.toml", folder / "client")
    return folder


def pretend_environment(checkout: Path, made_in: Path) -> None:
    """What make looks at: a Python that works, a script that names its folder, a stamp newer than a lock."""
    scripts = checkout / ".venv" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "python").symlink_to(sys.executable)
    (scripts / "pip").write_text(f"""#!/bin/sh\n'''exec' "{made_in}/.venv/bin/python" "$0" "$@"\n' '''\n""")
    (checkout / ".venv" / "pyvenv.cfg").touch()
    (checkout / ".venv" / ".ready").touch()


def test_a_fresh_checkout_makes_its_environment_from_the_lock_with_hashes(checkout: Path) -> None:
    plan = run("make", "--dry-run", "run", cwd=checkout).stdout

    assert "-m venv .venv" in plan
    assert "install --require-hashes -r requirements.lock" in plan
    assert "install --no-deps --no-build-isolation -e ./client -e ." in plan
    assert plan.rstrip().endswith(".venv/bin/foreman serve")


def test_a_ready_environment_is_used_as_it_is(checkout: Path) -> None:
    pretend_environment(checkout, made_in=checkout.resolve())

    plan = run("make", "--dry-run", "run", "ARGS=--port 9000", cwd=checkout).stdout

    assert plan.split() == ["exec", ".venv/bin/foreman", "serve", "--port", "9000"]


@pytest.mark.parametrize("newer", ["requirements.lock", "pyproject.toml", "client/pyproject.toml"])
def test_what_is_newer_is_installed_into_the_environment_at_hand(checkout: Path, newer: str) -> None:
    pretend_environment(checkout, made_in=checkout.resolve())
    ready = (checkout / ".venv" / ".ready").stat()
    os.utime(checkout / newer, (ready.st_atime, ready.st_mtime + 10))

    plan = run("make", "--dry-run", "run", cwd=checkout).stdout

    assert "-m venv" not in plan
    assert "install --require-hashes -r requirements.lock" in plan


def test_an_environment_that_came_from_another_folder_is_made_anew(checkout: Path) -> None:
    pretend_environment(checkout, made_in=checkout.parent / "moved away")

    assert "-m venv .venv" in run("make", "--dry-run", "run", cwd=checkout).stdout


def test_an_environment_whose_python_is_gone_is_made_anew(checkout: Path) -> None:
    pretend_environment(checkout, made_in=checkout.resolve())
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(checkout / "uninstalled")

    assert "-m venv .venv" in run("make", "--dry-run", "run", cwd=checkout).stdout


def test_without_a_suitable_python_make_says_which_one_it_needs(checkout: Path) -> None:
    answer = run("make", "run", f"PYTHON={checkout / 'no such python'}", cwd=checkout)

    assert answer.returncode != 0
    assert "Python 3.11 or newer" in answer.stderr
    assert not (checkout / ".venv").exists()


# --- wheel ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    answer = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_packages_their_types_and_the_migrations(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    migrations = {
        f"app/alembic/versions/{path.name}" for path in (ROOT / "alembic" / "versions").glob("*.py")
    }

    assert folders == {"app"}
    assert "app/py.typed" in names
    assert {"app/alembic/env.py", *migrations} <= set(names)
    assert migrations


def test_the_wheel_holds_neither_tests_nor_anything_left_lying_about(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert [
        name for name in names if re.search(r"(^|/)(tests?|benchmarks|\.foreman|__pycache__)/", name)
    ] == []


def test_the_wheel_alone_knows_its_newest_migration(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    question = """if True:
        from app.store import migrate
        print(migrate.scripts_folder())
        print(migrate.newest_revision())
    """

    answer = run(sys.executable, "-c", question, cwd=tmp_path, PYTHONPATH=str(tmp_path))

    assert answer.returncode == 0, answer.stderr
    folder, revision = answer.stdout.splitlines()
    assert Path(folder) == tmp_path.resolve() / "app" / "alembic"
    assert revision


def test_the_console_script_of_the_wheel_starts(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    module, function = PYPROJECT["project"]["scripts"]["foreman"].split(":")

    answer = run(
        sys.executable,
        "-c",
        f"from {module} import {function}; {function}()",
        "--help",
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path),
    )

    assert answer.returncode == 0, answer.stderr
    assert "serve" in answer.stdout


def test_the_version_is_the_same_wherever_it_is_said() -> None:
    assert import_module("app").__version__ == PYPROJECT["project"]["version"]
    assert import_module("foreman_client").__version__ == CLIENT["project"]["version"]


def test_server_and_client_of_one_checkout_name_each_other_as_compatible() -> None:
    (required,) = [
        requirement.specifier
        for requirement in map(Requirement, PYPROJECT["project"]["dependencies"])
        if requirement.name == "foreman-client"
    ]
    servers = SpecifierSet(import_module("foreman_client").SERVER_VERSIONS)

    assert SpecifierSet(import_module("app.api.health").CLIENT_VERSIONS) == required
    assert required.contains(CLIENT["project"]["version"])
    assert servers.contains(PYPROJECT["project"]["version"])


def test_the_client_is_under_the_same_license() -> None:
    assert (ROOT / "client" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_folder_of_migrations_does_not_hide_the_library_of_the_same_name() -> None:
    assert not (ROOT / "alembic" / "__init__.py").exists()
    assert Path(import_module("alembic.command").__file__ or "").parent != ROOT / "alembic"


# --- image ------------------------------------------------------------------------------------------------


class Instruction(NamedTuple):
    word: str
    text: str

    def words(self) -> list[str]:
        """Its arguments, from either of the two ways to write them."""
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)


def parse_dockerfile(text: str) -> list[list[Instruction]]:
    """The instructions of each stage. Comments are whole lines, also between continued ones."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    stages: list[list[Instruction]] = []
    for line in re.sub(r"\\\n\s*", " ", lines).splitlines():
        if not line.strip():
            continue
        word, arguments = line.split(None, 1)
        if word == "FROM":
            stages.append([])
        assert stages, f"{line!r} stands before the first FROM"
        stages[-1].append(Instruction(word, arguments.strip()))
    return stages


STAGES = parse_dockerfile((ROOT / "Dockerfile").read_text())
INSTRUCTIONS = [instruction for stage in STAGES for instruction in stage]


def in_image(word: str) -> Instruction:
    """The instruction of the final stage that counts: the last one."""
    found = [instruction for instruction in STAGES[-1] if instruction.word == word]
    assert found, f"the image has no {word}"
    return found[-1]


def environment_of_image() -> dict[str, str]:
    return dict(
        assignment.split("=", 1)
        for instruction in STAGES[-1]
        if instruction.word == "ENV"
        for assignment in instruction.words()
    )


def copied_from_checkout() -> list[str]:
    sources = []
    for instruction in INSTRUCTIONS:
        words = instruction.words() if instruction.word in {"ADD", "COPY"} else []
        if not any(word.startswith("--from=") for word in words):
            sources += [word for word in words[:-1] if not word.startswith("--")]
    return sources


def health_check() -> list[str]:
    text = in_image("HEALTHCHECK").text
    command: list[str] = json.loads(text[text.index("CMD") + len("CMD") :])
    return command


def test_everything_that_the_image_copies_exists_and_is_sent_to_the_engine() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    sources = copied_from_checkout()

    assert "*" in ignored
    assert {"app", "requirements.lock"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, f".dockerignore keeps {source} back"


def test_everything_that_the_wheel_is_built_from_is_copied() -> None:
    project = PYPROJECT["project"]
    needed = [
        "client",
        "pyproject.toml",
        project["readme"],
        *project["license-files"],
        *WHEEL["only-include"],
    ]

    assert set(needed) <= set(copied_from_checkout())


def test_a_stage_copies_only_from_stages_before_it() -> None:
    known: set[str] = set()
    for stage in STAGES:
        for instruction in stage:
            taken = re.findall(r"--from=(\S+)", instruction.text) if instruction.word == "COPY" else []
            assert set(taken) <= known, instruction
        name = re.search(r" AS (\S+)$", stage[0].text)
        if name:
            known.add(name[1])
    assert len(STAGES) > 1


def test_the_image_installs_from_the_lock_with_hashes_and_leaves_the_build_tools_behind() -> None:
    commands = [instruction.text for instruction in INSTRUCTIONS if instruction.word == "RUN"]
    installs = [command for command in commands if "pip install" in command]
    removed = re.findall(r"pip uninstall --yes ([^&]+)", " && ".join(commands))[0].split()
    locked = {pin.name for pin in pins("requirements.lock")}

    assert any("--require-hashes -r requirements.lock" in command for command in installs)
    assert all("--require-hashes" in command or "--no-deps" in command for command in installs)
    assert any("--no-build-isolation ./client . " in command for command in installs)
    assert set(removed) - {"pip"} <= locked
    assert {"hatchling", "pip"} <= set(removed)
    assert not [command for command in commands if "apt-get" in command]


def test_the_image_runs_as_a_user_with_a_number_that_is_not_roots() -> None:
    user, group = in_image("USER").text.split(":")
    made = " ".join(instruction.text for instruction in STAGES[-1] if instruction.word == "RUN")

    assert int(user) > 0
    assert int(group) > 0
    assert f"useradd --uid {user} --gid {group}" in made
    assert f"install -d -o {user} -g {group}" in made


def test_the_image_writes_to_its_volume_only() -> None:
    assert in_image("VOLUME").words() == [environment_of_image()["FOREMAN_DATA_DIR"]]
    assert environment_of_image()["PYTHONDONTWRITEBYTECODE"] == "1"


def test_the_image_starts_a_command_that_exists() -> None:
    (script,) = in_image("ENTRYPOINT").words()
    module, function = PYPROJECT["project"]["scripts"][script].split(":")

    answer = run(
        sys.executable,
        "-c",
        f"from {module} import {function}; {function}()",
        *in_image("CMD").words(),
        "--help",
    )

    assert answer.returncode == 0, answer.stderr


def test_the_image_exposes_the_port_it_listens_on() -> None:
    assert in_image("EXPOSE").text == environment_of_image()["FOREMAN_PORT"]


@contextmanager
def answering(status: int) -> Iterator[tuple[int, list[str]]]:
    """An HTTP server on loopback that answers everything alike: its port, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()
            thread.join()


def check_health(port: int) -> int:
    interpreter, *arguments = health_check()
    assert interpreter == "python"
    # A proxy that nobody runs: asking through it would fail.
    proxy = "http://127.0.0.1:9"
    return run(sys.executable, *arguments, FOREMAN_PORT=str(port), http_proxy=proxy, no_proxy="").returncode


def test_the_health_check_passes_on_200_and_asks_a_route_that_exists() -> None:
    with answering(200) as (port, asked):
        assert check_health(port) == 0

    (path,) = asked
    assert path in json.loads((ROOT / "openapi" / "openapi.json").read_text())["paths"]


def test_the_health_check_fails_on_503_and_when_nobody_listens() -> None:
    with answering(503) as (port, asked):
        assert check_health(port) != 0
        assert asked

    assert check_health(port) != 0


# --- compose ----------------------------------------------------------------------------------------------

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def test_compose_builds_this_image_and_waits_for_a_healthy_postgres() -> None:
    foreman = SERVICES["foreman"]

    assert (ROOT / foreman["build"] / "Dockerfile").is_file()
    assert foreman["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["postgres"]["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]


def test_compose_points_foreman_at_its_postgres() -> None:
    url = SERVICES["foreman"]["environment"]["FOREMAN_DATABASE_URL"]
    postgres = SERVICES["postgres"]["environment"]
    user, password, host, database = re.fullmatch(r"postgresql://(\w+):(.+)@(\w+):5432/(\w+)", url).groups()  # type: ignore[union-attr]

    assert host in SERVICES
    assert (user, password, database) == (
        postgres["POSTGRES_USER"],
        postgres["POSTGRES_PASSWORD"],
        postgres["POSTGRES_DB"],
    )


def test_compose_runs_foreman_with_a_read_only_root_and_no_privileges() -> None:
    foreman = SERVICES["foreman"]

    assert foreman["read_only"] is True
    assert foreman["tmpfs"] == ["/tmp"]
    assert foreman["cap_drop"] == ["ALL"]
    assert [volume.split(":")[1] for volume in foreman["volumes"]] == in_image("VOLUME").words()


def test_compose_declares_every_volume_and_publishes_the_exposed_port_on_loopback() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service["volumes"]}
    port = in_image("EXPOSE").text

    assert used == set(COMPOSE["volumes"])
    assert SERVICES["foreman"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert "ports" not in SERVICES["postgres"]


def test_compose_needs_no_variable_to_be_set() -> None:
    variables = re.findall(r"\$\{([^}]+)\}", (ROOT / "compose.yaml").read_text())

    assert variables
    assert all(":-" in variable for variable in variables)


def test_image_and_compose_use_only_settings_that_exist() -> None:
    known = {f"FOREMAN_{name.upper()}" for name in import_module("app.config").Settings.model_fields}
    used = {name for name in environment_of_image() if name.startswith("FOREMAN_")}
    used |= set(SERVICES["foreman"]["environment"])

    assert "FOREMAN_DATABASE_URL" in used
    assert used <= known
