"""A PgBouncer in transaction mode, as many installations have it in front of their PostgreSQL."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.conftest import free_port, wait_until

CONFIG = """
[databases]
* = host=127.0.0.1 port={port} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 200
"""


def binary() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@contextlib.contextmanager
def pgbouncer(dsn: str, folder: Path) -> Iterator[str]:
    """A URL of the same database by way of PgBouncer."""
    parts = urlsplit(dsn)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    listen_port = free_port()
    log_path = folder / "pgbouncer.log"
    with relay(f"{query['host']}/.s.PGSQL.{query['port']}") as port, log_path.open("wb") as log:
        config = folder / "pgbouncer.ini"
        config.write_text(CONFIG.format(port=port, user=parts.username, listen_port=listen_port))
        command = [binary() or "pgbouncer", *(["-u", "nobody"] if os.geteuid() == 0 else []), str(config)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(lambda: _listens(listen_port), 10, log_path.read_text)
            yield f"postgresql://{parts.username}@127.0.0.1:{listen_port}{parts.path}"
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def relay(path: str) -> Iterator[int]:
    """A TCP port that leads to a unix socket which only its owner may open; PgBouncer refuses to be root."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server, path), daemon=True).start()
        yield int(server.getsockname()[1])


def _accept(server: socket.socket, path: str) -> None:
    with contextlib.suppress(OSError):
        while True:
            outer, _ = server.accept()
            inner = socket.socket(socket.AF_UNIX)
            inner.connect(path)
            for source, sink in ((outer, inner), (inner, outer)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
    sink.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
