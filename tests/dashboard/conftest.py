"""Two servers for all tests of this folder: one in development mode, one that asks for keys."""

import uuid
from collections.abc import Iterator

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from app.identity.scopes import ALL_SCOPES
from tests.conftest import Server
from tests.dashboard.visitor import Visitor
from tests.serving import serving
from tests.sharing import FolderShare

QUICK = {
    "FOREMAN_POLL_SECONDS": "0.2",
    "FOREMAN_SWEEP_SECONDS": "0.2",
    "FOREMAN_SHUTDOWN_GRACE_SECONDS": "1",
    "FOREMAN_OUTBOUND_ALLOW": "127.0.0.1",
    "FOREMAN_SECRET_KEY": "a passphrase that is long enough",
}


@pytest.fixture
def opened(
    share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    return share.get("opened", lambda: serving(postgres, tmp_path_factory.mktemp("opened"), **QUICK))


@pytest.fixture
def guarded(
    share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    keyed = QUICK | {"FOREMAN_AUTH": "on"}
    return share.get("guarded", lambda: serving(postgres, tmp_path_factory.mktemp("guarded"), **keyed))


@pytest.fixture
def visitor(opened: Server) -> Iterator[Visitor]:
    """Somebody at the dashboard of the server that asks for no key."""
    visitor = Visitor(opened.url)
    with visitor.http:
        yield visitor


@pytest.fixture
def stranger(guarded: Server) -> Iterator[Visitor]:
    """Somebody who has not signed in yet."""
    visitor = Visitor(guarded.url)
    with visitor.http:
        yield visitor


@pytest.fixture
def admin(guarded: Server, stranger: Visitor) -> Visitor:
    stranger.sign_in(guarded.admin_key)
    return stranger


@pytest.fixture
def tenant() -> str:
    """One that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def caller(guarded: Server, tenant: str) -> Iterator[httpx.Client]:
    """A program that may do everything in its tenant."""
    with guarded.client(guarded.key(tenant, *ALL_SCOPES)) as client:
        yield client
