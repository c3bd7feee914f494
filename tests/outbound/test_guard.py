"""The address policy and the static check of URLs, as tables."""

from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config import listed
from app.outbound.addresses import rule_against, spelled_ipv4
from app.outbound.guard import AddressPolicy
from app.outbound.urls import UrlInvalid, parse_url

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "168.63.129.15",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "192.88.98.255",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2001:200::1",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2a00:1450:4001:829::200e",
]

REFUSED = [
    ("0.0.0.0", "unspecified address"),
    ("0.1.2.3", "unspecified address"),
    ("10.0.0.1", "private address"),
    ("10.255.255.255", "private address"),
    ("100.64.0.1", "carrier-grade NAT address"),
    ("100.100.100.200", "cloud metadata address"),
    ("127.0.0.1", "loopback address"),
    ("127.255.255.254", "loopback address"),
    ("168.63.129.16", "cloud metadata address"),
    ("169.254.0.1", "link-local address"),
    ("169.254.169.254", "cloud metadata address"),
    ("169.254.170.2", "cloud metadata address"),
    ("172.16.0.1", "private address"),
    ("172.31.255.255", "private address"),
    ("192.0.0.8", "protocol assignment address"),
    ("192.0.0.192", "cloud metadata address"),
    ("192.0.2.1", "documentation address"),
    ("192.31.196.1", "AS112 address"),
    ("192.52.193.1", "multicast tunnel address"),
    ("192.88.99.1", "6to4 relay address"),
    ("192.168.0.1", "private address"),
    ("192.175.48.1", "AS112 address"),
    ("198.18.0.1", "benchmarking address"),
    ("198.19.255.255", "benchmarking address"),
    ("198.51.100.1", "documentation address"),
    ("203.0.113.1", "documentation address"),
    ("224.0.0.1", "multicast address"),
    ("239.255.255.255", "multicast address"),
    ("240.0.0.1", "reserved address"),
    ("255.255.255.255", "broadcast address"),
    ("::", "unspecified address"),
    ("::1", "loopback address"),
    ("::2", "IPv4-compatible address"),
    ("::127.0.0.1", "IPv4-compatible address"),
    ("::8.8.8.8", "IPv4-compatible address"),
    ("::ffff:127.0.0.1", "loopback address"),
    ("::ffff:169.254.169.254", "cloud metadata address"),
    ("::ffff:10.0.0.1", "private address"),
    ("::ffff:0:127.0.0.1", "IPv4-translated address"),
    ("64:ff9b::7f00:1", "loopback address behind NAT64"),
    ("64:ff9b::a9fe:a9fe", "cloud metadata address behind NAT64"),
    ("64:ff9b::10.0.0.1", "private address behind NAT64"),
    ("64:ff9b:1::808:808", "local NAT64 address"),
    ("64:ff9b:1:7f00:0:100::", "local NAT64 address"),
    ("64:ff9b:0:1::1", "reserved address"),
    ("100::1", "discard address"),
    ("100:0:0:1::1", "dummy address"),
    ("200::1", "reserved address"),
    ("1fff::1", "reserved address"),
    ("2001::1", "Teredo tunnel address"),
    ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "Teredo tunnel address"),
    ("2001:2::1", "benchmarking address"),
    ("2001:3::1", "protocol assignment address"),
    ("2001:10::1", "protocol assignment address"),
    ("2001:20::1", "protocol assignment address"),
    ("2001:db8::1", "documentation address"),
    ("2002:7f00:1::", "6to4 tunnel address"),
    ("2002:808:808::1", "6to4 tunnel address"),
    ("2620:4f:8000::1", "AS112 address"),
    ("2a00:1450::5efe:7f00:1", "ISATAP tunnel address"),
    ("2a00:1450::200:5efe:a00:1", "ISATAP tunnel address"),
    ("3ffe::1", "reserved address"),
    ("3fff::1", "documentation address"),
    ("3fff:fff::1", "documentation address"),
    ("4000::1", "reserved address"),
    ("5f00::1", "segment routing address"),
    ("fc00::1", "private address"),
    ("fd00::1", "private address"),
    ("fd00:ec2::254", "cloud metadata address"),
    ("fd20:ce::254", "cloud metadata address"),
    ("fd00:c1::a9fe:a9fe", "cloud metadata address"),
    ("fe80::1", "link-local address"),
    ("fe80::1%2", "link-local address"),
    ("fec0::1", "site-local address"),
    ("ff02::1", "multicast address"),
    ("ffff::1", "multicast address"),
]

