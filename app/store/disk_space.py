"""Whether the database's disk has room: asked without leaving anything behind."""

from app.store.database import Database

# More than fits into so little memory is written to a temporary file, on the disk that the tables are on: some hundred
# kilobytes that are gone with the statement. No row, no dead row, no write-ahead log.
LITTLE_MEMORY = "SET LOCAL work_mem = '64kB'"
SPILL = "SELECT count(*) FROM generate_series(1, 10000)"


async def ask_for_space(database: Database) -> None:
    """Raises Unavailable when there is none."""
    async with database.transaction() as connection:
        await connection.execute(LITTLE_MEMORY)
        await connection.fetchval(SPILL)
    database.outage.succeeded(has_room=True)
