"""The guard at the socket: through the real client, nothing that is refused is ever connected to."""

import socket

import pytest

from app.outbound.errors import OutboundRefused, OutboundUnreachable
from app.outbound.guard import AddressPolicy
from tests.outbound.conftest import Limits, MakeClient
from tests.outbound.receivers import Receiver

LIMITS: Limits = {"deadline_seconds": 5, "max_response_bytes": 1024}

# Each stands in a URL where a caller would write it; {port} is a listening receiver's on loopback.
REFUSED_URLS = [
    # loopback, in every spelling
    "http://127.0.0.1:{port}/",
    "https://127.0.0.1:{port}/",
    "http://127.0.0.1.:{port}/",
    "http://127.0.0.2:{port}/",
    "http://127.255.255.254:{port}/",
    "http://127.1:{port}/",
    "http://127.0.1:{port}/",
    "http://2130706433:{port}/",
    "http://017700000001:{port}/",
    "http://0x7f000001:{port}/",
    "http://0X7F.0.0.1:{port}/",
    "http://0x7f.1:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://0177.0x0.0.01:{port}/",
    "http://127.0x000001:{port}/",
    "http://00000177.0.0.1:{port}/",
    "http://①②⑦.⓪.⓪.①:{port}/",
    "http://\uff11\uff12\uff17.0.0.1:{port}/",
    "http://127\u30020\u30020\u30021:{port}/",
    "http://localhost:{port}/",
    "http://LOCALHOST.:{port}/",
    "http://\u2113ocalhost:{port}/",
    "http://any.localhost:{port}/",
    "http://0.0.0.0:{port}/",
    "http://0:{port}/",
    "http://0x0:{port}/",
    "http://[::1]:{port}/",
    "http://[0:0:0:0:0:0:0:1]:{port}/",
    "http://[::]:{port}/",
    # IPv4 inside IPv6
    "http://[::127.0.0.1]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/",
    "http://[0:0:0:0:0:FFFF:7F00:0001]:{port}/",
    "http://[::ffff:0:127.0.0.1]:{port}/",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:10.0.0.1]/",
    "http://[64:ff9b::127.0.0.1]:{port}/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[64:ff9b::192.168.0.1]/",
    "http://[64:ff9b:1::7f00:1]:{port}/",
    "http://[2002:7f00:1::]:{port}/",
    "http://[2002:a9fe:a9fe::1]/",
    "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/",
    "http://[2a00:1450::5efe:7f00:1]:{port}/",
    # metadata
    "http://169.254.169.254/latest/meta-data/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://169.254.43518/",
    "http://169.254.170.2/v2/credentials",
    "http://100.100.100.200/",
    "http://192.0.0.192/",
    "http://168.63.129.16/",
    "http://[fd00:ec2::254]/",
    "http://[fd20:ce::254]/",
    # private, shared, link-local
    "http://10.0.0.1/",
    "http://167772161/",
    "http://012.0.0.1/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.0.1/",
    "http://0xc0a80001/",
    "http://100.64.0.1/",
    "http://169.254.1.1/",
    "http://[fc00::1]/",
    "http://[fd12:3456::1]/",
    "http://[fe80::1]/",
    "http://[fec0::1]/",
    # multicast, reserved, documentation, benchmarking
    "http://224.0.0.1/",
    "http://239.255.255.250/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://192.0.0.8/",
    "http://192.0.2.1/",
    "http://192.88.99.1/",
    "http://198.18.0.1/",
    "http://198.51.100.1/",
    "http://203.0.113.1/",
    "http://[ff02::1]/",
    "http://[100::1]/",
    "http://[2001:db8::1]/",
    "http://[3fff::1]/",
    "http://[5f00::1]/",
    # no way to write a host at all
    "http://user:password@127.0.0.1:{port}/",
    "http://example.com@127.0.0.1:{port}/",
    "http://example.com\\@127.0.0.1:{port}/",
    "http://127.0.0.1%2f@example.com/",
    "http://127%2e0%2e0%2e1:{port}/",
    "http://[::1%25lo]:{port}/",
    "file:///etc/passwd",
    "unix:///run/docker.sock",
    "http+unix://%2frun%2fdocker.sock/info",
]