# Every way to write 127.0.0.1 that some resolver or parser takes for it.
LOOPBACK_SPELLINGS = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "127.0.1",
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0X7F000001",
    "0x7f.1",
    "0177.0.0.1",
    "0177.0x0.0.01",
    "127.0x000001",
    "0x7f.0x0.0x0.0x1",
    "00000177.0.0.1",
    "①②⑦.⓪.⓪.①",
    "\uff11\uff12\uff17.0.0.1",
    "127\u30020\u30020\u30021",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "a.localhost",
    "\u2113ocalhost",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::FFFF:7F00:1]",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_called(address: str) -> None:
    assert AddressPolicy().refusal(address) is None


@pytest.mark.parametrize(("address", "reason"), REFUSED)
def test_an_address_that_is_not_public_is_refused_with_its_reason(address: str, reason: str) -> None:
    assert AddressPolicy().refusal(address) == reason


@pytest.mark.parametrize("host", LOOPBACK_SPELLINGS)
def test_every_spelling_of_loopback_is_recognised_in_a_url(host: str) -> None:
    url = f"http://{host}/"
    assert AddressPolicy().check_url(url) == "the URL's host is not allowed: loopback address"
    assert AddressPolicy(allow_loopback=True).check_url(url) is None


@given(st.integers(0, 2**32 - 1), st.sampled_from(["{}", "0x{:x}", "0{:o}"]))
def test_a_number_is_the_same_address_in_any_base(number: int, base: str) -> None:
    expected = IPv4Address(number)
    assert spelled_ipv4(base.format(number)) == expected
    first, second, third, fourth = expected.packed
    assert spelled_ipv4(f"{first}.{base.format(number & 0xFFFFFF)}") == expected
    assert spelled_ipv4(f"{first}.{base.format(second)}.{third << 8 | fourth}") == expected
    assert spelled_ipv4(".".join(base.format(part) for part in expected.packed)) == expected


