"""The floor under any queue on PostgreSQL: plain INSERTs on asyncpg connections, nothing around them.

`enqueue`: one row and one commit each time. `bulk`: a thousand rows in one statement, with the columns and
the values that Foreman stored for a job of its own.
"""

from functools import partial
from itertools import count

import asyncpg

from benchmarks.measuring import Numbers, closed_loop, in_rows, payload_text
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


CREATE_ROWS = "CREATE TABLE raw_rows (LIKE jobs INCLUDING DEFAULTS INCLUDING GENERATED, PRIMARY KEY (id))"
COLUMNS = """
SELECT attname AS name, format_type(atttypid, atttypmod) AS type, typcategory = 'A' AS is_array
FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
WHERE attrelid = 'jobs'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
ORDER BY attnum
"""


async def bulk(dsn: str, callers: int, warmup: float, seconds: float, rows: int) -> Numbers:
    """`dsn` is a database of Foreman's with one job in it; the rows go into a table of their own."""
    connections = [await asyncpg.connect(dsn) for _ in range(callers)]
    statement, sample = await _like_a_job(connections[0])
    ids = count(1)

    async def call(connection: asyncpg.Connection) -> None:
        fresh = [f"{next(ids):026d}" for _ in range(rows)]
        await connection.execute(statement, fresh, *([value] * rows for value in sample))

    numbers = await closed_loop(
        [partial(call, connection) for connection in connections], warmup=warmup, seconds=seconds
    )
    for connection in connections:
        await connection.close()
    return in_rows(numbers, rows)


async def _like_a_job(connection: asyncpg.Connection) -> tuple[str, list[object]]:
    """An INSERT of all that is not null in a job, but its id; and the values."""
    await connection.execute(CREATE_ROWS)
    job = await connection.fetchrow("SELECT * FROM jobs LIMIT 1")
    columns = [each for each in await connection.fetch(COLUMNS) if job[each["name"]] is not None]
    columns = [each for each in columns if each["name"] != "id"]
    # An array of arrays would fall apart: those come as text.
    types = ["text" if each["is_array"] else each["type"] for each in columns]
    arrays = ", ".join(f"${number}::{type}[]" for number, type in enumerate(["text", *types], start=1))
    names = ", ".join(["id", *(each["name"] for each in columns)])
    values = ", ".join(["id", *(f"{each['name']}::{each['type']}" for each in columns)])
    shown = ", ".join(f"{each['name']}::text" if each["is_array"] else each["name"] for each in columns)
    question = f"SELECT {shown} FROM jobs WHERE id = $1"  # noqa: S608 - the catalogue's names
    sample = await connection.fetchrow(question, job["id"])
    rows = f"unnest({arrays}) AS row ({names})"
    insert = f"INSERT INTO raw_rows ({names}) SELECT {values} FROM {rows}"  # noqa: S608 - the catalogue's names
    return insert, list(sample)


if __name__ == "__main__":
    main(enqueue, bulk)
