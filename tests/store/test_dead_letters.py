"""Dead letters by what they died of: bounded, and gone on with."""

from app.store.database import Database
from app.store.dead_letters import MAX_GROUPS, groups
from app.store.read import Filter
from tests.live_tables import write
from tests.store.making import TENANT, job, put

FAIL = """
UPDATE jobs SET state = 'failed', completed_at = now(),
    error = json_build_object('code', $2::text, 'message', 'x', 'retryable', false)::text
WHERE id = ANY ($1::text[])
"""


async def dead(database: Database, number: int, code: str, tenant: str = TENANT) -> list[str]:
    ids = await put(database, *(job(tenant=tenant) for _ in range(number)))
    await write(database, FAIL, ids, code)
    return ids


async def test_no_more_are_looked_at_than_the_bound_and_the_next_look_goes_on(database: Database) -> None:
    old = await dead(database, 3, "old")
    await dead(database, 2, "theirs", tenant="acme")
    new = await dead(database, 2, "new")
    first = await groups(database, Filter(), TENANT, looked=5)
    assert [(each.code, each.jobs, each.newest_id) for each in first.groups] == [
        ("new", 2, max(new)),
        ("old", 1, old[2]),
    ]
    assert (first.looked, first.next_before) == (5, old[2])
    rest = await groups(database, Filter(before=first.next_before), TENANT, looked=5)
    assert [(each.code, each.jobs) for each in rest.groups] == [("old", 2)]
    assert (rest.looked, rest.next_before) == (2, None)
    theirs = await groups(database, Filter(), "acme", looked=5)
    assert [(each.code, each.jobs) for each in theirs.groups] == [("theirs", 2)]


async def test_the_largest_groups_are_told_and_how_many_there_are(database: Database) -> None:
    for number in range(MAX_GROUPS + 5):
        await dead(database, 1, f"code-{number}")
    await dead(database, 2, "large")
    found = await groups(database, Filter(), TENANT)
    assert (found.groups[0].code, len(found.groups), found.found) == ("large", MAX_GROUPS, MAX_GROUPS + 6)


async def test_nothing_is_a_group_of_none(database: Database) -> None:
    found = await groups(database, Filter(), TENANT)
    assert (found.groups, found.found, found.looked, found.next_before) == ([], 0, 0, None)


async def test_an_error_without_a_code_is_a_group_too(database: Database) -> None:
    ids = await put(database, job(), job())
    await write(
        database, "UPDATE jobs SET state = 'failed', completed_at = now() WHERE id = ANY ($1::text[])", ids
    )
    [found] = (await groups(database, Filter(), TENANT)).groups
    assert (found.code, found.jobs) == (None, 2)
