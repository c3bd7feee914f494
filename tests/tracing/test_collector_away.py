"""A collector that is away costs spans, never a job; and without one the library is not even imported."""

import json
import re
import subprocess
import sys
from functools import partial
from typing import Any

import httpx

from tests.conftest import ROOT, MakeServer, Server
from tests.patience import wait_until
from tests.tracing.collector import collecting


def run_one(server: Server) -> str:
    """A job from its submission to its end; its traceparent."""
    answer = httpx.post(
        f"{server.url}/jobs", json={"kind": "noop"}, headers={"Prefer": "wait=60"}, timeout=120
    )
    assert answer.json()["state"] == "done"
    return str(answer.json()["trace"]["traceparent"])


def lines(server: Server, event: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log().splitlines() if f'"event": "{event}"' in line]


def spans(server: Server, outcome: str) -> float:
    found = re.search(
        rf'foreman_spans_total{{outcome="{outcome}"}} (\S+)', httpx.get(f"{server.url}/metrics").text
    )
    return float(found[1]) if found else 0.0


def is_past(server: Server, dropped: float) -> bool:
    return spans(server, "dropped") > dropped


def test_jobs_go_on_and_spans_come_again_and_the_last_ones_leave_at_the_end(make_server: MakeServer) -> None:
    with collecting() as collector:
        server = make_server(
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_EXPORTER_OTLP_TIMEOUT="1",
            OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer of-a-secret",
            FOREMAN_LOG_FORMAT="json",
        )
        collector.trace(run_one(server), submit=1, queued=1, run=1)
        assert spans(server, "exported") >= 3
        collector.close()
        for _ in range(3):
            run_one(server)
            before = spans(server, "dropped")
            wait_until(partial(is_past, server, before), 30)
        assert len(lines(server, "traces.collector_gone")) == 1
        collector.open()

        def is_back() -> bool:
            run_one(server)
            return bool(lines(server, "traces.collector_back"))

        wait_until(is_back, 30)
        assert len(lines(server, "traces.collector_back")) == 1
        last = run_one(server)
        assert server.stop() == 0
        # What was there when it was told to end has left before it did.
        names = {each.name for each in collector.of_trace(last.split("-")[1])}
        assert names >= {"foreman.submit", "foreman.queued", "foreman.run"}
        assert "of-a-secret" not in server.log()


def test_a_collector_that_never_was_keeps_no_server_from_ending(make_server: MakeServer) -> None:
    server = make_server(FOREMAN_TRACES="on", OTEL_EXPORTER_OTLP_ENDPOINT="no-url-at-all")
    run_one(server)
    assert server.stop() == 0
    assert "Traceback" not in server.log()


OFF = """
import sys
from app.config import load_settings
from app.foreman import Foreman
import app.main, app.server.process, app.cli.root
import foreman_client, foreman_client.worker.worker
environment = {"FOREMAN_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
foreman = Foreman(load_settings(environment))
# The bare interface is imported by FastAPI, whatever we do.
ITS_OWN = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto", "google", "requests")
print([name for name in sys.modules if name.startswith(ITS_OWN)])
"""


def test_without_a_collector_nothing_of_it_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", OFF], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
