"""Servers with each of the three places, for tests that hold for all of them."""

from pathlib import Path

import pytest

from app.embedded import EmbeddedPostgres
from tests.artifacts.s3 import FakeS3, fake_s3
from tests.conftest import Server
from tests.events.conftest import replicas
from tests.sharing import FolderShare

LARGE = {"FOREMAN_MAX_ARTIFACT_BYTES": "20000000"}


@pytest.fixture
def in_postgres(
    share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    folder = tmp_path_factory.mktemp
    [server] = share.get("in postgres", lambda: replicas(postgres, folder("artifacts"), LARGE))
    return server


@pytest.fixture(scope="session")
def folder_of_artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place") / "of artifacts"


@pytest.fixture
def in_folder(
    share: FolderShare,
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    folder_of_artifacts: Path,
) -> Server:
    folder, place = tmp_path_factory.mktemp, {"FOREMAN_ARTIFACTS_URL": folder_of_artifacts.as_uri()}
    [server] = share.get("in folder", lambda: replicas(postgres, folder("folder"), {**LARGE, **place}))
    return server


@pytest.fixture
def s3(share: FolderShare) -> FakeS3:
    return share.get("s3", fake_s3)


@pytest.fixture
def in_bucket(
    share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, s3: FakeS3
) -> Server:
    folder, place = tmp_path_factory.mktemp, {"FOREMAN_ARTIFACTS_URL": "s3://bucket/some/prefix"}
    settings = {**LARGE, **place, **s3.environment}
    [server] = share.get("in bucket", lambda: replicas(postgres, folder("bucket"), settings))
    return server


@pytest.fixture(params=["in_postgres", "in_folder", "in_bucket"])
def server(request: pytest.FixtureRequest) -> Server:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Server)
    return found
