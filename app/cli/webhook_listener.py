"""A receiver for trying things out: takes deliveries on a local port, verifies them and shows them."""

import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rich.text import Text

from app.cli.output import STATE_STYLES, Output, plain
from app.jobs.signing import SignatureInvalid, parse_secret, verify
from foreman_client.wire import decode, encode_for_people

MAX_BODY_BYTES = 32 * 1024 * 1024
READ_SECONDS = 20.0


class Listener(ThreadingHTTPServer):
    """Answers each delivery with `status`, or 401 when it cannot be trusted."""

    daemon_threads = True

    def __init__(self, host: str, port: int, secrets: Sequence[str], status: int, show: "Show") -> None:
        for secret in secrets:
            parse_secret(secret)
        super().__init__((host, port), _Handler)
        self.secrets = secrets
        self.status = status
        self.show = show

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"


class Delivery:
    """What came in, and whether it can be trusted: None when there is no secret to tell by."""

    def __init__(self, headers: dict[str, str], body: bytes, secrets: Sequence[str]) -> None:
        self.id = headers.get("webhook-id", "")
        self.headers = headers
        self.problem = _problem(headers, body, secrets)
        self.verified = None if not secrets else self.problem is None
        try:
            self.message: Any = decode(body)
        except ValueError:
            self.message = None
            self.problem = self.problem or "the body is not JSON"


Show = Callable[[Delivery], None]


class _Handler(BaseHTTPRequestHandler):
    server: Listener
    protocol_version = "HTTP/1.1"
    timeout = READ_SECONDS

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and int(length) <= MAX_BODY_BYTES):
            self.send_error(411)
            return
        body = self.rfile.read(int(length))
        headers = {name.lower(): value for name, value in self.headers.items()}
        delivery = Delivery(headers, body, self.server.secrets)
        self.server.show(delivery)
        self.send_response(self.server.status if delivery.verified is not False else 401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass  # what is worth saying is shown


def _problem(headers: dict[str, str], body: bytes, secrets: Sequence[str]) -> str | None:
    missing = [name for name in ("webhook-id", "webhook-timestamp") if name not in headers]
    if missing:
        return f"there is no {missing[0]} header"
    if not secrets:
        return None
    if "webhook-signature" not in headers:
        return "it is not signed"
    try:
        verify(
            secrets,
            message_id=headers["webhook-id"],
            timestamp=headers["webhook-timestamp"],
            signature=headers["webhook-signature"],
            body=body,
            now=time.time(),
        )
    except SignatureInvalid as invalid:
        return str(invalid)
    return None


class Showing:
    """One line per delivery, or one JSON document; a repetition is marked as one."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._seen: set[str] = set()

    def __call__(self, delivery: Delivery) -> None:
        again = delivery.id in self._seen
        self._seen.add(delivery.id)
        if self._out.as_json:
            self._out.json_line(
                {
                    "webhook_id": delivery.id,
                    "verified": delivery.verified,
                    "problem": delivery.problem,
                    "repeated": again,
                    "message": delivery.message,
                }
            )
        else:
            self._out.console.print(self._line(delivery, again))

    def _line(self, delivery: Delivery, again: bool) -> Text:
        data = delivery.message.get("data") if isinstance(delivery.message, dict) else None
        data = data if isinstance(data, dict) else {}
        state = str(data.get("state", ""))
        kind = str(delivery.message.get("type", "?")) if isinstance(delivery.message, dict) else "?"
        line = Text(time.strftime("%H:%M:%S "), style="dim")
        line.append(plain(f"{delivery.id or '(no webhook-id)'} "), style="default")
        line.append(plain(f"{kind} "), style=STATE_STYLES.get(state, ""))
        if delivery.verified:
            line.append("signature verified", style="green")
        elif delivery.problem:
            line.append(plain(f"NOT TRUSTED: {delivery.problem}"), style="bold red")
        else:
            line.append("signature not checked", style="yellow")
        if again:
            line.append(" (again)", style="yellow")
        for name in ("error", "result"):
            if data.get(name) is not None:
                line.append(plain(f" {name} {_short(data[name])}"), style="default")
        return line


def _short(value: Any) -> str:
    text = encode_for_people(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
