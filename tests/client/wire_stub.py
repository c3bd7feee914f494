"""A server that says what it is told to say, over a real socket: for answers a healthy server never gives."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    # Read the request, then close the connection without a word.
    cut: bool = False


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class WireStub:
    """Gives its answers in order; the last one again and again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: list[Seen] = []
        self._answers: list[Answer] = []
        self._lock = threading.Lock()

    def answers(self, *answers: Answer) -> None:
        self._answers = list(answers)

    def next_answer(self, seen: Seen) -> Answer:
        with self._lock:
            self.seen.append(seen)
            return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def problem(status: int, code: str, detail: str = "no", **extra: Any) -> Answer:
    headers = {"Retry-After": str(extra.pop("retry_after"))} if "retry_after" in extra else {}
    return Answer(status, {"code": code, "detail": detail, "status": status, **extra}, headers)


ACCEPTED = Answer(202, {"job_id": "01J00000000000000000000001", "state": "queued", "outcome": "accepted"})


@contextmanager
def running_stub() -> Iterator[WireStub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = stub.next_answer(Seen(self.command, self.path, headers, self.rfile.read(length)))
            if answer.cut:
                self.close_connection = True
                return
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815  # the base class looks for these names

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub = WireStub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
