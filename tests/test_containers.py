"""What the containers would run, run: the image's entrypoint with the environment that compose.yaml gives it.

There need be no container engine. Dockerfile and compose.yaml are read, and their processes started with the
environment that they would have and nothing else, from an empty folder. Only these differ: where the volume is
mounted, where the image's programs lie, the ports, and with them the address of `postgres`.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import yaml

from app.embedded import EmbeddedPostgres
from app.embedded.cluster import BINARIES
from tests.conftest import ROOT, free_port
from tests.patience import PATIENCE, wait_until
from tests.server.test_tls import made

PROGRAMS = Path(sys.executable).parent
COMPOSE = ROOT / "compose.yaml"
ADMIN = ["admin:read", "admin:write"]


# --- reading a Dockerfile ---------------------------------------------------------------------------------


@dataclass
class Image:
    """What of a Dockerfile's last stage counts when a container is started."""

    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health_check: list[str] = field(default_factory=list)
    user: str = "root"
    folder: str = "/"
    volumes: list[str] = field(default_factory=list)


def read_dockerfile(text: str) -> Image:
    image = Image()
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n\s*", " ", lines).splitlines():
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        match word:
            case "FROM":
                image = Image()
            case "ENV":
                image.environment |= dict(each.split("=", 1) for each in shlex.split(rest))
            case "ENTRYPOINT":
                image.entrypoint, image.command = command_of(rest), []
            case "CMD":
                image.command = command_of(rest)
            case "HEALTHCHECK":
                image.health_check = command_of(rest.partition("CMD ")[2])
            case "USER":
                image.user = rest
            case "WORKDIR":
                image.folder = rest
            case "VOLUME":
                image.volumes += command_of(rest)
            case "" | "RUN" | "COPY" | "EXPOSE":
                pass
            case other:
                raise AssertionError(f"what {other} does is not known here")
    return image


def command_of(text: str) -> list[str]:
    """Of the two ways to write a command only the one without a shell: signals reach the program itself."""
    words: list[str] = json.loads(text)
    return words


# --- reading compose.yaml ---------------------------------------------------------------------------------


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """`${NAME}`, `${NAME:-default}`, `${NAME:?why}` and `$$`, as compose has them; anything else is a mistake."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        name, kind, rest = found["name"], found["kind"], found["rest"]
        assert name is not None, f"{text!r} has a $ that compose would not take"
        if given := variables.get(name):
            return given
        assert kind != ":?", f"{name}: {rest}"
        return rest if kind == ":-" else ""

    return re.sub(r"\$\$|\$(?:\{(?P<name>\w+)(?:(?P<kind>:-|:\?)(?P<rest>[^}]*))?\})?", value, text)


def read_compose(text: str, variables: Mapping[str, str]) -> dict[str, Any]:
    def walked(node: Any) -> Any:
        match node:
            case str():
                return interpolated(node, variables)
            case list():
                return [walked(each) for each in node]
            case dict():
                return {name: walked(each) for name, each in node.items()}
            case _:
                return node

    services: dict[str, Any] = walked(yaml.safe_load(text))["services"]
    return services


def test_the_dockerfile_reader_reads_what_counts() -> None:
    text = """
    FROM a AS b
    ENV GONE=1
    CMD ["gone"]
    FROM a
    # ENV COMMENT=1
    ENV A=1 \\
        # in between
        B="two words"
    ENTRYPOINT ["x"]
    CMD ["y", "z"]
    USER 7:7
    HEALTHCHECK --interval=1s \\
        CMD ["h", "CMD "]
    """
    assert read_dockerfile(text) == Image(
        {"A": "1", "B": "two words"}, ["x"], ["y", "z"], ["h", "CMD "], user="7:7"
    )


@pytest.mark.parametrize("text", ["FROM a\nONBUILD RUN b", 'FROM a\nCMD foreman "serve"'])
def test_the_dockerfile_reader_does_not_guess(text: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        read_dockerfile(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a${X:-b}c", "abc"),
        ("a${SET:-b}c", "a!c"),
        ("${X}", ""),
        ("${EMPTY:-b}", "b"),
        ("$$HOME ${X:-}", "$HOME "),
    ],
)
def test_variables_are_filled_in_as_compose_does(text: str, value: str) -> None:
    assert interpolated(text, {"SET": "!", "EMPTY": ""}) == value


@pytest.mark.parametrize("text", ["${X:?must be set}", "costs 5$", "$X"])
def test_a_variable_that_compose_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(AssertionError):
        interpolated(text, {})


# --- the containers, as processes -------------------------------------------------------------------------


@dataclass
class Container:
    """A container of the image: its environment, its empty folder, and the volume."""

    image: Image
    folder: Path
    environment: dict[str, str]
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = field(default_factory=free_port)
    scheme: str = "http"

    @classmethod
    def made(cls, tmp_path: Path, environment: Mapping[str, str]) -> "Container":
        image = read_dockerfile((ROOT / "Dockerfile").read_text())
        (volume,) = image.volumes
        # The work folder of the image is its volume, which is empty at first.
        assert image.folder == volume
        folder = tmp_path / "volume"
        folder.mkdir()
        container = cls(image, folder, {}, tmp_path / "container.log")
        search = image.environment["PATH"].replace("/opt/foreman/bin", str(PROGRAMS))
        container.environment = (
            {name: each.replace(volume, str(folder)) for name, each in image.environment.items()}
            | {"PATH": search.replace("$PATH", "/usr/bin:/bin")}
            | dict(environment)
            | {"FOREMAN_PORT": str(container.port)}
        )
        return container

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """`docker compose exec`."""
        program = shutil.which(command[0], path=self.environment["PATH"])
        assert program is not None, command
        return subprocess.run(
            [program, *command[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
            check=False,
        )

    def start(self) -> None:
        """`docker compose up`: until its health check is content, and it has said that it listens."""
        program = shutil.which(self.image.entrypoint[0], path=self.environment["PATH"])
        assert program == str(PROGRAMS / "foreman")
        said = len(self.log())
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [program, *self.image.entrypoint[1:], *self.image.command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        def is_up() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            return "Foreman listens on" in self.log()[said:]

        wait_until(is_up, 60, lambda: f"the server did not come up:\n{self.log()}")

    def stop(self, seconds: float) -> int:
        """`docker compose stop`: SIGTERM, and SIGKILL after the grace."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def client(self, key: str | None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=False)  # noqa: S501  # a certificate of nobody's


