"""A database that is away is one error, `Unavailable`; the pool heals by itself; bugs stay bugs."""

import asyncio

import asyncpg
import pytest

from app.errors import Unavailable
from app.store import database as database_module
from app.store import locks
from app.store.database import Connection, Database, asyncpg_url, connect, translated
from tests.patience import until


async def test_a_database_that_does_not_answer_is_unavailable() -> None:
    for url in ("postgresql://nobody@127.0.0.1:1/x", "postgresql:///x?host=/nonexistent"):
        with pytest.raises(Unavailable) as caught:
            await Database(url).open()
        assert caught.value.retry_after
        with pytest.raises(Unavailable):
            await connect(url)


async def test_a_database_that_is_not_open_is_unavailable(database_url: str) -> None:
    database = Database(database_url)
    with pytest.raises(Unavailable):
        await database.fetch("SELECT 1")
    await database.open()
    assert await database.fetchval("SELECT 1") == 1
    await database.close()
    with pytest.raises(Unavailable):
        await database.fetch("SELECT 1")


async def test_the_pool_heals_when_its_connections_are_cut(database: Database, database_url: str) -> None:
    cutter = await asyncpg.connect(database_url)
    try:
        for _ in range(3):
            await asyncio.gather(*(database.fetchval("SELECT pg_sleep(0.01)") for _ in range(5)))
            await cutter.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            answers = 0
            async with asyncio.timeout(10):
                while answers < 5:
                    try:
                        answers += await database.fetchval("SELECT 1")
                    except Unavailable:
                        answers = 0
    finally:
        await cutter.close()


