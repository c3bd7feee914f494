"""TLS: the name is verified although the socket is connected to an address."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.outbound.errors import OutboundRefused, OutboundUnreachable
from app.outbound.guard import AddressPolicy
from tests.outbound.conftest import Limits, MakeClient
from tests.outbound.receivers import Receiver, Visit

LIMITS: Limits = {"deadline_seconds": 5, "max_response_bytes": 1024}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server context for hooks.example and 127.0.0.1, and a client context that trusts its maker."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hooks.example")])
    now = datetime.now(UTC)
    names = [x509.DNSName("hooks.example"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain = folder / "certificate.pem"
    chain.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain)
    return server, ssl.create_default_context(cafile=str(chain))


async def loopback(host: str) -> list[str]:
    return ["127.0.0.1"]


async def test_the_certificate_is_verified_by_name_and_the_connection_kept(
    authority: tuple[ssl.SSLContext, ssl.SSLContext], make_client: MakeClient
) -> None:
    server, trusting = authority
    async with Receiver(ssl_context=server) as receiver:
        client = make_client(resolver=loopback, ssl_context=trusting)
        for _ in range(3):
            response = await client.request("POST", f"https://hooks.example:{receiver.port}/", **LIMITS)
            assert (response.status, response.body) == (200, b"ok")
        assert receiver.accepted == 1
        assert (await client.request("GET", f"https://127.0.0.1:{receiver.port}/", **LIMITS)).status == 200


async def test_a_certificate_for_another_name_is_not_accepted(
    authority: tuple[ssl.SSLContext, ssl.SSLContext], make_client: MakeClient
) -> None:
    server, trusting = authority
    async with Receiver(ssl_context=server) as receiver:
        client = make_client(resolver=loopback, ssl_context=trusting)
        with pytest.raises(OutboundUnreachable, match="certificate could not be verified"):
            await client.request("POST", f"https://other.example:{receiver.port}/", **LIMITS)
        assert receiver.requests == []


async def test_an_unknown_authority_is_not_accepted_by_default(
    authority: tuple[ssl.SSLContext, ssl.SSLContext], make_client: MakeClient
) -> None:
    server, _ = authority
    async with Receiver(ssl_context=server) as receiver:
        client = make_client(resolver=loopback)
        with pytest.raises(OutboundUnreachable, match="certificate could not be verified"):
            await client.request("POST", f"https://hooks.example:{receiver.port}/", **LIMITS)
        assert receiver.requests == []


async def test_a_receiver_that_does_not_speak_tls_is_unreachable(make_client: MakeClient) -> None:
    async def plain(visit: Visit) -> None:
        await visit.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with Receiver(plain) as receiver:
        with pytest.raises(OutboundUnreachable):
            await make_client(resolver=loopback).request(
                "POST", f"https://hooks.example:{receiver.port}/", **LIMITS
            )


async def test_a_receiver_that_stalls_the_handshake_is_given_up_on(make_client: MakeClient) -> None:
    async def silent(visit: Visit) -> None:
        await visit.wait_for_hang_up()

    async with Receiver(silent) as receiver:
        client = make_client(resolver=loopback, connect_seconds=0.2)
        with pytest.raises(OutboundUnreachable, match="no connection within"):
            await client.request("POST", f"https://hooks.example:{receiver.port}/", **LIMITS)


async def test_a_valid_certificate_does_not_open_a_refused_address(
    authority: tuple[ssl.SSLContext, ssl.SSLContext], make_client: MakeClient, connects: list[object]
) -> None:
    server, trusting = authority
    async with Receiver(ssl_context=server) as receiver:
        client = make_client(AddressPolicy(), resolver=loopback, ssl_context=trusting)
        with pytest.raises(OutboundRefused):
            await client.request("POST", f"https://hooks.example:{receiver.port}/", **LIMITS)
        assert connects == []
