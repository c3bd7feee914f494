"""Pages over a database that is away: they say so, and come back by themselves."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from app.store.migrate import migrate
from tests.conftest import Server, free_port, run, wait_until
from tests.dashboard.conftest import QUICK
from tests.dashboard.visitor import Visitor, text_of


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """One that this test may stop."""
    with EmbeddedPostgres(tmp_path / "postgres", durable=False) as server:
        run(migrate(server.dsn))
        yield server


@pytest.fixture
def server(own_postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Server]:
    server = Server(own_postgres.dsn, free_port(), QUICK | {"FOREMAN_AUTH": "on"}, log_path=tmp_path / "log")
    yield server.start()
    server.kill()


def test_a_page_says_that_the_database_is_away_and_tries_again_by_itself(
    own_postgres: EmbeddedPostgres, server: Server
) -> None:
    visitor = Visitor(server.url)
    with visitor.http:
        visitor.sign_in(server.admin_key)
        visitor.get("/ui/workers")
        own_postgres.stop()
        wait_until(lambda: visitor.http.get("/ui/workers").status_code == 503, 60)
        for path in ("/ui", "/ui/jobs", "/ui/queues", "/ui/usage"):
            page = visitor.get(path, 503)
            assert '<meta http-equiv="refresh"' in page, "without script, too"
            assert "This page tries again by itself" in text_of(page)
        # An open page asks for what has changed: its session has not ended, the database is away.
        answer = visitor.http.get("/ui/workers", headers={"HX-Request": "true"})
        assert answer.status_code == 503
        assert "postgres" not in answer.text.lower()
        # What needs no database is there all the same.
        assert httpx.get(f"{server.url}/ui/static/foreman.css").status_code == 200
        own_postgres.start()
        wait_until(lambda: visitor.http.get("/ui/workers").status_code == 200, 60)
