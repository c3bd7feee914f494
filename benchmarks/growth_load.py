"""Submits no-ops to one queue at a steady rate, in a process of its own; each carries when it was sent."""

import json
import time

from benchmarks.http_client import AskingConnection, ask, connect
from benchmarks.measuring import Numbers, paced, payload_text
from benchmarks.scripting import main

# Of `metadata.customer`, by which the fair queue takes turns.
CUSTOMERS = 20


async def _one_of(idle: list[AskingConnection], port: int) -> AskingConnection:
    """One that is open: the server closes those that were needed in a crowd, and not since."""
    while idle:
        connection = idle.pop()
        if not connection.transport.is_closing():
            return connection
    return await connect(port)


async def submit(port: int, queue: str, rate: float, seconds: float) -> Numbers:
    """When the first was sent, when the window closed, and how many there were."""
    idle: list[AskingConnection] = []

    async def send(number: int) -> None:
        sent_at = time.time()
        connection = await _one_of(idle, port)
        job = {
            "kind": "noop",
            "queue": queue,
            "metadata": {"customer": f"customer-{number % CUSTOMERS}"},
            "payload": {"sent_at": sent_at, "text": payload_text()},
        }
        await ask(connection, "POST", "/jobs", json.dumps(job).encode(), 202)
        idle.append(connection)

    began = time.time()
    sent = await paced(send, rate=rate, seconds=seconds)
    return {"began": began, "ended": began + seconds, "sent": float(sent)}


if __name__ == "__main__":
    main(submit)
