"""Servers with each of the three places, for tests that hold for all of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.store.embedded import EmbeddedPostgres
from tests.artifacts.s3 import FakeS3, fake_s3
from tests.conftest import Server
from tests.events.conftest import replicas


@pytest.fixture(scope="session")
def in_postgres(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("artifacts")
    with replicas(postgres, folder, {"FOREMAN_MAX_ARTIFACT_BYTES": "20000000"}) as [server]:
        yield server


@pytest.fixture(scope="session")
def folder_of_artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place") / "of artifacts"


@pytest.fixture(scope="session")
def in_folder(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, folder_of_artifacts: Path
) -> Iterator[Server]:
    place = {"FOREMAN_ARTIFACTS_URL": folder_of_artifacts.as_uri(), "FOREMAN_MAX_ARTIFACT_BYTES": "20000000"}
    with replicas(postgres, tmp_path_factory.mktemp("folder"), place) as [server]:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[FakeS3]:
    with fake_s3() as server:
        yield server


@pytest.fixture(scope="session")
def in_bucket(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, s3: FakeS3
) -> Iterator[Server]:
    place = {"FOREMAN_ARTIFACTS_URL": "s3://bucket/some/prefix", "FOREMAN_MAX_ARTIFACT_BYTES": "20000000"}
    with replicas(postgres, tmp_path_factory.mktemp("bucket"), {**place, **s3.environment}) as [server]:
        yield server


@pytest.fixture(params=["in_postgres", "in_folder", "in_bucket"])
def server(request: pytest.FixtureRequest) -> Server:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Server)
    return found
