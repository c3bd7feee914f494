"""`foreman serve` from its settings to its end."""

import contextlib
import resource
import socket
from collections.abc import Iterator

from app.config import Settings
from app.server import ServeError
from app.server.parent import Parent
from app.server.postgres import database
from app.server.process import serve_here
from app.targets.config import from_environment
from app.telemetry import configure_logging
from app.webhooks.outgoing import Outgoing


def serve(settings: Settings) -> None:
    """Serve until told to stop. Raises SettingsError or ServeError when it cannot begin."""
    configure_logging(settings.log_level, settings.log_format)
    _allow_many_connections()
    # Wrong settings are said before anything is started.
    Outgoing(settings)
    from_environment(settings.ollama_url, settings.ollama_slots, settings.targets)
    with listening_socket(settings) as listener, database(settings) as (ready, postgres):
        welcome = greeting(ready, listener, embedded=postgres is not None)

        def greet() -> None:
            print(welcome, flush=True)  # noqa: T201 - this is for the person who typed `make run`

        if settings.processes == 1:
            serve_here(ready, listener, greet, postgres)
        else:
            Parent(ready, listener, greet, postgres).run()


def _allow_many_connections() -> None:
    """Every stream is a file descriptor, and the usual soft limit is 1,024. Child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS says "infinite" and means something else; then it stays as it is.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def listening_socket(settings: Settings) -> Iterator[socket.socket]:
    """Bound first of all: a port that is taken is said before anything is started."""
    host = settings.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, settings.port))
        except OSError as problem:
            raise ServeError(
                f"Cannot listen on {host}:{settings.port}: {problem.strerror or problem}."
            ) from problem
        yield listener


def greeting(settings: Settings, listener: socket.socket, *, embedded: bool) -> str:
    """What a stranger needs in the first minute: two lines to paste."""
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    where = f"embedded PostgreSQL in {settings.data_dir}" if embedded else "PostgreSQL"
    if settings.role == "worker":
        return f"\nForeman works ({where}); health at {url}/healthz\n"
    reach = "\nWebhooks and http jobs may call this machine (loopback)." if embedded else ""
    submit = '{"model": "echo", "messages": [{"role": "user", "content": "Hello, Foreman!"}]}'
    return (
        f"\nForeman listens on {url} ({where}; no authentication, this machine only){reach}\n\n"
        "Submit a job, then read the newest one:\n\n"
        f"  curl -s {url}/jobs -d '{submit}'\n"
        f"  curl -s \"{url}/jobs/$(curl -s '{url}/jobs?limit=1' | cut -d'\"' -f6)?wait=10\"\n"
    )