@pytest.mark.parametrize("pooled", [False, True])
async def test_who_is_frozen_in_the_middle_of_a_transaction_does_not_keep_its_locks(
    database_url: str, pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop that sleeps while its sweeper is at it: the others' must not wait until it wakes up."""
    name = "idle_in_transaction_session_timeout"
    in_force = database_module.SESSION[name]
    monkeypatch.setitem(database_module.SESSION, name, "100ms")
    here = database_module.SESSION_HERE
    monkeypatch.setattr(
        database_module, "SESSION_HERE", here.replace(f"{name} = '{in_force}'", f"{name} = '100ms'")
    )
    frozen, other = Database(database_url, pooled=pooled), Database(database_url)
    await frozen.open()
    await other.open()
    try:
        with pytest.raises(Unavailable):
            async with frozen.transaction() as connection:
                assert await connection.fetchval(locks.try_lock(locks.SWEEP))
                await until(lambda: other.fetchval(locks.try_lock(locks.SWEEP)))
                await connection.fetchval("SELECT 1")
        assert await frozen.fetchval("SELECT 1") == 1
    finally:
        await frozen.close()
        await other.close()


async def test_more_statements_than_connections_all_have_their_turn(database_url: str) -> None:
    database = Database(database_url, size=2)
    await database.open()
    try:
        for _ in range(3):
            answers = await asyncio.gather(
                *(database.fetchval("SELECT $1::int FROM pg_sleep(0.001)", n) for n in range(20))
            )
            assert answers == list(range(20))
        async with database.connection() as first, database.connection() as second:
            assert first is not second
            waiting = asyncio.create_task(database.fetchval("SELECT 1"))
            await until(lambda: database._waiting == 1)
        assert await waiting == 1
    finally:
        await database.close()


async def test_a_connection_is_used_again_at_once_and_none_is_left_open(database_url: str) -> None:
    database = Database(database_url)
    await database.open()
    first = await database.fetchval("SELECT pg_backend_pid()")
    assert [await database.fetchval("SELECT pg_backend_pid()") for _ in range(5)] == [first] * 5
    # One whose statement was interrupted is not handed on before that is over.
    interrupted = asyncio.create_task(database.execute("SELECT pg_sleep(30)"))
    await until(lambda: not database._at_hand)
    interrupted.cancel()
    await asyncio.wait({interrupted})
    assert await database.fetchval("SELECT 1") == 1
    await database.close()
    other = await asyncpg.connect(database_url)
    try:
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        await until(lambda: _none(other, others))
    finally:
        await other.close()


async def test_what_one_connection_knows_of_types_the_next_one_does(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    ask = asyncpg.Connection._introspect_types

    async def asking(self: object, types: object, timeout: object) -> object:
        asked.append(types)
        return await ask(self, types, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", asking)
    monkeypatch.setattr(Connection, "_own_types", {})
    question = "SELECT $1::smallint[] || $2::smallint[]"
    async with database.connection() as first, database.connection() as second:
        assert await first.fetchval(question, [1], [2]) == [1, 2]
        assert len(asked) == 1
        assert await second.fetchval(question, [1], [2]) == [1, 2]
        assert await second.fetchval("SELECT $1::float8[]", [0.5]) == [0.5]
        assert len(asked) == 2
        # A type of somebody's own may be another one tomorrow.
        await first.execute("CREATE TYPE colour AS ENUM ('red')")
        for connection in (first, second):
            assert await connection.fetchval("SELECT $1::colour[]", ["red"]) == ["red"]
    assert len(asked) == 4


async def _none(connection: asyncpg.Connection, question: str) -> bool:
    return bool(await connection.fetchval(question) == 0)


async def test_connections_that_nobody_needs_go_back_to_the_pool(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.database.AT_HAND_SECONDS", 0.0)
    database = Database(database_url)
    await database.open()
    try:
        async with database.connection(), database.connection(), database.connection():
            pass
        for _ in range(5):
            await database.fetchval("SELECT 1 FROM pg_sleep(0.001)")
        assert len(database._at_hand) <= 1
    finally:
        await database.close()


async def test_a_connection_cut_in_the_middle_of_a_statement_is_unavailable(
    database: Database, database_url: str
) -> None:
    running = asyncio.create_task(database.execute("SELECT pg_sleep(30)"))
    cutter = await asyncpg.connect(database_url)
    try:
        cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(30)'"
        await until(lambda: cutter.fetchval(cut))
    finally:
        await cutter.close()
    with pytest.raises(Unavailable):
        await running


async def test_a_wrong_statement_stays_the_bug_it_is(database: Database) -> None:
    with pytest.raises(asyncpg.UndefinedTableError):
        await database.fetch("SELECT * FROM nowhere")
    with pytest.raises(asyncpg.DataError):
        await database.fetch("SELECT $1::int", "not a number")
    with pytest.raises(asyncpg.UniqueViolationError):
        await database.execute("INSERT INTO tenants (name) VALUES ('default')")
    assert await database.fetchval("SELECT 1") == 1


async def test_a_transaction_is_undone_by_an_error(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO tenants (name) VALUES ('acme')")
            raise ZeroDivisionError
    assert await database.fetchval("SELECT count(*) FROM tenants") == 1


async def test_without_a_statement_cache_it_works_through_a_pooler_too(database_url: str) -> None:
    database = Database(database_url, pooled=True)
    await database.open()
    for _ in range(3):
        assert await database.fetchval("SELECT $1::int", 7) == 7
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements") <= 1
    await database.close()


def test_sqlalchemys_spelling_of_a_url_is_understood() -> None:
    assert asyncpg_url("postgresql+asyncpg://u@h/d") == "postgresql://u@h/d"
    assert asyncpg_url("postgresql://u@h/d") == "postgresql://u@h/d"


def test_other_errors_pass_through_unchanged() -> None:
    with pytest.raises(KeyError), translated():
        raise KeyError("x")


async def test_a_statement_that_lost_a_deadlock_is_run_again(database: Database) -> None:
    """Each moves both rows, in opposite orders: PostgreSQL can only let them pass by undoing one."""
    await database.execute("CREATE TABLE pairs (id int PRIMARY KEY, moves int DEFAULT 0)")
    await database.execute("INSERT INTO pairs VALUES (1), (2)")
    await database.execute("ALTER DATABASE " + await _name(database) + " SET deadlock_timeout = '20ms'")
    await database.close()
    await database.open()
    # The sleep between the two locks makes sure that both hold one.
    move = """
    WITH first AS (SELECT id FROM pairs WHERE id = $1 FOR UPDATE)
    , pause AS MATERIALIZED (SELECT pg_sleep(0.3) FROM first)
    UPDATE pairs SET moves = moves + 1 FROM pause WHERE id = $2 RETURNING id
    """
    assert sorted(await asyncio.gather(database.fetchval(move, 1, 2), database.fetchval(move, 2, 1))) == [
        1,
        2,
    ]
    undone = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert [row["moves"] for row in await database.fetch("SELECT moves FROM pairs")] == [1, 1]
    await until(lambda: database.fetchval(undone))


async def _name(database: Database) -> str:
    return str(await database.fetchval("SELECT quote_ident(current_database())"))


async def test_a_statement_that_is_undone_again_and_again_is_unavailable_in_the_end(
    database: Database,
) -> None:
    await database.execute("CREATE SEQUENCE tries")
    await database.execute(
        """
        CREATE FUNCTION collide(code text) RETURNS int LANGUAGE plpgsql AS
        $$ BEGIN PERFORM nextval('tries'); RAISE EXCEPTION 'no way' USING ERRCODE = code; END $$
        """
    )
    for code in ("40001", "40P01"):
        await database.execute("SELECT setval('tries', 1, false)")
        with pytest.raises(Unavailable) as caught:
            await database.fetchval("SELECT collide($1)", code)
        assert caught.value.retry_after
        # A bounded number of times, and more than once.
        assert 2 <= await database.fetchval("SELECT last_value FROM tries") <= 10


@pytest.mark.parametrize(
    "code", ["40003", "53000", "53100", "53400", "57000", "57P05", "58000", "58030", "55P03"]
)
async def test_what_passes_by_itself_is_unavailable_and_tried_once(database: Database, code: str) -> None:
    await database.execute("CREATE SEQUENCE tries")
    await database.execute(
        """
        CREATE FUNCTION collide(code text) RETURNS int LANGUAGE plpgsql AS
        $$ BEGIN PERFORM nextval('tries'); RAISE EXCEPTION 'not now' USING ERRCODE = code; END $$
        """
    )
    with pytest.raises(Unavailable):
        await database.fetchval("SELECT collide($1)", code)
    assert await database.fetchval("SELECT last_value FROM tries") == 1
    with pytest.raises(Unavailable):
        async with database.transaction() as connection:
            await connection.fetchval("SELECT collide($1)", code)


async def test_a_transaction_that_was_undone_is_unavailable_and_left_to_its_author(
    database: Database,
) -> None:
    begun = 0
    with pytest.raises(Unavailable):
        async with database.transaction() as connection:
            begun += 1
            await connection.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$")
    assert begun == 1
    assert await database.fetchval("SELECT 1") == 1


async def test_a_connection_at_hand_that_was_lost_costs_nobody_an_answer(database: Database) -> None:
    """An operator ended it, or a proxy did, while nobody used it."""
    async with database.connection() as lost, database.connection() as other:
        pid = await lost.fetchval("SELECT pg_backend_pid()")
        await other.execute("SELECT pg_terminate_backend($1)", pid)
        gone = "SELECT NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = $1)"
        await until(lambda: other.fetchval(gone, pid))
    for _ in range(3):
        assert await database.fetchval("SELECT 1") == 1
