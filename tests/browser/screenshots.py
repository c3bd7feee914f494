"""`make screenshots`: the pages of docs/dashboard.md, of a server with a made-up day behind it.

What the charts show is written into their tables; everything else is real: jobs, workers, targets, deliveries.
"""

import asyncio
import contextlib
import math
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from playwright.sync_api import Page, sync_playwright

from app.embedded import EmbeddedPostgres
from tests.browser.conftest import FLAGS, found_browser
from tests.conftest import Server, free_port
from tests.fakes.process import FakeOllama
from tests.patience import wait_until

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screenshots"
WIDTH, HEIGHT = 1280, 860
PHONE = {"width": 390, "height": 844}

SAMPLES = """
INSERT INTO samples (step, at, process, enqueued, done, failed, ended, prompt_tokens, completion_tokens, wait, run)
VALUES ($1::int, date_bin($1::int * interval '1 second', now(), timestamptz 'epoch') - $2::int * $1::int * interval '1 second',
        'story', $3, $4, $5, 0, $6, $7, $8, $9)
ON CONFLICT DO NOTHING
"""
DEPTHS = """
INSERT INTO queue_samples (step, at, queue, waiting, running)
VALUES ($1::int, date_bin($1::int * interval '1 second', now(), timestamptz 'epoch') - $2::int * $1::int * interval '1 second', $3, $4, $5)
ON CONFLICT DO NOTHING
"""
USAGE = """
INSERT INTO usage_days (tenant, model, day, jobs, prompt_tokens, completion_tokens, load_seconds, prefill_seconds,
                        decode_seconds)
VALUES ('default', $1, current_date - $2::int, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING
"""


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    random.seed(7)
    with story() as (server, jobs), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found_browser(), args=FLAGS)
        for name, path in pages(jobs).items():
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            shoot(page, server.url + path, name)
        dark = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark")
        shoot(dark, f"{server.url}/ui", "overview-dark")
        phone = browser.new_page(viewport=PHONE, color_scheme="dark")  # type: ignore[arg-type]
        shoot(phone, f"{server.url}/ui/jobs/{jobs['working']}", "job-phone")
        browser.close()


def pages(jobs: dict[str, str]) -> dict[str, str]:
    return {
        "overview": "/ui",
        "jobs": "/ui/jobs",
        "job-working": f"/ui/jobs/{jobs['working']}",
        "job-waiting": f"/ui/jobs/{jobs['asleep']}",
        "job-failed": f"/ui/jobs/{jobs['failed']}",
        "submit": "/ui/submit",
        "dead-letters": "/ui/dead-letters",
        "queues": "/ui/queues",
        "queue": "/ui/queues/invoices",
        "targets": "/ui/targets",
        "workers": "/ui/workers",
        "schedules": "/ui/schedules",
        "webhooks": "/ui/webhooks",
        "keys": "/ui/keys",
        "usage": "/ui/usage",
        "reference": "/docs",
    }


def shoot(page: Page, url: str, name: str) -> None:
    page.goto(url)
    page.wait_for_load_state("load")
    page.wait_for_timeout(600)
    page.screenshot(path=FOLDER / f"{name}.png")
    page.close()


@contextlib.contextmanager
def story() -> Iterator[tuple[Server, dict[str, str]]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedPostgres(Path(folder) / "postgres", durable=False) as postgres,
        FakeOllama(token_seconds=0.25, models=["llama3.2:latest", "qwen3:8b"]) as studio,
    ):
        server = Server(
            postgres.dsn,
            free_port(),
            {"FOREMAN_OUTBOUND_ALLOW": "127.0.0.1", "FOREMAN_SECRET_KEY": "a passphrase that is long enough"},
            log_path=Path(folder) / "log",
        ).start(60)
        try:
            with httpx.Client(base_url=server.url, timeout=60) as api:
                jobs = tell(api, studio)
            asyncio.run(past(postgres.dsn))
            yield server, jobs
        finally:
            server.kill()


