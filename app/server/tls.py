"""TLS of our own: the certificate and its key, renewed without a restart.

The two files are looked at now and then, in every process for itself. That works where a signal does not
reach: in a container, behind `--processes N`, with a secret that is swapped by its link. What is new is tried
in a context of its own; only if all of it is good do the next handshakes get it. A broken one changes
nothing, and is said.
"""

import ssl
from pathlib import Path

import structlog

from app.config import Settings
from app.server import ServeError

log = structlog.get_logger()

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
# Whatever comes before: RSA, EC, ENCRYPTED or nothing.
_KEY = b"PRIVATE KEY-----"
# Who a file is, and which edition: inode, size, time of its last change. None: it cannot be looked at.
Stamp = tuple[tuple[int, int, int, int] | None, ...]


class _NeedsPassphrase(Exception):
    """The key is encrypted, and nobody is there to be asked."""


class Tls:
    """`context` is what connections are accepted with, for as long as the process lives."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Raises ServeError if the two cannot be used."""
        self._files = cert, key
        # Before they are read: what changes meanwhile is seen as a change.
        self._read = self._seen = self._stamp()
        self.context = self._current = load(cert, key)
        self.context.sni_callback = self._choose

    def look(self) -> None:
        """Take what is new, once it is the same as at the last look: to write two files takes a moment."""
        stamp = self._stamp()
        settled, self._seen = stamp == self._seen, stamp
        if stamp == self._read or not settled:
            return
        self._read = stamp
        try:
            self._current = load(*self._files)
        except ServeError as problem:
            log.error("tls.not_renewed", problem=str(problem), serves="the old certificate")  # noqa: TRY400 - it says it all
        else:
            log.info("tls.renewed", certificate=str(self._files[0]))

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        """For every handshake, whether it names a server or not. Those before keep what they have."""
        if self._current is not self.context:
            connection.context = self._current

    def _stamp(self) -> Stamp:
        return tuple(_stamp_of(each) for each in self._files)


def configured(settings: Settings) -> Tls | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Tls(settings.tls_cert, settings.tls_key)


def load(cert: Path, key: Path) -> ssl.SSLContext:
    """A context with the two. Raises ServeError with what is wrong, in words: OpenSSL has few."""
    if _CERTIFICATE not in _bytes_of("FOREMAN_TLS_CERT", cert):
        raise ServeError(f"FOREMAN_TLS_CERT: there is no certificate (PEM) in {cert}.")
    if _KEY not in _bytes_of("FOREMAN_TLS_KEY", key):
        raise ServeError(f"FOREMAN_TLS_KEY: there is no private key (PEM) in {key}.")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a function, OpenSSL would ask the terminal for a passphrase, and wait.
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except _NeedsPassphrase:
        raise ServeError(
            f"FOREMAN_TLS_KEY: the key in {key} is encrypted. Foreman asks nobody for a passphrase: "
            "give it the key without one, in a file that only it can read."
        ) from None
    except ssl.SSLError as problem:
        if problem.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}:
            raise ServeError(
                f"FOREMAN_TLS_KEY: the key in {key} is not that of the certificate in {cert}. "
                "The server's own certificate comes first in its file, then those that vouch for it."
            ) from problem
        raise ServeError(
            f"The certificate in {cert} and the key in {key} cannot be used: "
            f"{(problem.reason or str(problem)).replace('_', ' ').lower()}."
        ) from problem
    except OSError as problem:
        # It was there a moment ago.
        raise ServeError(f"Cannot read {cert} and {key}: {problem.strerror or problem}.") from problem
    return context


def _no_passphrase() -> str:
    raise _NeedsPassphrase


def _bytes_of(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise ServeError(f"{setting}: cannot read {path}: {problem.strerror or problem}.") from problem


def _stamp_of(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