def documented(beginning: str) -> str:
    """The command in the comment at the top of compose.yaml that begins so."""
    (command,) = re.findall(rf"^#   ({re.escape(beginning)}.*)$", COMPOSE.read_text(), re.MULTILINE)
    return str(command)


def key_by_the_documented_command(container: Container) -> str:
    """What `docker compose logs foreman` shows has the container's name in front of each line."""
    source, pipe, rest = documented("docker compose logs foreman").partition("|")
    assert source.strip() == "docker compose logs foreman"
    logs = "".join(f"foreman-1  | {line}\n" for line in container.log().splitlines())
    answer = subprocess.run(
        ["sh", "-c", f"cat {pipe} {rest}"],  # as a person pastes it
        input=logs,
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=True,
    )
    (key,) = answer.stdout.splitlines()
    return key


async def prepare(dsn: str, wanted: Mapping[str, str]) -> None:
    """What the entrypoint of the postgres image does with its environment, as its documentation has it."""
    user, password, name = wanted["POSTGRES_USER"], wanted["POSTGRES_PASSWORD"], wanted["POSTGRES_DB"]
    connection = await asyncpg.connect(dsn)
    try:
        if not await connection.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", user):
            await connection.execute(f'CREATE ROLE "{user}"')
        await connection.execute(f"ALTER ROLE \"{user}\" SUPERUSER LOGIN PASSWORD '{password}'")
        if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", name):
            await connection.execute(f'CREATE DATABASE "{name}" OWNER "{user}"')
    finally:
        await connection.close()


