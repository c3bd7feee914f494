"""Taking a caller's URL apart, strictly: what two parsers could read differently is refused.

Pure. A URL that passes has a scheme, a host in ASCII (or an address, whatever its spelling), a port and a
request target ready for the wire. Nothing is resolved here.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import quote

import idna

from app.outbound.addresses import Address, spelled_ipv4, unmapped

MAX_URL_LENGTH = 2048

# Scheme, host and port: what a connection can be shared by.
Origin = tuple[str, str, int]

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Spaces and controls smuggle headers, a backslash is a slash to some parsers and a letter to others.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\s\\\ud800-\udfff]")
# RFC 3986, appendix B. Not urlsplit, whose idea of a URL changes between versions of Python.
_PARTS = re.compile(
    r"(?P<scheme>[^:/?#]*):(?://(?P<netloc>[^/?#]*))?(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?:#.*)?"
)
_NETLOC = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:]+))(?::(?P<port>[0-9]{0,5}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_PATH_SAFE = "/%:@!$&'()*+,;=-._~"
_QUERY_SAFE = _PATH_SAFE + "?"


class UrlInvalid(ValueError):
    """A URL that cannot be called; the text says why, without repeating the URL."""


@dataclass(frozen=True, slots=True)
class OutboundUrl:
    """A URL taken apart. `host` is the canonical name or address, without brackets."""

    scheme: str
    host: str
    port: int
    target: str
    address: Address | None
    host_header: str

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def origin(self) -> Origin:
        return (self.scheme, self.host, self.port)


@lru_cache(maxsize=2048)  # the same few receivers are called over and over
def parse_url(url: str) -> OutboundUrl:
    """Take `url` apart, or raise UrlInvalid with a reason for the caller."""
    if len(url) > MAX_URL_LENGTH:
        raise UrlInvalid(f"the URL is longer than {MAX_URL_LENGTH} characters")
    if _FORBIDDEN.search(url):
        raise UrlInvalid("the URL contains a space, a control character or a backslash")
    parts = _PARTS.fullmatch(url)
    scheme = parts["scheme"].lower() if parts else ""
    if parts is None or scheme not in _DEFAULT_PORTS:
        raise UrlInvalid("the URL must start with http:// or https://")
    host, address, port = _split_netloc(parts["netloc"] or "", _DEFAULT_PORTS[scheme])
    target = quote(parts["path"], safe=_PATH_SAFE) or "/"
    if parts["query"]:
        target += "?" + quote(parts["query"], safe=_QUERY_SAFE)
    bracketed = f"[{host}]" if ":" in host else host
    host_header = bracketed if port == _DEFAULT_PORTS[scheme] else f"{bracketed}:{port}"
    return OutboundUrl(scheme, host, port, target, address, host_header)


def url_problem(url: str) -> str | None:
    """Why `url` cannot be called by anybody; None when it can."""
    try:
        parse_url(url)
    except UrlInvalid as problem:
        return str(problem)
    return None


def _split_netloc(netloc: str, default_port: int) -> tuple[str, Address | None, int]:
    if not netloc:
        raise UrlInvalid("the URL has no host")
    if "@" in netloc:
        raise UrlInvalid("the URL must not contain credentials")
    match = _NETLOC.fullmatch(netloc)
    if match is None:
        raise UrlInvalid("the URL's host or port is not valid")
    port = int(match["port"] or default_port)
    if not 1 <= port <= 65535:
        raise UrlInvalid("the URL's port is not valid")
    if match["ipv6"] is not None:
        try:
            address = unmapped(IPv6Address(match["ipv6"]))
        except AddressValueError:
            raise UrlInvalid("the URL's host is not a valid IPv6 address") from None
        return str(address), address, port
    host = canonical_host(match["host"])
    try:
        ipv4 = spelled_ipv4(host)
    except ValueError:
        raise UrlInvalid("the URL's host is not a valid IPv4 address") from None
    return (host, None, port) if ipv4 is None else (str(ipv4), ipv4, port)


def canonical_host(host: str) -> str:
    """A host name as it goes on the wire: ASCII, lower case, no trailing dot. UrlInvalid when it is none."""
    if not host.isascii():
        # Mapped first: with circled or full-width digits, too, it may be the spelling of an address.
        try:
            host = idna.encode(host, uts46=True).decode("ascii")
        except UnicodeError:
            raise UrlInvalid("the host is not a valid internationalised name") from None
    host = host.lower().removesuffix(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise UrlInvalid("the host is not a valid name")
    return host