@given(st.ip_addresses(v=4))
def test_an_embedded_address_is_never_more_welcome_than_itself(inner: IPv4Address) -> None:
    number = int(inner)
    for wrapped in (0xFFFF << 32 | number, 0x64_FF9B << 96 | number, number, 0x2002 << 112 | number << 80):
        assert rule_against(inner) is None or rule_against(IPv6Address(wrapped)) is not None


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "http:// or https://"),
        ("example.com/hook", "http:// or https://"),
        ("//example.com/hook", "http:// or https://"),
        ("ftp://example.com/", "http:// or https://"),
        ("file:///etc/passwd", "http:// or https://"),
        ("gopher://example.com/", "http:// or https://"),
        ("unix:///run/docker.sock", "http:// or https://"),
        ("http+unix://%2frun%2fdocker.sock/", "http:// or https://"),
        ("javascript:alert(1)", "http:// or https://"),
        ("http://", "no host"),
        ("http:///path", "no host"),
        ("http:example.com", "no host"),
        ("http://?q", "no host"),
        ("http://user:secret@example.com/", "credentials"),
        ("http://user@example.com/", "credentials"),
        ("http://@example.com/", "credentials"),
        ("http://example.com@127.0.0.1/", "credentials"),
        ("http://example.com:0/", "port"),
        ("http://example.com:65536/", "port"),
        ("http://example.com:123456/", "port"),
        ("http://example.com:http/", "port"),
        ("http://example.com:+80/", "port"),
        ("http://example.com:-1/", "port"),
        ("http://example.com:\u0668\u0660/", "port"),
        ("http://:80/", "port"),
        ("http://[::1/", "port"),
        ("http://::1/", "port"),
        ("http://[fe80::1%25eth0]/", "port"),
        ("http://[v1.fe80::a]/", "port"),
        ("http://[::12345]/", "IPv6"),
        ("http://256.1.1.1/", "IPv4"),
        ("http://1.2.3.4.5/", "IPv4"),
        ("http://1.2.3.08/", "IPv4"),
        ("http://4294967296/", "IPv4"),
        ("http://0x100000000/", "IPv4"),
        ("http://foo.1/", "IPv4"),
        ("http://127%2e0.0.1/", "valid name"),
        ("http://exa mple.com/", "space"),
        ("http://example.com/a b", "space"),
        (" http://example.com/", "space"),
        ("http://example.com/\r\nX-Evil: 1", "control"),
        ("http://example.com/\t", "control"),
        ("http://example.com/\x00", "control"),
        ("http://example.com/\x85", "control"),
        ("http://example.com/\u2028", "control"),
        ("http://example.com\\@127.0.0.1/", "backslash"),
        ("http://example.com/\ud800", "control"),
        ("http://-a.example/", "valid name"),
        ("http://a..b/", "valid name"),
        ("http://a;b/", "valid name"),
        pytest.param("http://" + "a" * 64 + ".example/", "valid name", id="label too long"),
        pytest.param("http://" + "a." * 130 + "example/", "valid name", id="name too long"),
        ("http://\u202eexample.com/", "internationalised"),
        pytest.param("http://example.com/" + "a" * 2048, "longer than 2048", id="too long"),
    ],
)
def test_a_url_that_cannot_be_called_is_refused_with_the_reason(url: str, complaint: str) -> None:
    refusal = AddressPolicy().check_url(url)
    assert refusal is not None
    assert complaint in refusal


@pytest.mark.parametrize(
    ("url", "host_header", "port", "target"),
    [
        ("http://example.com", "example.com", 80, "/"),
        ("HTTPS://Example.COM./a?b=c#d", "example.com", 443, "/a?b=c"),
        ("http://example.com:8080/?x", "example.com:8080", 8080, "/?x"),
        ("https://example.com:443/", "example.com", 443, "/"),
        ("http://example.com:/", "example.com", 80, "/"),
        (
            "http://b\u00fccher.example/\u00fc?\u00fc=\u00fc",
            "xn--bcher-kva.example",
            80,
            "/%C3%BC?%C3%BC=%C3%BC",
        ),
        ("http://my_service:9000/%41/[x]", "my_service:9000", 9000, "/%41/%5Bx%5D"),
        ("http://0x08080808/", "8.8.8.8", 80, "/"),
        ("https://[2606:4700:4700:0:0:0:0:1111]:8443/", "[2606:4700:4700::1111]:8443", 8443, "/"),
        ("http://[::ffff:8.8.8.8]/", "8.8.8.8", 80, "/"),
    ],
)
def test_a_good_url_is_taken_apart_for_the_wire(url: str, host_header: str, port: int, target: str) -> None:
    parsed = parse_url(url)
    assert (parsed.host_header, parsed.port, parsed.target) == (host_header, port, target)
    assert AddressPolicy().check_url(url) is None


@given(st.text())
def test_no_text_whatever_breaks_the_url_check(text: str) -> None:
    for url in (text, "http://" + text, "http://example.com/" + text, f"http://[{text}]:1/"):
        try:
            parsed = parse_url(url)
        except UrlInvalid:
            continue
        assert (parsed.host_header + parsed.target).isascii()
        assert not any(character.isspace() for character in parsed.host_header + parsed.target)


