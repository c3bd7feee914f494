"""Secrets under their keys: what is needed to open them, and how they get another key beside servers that work."""

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import orjson
import pytest

from app.secretbox import GIVEN_UP, SealBroken, SecretBox, key_id_of
from app.store import secrets, targets
from app.store.database import Database
from app.store.secrets import JOB, TOKEN, WAKE, Kind, Sealed
from tests.patience import until
from tests.store.making import job, put

OLD, NEW, OTHER = bytes(32), bytes(range(32)), bytes(range(1, 33))
ALL_OLD, ALL_NEW, BOTH = SecretBox([OLD]), SecretBox([NEW]), SecretBox([NEW, OLD])
URL = "https://receiver.example/hook"
TARGET = {"url": "http://gpu.example"}
WAKE_URL = "https://ha.example/api/webhook/geheim"


async def jobs_with_secrets(database: Database, box: SecretBox, number: int, name: str = "") -> list[str]:
    """Each has its own secret, which has its id in it."""
    made = [job(webhook_url=URL) for _ in range(number)]
    for each in made:
        each.sealed_webhook_secret = box.seal(f"secret{name} of {each.id}", JOB.aad(each.id))
    return await put(database, *made)


async def make_target(database: Database, name: str, box: SecretBox, *, sealed_wake: bool = True) -> None:
    wake: dict[str, str] = {"method": "POST"} if sealed_wake else {"method": "POST", "url": WAKE_URL}
    await targets.put_target(
        database,
        name,
        {**TARGET, "wake": wake},
        box.seal(f"token of {name}", TOKEN.aad(name)),
        keep_token_of=None,
        wake_url=box.seal(WAKE_URL, WAKE.aad(name)) if sealed_wake else None,
    )


async def stored(database: Database, kind: Kind) -> dict[str, bytes]:
    rows = await database.fetch(
        f"SELECT {kind.row} AS row, {kind.column} AS secret FROM {kind.table} "
        f"WHERE {kind.column} IS NOT NULL ORDER BY 1"
    )
    return {row["row"]: row["secret"] for row in rows}


async def opened(database: Database, kind: Kind, box: SecretBox) -> dict[str, str]:
    return {row: box.open(secret, kind.aad(row)) for row, secret in (await stored(database, kind)).items()}


def summed(rotations: Sequence[secrets.Rotation]) -> dict[str, tuple[int, int, int, int]]:
    return {each.kind.name: (each.resealed, each.current, each.passed, each.remaining) for each in rotations}


async def test_everything_is_sealed_with_the_first_key_and_says_what_it_said(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "BATCH", 10)
    monkeypatch.setattr(secrets, "COUNT_STEP", 10)
    old = await jobs_with_secrets(database, ALL_OLD, 35)
    new = await jobs_with_secrets(database, ALL_NEW, 20)
    await put(database, job(), job(webhook_url=URL))
    await make_target(database, "sealed", ALL_OLD)
    await make_target(database, "clear", ALL_OLD, sealed_wake=False)
    before = await stored(database, JOB)

    assert summed(await secrets.rotate(database, BOTH, dry_run=True)) == {
        "job": (35, 20, 0, 0),
        "target": (2, 0, 0, 0),
        "wake": (2, 0, 0, 0),
    }
    assert await stored(database, JOB) == before
    assert (await stored(database, WAKE)).keys() == {"sealed"}

    done = await secrets.rotate(database, BOTH)
    assert summed(done) == {"job": (35, 20, 0, 0), "target": (2, 0, 0, 0), "wake": (2, 0, 0, 0)}
    # The old key is not needed any more.
    assert await opened(database, JOB, ALL_NEW) == {each: f"secret of {each}" for each in old + new}
    assert await opened(database, TOKEN, ALL_NEW) == {
        each: f"token of {each}" for each in ("clear", "sealed")
    }
    assert await opened(database, WAKE, ALL_NEW) == {"clear": WAKE_URL, "sealed": WAKE_URL}
    settings = await database.fetch("SELECT settings FROM targets")
    assert [orjson.loads(row["settings"])["wake"] for row in settings] == [{"method": "POST"}] * 2
    # What was right is as it was, to the byte.
    assert {each: before[each] for each in new} == {
        each: secret for each, secret in (await stored(database, JOB)).items() if each in new
    }

    after = await stored(database, JOB)
    assert summed(await secrets.rotate(database, BOTH)) == {
        "job": (0, 55, 0, 0),
        "target": (0, 2, 0, 0),
        "wake": (0, 2, 0, 0),
    }
    assert await stored(database, JOB) == after


