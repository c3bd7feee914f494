"""The address policy: may this URL, or this resolved address, be called on behalf of a caller?

Pure: it resolves nothing and connects to nothing. The client asks it about every address that a name
resolved to; the API asks it about a URL at submit, where only what is written in the URL can be judged.
"""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from app.outbound.addresses import LOOPBACK, Address, Network, rule_against, spelled_ipv4, unmapped
from app.outbound.urls import OutboundUrl, UrlInvalid, canonical_host, parse_url


class AddressPolicy:
    """Refuses what is not the public internet, but for what the operator listed.

    An entry of `allow` is a CIDR, an address, a host name, or `*.suffix` for the names below a suffix. A CIDR
    or address opens exactly that. A name opens the private and loopback blocks for that name only; never
    metadata, link-local, multicast or reserved addresses, so that editing a DNS zone does not reach those.
    """

    def __init__(self, allow: Iterable[str] = (), *, allow_loopback: bool = False) -> None:
        self._networks: list[Network] = []
        self._names: set[str] = set()
        self._suffixes: list[str] = []
        self._allow_loopback = allow_loopback
        for entry in allow:
            self._add(entry.strip())

    def _add(self, entry: str) -> None:
        try:
            if "/" in entry:
                self._networks.append(_network(entry))
            elif (address := _address(entry)) is not None:
                self._networks.append(ip_network(unmapped(address)))
            elif entry.startswith("*."):
                self._suffixes.append("." + _name(entry[2:]))
            else:
                self._names.add(_name(entry))
        except ValueError as error:
            raise ValueError(f"outbound allow entry {entry!r}: {error}") from None

    def refusal(self, address: Address | str, host: str | None = None) -> str | None:
        """Why `address`, reached through the name `host`, must not be connected to; None when it may."""
        address = unmapped(ip_address(address) if isinstance(address, str) else address)
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            return "link-local address"  # only those carry a scope, whatever the number claims
        if any(address in network for network in self._networks if network.version == address.version):
            return None
        rule = rule_against(address)
        if rule is None or (self._allow_loopback and rule.reason == LOOPBACK):
            return None
        if rule.nameable and host is not None and self._lists(host):
            return None
        return rule.reason

    def check_url(self, url: str) -> str | None:
        """Why `url` can never be called, as far as can be told without resolving it; None when it may be."""
        try:
            return self.check_parsed(parse_url(url))
        except UrlInvalid as error:
            return str(error)

    def check_parsed(self, url: OutboundUrl) -> str | None:
        """The same for a URL that was taken apart already."""
        if url.address is not None:
            reason = self.refusal(url.address)
            return None if reason is None else f"the URL's host is not allowed: {reason}"
        is_localhost = f".{url.host}".endswith(".localhost")
        if is_localhost and all(self.refusal(each, url.host) for each in ("127.0.0.1", "::1")):
            return f"the URL's host is not allowed: {LOOPBACK}"
        return None

    def _lists(self, host: str) -> bool:
        return host in self._names or any(host.endswith(suffix) for suffix in self._suffixes)


class _AnyAddress(AddressPolicy):
    def refusal(self, address: Address | str, host: str | None = None) -> str | None:
        return None


# For targets only: they are set up by the operator, not named by callers.
ANY_ADDRESS = _AnyAddress()


def _network(entry: str) -> IPv4Network | IPv6Network:
    network = ip_network(entry)
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ValueError("IPv4-mapped addresses are judged as IPv4: write the IPv4 CIDR")
    return network


def _address(entry: str) -> Address | None:
    try:
        return ip_address(entry)
    except ValueError:
        return None


def _name(entry: str) -> str:
    host = canonical_host(entry)
    if (address := spelled_ipv4(host)) is not None:
        raise ValueError(f"write the address as {address}")
    return host
