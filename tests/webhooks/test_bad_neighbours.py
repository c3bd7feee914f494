"""A dead receiver, a dripping one, one of a gigabyte and one with a bomb do not disturb a healthy one."""

import re
import socket
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import MakeServer, Server, wait_until
from tests.webhooks.conftest import MakeReceiver, ReceiverProcess

DELIVERIES = 100
# So many that a single hiccup of the machine is not the p99.
HEALTHY_DELIVERIES = 300
# Below this the difference is the machine's noise: a healthy receiver that had to wait for a bad one would
# wait for ten seconds and more.
NOISE_SECONDS = 0.5
MEMORY_BYTES = 64 * 1024 * 1024


@pytest.fixture
def dead_url() -> Iterator[str]:
    """A port where connecting hangs: its queue is full and nobody takes from it."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        waiting = []
        for _ in range(4):
            each = socket.socket()
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
            waiting.append(each)
        yield f"http://127.0.0.1:{port}/hook"
        for each in waiting:
            each.close()


def submit(client: httpx.Client, url: str, count: int) -> None:
    job = {"kind": "noop", "state_webhook_url": url, "webhook_events": ["done"]}
    assert client.post("/jobs/batch", json={"jobs": [job] * count}).status_code == 202


def p99(client: httpx.Client, healthy: ReceiverProcess) -> float:
    """Job after job: from the state change to the receipt of its webhook."""
    before = healthy.count()
    for number in range(HEALTHY_DELIVERIES):
        submit(client, healthy.url, 1)
        wait_until(partial(_has_more_than, healthy, before + number), 30)
    arrivals = healthy.arrivals()[before:]
    took = sorted(
        each.at - datetime.fromisoformat(each.message["timestamp"]).timestamp() for each in arrivals
    )
    return took[int(0.99 * len(took))]


def _has_more_than(receiver: ReceiverProcess, count: int) -> bool:
    return receiver.count() > count


def memory(server: Server) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def test_a_healthy_receiver_does_not_notice_its_neighbours(
    make_server: MakeServer, make_receiver: MakeReceiver, dead_url: str
) -> None:
    server = make_server(FOREMAN_OUTBOUND_ALLOW="127.0.0.0/8")
    healthy, drip, huge, bomb = (make_receiver(temper) for temper in ("ok", "drip", "huge", "bomb"))
    with httpx.Client(base_url=server.url, timeout=30) as client:
        p99(client, healthy)  # warm
        alone = p99(client, healthy)
        memory_before = memory(server)
        for url in (dead_url, drip.url, huge.url, bomb.url):
            submit(client, url, DELIVERIES)
        wait_until(lambda: drip.count() >= 4 and huge.count() >= 4 and bomb.count() >= 4, 30)
        crowded = p99(client, healthy)

        def delivered(receiver: ReceiverProcess) -> int:
            query = {"host": receiver.host, "state": "delivered", "limit": "200"}
            return len(client.get("/webhooks", params=query).json()["deliveries"])

        # What answers 200 has the delivery, however much it says besides.
        wait_until(lambda: delivered(huge) == DELIVERIES and delivered(bomb) == DELIVERIES, 60)
        grown = memory(server) - memory_before
    print(  # noqa: T201 - shown with -s
        f"healthy p99 alone {alone * 1000:.0f} ms, among the others {crowded * 1000:.0f} ms; "
        f"memory {grown / 1024 / 1024:+.1f} MB"
    )
    assert crowded <= max(2 * alone, NOISE_SECONDS)
    assert grown < MEMORY_BYTES
    wait_until(lambda: tried(server, drip), 30)
    # The dripping one ran into the total deadline, whatever it dripped.
    assert {each["last_error"] for each in tried(server, drip)} == {"no complete answer within 15 s"}


def tried(server: Server, receiver: ReceiverProcess) -> list[dict[str, Any]]:
    page = httpx.get(f"{server.url}/webhooks", params={"host": receiver.host, "limit": 200}).json()
    return [each for each in page["deliveries"] if each["tries"]]
