"""Which addresses are never called on behalf of a caller, and how to see through their disguises.

Pure tables and arithmetic. `ipaddress.is_global` is not used: it calls 64:ff9b::7f00:1, 2002:7f00:1::,
192.0.0.8, 224.0.0.1 and others global. For IPv6 the table is closed: what lies outside the one block of
global unicast (2000::/3) is refused even if no rule names it.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import NamedTuple

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOPBACK = "loopback address"
METADATA = "cloud metadata address"


class Rule(NamedTuple):
    """One refused block. A *nameable* one may be opened by a host name, the others by their CIDR only."""

    network: Network
    reason: str
    nameable: bool = False


def _v4(cidr: str, reason: str, *, nameable: bool = False) -> Rule:
    return Rule(IPv4Network(cidr), reason, nameable)


def _v6(cidr: str, reason: str, *, nameable: bool = False) -> Rule:
    return Rule(IPv6Network(cidr), reason, nameable)


# The first match wins, so the single metadata addresses stand before the blocks that contain them.
IPV4_RULES = (
    _v4("169.254.169.254/32", METADATA),  # AWS, Google, Azure, most others
    _v4("169.254.170.2/32", METADATA),  # AWS container credentials
    _v4("100.100.100.200/32", METADATA),  # Alibaba, inside the carrier-grade NAT block
    _v4("192.0.0.192/32", METADATA),  # Oracle
    _v4("168.63.129.16/32", METADATA),  # Azure's host agent: a public address, reachable from every guest
    _v4("0.0.0.0/8", "unspecified address"),  # Linux connects 0.0.0.0 to loopback
    _v4("10.0.0.0/8", "private address", nameable=True),
    _v4("100.64.0.0/10", "carrier-grade NAT address", nameable=True),
    _v4("127.0.0.0/8", LOOPBACK, nameable=True),
    _v4("169.254.0.0/16", "link-local address"),
    _v4("172.16.0.0/12", "private address", nameable=True),
    _v4("192.0.0.0/24", "protocol assignment address"),
    _v4("192.0.2.0/24", "documentation address"),
    _v4("192.31.196.0/24", "AS112 address"),
    _v4("192.52.193.0/24", "multicast tunnel address"),
    _v4("192.88.99.0/24", "6to4 relay address"),
    _v4("192.168.0.0/16", "private address", nameable=True),
    _v4("192.175.48.0/24", "AS112 address"),
    _v4("198.18.0.0/15", "benchmarking address"),
    _v4("198.51.100.0/24", "documentation address"),
    _v4("203.0.113.0/24", "documentation address"),
    _v4("224.0.0.0/4", "multicast address"),
    _v4("255.255.255.255/32", "broadcast address"),
    _v4("240.0.0.0/4", "reserved address"),
)

IPV6_RULES = (
    _v6("fd00:ec2::254/128", METADATA),  # AWS
    _v6("fd20:ce::254/128", METADATA),  # Google
    _v6("fd00:c1::a9fe:a9fe/128", METADATA),  # Oracle
    _v6("::/128", "unspecified address"),
    _v6("::1/128", LOOPBACK, nameable=True),
    _v6("::/96", "IPv4-compatible address"),
    _v6("::ffff:0:0:0/96", "IPv4-translated address"),
    _v6("64:ff9b:1::/48", "local NAT64 address"),  # where the IPv4 address sits depends on the network
    _v6("100::/64", "discard address"),
    _v6("100:0:0:1::/64", "dummy address"),
    _v6("2001:db8::/32", "documentation address"),
    _v6("2001::/32", "Teredo tunnel address"),
    _v6("2001:2::/48", "benchmarking address"),
    _v6("2001::/23", "protocol assignment address"),
    _v6("2002::/16", "6to4 tunnel address"),
    _v6("2620:4f:8000::/48", "AS112 address"),
    _v6("3ffe::/16", "reserved address"),  # the 6bone, given back
    _v6("3fff::/20", "documentation address"),
    _v6("5f00::/16", "segment routing address"),
    _v6("fc00::/7", "private address", nameable=True),
    _v6("fe80::/10", "link-local address"),
    _v6("fec0::/10", "site-local address"),
    _v6("ff00::/8", "multicast address"),
)

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_OUTSIDE_GLOBAL_UNICAST = _v6("::/0", "reserved address")
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP_MARKS = (0x0000_5EFE, 0x0200_5EFE)


def unmapped(address: Address) -> Address:
    """`::ffff:a.b.c.d` is a.b.c.d: the kernel opens an IPv4 connection for it."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@lru_cache(maxsize=2048)  # the same few receivers are called over and over
def rule_against(address: Address) -> Rule | None:
    """The rule that refuses `address`, or None when it is an ordinary public address."""
    address = unmapped(address)
    if isinstance(address, IPv4Address):
        return next((rule for rule in IPV4_RULES if address in rule.network), None)
    return _rule_against_ipv6(address)


def _rule_against_ipv6(address: IPv6Address) -> Rule | None:
    number = int(address)
    if address in _NAT64:
        # A translator turns it into the IPv4 address in its last 32 bits. Public ones are how an IPv6-only
        # network reaches the IPv4 internet; no private one is ever legitimate here, so none is nameable.
        inner = rule_against(IPv4Address(number & 0xFFFF_FFFF))
        return None if inner is None else Rule(_NAT64, f"{inner.reason} behind NAT64")
    for rule in IPV6_RULES:
        if address in rule.network:
            return rule
    if address not in _GLOBAL_UNICAST:
        return _OUTSIDE_GLOBAL_UNICAST
    if (number >> 32) & 0xFFFF_FFFF in _ISATAP_MARKS:
        return Rule(_GLOBAL_UNICAST, "ISATAP tunnel address")
    return None


def spelled_ipv4(host: str) -> IPv4Address | None:
    """The IPv4 address that a host stands for in any spelling a resolver takes; None when it is a name.

    127.0.0.1, 127.1, 2130706433, 0x7f000001, 0177.0.0.1 and their mixtures are all the same address.
    A host whose last label is a number but which is no address raises ValueError: it cannot be a name.
    """
    labels = host.removesuffix(".").split(".")
    if not _is_number(labels[-1]):
        return None
    if len(labels) > 4:
        raise ValueError(f"{host} is not a valid address")
    *leading, last = [_number(label, host) for label in labels]
    if any(part > 255 for part in leading) or last >= 256 ** (5 - len(labels)):
        raise ValueError(f"{host} is not a valid address")
    value = last
    for position, part in enumerate(leading):
        value |= part << (8 * (3 - position))
    return IPv4Address(value)


def _is_number(label: str) -> bool:
    if label[:2] in ("0x", "0X"):
        return all(digit in "0123456789abcdefABCDEF" for digit in label[2:])
    return label.isascii() and label.isdigit()


def _number(label: str, host: str) -> int:
    try:
        if label[:2] in ("0x", "0X"):
            return int(label[2:] or "0", 16)
        if not (label.isascii() and label.isdigit()):
            raise ValueError(label)
        return int(label, 8) if label.startswith("0") else int(label)
    except ValueError:
        raise ValueError(f"{host} is not a valid address") from None
