"""What a synchronous call costs through Foreman, and through the LiteLLM proxy, in front of one target.

The target is the tests' fake Ollama: 20 ms until it speaks, then a word every 50 ms. Each turn measures the
target directly and then through the system, with the same callers, and gives what the system adds. Foreman
makes each call durable: a row before it runs, a log while it streams, a result at its end.
"""

import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks import venvs
from benchmarks.harness import Aim, Benchmark, Metric, System
from benchmarks.http_client import ask, connect, until_answering
from benchmarks.lab import QUICK, Lab
from benchmarks.measuring import Numbers, as_numbers
from benchmarks.processes import free_port
from benchmarks.stream_load import chat_body

MODEL = "llama3.2"
CONCURRENCIES = (1, 16, 64)
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


async def _streams(lab: Lab, port: int, path: str, callers: int) -> Numbers:
    answer = await lab.measure(
        OUR_PYTHON,
        "benchmarks.stream_load",
        "streams",
        port=port,
        path=path,
        body=chat_body(MODEL),
        callers=callers,
        warmup=1,
        token=TOKEN,
        calls=3 if lab.scale == QUICK else max(4, 20 // callers),
    )
    return as_numbers(answer)


async def _compare(lab: Lab, target_port: int, port: int, path: str) -> Numbers:
    """By number of callers: what is added to the time to the first word, and to the whole."""
    found: Numbers = {}
    for callers in CONCURRENCIES:
        if callers > lab.scale.connections:
            break
        direct = await _streams(lab, target_port, path, callers)
        through = await _streams(lab, port, path, callers)
        for name, value in through.items():
            found[f"{name}_{callers}"] = value
            found[f"added_{name}_{callers}"] = value - direct[name]
    return found


async def run_foreman(lab: Lab) -> Numbers:
    dsn = await lab.fresh_database("foreman")
    port = free_port()
    async with target(lab) as target_port:
        environment = {
            "FOREMAN_DATABASE_URL": dsn,
            "FOREMAN_PORT": str(port),
            "FOREMAN_OLLAMA_URL": f"http://127.0.0.1:{target_port}",
            "FOREMAN_OLLAMA_SLOTS": str(max(CONCURRENCIES)),
        }
        async with lab.service("foreman", [sys.executable, "-m", "app", "serve"], environment) as server:
            await until_answering(server, port, "/readyz", 200)
            await _until_served(port)
            return await _compare(lab, target_port, port, "/v1/chat/completions")


async def _until_served(port: int) -> None:
    """One call: it waits for the target to be known, and loads the model."""
    connection = await connect(port)
    body = json.loads(chat_body(MODEL)) | {"stream": False}
    await ask(connection, "POST", "/v1/chat/completions", json.dumps(body).encode(), 200)
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
        command = [str(venvs.python_of("litellm").parent / "litellm"), "--config", str(config)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
        environment = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MASTER_KEY": TOKEN,
            "PATH": os.environ["PATH"],
        }
        async with lab.service("litellm", command, environment) as server:
            await until_answering(server, port, "/health/liveliness", 200)
            return await _compare(lab, target_port, port, "/v1/chat/completions")


def _metrics() -> tuple[Metric, ...]:
    """To the first word and to the last; the rest of what was measured is in the file."""
    return tuple(
        Metric(f"added_{what}_{callers}", f"{callers}: {title}", "lower", compared=compared)
        for callers in CONCURRENCIES
        for what, title, compared in (
            ("ttft_p50_ms", "first p50", True),
            ("ttft_p99_ms", "p99", False),
            ("total_p50_ms", "last p50", False),
        )
    )


BENCHMARK = Benchmark(
    name="passthrough",
    question="milliseconds added to the first and last word of a stream, at 1, 16 and 64 callers",
    metrics=_metrics(),
    systems=(System("foreman", run_foreman), System("litellm", run_litellm, peer="litellm")),
    aims=tuple(Aim("litellm", f"added_ttft_p50_ms_{callers}", 1.0) for callers in CONCURRENCIES),
)
