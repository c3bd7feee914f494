"""depends_on in the store: however many wait for a job, all of them are told when it ends."""

from app.engine.unblocker import Unblocker
from app.events.hub import Hub
from app.store import dependencies
from app.store.changes import Changes
from app.store.database import Database
from app.store.queues import QueueBook
from tests.live_tables import write
from tests.store import invariants
from tests.store.making import put_one, running, states_of

# Jobs that wait for $1; their ids begin with $3.
WAIT_FOR = """
WITH waiting AS (
    INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, gate, reason, seq, history)
    SELECT $3 || lpad(n::text, 25, '0'), 'default', 'default', 'late', 'late', 'queued', '{}', 'waiting_for',
           'waiting_for', 1, ''
    FROM generate_series(1, $2::int) n RETURNING id
)
INSERT INTO dependencies (job_id, depends_on) SELECT id, $1 FROM waiting
"""
ENDS = "UPDATE jobs SET state = 'done', completed_at = now(), lease_token = NULL, seq = seq WHERE id = $1"
LEFT = "SELECT count(*) FROM jobs WHERE gate = 'waiting_for'"


async def test_all_who_wait_for_a_job_are_let_go_without_waiting_for_a_repair(database: Database) -> None:
    first, _ = await running(database)
    await write(database, WAIT_FOR, first, 5_500, "0")
    await write(database, ENDS, first)
    hub = Hub(database, None, 60)
    unblocker = Unblocker(database, hub, QueueBook(database), 3600)
    hub.announce(Changes(ended={first}))
    await unblocker.stop()
    assert await database.fetchval(LEFT) == 0
    assert await database.fetchval("SELECT count(*) FROM dependencies") == 0


async def test_a_job_that_many_wait_for_does_not_hold_up_those_who_wait_for_another(
    database: Database,
) -> None:
    crowded, lonely = await put_one(database), await put_one(database)
    await write(database, WAIT_FOR, crowded, 2 * dependencies.STEP, "0")
    await write(database, WAIT_FOR, lonely, 1, "1")
    for job_id in (crowded, lonely):
        await write(database, ENDS, job_id)
    resolved = await dependencies.resolve(database, [crowded, lonely])
    assert resolved.ended == {crowded}
    assert await database.fetchval(LEFT + " AND id > '1'") == 0
    assert await database.fetchval(LEFT) == 2 * dependencies.STEP - dependencies.STEP // 2


async def test_all_who_wait_for_a_job_that_failed_are_cancelled_step_by_step(database: Database) -> None:
    first = await put_one(database)
    await write(database, WAIT_FOR, first, 1_200, "0")
    await write(database, ENDS.replace("'done'", "'failed'"), first)
    steps = 1
    while (await dependencies.resolve(database, [first])).ended:
        steps += 1
    assert steps == 2
    assert await database.fetchval("SELECT count(*) FROM jobs WHERE reason = 'dependency_failed'") == 1_200
    assert await states_of(database, f"0{1:025}") == ["cancelled"]
    assert await dependencies.resolve(database, []) == Changes()
    await write(database, "DELETE FROM jobs WHERE id = $1", first)
    await database.execute("DELETE FROM events WHERE job_id = $1", first)
    await invariants.check_all(database)