def tell(api: httpx.Client, studio: FakeOllama) -> dict[str, str]:
    put(api, "/targets/studio", url=studio.url, slots=4, tags=["gpu"])
    # It answers once, and then it sleeps.
    with FakeOllama(models=["gemma3:27b"]) as laptop:
        put(api, "/targets/laptop", url=laptop.url, slots=1, wake={"mac": "01:23:45:67:89:ab"})
        wait_until(lambda: api.get("/targets/laptop").json()["state"] == "awake", 60)
    put(api, "/queues/invoices", max_running=4, rate={"limit": 100, "per_seconds": 60}, fair_by="customer")
    put(api, "/queues/tickets", key=["zendesk", "/origin"], max_queued=20)
    put(api, "/queues/nightly")
    put(api, "/schedules/nightly-report", cron="30 2 * * *", timezone="Europe/Berlin", job=noop("nightly"))
    put(api, "/schedules/heartbeat", cron="* * * * * *", timezone="UTC", job=noop("nightly"))
    for name, scopes in (("website", ["jobs:write", "jobs:read"]), ("gpu-worker", ["jobs:work"])):
        api.post("/keys", json={"name": name, "scopes": scopes}).raise_for_status()
    for n in range(40):
        submit(
            api, kind="render_invoice", queue="invoices", payload={"invoice": 1000 + n}, metadata=customer(n)
        )
    for pages in range(4):
        for job in claim(api, "render_invoice"):
            settle(api, job, "complete", result={"pages": pages + 1})
    begun = claim(api, "render_invoice")
    failed = [fail(api, job, "printer_jam", "The renderer ran out of paper.") for job in begun[:2]]
    for current, job in enumerate([*begun[2:], *claim(api, "render_invoice")], 3):
        settle(api, job, "progress", step="rendering", current=current * 2, total=12)
    for n in range(6):
        submit(api, kind="sync_ticket", queue="tickets", payload={"origin": f"acme-{n % 2}"})
    submit(api, kind="ocr_scan", payload={"page": 1})
    submit(api, **noop("default"), state_webhook_url=f"http://127.0.0.1:{silent_port()}/hook")
    asked = {
        "role": "user",
        "content": "Explain leases to a new colleague, in a few words and with an example. " * 6,
    }
    working = submit(api, model="llama3.2", messages=[asked], metadata={"customer": "acme"})
    submit(api, model="qwen3:8b", messages=[asked], metadata={"customer": "globex"})
    asleep = submit(api, model="gemma3:27b", messages=[asked])
    api.post("/queues/nightly/pause").raise_for_status()
    wait_until(lambda: api.get(f"/jobs/{asleep}").json()["reason"] == "target_asleep", 60)
    wait_until(lambda: api.get(f"/jobs/{working}").json()["state"] == "working", 60)
    said = f"/jobs/{working}/events?types=output"
    wait_until(lambda: len(api.get(said).json()["events"]) > 40, 60)
    return {"working": working, "asleep": asleep, "failed": failed[0]}


def put(api: httpx.Client, path: str, **body: Any) -> None:
    api.put(path, json=body).raise_for_status()


def noop(queue: str) -> dict[str, Any]:
    return {"kind": "noop", "payload": {}, "queue": queue}


def customer(n: int) -> dict[str, str]:
    return {"customer": ("acme", "globex", "initech")[n % 3]}


def submit(api: httpx.Client, **job: Any) -> str:
    answer = api.post("/jobs", json=job)
    assert answer.status_code in (200, 202), answer.text
    return str(answer.json()["job_id"])


def claim(api: httpx.Client, kind: str) -> list[dict[str, Any]]:
    """As many as the queue gives out at once, begun."""
    body = {"worker": "render-box-1", "kinds": [kind], "queues": ["invoices"], "limit": 4, "wait_seconds": 5}
    jobs: list[dict[str, Any]] = api.post("/claims", json={**body, "lease_seconds": 600}).json()["jobs"]
    for job in jobs:
        settle(api, job, "start")
    return jobs


def settle(api: httpx.Client, job: dict[str, Any], verb: str, **more: Any) -> None:
    api.post(f"/jobs/{job['job_id']}/{verb}", json={"lease_token": job["lease_token"], **more})


def fail(api: httpx.Client, job: dict[str, Any], code: str, message: str) -> str:
    settle(api, job, "fail", error={"code": code, "message": message}, retryable=False)
    return str(job["job_id"])


def silent_port() -> int:
    """Where nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def past(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for step, points in ((10, 91), (240, 91), (7200, 85)):
            for ago in range(1, points):
                await _moment(connection, step, ago)
        for day in range(30):
            for model, share in (("llama3.2", 1.0), ("qwen3:8b", 0.6), ("gemma3:27b", 0.25)):
                busy = share * (0.6 + 0.4 * math.sin(day / 2)) * random.uniform(0.8, 1.2)
                tokens = int(400_000 * busy)
                figures = (int(900 * busy), tokens, tokens // 3, 40 * busy, 300 * busy, 2400 * busy)
                await connection.execute(USAGE, model, day, *figures)
    finally:
        await connection.close()


async def _moment(connection: asyncpg.Connection, step: int, ago: int) -> None:
    wave = 6 + 3 * math.sin(ago / 9) + random.uniform(-1, 1)
    enqueued, done = int(wave * step), int((wave - 0.4 * math.sin(ago / 4)) * step)
    wait = [0] * 6 + [int(done * 0.6), int(done * 0.3), int(done * 0.08), int(done * 0.02)]
    run = [0] * 8 + [int(done * 0.4), int(done * 0.4), int(done * 0.15), int(done * 0.05)]
    tokens = int((180 + 60 * math.sin(ago / 6) + random.uniform(-15, 15)) * step)
    failed = int(random.random() < 0.08) * step // 10
    await connection.execute(SAMPLES, step, ago, enqueued, done, failed, tokens * 2, tokens, wait, run)
    depths = {
        "invoices": 22 + 14 * math.sin(ago / 11),
        "tickets": 9 + 5 * math.sin(ago / 5),
        "default": 4.0,
        "": 0,
    }
    for queue, waiting in depths.items():
        await connection.execute(DEPTHS, step, ago, queue, max(0, int(waiting)), 4 if queue else 0)


if __name__ == "__main__":
    main()