# What a name server might answer, beside an innocent address or alone.
REFUSED_ANSWERS = [
    ["127.0.0.1"],
    ["::1"],
    ["::ffff:127.0.0.1"],
    ["0.0.0.0"],
    ["10.0.0.1"],
    ["169.254.169.254"],
    ["fe80::1%1"],
    ["64:ff9b::7f00:1"],
    ["2002:7f00:1::"],
    ["93.184.215.14", "127.0.0.1"],
    ["2606:4700:4700::1111", "93.184.215.14", "192.168.0.1"],
]


class NameServer:
    """A resolver that gives one answer after the other and keeps giving the last."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def test_the_table_is_long_enough() -> None:
    assert len(set(REFUSED_URLS)) == len(REFUSED_URLS) >= 60


@pytest.mark.parametrize("url", REFUSED_URLS)
async def test_no_connection_is_opened_for_a_refused_url(
    url: str, make_client: MakeClient, connects: list[object]
) -> None:
    async with Receiver() as receiver:
        client = make_client(AddressPolicy())
        with pytest.raises(OutboundRefused):
            await client.request("POST", url.format(port=receiver.port), content=b"{}", **LIMITS)
        assert await client.refusal(url.format(port=receiver.port)) is not None
        assert connects == []
        assert receiver.accepted == 0


@pytest.mark.parametrize("answer", REFUSED_ANSWERS, ids=" ".join)
async def test_no_connection_is_opened_when_any_address_of_a_name_is_refused(
    answer: list[str], make_client: MakeClient, connects: list[object]
) -> None:
    async with Receiver() as receiver:
        client = make_client(AddressPolicy(), resolver=NameServer(answer))
        with pytest.raises(OutboundRefused) as refused:
            await client.request("POST", f"http://hooks.example:{receiver.port}/", **LIMITS)
        assert not any(address in str(refused.value) for address in answer), "the reason tells an address"
        assert connects == []
        assert receiver.accepted == 0


async def test_a_system_name_for_loopback_is_refused_after_its_lookup(
    make_client: MakeClient, connects: list[object]
) -> None:
    """Through the real resolver: a machine's own name mostly stands for a loopback or private address."""
    name = socket.gethostname()
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:
        pytest.skip("this machine cannot resolve its own name")
    if all(AddressPolicy().refusal(address) is None for address in addresses):
        pytest.skip("this machine's own name has public addresses only")
    connects.clear()  # the system's resolver may have spoken to its server
    client = make_client(AddressPolicy())
    with pytest.raises(OutboundRefused):
        await client.request("GET", f"http://{name}:9/", **LIMITS)
    assert not any(isinstance(peer, tuple) and peer[0] in addresses and peer[1] == 9 for peer in connects)


async def test_a_name_that_changes_its_answer_is_connected_to_where_it_was_checked(
    make_client: MakeClient, connects: list[object]
) -> None:
    """The classic rebinding: harmless when looked at, private when connected to. There is no second look."""
    async with Receiver() as receiver:
        names = NameServer(["127.0.0.2"], ["127.0.0.1"])
        client = make_client(AddressPolicy(["127.0.0.2"]), resolver=names)
        with pytest.raises(OutboundUnreachable):  # the receiver listens on 127.0.0.1 alone
            await client.request("POST", f"http://rebind.example:{receiver.port}/", **LIMITS)
        assert names.asked == ["rebind.example"]
        assert connects == [("127.0.0.2", receiver.port)]

        with pytest.raises(OutboundRefused):
            await client.request("POST", f"http://rebind.example:{receiver.port}/", **LIMITS)
        assert connects == [("127.0.0.2", receiver.port)]
        assert receiver.accepted == 0