@contextmanager
def postgres_container(folder: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """A new PostgreSQL that lets nobody in over TCP without the password; its port."""
    port = free_port()
    folder.mkdir()
    rules = folder / "pg_hba.conf"
    rules.write_text("local all all trust\nhost all all all scram-sha-256\n")
    rules.chmod(0o644)
    options = {"listen_addresses": "127.0.0.1", "port": str(port), "hba_file": str(rules)}
    with EmbeddedPostgres(folder, durable=False, options=options) as server:
        asyncio.run(prepare(server.dsn, environment))
        yield port


def seconds_of(text: str) -> float:
    found = re.fullmatch(r"(\d+)s", text)
    assert found is not None, text
    return float(found[1])


@pytest.mark.parametrize(
    "variables",
    [{}, {"FOREMAN_POSTGRES_PASSWORD": "5ecret", "FOREMAN_SECRET_KEY": "a passphrase that is long enough"}],
    ids=["without .env", "with .env"],
)
def test_compose_up_prints_a_key_by_which_jobs_are_done_and_without_which_nothing_works(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    services = read_compose(COMPOSE.read_text(), variables)
    foreman, postgres = services["foreman"], services["postgres"]["environment"]
    with postgres_container(tmp_path / "postgres", postgres) as port:
        check_postgres(services["postgres"], port)
        url = foreman["environment"]["FOREMAN_DATABASE_URL"]
        assert url.count("@postgres:5432/") == 1
        reachable = {"FOREMAN_DATABASE_URL": url.replace("@postgres:5432/", f"@127.0.0.1:{port}/")}
        container = Container.made(tmp_path, foreman["environment"] | reachable)
        grace = seconds_of(foreman["stop_grace_period"])
        try:
            container.start()
            key = key_by_the_documented_command(container)
            check_health(container)
            check_job(container, key, with_secret="FOREMAN_SECRET_KEY" in variables)
            check_nothing_works_without(container)
            check_lost_key(container)
            assert container.stop(grace) == 0, container.log()
            assert not [*container.folder.iterdir()], "all that there is to keep is in PostgreSQL"

            container.start()
            assert key_by_the_documented_command(container) == key, "and no other one was printed"
            check_job(container, key, with_secret=False)
            assert container.stop(grace) == 0, container.log()
        finally:
            container.kill()
        for secret in filter(None, variables.values()):
            assert secret not in container.log()


def check_postgres(service: dict[str, Any], port: int) -> None:
    """Its health check finds it, and a wrong password does not open it."""
    program, *arguments = service["healthcheck"]["test"][1:]
    subprocess.run([BINARIES / program, *arguments, f"--port={port}"], check=True, capture_output=True)
    user, name = service["environment"]["POSTGRES_USER"], service["environment"]["POSTGRES_DB"]
    with pytest.raises(asyncpg.InvalidPasswordError):
        asyncio.run(asyncpg.connect(f"postgresql://{user}:wrong@127.0.0.1:{port}/{name}"))


def check_health(container: Container) -> None:
    answer = container.run(*container.image.health_check)
    assert answer.returncode == 0, answer.stderr


def check_job(container: Container, key: str, *, with_secret: bool) -> None:
    """Submitted, waited for, its result read."""
    job = {"model": "echo", "messages": [{"role": "user", "content": "Hello!"}]}
    with container.client(key) as client:
        submitted = client.post("/jobs", json=job)
        assert submitted.status_code == 202, submitted.text
        done = client.get(f"/jobs/{submitted.json()['job_id']}", params={"wait": 60}).json()
        assert done["state"] == "done", done
        assert done["result"]["message"]["content"] == "Hello!"
        hooked = job | {"state_webhook_url": "https://example.com/", "webhook_secret": "whsec_" + "MfKQ" * 8}
        if with_secret:
            answer = client.post("/jobs", json=hooked | {"delay_seconds": 86400})
            assert answer.status_code == 202, answer.text


def check_nothing_works_without(container: Container) -> None:
    job = {"model": "echo", "messages": [{"role": "user", "content": "Hello!"}]}
    with container.client(None) as stranger:
        for answer in (
            stranger.post("/jobs", json=job),
            stranger.get("/jobs"),
            stranger.get("/metrics"),
            stranger.get("/keys"),
            stranger.post("/claims", json={"worker": "w", "queues": ["default"]}),
            stranger.post("/api/chat", json=job),
            stranger.post("/v1/chat/completions", json=job),
            stranger.get("/api/tags"),
        ):
            assert answer.status_code == 401, (answer.request.url, answer.text)
            assert "Hello!" not in answer.text


def check_lost_key(container: Container) -> None:
    """Whoever may enter the container makes another one, as the comment says."""
    words = documented("docker compose exec foreman").removeprefix("docker compose exec foreman ").split()
    answer = container.run(*words)
    assert answer.returncode == 0, answer.stderr
    (key,) = re.findall(r"fmn_[0-9A-Za-z]{36}", answer.stdout)
    with container.client(key) as client:
        made = client.post("/keys", json={"name": "mine", "scopes": ADMIN})
        assert made.status_code == 201, made.text
        assert client.get("/jobs").status_code == 403


def test_the_image_alone_brings_its_own_postgres_and_is_checked_with_a_certificate_too(
    tmp_path: Path,
) -> None:
    container = Container.made(tmp_path, {})
    files = made(tmp_path)
    container.environment |= {"FOREMAN_TLS_CERT": str(files.cert), "FOREMAN_TLS_KEY": str(files.key)}
    container.scheme = "https"
    try:
        container.start()
        check_health(container)
        key = key_by_the_documented_command(container)
        check_job(container, key, with_secret=True)
        check_nothing_works_without(container)
        assert container.stop(30) == 0, container.log()
        assert container.run(*container.image.health_check).returncode != 0
        container.start()
        check_job(container, key_by_the_documented_command(container), with_secret=True)
        assert container.stop(30) == 0, container.log()
    finally:
        container.kill()


def test_the_image_cannot_be_started_without_authentication(tmp_path: Path) -> None:
    container = Container.made(tmp_path, {"FOREMAN_AUTH": "off"})
    answer = container.run(*container.image.entrypoint, *container.image.command)
    assert answer.returncode == 2
    assert "FOREMAN_AUTH" in answer.stderr


def test_the_page_about_deployment_has_the_commands_of_compose_yaml() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    for beginning in ("docker compose up", "docker compose logs foreman", "docker compose exec foreman"):
        assert documented(beginning) in page


def test_no_environment_of_ours_reaches_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "FOREMAN_LEASE_SECONDS", "1")
    container = Container.made(tmp_path, {})
    assert {name for name in container.environment if name.startswith("FOREMAN_")} == {
        "FOREMAN_DATA_DIR",
        "FOREMAN_HOST",
        "FOREMAN_PORT",
    }
    assert str(ROOT) not in container.environment.get("PYTHONPATH", "")
