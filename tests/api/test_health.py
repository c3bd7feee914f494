"""/healthz, /readyz, /version and /metrics."""

import re

import httpx

from app import __version__
from app.api.health import CLIENT_VERSIONS
from app.store.migrate import newest_revision
from app.telemetry import MAX_NAMES


def test_alive_and_ready(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready", "revision": newest_revision()}


def test_the_version_is_the_packages(client: httpx.Client) -> None:
    answer = client.get("/version").json()
    assert answer == {"name": "foreman", "version": __version__, "client": CLIENT_VERSIONS}


def test_metrics_are_for_prometheus_and_count(client: httpx.Client, queue: str) -> None:
    def enqueued() -> float:
        for line in client.get("/metrics").text.splitlines():
            if line.startswith("foreman_jobs_enqueued_total "):
                return float(line.split()[1])
        raise AssertionError("no such metric")

    before = enqueued()
    client.post("/jobs/batch", json={"jobs": [{"kind": "own-kind", "queue": queue}] * 7})
    assert enqueued() == before + 7
    assert client.get("/metrics").headers["content-type"].startswith("text/plain")


def test_metrics_have_a_bounded_number_of_series(client: httpx.Client) -> None:
    """Methods and paths are never labels; queues are, but no more of them than a metrics server can stand."""
    for n in range(30):
        client.request("PROPFIND", f"/made-up-{n}")
        client.post("/jobs", json={"kind": "own-kind", "queue": f"made-up-{n}", "delay_seconds": 3600})
    text = client.get("/metrics").text
    assert "/made-up" not in text
    assert len(set(re.findall(r'queue="([^"]+)"', text))) <= MAX_NAMES + 1
    assert "PROPFIND" not in text
