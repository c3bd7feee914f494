"""One job as its page reads it: bounded, whatever the log has become."""

from typing import Any

from app.jobs.states import Verb
from app.store import family, job_view
from app.store.database import Database
from app.store.events import NewEvent, append
from app.store.settle import Settlement, settle
from tests.store.making import TENANT, claim, job, put, put_one, running


async def viewed(database: Database, job_id: str, **limits: Any) -> job_view.ViewedJob:
    found = await job_view.get(
        database, job_id, TENANT, **({"payload": 1000, "result": 1000, "head": 10} | limits)
    )
    assert found is not None
    return found


async def post(database: Database, job_id: str, number: int, type_: str = "posted") -> None:
    for begin in range(0, number, 500):
        await append(
            database,
            [NewEvent(job_id, type_, f'{{"n":{n}}}') for n in range(begin, min(begin + 500, number))],
        )


async def test_what_is_large_is_cut_and_its_size_is_told(database: Database) -> None:
    payload = '{"a":"' + "ü" * 600 + '"}'
    job_id = await put_one(database, payload=payload)
    cut = await viewed(database, job_id)
    assert (cut.payload, cut.payload_bytes) == (payload[:10], len(payload.encode()))
    assert (await viewed(database, job_id, payload=5000)).payload == payload
    assert (await viewed(database, job_id, payload=0)).payload == ""
    assert cut.result is None
    assert cut.result_bytes is None
    assert await job_view.get(database, job_id, "another", payload=0, result=0, head=0) is None


async def test_transitions_are_found_wherever_they_lie(database: Database) -> None:
    job_id, token = await running(database)
    await settle(database, [Settlement(job_id, token, Verb.RETRY, error='{"code":"x"}', delay_seconds=0)])
    await post(database, job_id, 2)
    found = await job_view.transitions(database, job_id, 100, 100)
    assert [(each.seq, each.type, each.reason) for each in found] == [
        (1, "queued", "enqueue"),
        (2, "loading", "claim"),
        (3, "queued", "retry"),
        (4, "posted", None),
        (5, "posted", None),
    ]
    assert [each.seq for each in await job_view.transitions(database, job_id, 1, 1)] == [3, 5]


async def test_behind_more_events_than_are_looked_at_no_half_of_a_run_is_told(database: Database) -> None:
    job_id, token = await running(database)
    await settle(database, [Settlement(job_id, token, Verb.RETRY, error='{"code":"x"}', delay_seconds=0)])
    await post(database, job_id, job_view.MAX_LOOKED)
    await claim(database)
    found = await job_view.transitions(database, job_id, 100, 0)
    # The first claim lies in the row and could be told; what became of it lies too far back.
    assert [(each.type, each.reason) for each in found] == [("loading", "claim")]


async def walk(database: Database, job_id: str, **how: Any) -> tuple[list[int], int]:
    """All seqs that are met from one end to the other, and in how many pieces."""
    cursor, seqs, pieces = 2**31 - 1 if how["newest_first"] else 0, [], 0
    while True:
        piece = await job_view.piece_of_log(database, job_id, cursor, 70, **how)
        seqs += [each.seq for each in piece.events]
        pieces += 1
        if piece.go_on is None:
            return seqs, pieces
        cursor = piece.go_on


async def test_the_log_is_walked_from_either_end_without_losing_any(database: Database) -> None:
    job_id, _ = await running(database)
    await post(database, job_id, 100)
    await post(database, job_id, 100, "log")
    down, _ = await walk(database, job_id, newest_first=True, with_output=True)
    up, _ = await walk(database, job_id, newest_first=False, with_output=True)
    assert up == list(range(1, 203))
    assert down == up[::-1]


async def test_output_can_be_left_out_however_much_of_it_there_is(database: Database) -> None:
    job_id, _ = await running(database)
    await post(database, job_id, job_view.MAX_LOOKED + 500, "output")
    await post(database, job_id, 3)
    newest = await job_view.piece_of_log(
        database, job_id, 2**31 - 1, 50, newest_first=True, with_output=False
    )
    assert [each.type for each in newest.events] == ["posted"] * 3
    assert newest.go_on is not None
    seqs, pieces = await walk(database, job_id, newest_first=True, with_output=False)
    assert len(seqs) == 5
    assert pieces <= 3
    assert (await walk(database, job_id, newest_first=False, with_output=False))[0] == seqs[::-1]


async def test_an_event_is_told_with_the_beginning_of_its_data(database: Database) -> None:
    job_id, _ = await running(database)
    long = '"' + "x" * 50_000 + '"'
    await append(database, [NewEvent(job_id, "posted", long)])
    piece = await job_view.piece_of_log(database, job_id, 2**31 - 1, 1, newest_first=True, with_output=False)
    [event] = piece.events
    assert event.data == long[: job_view.DATA_HEAD]
    assert event.data_bytes == len(long)
    [told] = [each for each in await job_view.transitions(database, job_id, 0, 1) if each.type == "posted"]
    assert told.data is None


async def test_of_output_the_end_is_read_and_only_of_the_run_that_counts(database: Database) -> None:
    job_id, _ = await running(database)
    await post(database, job_id, 1000, "output")
    assert [row.seq for row in await job_view.last_output(database, job_id, 2, 20)] == [1000, 1001, 1002]
    assert await job_view.last_output(database, job_id, 1002, 10_000) == []
    assert len(await job_view.last_output(database, job_id, 2, 10**6)) == 1000


async def test_children_are_counted_and_those_first_that_need_a_look(database: Database) -> None:
    parent = await put_one(database)
    children = await put(
        database, *(job(parent_id=parent) for _ in range(5)), job(parent_id=parent, kind="other")
    )
    [claimed] = await claim(database, ("other",))
    await settle(database, [Settlement(claimed.id, claimed.lease_token, Verb.FAIL, error="{}")])
    found = await family.children(database, parent, TENANT, 3)
    assert [each.id for each in found.jobs] == [claimed.id, *children[:2]]
    assert found.states == {"queued": 5, "failed": 1}
    assert found.total == 6
    assert (await family.children(database, children[0], TENANT, 3)).total == 0
