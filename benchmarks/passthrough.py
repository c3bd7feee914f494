"""What a synchronous call costs through Foreman, and through the LiteLLM proxy, in front of one target.

The target is the tests' fake, asked in OpenAI's dialect by everybody: 20 ms until it speaks, then a word
every 50 ms, 16 words. Each turn measures the target directly and then through the system, with the same
callers, and gives what the system adds. Foreman makes each call durable: a row before it runs, a log while it
streams, a result at its end. What a call costs in CPU time is taken from the server and, for Foreman, all of
PostgreSQL; what it costs to begin with (connections, plans) is not in it.
"""

import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.identity.key import new_key
from benchmarks import procfs
from benchmarks.foreman import authentication
from benchmarks.harness import Benchmark, Metric, System
from benchmarks.http_client import ask, connect, until_answering
from benchmarks.lab import QUICK, Lab
from benchmarks.measuring import Numbers, as_numbers
from benchmarks.peering import LITELLM, LITELLM_PACKAGES
from benchmarks.processes import Service, free_port
from benchmarks.stream_load import chat_body

PATH = "/v1/chat/completions"
MODEL = "llama3.2"
WARM_UP_CALLS = 1
CONCURRENCIES = (1, 16, 64)
SHOWN = (1, 16)
TARGET = {"prefill_seconds": 0.02, "token_seconds": 0.05, "reply_tokens": 16, "parallel": 64}
OUR_PYTHON = Path(sys.executable)
# LiteLLM does not start without a key; the others take any.
TOKEN = f"sk-{secrets.token_hex(32)}"


@asynccontextmanager
async def target(lab: Lab) -> AsyncIterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "tests.fakes.ollama", "--port", str(port)]
    command += ["--config", json.dumps(TARGET)]
    async with lab.service("target", command) as server:
        await until_answering(server, port, "/", 200)
        yield port


def _calls(lab: Lab, callers: int) -> int:
    return 3 if lab.scale == QUICK else max(6, 10 // callers)


async def _streams(
    lab: Lab, port: int, callers: int, token: str = TOKEN, *, warmup: int = 0, calls: int | None = None
) -> Numbers:
    answer = await lab.measure(
        OUR_PYTHON,
        "benchmarks.stream_load",
        "streams",
        port=port,
        path=PATH,
        body=chat_body(MODEL),
        callers=callers,
        warmup=warmup,
        token=token,
        calls=_calls(lab, callers) if calls is None else calls,
    )
    return as_numbers(answer)


async def _compare(
    lab: Lab, target_port: int, port: int, server: Service, dsn: str | None = None, token: str = TOKEN
) -> Numbers:
    """By number of callers: what is added to the time to the first word and to the last; and CPU time."""
    postmaster = await procfs.postmaster_of(dsn) if dsn else None
    found: Numbers = {}
    for callers in CONCURRENCIES:
        if callers > lab.scale.connections:
            break
        direct = await _streams(lab, target_port, callers, warmup=WARM_UP_CALLS)
        await _streams(lab, port, callers, token, calls=WARM_UP_CALLS)
        before = _cpu(server.pid, postmaster)
        # Each caller's first call opens its connection, which is not what is compared.
        through = await _streams(lab, port, callers, token, warmup=WARM_UP_CALLS)
        calls = callers * (WARM_UP_CALLS + _calls(lab, callers))
        for name, seconds in _cpu(server.pid, postmaster).items():
            found[f"{name}_ms_{callers}"] = (seconds - before[name]) / calls * 1000
        for name, value in through.items():
            found[f"{name}_{callers}"] = value
            found[f"added_{name}_{callers}"] = value - direct[name]
    return found


def _cpu(server: int, postmaster: int | None) -> Numbers:
    """CPU seconds used so far, where the system tells: by the server, by PostgreSQL, and by all of it."""
    own = procfs.family_cpu_seconds(server)
    if own is None:
        return {}
    database = procfs.family_cpu_seconds(postmaster) if postmaster else None
    if database is None:
        return {"server_cpu": own, "cpu": own}
    return {"server_cpu": own, "postgres_cpu": database, "cpu": own + database}


async def run_foreman_authenticated(lab: Lab) -> Numbers:
    return await run_foreman(lab, new_key())


async def run_foreman(lab: Lab, key: str | None = None) -> Numbers:
    dsn = await lab.fresh_database("foreman")
    port = free_port()
    async with target(lab) as target_port:
        targets = lab.log_dir / "targets.toml"
        url = f"http://127.0.0.1:{target_port}"
        slots = max(CONCURRENCIES)
        targets.write_text(f'[targets.fake]\nurl = "{url}"\ndialect = "openai"\nslots = {slots}\n')
        environment = {
            "FOREMAN_DATABASE_URL": dsn,
            "FOREMAN_PORT": str(port),
            "FOREMAN_TARGETS": str(targets),
            **authentication(lab, key),
        }
        async with lab.service("foreman", [sys.executable, "-m", "app", "serve"], environment) as server:
            await until_answering(server, port, "/readyz", 200)
            await _until_served(port, key)
            return await _compare(lab, target_port, port, server, dsn, key or TOKEN)


async def _until_served(port: int, key: str | None) -> None:
    """One call: it waits for the target to be known, and loads the model."""
    connection = await connect(port)
    body = json.loads(chat_body(MODEL)) | {"stream": False}
    await ask(connection, "POST", PATH, json.dumps(body).encode(), 200, key)
    connection.transport.close()


async def run_litellm(lab: Lab) -> Numbers:
    port = free_port()
    async with target(lab) as target_port:
        # As an OpenAI-compatible server: what its users do with anything that is not a provider of its own.
        parameters = {
            "model": f"openai/{MODEL}",
            "api_base": f"http://127.0.0.1:{target_port}/v1",
            "api_key": "none",
        }
        settings = {"model_list": [{"model_name": MODEL, "litellm_params": parameters}]}
        config = lab.log_dir / "litellm.json"
        config.write_text(json.dumps(settings))
        command = [str(LITELLM_PACKAGES.python.parent / "litellm"), "--config", str(config)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
        environment = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MASTER_KEY": TOKEN,
            "PATH": os.environ["PATH"],
        }
        async with lab.service("litellm", command, environment) as server:
            await until_answering(server, port, "/health/liveliness", 200)
            return await _compare(lab, target_port, port, server)


def _metrics() -> tuple[Metric, ...]:
    """To the first word and to the last, and what it costs; the rest of what was measured is in the file."""
    return tuple(
        Metric(f"{what}_{callers}", f"{callers}: {title}", "lower", compared=compared)
        for callers in SHOWN
        for what, title, compared in (
            ("added_ttft_p50_ms", "first p50", True),
            ("added_total_p50_ms", "last p50", False),
            ("cpu_ms", "CPU ms", True),
        )
    )


BENCHMARK = Benchmark(
    name="passthrough",
    question="milliseconds added to the first and last word of a stream, and CPU a call; at 1 and 16 callers",
    metrics=_metrics(),
    systems=(
        System("foreman", run_foreman),
        System("foreman, API key", run_foreman_authenticated),
        System("litellm", run_litellm, peer=LITELLM, is_slow_to_start=True),
    ),
)