async def test_a_verdict_at_submit_does_not_open_the_way_for_a_later_answer(
    make_client: MakeClient, connects: list[object]
) -> None:
    async with Receiver() as receiver:
        client = make_client(AddressPolicy(), resolver=NameServer(["93.184.215.14"], ["127.0.0.1"]))
        url = f"http://rebind.example:{receiver.port}/"
        assert await client.refusal(url) is None
        with pytest.raises(OutboundRefused):
            await client.request("POST", url, **LIMITS)
        assert connects == []


async def test_at_submit_a_name_is_resolved_once_and_judged(make_client: MakeClient) -> None:
    names = NameServer(["10.0.0.1"])
    client = make_client(AddressPolicy(), resolver=names)
    for path in ("a", "b"):
        verdict = await client.refusal(f"https://hooks.example/{path}")
        assert verdict == "the host resolves to an address that is not allowed: private address"
    assert names.asked == ["hooks.example"]


async def test_at_submit_a_name_that_cannot_be_resolved_yet_is_no_objection(make_client: MakeClient) -> None:
    client = make_client(AddressPolicy(), resolver=NameServer([]))
    assert await client.refusal("https://not-yet.example/") is None


@pytest.mark.parametrize(
    "location", ["http://169.254.169.254/", "http://127.0.0.1:{port}/", "//127.1:{port}/x"]
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_a_refused_address_is_returned_and_not_followed(
    status: int, location: str, make_client: MakeClient, connects: list[object]
) -> None:
    async with Receiver() as victim:
        target = location.format(port=victim.port)
        answer = f"HTTP/1.1 {status} Moved\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n".encode()
        async with Receiver(answer) as receiver:
            client = make_client(AddressPolicy(["hooks.example"]), resolver=NameServer(["127.0.0.1"]))
            response = await client.request("POST", f"http://hooks.example:{receiver.port}/", **LIMITS)
            assert response.status == status
            assert response.header("location") == target
            assert connects == [("127.0.0.1", receiver.port)]
            assert victim.accepted == 0


async def test_proxies_from_the_environment_are_ignored(
    make_client: MakeClient, connects: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Receiver() as proxy, Receiver() as receiver:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv(name.lower(), f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        response = await make_client().request("GET", receiver.url, **LIMITS)
        assert response.status == 200
        assert connects == [("127.0.0.1", receiver.port)]
        assert proxy.accepted == 0


async def test_a_listed_name_is_connected_to_at_its_private_address(make_client: MakeClient) -> None:
    async with Receiver() as receiver:
        client = make_client(AddressPolicy(["hooks.internal"]), resolver=NameServer(["127.0.0.1"]))
        response = await client.request("POST", f"http://hooks.internal:{receiver.port}/", **LIMITS)
        assert response.status == 200
        with pytest.raises(OutboundRefused):
            await client.request("POST", f"http://other.internal:{receiver.port}/", **LIMITS)


async def test_the_next_address_is_tried_when_one_does_not_answer(
    make_client: MakeClient, connects: list[object]
) -> None:
    async with Receiver() as receiver:
        client = make_client(resolver=NameServer(["127.0.0.3", "127.0.0.2", "127.0.0.1"]))
        response = await client.request("POST", f"http://hooks.example:{receiver.port}/", **LIMITS)
        assert response.status == 200
        assert [peer[0] for peer in connects if isinstance(peer, tuple)] == [
            "127.0.0.3",
            "127.0.0.2",
            "127.0.0.1",
        ]


async def test_a_kept_connection_is_not_asked_for_by_another_host_name(make_client: MakeClient) -> None:
    """Connections are shared by origin, not by address: a name that points at a kept one gets its own."""
    async with Receiver() as receiver:
        names = NameServer(["127.0.0.1"])
        client = make_client(resolver=names)
        for host in ("a.example", "b.example", "a.example"):
            await client.request("POST", f"http://{host}:{receiver.port}/", **LIMITS)
        assert names.asked == ["a.example", "b.example"]
        assert receiver.accepted == 2