async def test_what_somebody_changes_in_the_very_moment_is_not_overwritten(
    database: Database, database_url: str
) -> None:
    mine, theirs = await jobs_with_secrets(database, ALL_OLD, 2)
    newer = ALL_OLD.seal("a newer secret", JOB.aad(theirs))
    somebody = await asyncpg.connect(database_url)
    change = somebody.transaction()
    await change.start()
    await somebody.execute("UPDATE jobs SET webhook_secret = $2 WHERE id = $1", theirs, newer)
    rotating = asyncio.create_task(secrets.rotate(database, BOTH))

    async def waits() -> bool:
        return bool(await somebody.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    await until(waits)
    await change.commit()
    await somebody.close()
    # It was read before it was changed: it is passed by, and said to be left.
    assert summed(await rotating)["job"] == (1, 0, 1, 1)
    assert await opened(database, JOB, BOTH) == {mine: f"secret of {mine}", theirs: "a newer secret"}
    assert summed(await secrets.rotate(database, BOTH))["job"] == (1, 1, 0, 0)
    assert (await opened(database, JOB, ALL_NEW))[theirs] == "a newer secret"


async def test_a_target_that_was_given_another_token_or_wake_url_meanwhile_keeps_it(
    database: Database,
) -> None:
    await make_target(database, "gpu", ALL_OLD, sealed_wake=False)
    read = [Sealed("gpu", (await stored(database, TOKEN))["gpu"])]
    newer = BOTH.seal("another token", TOKEN.aad("gpu"))
    await database.execute("UPDATE targets SET token = $1", newer)
    assert await secrets.replace(database, TOKEN, read, [BOTH.seal("token of gpu", TOKEN.aad("gpu"))]) == 0
    assert (await stored(database, TOKEN))["gpu"] == newer
    assert not await secrets.seal_wake_url(database, BOTH, "gpu", "https://the.one/from/before")
    assert await stored(database, WAKE) == {}
    assert await secrets.seal_wake_url(database, BOTH, "gpu", WAKE_URL)
    assert await opened(database, WAKE, ALL_NEW) == {"gpu": WAKE_URL}


async def test_two_rotations_side_by_side_do_it_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "BATCH", 7)
    made = await jobs_with_secrets(database, ALL_OLD, 40)
    one, other = await asyncio.gather(secrets.rotate(database, BOTH), secrets.rotate(database, BOTH))
    assert summed(one)["job"][0] + summed(other)["job"][0] == 40
    assert await opened(database, JOB, ALL_NEW) == {each: f"secret of {each}" for each in made}


async def test_what_cannot_be_opened_is_left_alone_and_named(database: Database) -> None:
    [good, broken] = await jobs_with_secrets(database, ALL_OLD, 2)
    foreign = await jobs_with_secrets(database, SecretBox([OTHER]), 4)
    await database.execute(
        "UPDATE jobs SET webhook_secret = (SELECT webhook_secret FROM jobs WHERE id = $1) WHERE id = $2",
        good,
        broken,
    )
    before = await stored(database, JOB)
    [rotation, *_] = await secrets.rotate(database, BOTH)
    assert (rotation.resealed, rotation.remaining) == (1, 0)
    found = {each.key: each for each in rotation.unreadable}
    assert found[key_id_of(before[broken])].examples == [broken]
    theirs = found[SecretBox([OTHER]).key_ids[0]]
    assert (theirs.unreadable, theirs.examples) == (4, foreign[:3])
    after = await stored(database, JOB)
    assert {each: after[each] for each in after if each != good} == {
        each: before[each] for each in before if each != good
    }

    tallies = await secrets.examine(database, BOTH)
    assert {(each.key, each.secrets, each.unreadable) for each in tallies} == {
        (BOTH.key_ids[0], 1, 0),
        (BOTH.key_ids[1], 1, 1),
        (SecretBox([OTHER]).key_ids[0], 4, 4),
    }
    assert {each.unreadable for each in await secrets.examine(database, None)} == {1, 4}