def test_a_listed_block_or_address_opens_exactly_that() -> None:
    policy = AddressPolicy(["10.1.0.0/16", "192.168.7.7", "fd00:1::/32", "::1"])
    assert policy.refusal("10.1.255.255") is None
    assert policy.refusal("::ffff:10.1.0.1") is None
    assert policy.refusal("10.2.0.0") == "private address"
    assert policy.refusal("192.168.7.7") is None
    assert policy.refusal("192.168.7.8") == "private address"
    assert policy.refusal("fd00:1::5") is None
    assert policy.refusal("fd00:ec2::254") == "cloud metadata address"
    assert policy.refusal("::1") is None
    assert policy.refusal("127.0.0.1") == "loopback address"


def test_a_listed_ipv4_block_does_not_open_its_tunnelled_forms() -> None:
    policy = AddressPolicy(["0.0.0.0/0"])
    assert policy.refusal("10.0.0.1") is None
    for tunnelled in ("64:ff9b::10.0.0.1", "2002:a00:1::", "::10.0.0.1", "2001::f5ff:fffe"):
        assert policy.refusal(tunnelled) is not None


def test_a_listed_name_opens_private_addresses_for_itself_alone() -> None:
    policy = AddressPolicy(["hooks.internal", "*.Svc.Cluster.Local."])
    assert policy.refusal("10.0.0.1", "hooks.internal") is None
    assert policy.refusal("127.0.0.1", "hooks.internal") is None
    assert policy.refusal("fd00::5", "a.b.svc.cluster.local") is None
    for stranger in (None, "internal", "x.hooks.internal", "svc.cluster.local", "evilsvc.cluster.local"):
        assert policy.refusal("10.0.0.1", stranger) == "private address"


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "169.254.1.1", "224.0.0.1", "0.1.2.3", "fe80::1", "240.0.0.1"]
)
def test_a_listed_name_never_opens_metadata_or_other_special_addresses(address: str) -> None:
    policy = AddressPolicy(["hooks.internal"])
    assert policy.refusal(address, "hooks.internal") is not None


def test_development_mode_opens_loopback_and_nothing_else() -> None:
    policy = AddressPolicy(allow_loopback=True)
    assert policy.refusal("127.0.0.53") is None
    assert policy.refusal("::1") is None
    assert policy.refusal("::ffff:127.0.0.1") is None
    for address in ("0.1.2.3", "10.0.0.1", "169.254.169.254", "64:ff9b::7f00:1", "::127.0.0.1"):
        assert policy.refusal(address) is not None


@pytest.mark.parametrize("allow", ["localhost", "127.0.0.1", "127.0.0.0/8", "0.0.0.0/0", "::1"])
def test_localhost_passes_the_static_check_once_any_entry_opens_it(allow: str) -> None:
    assert AddressPolicy([allow]).check_url("http://localhost:8000/") is None


def test_the_setting_is_a_comma_separated_list() -> None:
    policy = AddressPolicy(listed(" 10.0.0.0/8, ,hooks.internal,"))
    assert policy.refusal("10.0.0.1") is None
    assert policy.refusal("192.168.0.1", "hooks.internal") is None
    assert AddressPolicy(listed("")).refusal("10.0.0.1") == "private address"


@pytest.mark.parametrize(
    "entry",
    [
        "10.0.0.1/8",
        "10.0.0.0/33",
        "256.0.0.1",
        "127.1",
        "0x7f000001",
        "http://example.com",
        "example.com:80",
        "*",
        "*.",
        "*example.com",
        "a.*.example",
        "exa mple",
        "::ffff:10.0.0.0/104",
        "fe80::/10%eth0",
        "",
    ],
)
def test_a_bad_entry_is_an_error_that_names_it(entry: str) -> None:
    with pytest.raises(ValueError, match="outbound allow entry") as caught:
        AddressPolicy(["10.0.0.0/8", entry])
    assert repr(entry) in str(caught.value)


def test_only_targets_are_called_past_the_policy() -> None:
    app = Path(__file__).parents[2] / "app"
    users = {str(path.relative_to(app)) for path in app.rglob("*.py") if "ANY_ADDRESS" in path.read_text()}
    assert users == {"outbound/guard.py", "targets/registry.py"}
