"""A receiver for trying things out: takes deliveries on a local port, verifies them and shows them."""

import ipaddress
import socket
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from app.cli.output import DIM, STATE_STYLES, Output, has_colours, plain
from app.cli.table import painted
from app.cli.times import exact
from app.jobs.signing import SignatureInvalid, parse_secret, verify
from foreman_client.wire import decode, encode_for_people

MAX_BODY_BYTES = 32 * 1024 * 1024
READ_SECONDS = 20.0
# What a delivery says beside its state.
TOLD = ("error", "result")


class Listener(ThreadingHTTPServer):
    """Answers each delivery with `status`, or 401 when it cannot be trusted."""

    daemon_threads = True

    def __init__(self, host: str, port: int, secrets: Sequence[str], status: int, show: "Show") -> None:
        for secret in secrets:
            parse_secret(secret)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host.strip("[]"), port), _Handler)
        self.secrets = secrets
        self.status = status
        self.show = show

    def url_for(self, server: str) -> str:
        """By which the server at this address may call: where all addresses are taken, the one it sees."""
        host, port = str(self.server_address[0]), self.server_address[1]
        if ipaddress.ip_address(host).is_unspecified:
            host = _address_towards(server, self.address_family) or socket.gethostname()
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def cannot_be_reached_by(self, server: str) -> bool:
        """It listens to this machine alone, and the server is on another."""
        is_local = ipaddress.ip_address(str(self.server_address[0])).is_loopback
        towards = _address_towards(server, socket.AF_INET) or _address_towards(server, socket.AF_INET6)
        return is_local and towards is not None and not ipaddress.ip_address(towards).is_loopback


def _address_towards(server: str, family: int) -> str | None:
    """The address of this machine that packets to the server leave from. Nothing is sent."""
    parts = urlsplit(server)
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname or "", parts.port or 80))
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return None


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
            sys.stdout.write(self._line(delivery, again) + "\n")
            sys.stdout.flush()

    def _line(self, delivery: Delivery, again: bool) -> str:
        data = delivery.message.get("data") if isinstance(delivery.message, dict) else None
        data = data if isinstance(data, dict) else {}
        kind = str(delivery.message.get("type", "?")) if isinstance(delivery.message, dict) else "?"
        if delivery.verified:
            trusted = ("signature verified", "32")
        elif delivery.problem:
            trusted = (f"NOT TRUSTED: {delivery.problem}", "1;31")
        else:
            trusted = ("signature not checked", "33")
        parts = [
            (exact(datetime.now(UTC)), DIM),
            (delivery.id or "(no webhook-id)", ""),
            (kind, STATE_STYLES.get(str(data.get("state", "")), "")),
            trusted,
            ("(again)" if again else "", "33"),
            *(
                (f"{name} {_short(data[name])}", "")
                for name in ("error", "result")
                if data.get(name) is not None
            ),
        ]
        colours = has_colours(sys.stdout)
        return " ".join(painted(plain(text), style, colours) for text, style in parts if text)


def _short(value: Any) -> str:
    text = encode_for_people(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
