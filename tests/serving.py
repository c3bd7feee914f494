"""Servers for tests that only look at their own jobs: one for all tests of a file."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.embedded import EmbeddedPostgres
from tests.conftest import TEMPLATE, Server, _create_database, _drop_database, free_port, run


@contextmanager
def serving(postgres: EmbeddedPostgres, folder: Path, **environment: str) -> Iterator[Server]:
    name = f"shared_{uuid.uuid4().hex[:12]}"
    run(_create_database(postgres.dsn, name, TEMPLATE))
    try:
        server = Server(postgres.dsn_for(name), free_port(), environment, log_path=folder / "server.log")
        try:
            yield server.start()
        finally:
            server.stop()
    finally:
        run(_drop_database(postgres.dsn, name))