async def test_a_look_at_the_start_tells_what_is_missing_with_an_end_to_the_counting(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await secrets.unreadable(database, None) == []
    monkeypatch.setattr(secrets, "COUNTED", 5)
    made = await jobs_with_secrets(database, ALL_OLD, 9)
    await make_target(database, "gpu", SecretBox([OTHER]))
    assert await secrets.unreadable(database, SecretBox([NEW, OTHER, OLD])) == []
    jobs, token, wake = await secrets.unreadable(database, ALL_NEW)
    newest = ", ".join(made[:-4:-1])
    key = ALL_OLD.key_ids[0].hex()
    assert str(jobs) == f"more than 5 webhook secrets of jobs ({newest}, …), sealed with the key {key}"
    other = SecretBox([OTHER]).key_ids[0].hex()
    assert str(token) == f"1 token of a target (gpu), sealed with the key {other}"
    assert str(wake) == f"1 wake URL of a target (gpu), sealed with the key {other}"
    assert len(await secrets.unreadable(database, None)) == 3
    # During a rotation both keys are needed, and after it one.
    assert await secrets.unreadable(database, SecretBox([NEW, OLD, OTHER])) == []
    await secrets.rotate(database, SecretBox([NEW, OLD, OTHER]))
    assert await secrets.unreadable(database, ALL_NEW) == []


async def test_the_look_at_the_start_goes_by_the_index_from_key_to_key(database: Database) -> None:
    await jobs_with_secrets(database, ALL_OLD, 300)
    await jobs_with_secrets(database, ALL_NEW, 300)
    await put(database, *(job() for _ in range(600)))
    await database.execute("ANALYZE jobs")
    plan = await database.fetch_in_order(f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) {secrets.KEYS_IN_USE}")
    scans = list(_scans(orjson.loads(plan[0][0])[0]["Plan"]))
    of_jobs = [each for each in scans if each.get("Relation Name") == "jobs"]
    assert {each["Index Name"] for each in of_jobs} == {"jobs_sealed_by"}
    assert sum(each["Actual Rows"] * each["Actual Loops"] for each in of_jobs) <= 3
    assert sum(each.get("Rows Removed by Filter", 0) for each in of_jobs) == 0


def _scans(node: dict[str, Any]) -> list[dict[str, Any]]:
    below = node.get("Plans", [])
    assert isinstance(below, list)
    return [node, *(each for plan in below for each in _scans(plan))]


async def test_what_a_lost_key_has_sealed_is_given_up_and_never_sent_unsigned(database: Database) -> None:
    lost = await jobs_with_secrets(database, ALL_OLD, 3)
    kept = await jobs_with_secrets(database, ALL_NEW, 1)
    await make_target(database, "gpu", ALL_OLD)
    given_up = await secrets.give_up(database, ALL_OLD.key_ids[0])
    assert given_up == {JOB: 3, TOKEN: 1, WAKE: 1}
    assert await secrets.unreadable(database, ALL_NEW) == []
    found = await stored(database, JOB)
    assert {found[each] for each in lost} == {GIVEN_UP}
    assert ALL_NEW.open(found[kept[0]], kept[0]) == f"secret of {kept[0]}"
    with pytest.raises(SealBroken, match="given up"):
        ALL_NEW.open(found[lost[0]], lost[0])
    assert summed(await secrets.rotate(database, ALL_NEW))["job"] == (0, 1, 0, 0)
