"""Rows as they leave the store: declared once, and true to the tables."""

import types
from datetime import date, datetime
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.store import (
    artifacts,
    batches,
    bulk,
    events,
    files,
    holdings,
    keys,
    outbox,
    queues,
    schedules,
    targets,
    workers,
)
from app.store.database import Database
from app.store.job import BriefJob, ClaimedJob, Job, JobSummary, LeasedJob
from app.store.read import Filter, get_job, list_jobs
from app.store.rows import as_row, as_rows, columns
from app.store.tables import METADATA
from tests.store.making import TENANT, put_one, row_of


class Place(msgspec.Struct):
    queue: str
    jobs: int


def test_columns_are_named_in_the_order_of_the_fields() -> None:
    assert columns(Place) == "queue, jobs"
    assert columns(Place, "p") == "p.queue, p.jobs"
    assert columns(Place, "p", jobs="count(*)") == "p.queue, count(*) AS jobs"


def test_records_fit_by_position() -> None:
    assert as_rows(Place, [("a", 1), ("b", 2)]) == [Place("a", 1), Place("b", 2)]
    assert as_row(Place, ("a", 1)) == Place("a", 1)
    assert as_row(Place, None) is None


# Each with its table, what in it is no column, and the columns that are never NULL where it is read.
ROWS: list[tuple[type[msgspec.Struct], str, set[str], set[str]]] = [
    (JobSummary, "jobs", set(), set()),
    (Job, "jobs", {"stored_artifacts"}, set()),
    (
        LeasedJob,
        "jobs",
        {"stored_artifacts", "waited_seconds"},
        {"worker", "ready_at", "lease_token", "lease_seconds"},
    ),
    (
        BriefJob,
        "jobs",
        {"waited_seconds"},
        {"worker", "ready_at", "lease_token", "lease_seconds", "lease_expires_at"},
    ),
    (ClaimedJob, "jobs", {"started", "waited_seconds"}, {"ready_at", "lease_token", "lease_seconds"}),
    (events.Event, "events", set(), set()),
    (events.Event, "chatter", set(), set()),
    (outbox.Delivery, "outbox", {"state", "next_try_at", "delivered_at"}, set()),
    (outbox.Delivery, "deliveries", {"next_try_at"}, set()),
    (schedules.Schedule, "schedules", set(), set()),
    (queues.Queue, "queues", set(), set()),
    (workers.Worker, "workers", {"running", "job_ids"}, set()),
    (targets.KnownTarget, "targets", set(), set()),
    (bulk.Operation, "bulk_operations", set(), set()),
    (artifacts.Artifact, "artifacts", set(), set()),
    (holdings.Holding, "target_holdings", set(), set()),
    (files.File, "files", set(), set()),
    (batches.Batch, "batches", {*batches.OF_JOB, "is_late"}, set()),
    (keys.KeyHolder, "jobs", {"job_id", "heartbeat_at"}, set()),
    (keys.KeyWaiter, "jobs", {"job_id"}, set()),
]


@pytest.mark.parametrize(
    ("row", "table", "others", "given"), ROWS, ids=[f"{row.__name__}-{table}" for row, table, _, _ in ROWS]
)
def test_a_row_has_the_types_of_its_columns(
    row: type[msgspec.Struct], table: str, others: set[str], given: set[str]
) -> None:
    declared = get_type_hints(row)
    known = METADATA.tables[table].columns
    for name in row.__struct_fields__:
        if name not in others:
            type_, may_be_none = _parted(declared[name])
            assert type_ == _read_as(known[name].type), name
            assert may_be_none is (bool(known[name].nullable) and name not in given), name


def _parted(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in {types.UnionType, Union}:
        [type_] = [each for each in get_args(hint) if each is not type(None)]
        return type_, True
    return hint, False


def _read_as(column: Any) -> Any:
    """What the driver makes of it; JSON stays text."""
    if isinstance(column, ARRAY):
        return list[_read_as(column.item_type)]  # type: ignore[misc] # made up as it is needed
    kinds: list[tuple[Any, Any]] = [
        (JSONB, str),
        (sa.Text, str),
        (sa.Boolean, bool),
        (sa.Integer, int),
        (sa.Float, float),
        (sa.DateTime, datetime),
        (sa.Date, date),
        (sa.LargeBinary, bytes),
    ]
    return next(type_ for kind, type_ in kinds if isinstance(column, kind))


async def test_a_job_is_what_stands_in_its_row(database: Database) -> None:
    job_id = await put_one(database, payload='{"a": 1.0}', metadata='{"k": "v"}', model="m")
    row = await row_of(database, job_id)
    job = await get_job(database, job_id, TENANT)
    assert job is not None
    assert job.stored_artifacts is None
    for name in set(Job.__struct_fields__) - {"stored_artifacts"}:
        assert getattr(job, name) == row[name], name
    [listed] = (await list_jobs(database, Filter(), TENANT, 10)).jobs
    for name in JobSummary.__struct_fields__:
        assert getattr(listed, name) == row[name], name
