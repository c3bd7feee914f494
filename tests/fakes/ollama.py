"""A faithful fake of Ollama, a process of its own: `python -m tests.fakes.ollama --port 0`.

Tests control it with `POST /_control` and read it with `GET /_control`; see `Config` for the knobs. Going away
and coming back is done by stopping and starting the process on the same port.
"""

import argparse
import asyncio
import json
import signal
import sys

import uvloop

from tests.fakes import asks, inventory
from tests.fakes.asks import Rejected
from tests.fakes.config import Config, Stats, config_as_json
from tests.fakes.http import Exchange, Server
from tests.fakes.inference import ENDPOINTS, Inference, Struck, surface_of
from tests.fakes.runners import Runners, ServerBusy


class FakeServer:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._stats = Stats()
        self._runners = Runners(config, self._stats)
        self._inference = Inference(config, self._stats, self._runners)

    async def handle(self, exchange: Exchange) -> None:
        if exchange.path == "/_control":
            await self._control(exchange)
        elif exchange.path in ENDPOINTS and exchange.method == "POST":
            await self._inference.infer(exchange)
        else:
            await self._inventory(exchange)

    async def _control(self, exchange: Exchange) -> None:
        try:
            if exchange.method == "POST":
                changes = json.loads(exchange.body)
                for model in changes.pop("unload", []):
                    self._runners.unload(inventory.full_name(model))
                if changes.pop("reset_stats", False):
                    self._stats.reset()
                self._config.update(changes)
        except (ValueError, TypeError) as error:
            await exchange.respond_json(400, {"error": str(error)})
            return
        resident = [
            {"model": each.model, "options": each.options, "running": each.running}
            for each in self._runners.resident.values()
        ]
        stats = self._stats.as_json() | {"resident": resident}
        await exchange.respond_json(200, {"config": config_as_json(self._config), "stats": stats})

    async def _inventory(self, exchange: Exchange) -> None:
        surface = surface_of(exchange.path, {})
        fault = self._config.fault(exchange.path, None)
        try:
            if fault is not None:
                await self._inference.strike(fault, exchange, surface)
            await self._answer_inventory(exchange)
        except Rejected as rejected:
            await exchange.respond_json(rejected.status, surface.error(rejected.status, rejected.message))
        except ServerBusy as busy:
            await exchange.respond_json(503, surface.error(503, str(busy)))
        except Struck:
            return

    async def _answer_inventory(self, exchange: Exchange) -> None:
        match exchange.method, exchange.path:
            case "GET" | "HEAD", "/":
                await exchange.respond(200, b"Ollama is running", "text/plain; charset=utf-8")
            case "GET" | "HEAD", "/api/version":
                await exchange.respond_json(200, {"version": self._config.version})
            case "GET" | "HEAD", "/api/tags":
                await exchange.respond_json(200, inventory.tags(self._config))
            case "GET", "/api/ps":
                resident = list(self._runners.resident.values())
                await exchange.respond_json(200, inventory.processes(self._config, resident))
            case "POST", "/api/show":
                body = asks.parse_body(exchange.body)
                name = body.get("model") or body.get("name")
                if not name:
                    raise Rejected(400, "model is required")
                await exchange.respond_json(200, inventory.show(inventory.existing(self._config, name)))
            case "GET", "/v1/models":
                await exchange.respond_json(200, inventory.openai_models(self._config))
            case "GET", path if path.startswith("/v1/models/"):
                name = path.removeprefix("/v1/models/")
                inventory.existing(self._config, name)
                await exchange.respond_json(200, inventory.openai_model(name))
            case _:
                await exchange.respond(404, b"404 page not found", "text/plain")


async def serve(config: Config, port: int, exit_with_parent: bool) -> None:
    server = Server(FakeServer(config).handle)
    bound = await server.listen(port)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    if exit_with_parent:
        # Nothing is ever written to the pipe: it becomes readable when the parent, however it dies, is gone.
        loop.add_reader(sys.stdin.fileno(), stop.set)
    sys.stdout.write(f"listening on {bound}\n")
    sys.stdout.flush()
    await stop.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=11434)
    parser.add_argument("--config", default="{}", help="knobs, as JSON")
    parser.add_argument("--exit-with-parent", action="store_true", help="stop when stdin is closed")
    arguments = parser.parse_args()
    config = Config()
    config.update(json.loads(arguments.config))
    uvloop.run(serve(config, arguments.port, arguments.exit_with_parent))


if __name__ == "__main__":
    main()
