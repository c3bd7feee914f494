"""The floor of one commit per job: single-row INSERTs on plain asyncpg connections, nothing around them."""

from functools import partial

import asyncpg

from benchmarks.measuring import Numbers, closed_loop, payload_text
from benchmarks.scripting import main

CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS raw_jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    queue text NOT NULL,
    state text NOT NULL DEFAULT 'queued',
    payload json NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
)
"""
INSERT = "INSERT INTO raw_jobs (kind, queue, payload) VALUES ('noop', 'bench', $1) RETURNING id"


async def enqueue(dsn: str, callers: int, warmup: float, seconds: float) -> Numbers:
    payload = f'{{"text":"{payload_text()}"}}'
    connections = [await asyncpg.connect(dsn) for _ in range(callers)]
    await connections[0].execute(CREATE_TABLE)
    numbers = await closed_loop(
        [partial(connection.fetchval, INSERT, payload) for connection in connections],
        warmup=warmup,
        seconds=seconds,
    )
    for connection in connections:
        await connection.close()
    return numbers


if __name__ == "__main__":
    main(enqueue)
