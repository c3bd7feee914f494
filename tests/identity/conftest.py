"""One server that needs keys for all tests of this folder; each test makes keys and tenants of its own."""

import uuid

import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server
from tests.serving import serving
from tests.sharing import FolderShare


@pytest.fixture
def guarded(
    share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    quick = {
        "FOREMAN_AUTH": "on",
        "FOREMAN_POLL_SECONDS": "0.2",
        "FOREMAN_SWEEP_SECONDS": "0.2",
        "FOREMAN_SHUTDOWN_GRACE_SECONDS": "1",
        "FOREMAN_OUTBOUND_ALLOW": "127.0.0.1",
        "FOREMAN_SECRET_KEY": "a passphrase that is long enough",
    }
    return share.get("guarded", lambda: serving(postgres, tmp_path_factory.mktemp("guarded"), **quick))


@pytest.fixture
def tenant() -> str:
    """One that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"
