"""Settings: read once, checked all together, every wrong or unknown one named; and every one documented."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from app.cli.root import build
from app.cli.serve import ENVIRONMENT_ONLY
from app.config import PREFIX, Settings, SettingsError, is_loopback, load_settings
from tests.conftest import ROOT

OPERATORS_PAGE = ROOT / "docs" / "operators.md"


def problems(**environment: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(environment)
    return str(caught.value).splitlines()


def test_the_defaults_are_those_of_the_specification() -> None:
    settings = load_settings({})
    assert settings.database_url is None
    assert settings.data_dir == Path(".foreman")
    assert (settings.host, settings.port, settings.role, settings.processes) == ("127.0.0.1", 8080, "all", 1)
    assert (settings.lease_seconds, settings.sweep_seconds) == (30, 5)
    assert (settings.cancel_grace_seconds, settings.shutdown_grace_seconds) == (10, 20)
    assert (settings.max_body_bytes, settings.max_json_depth) == (16 * 1024 * 1024, 64)


def test_the_environment_is_read_and_flags_win() -> None:
    environment = {
        "FOREMAN_PORT": "9000",
        "FOREMAN_LEASE_SECONDS": "1.5",
        "FOREMAN_ROLE": "worker",
        "PATH": "x",
    }
    settings = load_settings(environment)
    assert (settings.port, settings.lease_seconds, settings.role) == (9000, 1.5, "worker")
    assert load_settings(environment, port=9001, role=None).port == 9001
    assert load_settings(environment, port=9001, role=None).role == "worker"


def test_only_the_environment_that_is_handed_in_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREMAN_PORT", "9000")
    assert load_settings({}).port == 8080
    assert load_settings().port == 9000


def test_an_empty_variable_is_none() -> None:
    assert load_settings({"FOREMAN_PORT": "", "FOREMAN_DATABASE_URL": ""}).port == 8080


def test_the_clients_own_variables_are_no_settings_of_the_server() -> None:
    load_settings({"FOREMAN_URL": "http://x", "FOREMAN_API_KEY": "k"})


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("FOREMAN_PROT", "FOREMAN_PORT"),
        ("FOREMAN_LEASE_SECOND", "FOREMAN_LEASE_SECONDS"),
        ("FOREMAN_DATABASE", "FOREMAN_DATABASE_URL"),
        ("FOREMAN_WORKERS_SLOTS", "FOREMAN_WORKER_SLOTS"),
        ("FOREMAN_SHUTDOWN_GRACE", "FOREMAN_SHUTDOWN_GRACE_SECONDS"),
    ],
)
def test_an_unknown_setting_is_named_with_the_nearest_one(given: str, nearest: str) -> None:
    [problem] = problems(**{given: "1"})
    assert problem == f"{given} is not a setting; did you mean {nearest}?"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FOREMAN_PORT", "abc"),
        ("FOREMAN_PORT", "70000"),
        ("FOREMAN_PORT", "-1"),
        ("FOREMAN_ROLE", "boss"),
        ("FOREMAN_LEASE_SECONDS", "0"),
        ("FOREMAN_LEASE_SECONDS", "nan"),
        ("FOREMAN_PROCESSES", "0"),
        ("FOREMAN_MAX_BODY_BYTES", "16MB"),
        ("FOREMAN_DATABASE_URL", "mysql://x"),
        ("FOREMAN_LOG_LEVEL", "loud"),
        ("FOREMAN_AUTH", "maybe"),
        ("FOREMAN_KEY_REQUESTS_PER_SECOND", "-1"),
        ("FOREMAN_CORS_ORIGINS", "*"),
        ("FOREMAN_CORS_ORIGINS", "https://chat.example, null"),
        ("FOREMAN_CORS_ORIGINS", "chat.example"),
        ("FOREMAN_CORS_ORIGINS", "https://chat.example/"),
        ("FOREMAN_ALLOWED_HOSTS", "*"),
        ("FOREMAN_ALLOWED_HOSTS", "jobs.example:8080"),
        ("FOREMAN_ALLOWED_HOSTS", "http://jobs.example"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    [problem] = problems(**{name: value})
    assert problem.startswith(f"{name}: ")
    assert len(problem) > len(name) + 10


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@h:port/d",
        "postgresql://u:hunter2@h:99999/d",
        "postgresql://u:hunter2@h:0/d",
        "postgresql://u:hunter2@h:-1/d",
        "postgresql://u:hunter2@h:5432x/d",
        "postgresql://u:hunter2/x@h:5432/d",
        "postgresql://u:hunter2#x@h:5432/d",
        "postgresql://u:hunter2@h1:5432,h2:54321111/d",
        "postgresql://u:hunter2@[::1]:port/d",
        "postgresql://u:hunter2@/d?host=h&port=many",
        "postgresql+asyncpg://u:hunter2@/d?host=h1:5432&host=h2:x",
    ],
)
def test_a_port_that_is_none_is_said_in_one_line(url: str) -> None:
    for name in ("FOREMAN_DATABASE_URL", "FOREMAN_LISTEN_DATABASE_URL"):
        [problem] = problems(**{name: url})
        assert problem == f"{name}: has a port that is not a number from 1 to 65535"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://hunter2@[::1/d",
        "postgresql://u:hunter2@h1,,h2/d",
        "postgresql://u:hunt@er2@h/d",
        "postgresql://u:hunt@er:2@h/d",
        "postgresql://u:12?hunter2@h/d",
        "postgresql://u:hunter2\u2100@h/d",
        "postgresql://u:[hunter2@h/d",
    ],
)
def test_what_is_no_url_is_said_in_one_line_that_has_nothing_of_it(url: str) -> None:
    for name in ("FOREMAN_DATABASE_URL", "FOREMAN_LISTEN_DATABASE_URL"):
        [problem] = problems(**{name: url})
        assert problem.startswith(f"{name}: is not a URL")
        assert "hunt" not in problem


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/d",
        "postgresql://u:p%40ss:word@h:5432/d",
        "postgresql://u:1:2@h:5432/d",
        "postgresql://h:/d",
        "postgresql://[::1]/d",
        "postgresql://[::1]:5432/d",
        "postgresql://u@h1:5432,h2,h3:5433/d?target_session_attrs=read-write",
        "postgresql:///d?host=/tmp/so:cket&port=5432",
        "postgresql://u@/d?host=h1:5432&host=h2:5433",
        "postgresql://u@/d?host=::1",
    ],
)
def test_good_ports_in_all_their_spellings_are_taken(url: str) -> None:
    assert load_settings({"FOREMAN_DATABASE_URL": url}).database_url == url


@pytest.mark.parametrize("command", ["serve", "work", "migrate"])
def test_a_bad_port_ends_each_command_with_a_line_and_no_traceback(command: str) -> None:
    environment = {"FOREMAN_DATABASE_URL": "postgresql://u:hunter2@h:port/d"}
    ended = CliRunner().invoke(build([command]), [command], env=environment)
    assert ended.exit_code == 2
    assert ended.stderr == "foreman: FOREMAN_DATABASE_URL: has a port that is not a number from 1 to 65535\n"


def test_all_that_is_wrong_is_said_at_once() -> None:
    said = problems(FOREMAN_PORT="x", FOREMAN_NONSENSE="1", FOREMAN_ROLE="boss", FOREMAN_LEASE="2")
    assert {line.split(":")[0].split(" ")[0] for line in said} == {
        "FOREMAN_PORT",
        "FOREMAN_NONSENSE",
        "FOREMAN_ROLE",
        "FOREMAN_LEASE",
    }


def test_a_value_is_never_repeated_for_it_may_be_a_secret() -> None:
    assert "hunter2" not in "".join(problems(FOREMAN_DATABASE_URL="mysql://u:hunter2@h/d"))
    assert "hunter2" not in repr(load_settings({"FOREMAN_SECRET_KEY": "hunter2" * 10}))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("127.0.0.1.example.org", False),
        ("", False),
    ],
)
def test_what_counts_as_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_settings_do_not_change_once_read() -> None:
    settings = load_settings({})
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1  # type: ignore[misc]


def test_every_setting_says_what_it_means() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name


# -- as a process ----------------------------------------------------------------------------------------


def foreman(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT,
        env={**clean, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_wrong_setting_ends_the_server_with_2_and_one_line_each() -> None:
    ended = foreman("serve", FOREMAN_PROT="1", FOREMAN_HOST="0.0.0.0", FOREMAN_AUTH="off")
    assert ended.returncode == 2
    assert "FOREMAN_PROT is not a setting; did you mean FOREMAN_PORT?" in ended.stderr
    assert "FOREMAN_AUTH: off is for this machine only" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert all(line.startswith("foreman: ") for line in ended.stderr.splitlines())


def test_a_wrong_flag_ends_the_server_with_2() -> None:
    assert foreman("serve", "--lease-seconds", "0").returncode == 2
    ended = foreman("serve", "--prot", "1")
    assert ended.returncode == 2
    assert "--port" in ended.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("FOREMAN_OUTBOUND_ALLOW", "10.0.0.0/99"), ("FOREMAN_TARGETS", "/no/such/file.toml")]
)
def test_a_setting_that_is_found_wrong_later_ends_with_2_too(name: str, value: str) -> None:
    ended = foreman("serve", **{name: value})
    assert ended.returncode == 2, ended.stderr
    assert name in ended.stderr
    assert "Traceback" not in ended.stderr


def test_every_setting_but_secrets_is_a_flag_of_serve() -> None:
    text = foreman("serve", "--help").stdout
    for name in Settings.model_fields:
        flag = f"--{name.replace('_', '-')} "
        assert (flag in text) is (name not in ENVIRONMENT_ONLY), name


# -- the page for operators ------------------------------------------------------------------------------


def test_every_setting_is_documented_with_its_default_and_no_other_is() -> None:
    rows = dict(
        re.findall(r"^\| `(FOREMAN_[A-Z_]+)` \| ([^|]*) \|", OPERATORS_PAGE.read_text(), re.MULTILINE)
    )
    assert set(rows) == {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name, field in Settings.model_fields.items():
        said = rows[f"{PREFIX}{name.upper()}"].strip()
        expected = "" if field.default in {None, ""} else f"`{field.default}`"
        assert said == expected, name


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost", "127.8.8.8"])
def test_the_embedded_development_mode_on_loopback_needs_no_key(host: str) -> None:
    assert load_settings({"FOREMAN_HOST": host}).auth == "off"
    assert load_settings({"FOREMAN_HOST": host, "FOREMAN_AUTH": "on"}).auth == "on"
    with_database = {"FOREMAN_HOST": host, "FOREMAN_DATABASE_URL": "postgresql://x/"}
    assert load_settings(with_database).auth == "on", "it is no development mode"
    assert load_settings(with_database | {"FOREMAN_AUTH": "off"}).auth == "off"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
@pytest.mark.parametrize("url", ["", "postgresql://x/"])
def test_what_others_can_reach_needs_a_key_always(host: str, url: str) -> None:
    environment = {"FOREMAN_HOST": host, "FOREMAN_DATABASE_URL": url}
    assert load_settings(environment).auth == "on"
    with pytest.raises(
        SettingsError, match=r"FOREMAN_AUTH: off is for this machine only.*listen on 127\.0\.0\.1"
    ):
        load_settings(environment | {"FOREMAN_AUTH": "off"})


@pytest.mark.parametrize(
    ("environment", "exported"),
    [
        ({}, "off"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, "off"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "on"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, "on"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, "off"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "FOREMAN_TRACES": "auto"}, "on"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "FOREMAN_TRACES": "off"}, "off"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, "off"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, "off"),
        ({"FOREMAN_TRACES": "on"}, "on"),
    ],
)
def test_traces_are_exported_where_a_collector_is_named(environment: dict[str, str], exported: str) -> None:
    assert load_settings(environment).traces == exported
