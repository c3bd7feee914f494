"""Which addresses are never called on behalf of a caller, and how to see through their disguises.

Pure tables and arithmetic. `ipaddress.is_global` is not used: it calls 64:ff9b::7f00:1, 2002:7f00:1::,
192.0.0.8, 224.0.0.1 and others global. For IPv6 the table is closed: what lies outside the one block of
global unicast (2000::/3) is refused even if no rule names it.
"""

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
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


def _rule(cidr: str, reason: str, *, nameable: bool = False) -> Rule:
    return Rule(ip_network(cidr), reason, nameable)


# The first match wins, so the single metadata addresses stand before the blocks that contain them.
RULES = (
    _rule("169.254.169.254/32", METADATA),  # AWS, Google, Azure, most others
    _rule("169.254.170.2/32", METADATA),  # AWS container credentials
    _rule("100.100.100.200/32", METADATA),  # Alibaba, inside the carrier-grade NAT block
    _rule("192.0.0.192/32", METADATA),  # Oracle
    _rule("168.63.129.16/32", METADATA),  # Azure's host agent: a public address, reachable from every guest
    _rule("0.0.0.0/8", "unspecified address"),  # Linux connects 0.0.0.0 to loopback
    _rule("10.0.0.0/8", "private address", nameable=True),
    _rule("100.64.0.0/10", "carrier-grade NAT address", nameable=True),
    _rule("127.0.0.0/8", LOOPBACK, nameable=True),
    _rule("169.254.0.0/16", "link-local address"),
    _rule("172.16.0.0/12", "private address", nameable=True),
    _rule("192.0.0.0/24", "protocol assignment address"),
    _rule("192.0.2.0/24", "documentation address"),
    _rule("192.31.196.0/24", "AS112 address"),
    _rule("192.52.193.0/24", "multicast tunnel address"),
    _rule("192.88.99.0/24", "6to4 relay address"),
    _rule("192.168.0.0/16", "private address", nameable=True),
    _rule("192.175.48.0/24", "AS112 address"),
    _rule("198.18.0.0/15", "benchmarking address"),
    _rule("198.51.100.0/24", "documentation address"),
    _rule("203.0.113.0/24", "documentation address"),
    _rule("224.0.0.0/4", "multicast address"),
    _rule("255.255.255.255/32", "broadcast address"),
    _rule("240.0.0.0/4", "reserved address"),
    _rule("fd00:ec2::254/128", METADATA),  # AWS
    _rule("fd20:ce::254/128", METADATA),  # Google
    _rule("fd00:c1::a9fe:a9fe/128", METADATA),  # Oracle
    _rule("::/128", "unspecified address"),
    _rule("::1/128", LOOPBACK, nameable=True),
    _rule("::/96", "IPv4-compatible address"),
    _rule("::ffff:0:0:0/96", "IPv4-translated address"),
    _rule("64:ff9b:1::/48", "local NAT64 address"),  # where the IPv4 address sits depends on the network
    _rule("100::/64", "discard address"),
    _rule("100:0:0:1::/64", "dummy address"),
    _rule("2001:db8::/32", "documentation address"),
    _rule("2001::/32", "Teredo tunnel address"),
    _rule("2001:2::/48", "benchmarking address"),
    _rule("2001::/23", "protocol assignment address"),
    _rule("2002::/16", "6to4 tunnel address"),
    _rule("2620:4f:8000::/48", "AS112 address"),
    _rule("3ffe::/16", "reserved address"),  # the 6bone, given back
    _rule("3fff::/20", "documentation address"),
    _rule("5f00::/16", "segment routing address"),
    _rule("fc00::/7", "private address", nameable=True),
    _rule("fe80::/10", "link-local address"),
    _rule("fec0::/10", "site-local address"),
    _rule("ff00::/8", "multicast address"),
)

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_OUTSIDE_GLOBAL_UNICAST = _rule("::/0", "reserved address")
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP_MARKS = (0x0000_5EFE, 0x0200_5EFE)
_NUMBER = re.compile("0[xX][0-9A-Fa-f]*|[0-9]+")


def unmapped(address: Address) -> Address:
    """`::ffff:a.b.c.d` is a.b.c.d: the kernel opens an IPv4 connection for it."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@lru_cache(maxsize=2048)  # the same few receivers are called over and over
def rule_against(address: Address) -> Rule | None:
    """The rule that refuses `address`, or None when it is an ordinary public address."""
    address = unmapped(address)
    number = int(address)
    if address in _NAT64:
        # A translator turns it into the IPv4 address in its last 32 bits. Public ones are how an IPv6-only
        # network reaches the IPv4 internet; no private one is ever legitimate here, so none is nameable.
        inner = rule_against(IPv4Address(number & 0xFFFF_FFFF))
        return None if inner is None else Rule(_NAT64, f"{inner.reason} behind NAT64")
    for rule in RULES:
        if address in rule.network:
            return rule
    if address.version == 4:
        return None
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
    if not _NUMBER.fullmatch(labels[-1]):
        return None
    try:
        *leading, last = [_number(label) for label in labels]
        if len(labels) > 4 or any(part > 255 for part in leading) or last >= 256 ** (5 - len(labels)):
            raise ValueError(host)
    except ValueError:
        raise ValueError(f"{host} is not a valid address") from None
    for position, part in enumerate(leading):
        last |= part << (8 * (3 - position))
    return IPv4Address(last)


def _number(label: str) -> int:
    if not _NUMBER.fullmatch(label):
        raise ValueError(label)
    if label[:2] in ("0x", "0X"):
        return int(label[2:] or "0", 16)
    return int(label, 8 if label.startswith("0") else 10)
