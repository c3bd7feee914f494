"""Writes what a batch came to: its output and error files.

Whoever finds all lines ended does so: the run of the batch, or the keeper when that run was cancelled or
late. Two may be at it; the commit that says so decides, and the other's bytes are thrown away.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import orjson

from app.artifacts.store import ArtifactStore
from app.artifacts.uploads import abandon, upload
from app.errors import NotFound
from app.jobs.batch_lines import ENDPOINTS, ENVELOPE_BYTES, LineSplitter, WrongLineError, read_line
from app.jobs.batch_results import KEPT_SECONDS, answered, refused, unanswered, why_missing, why_unanswered
from app.jobs.ids import new_id
from app.jobs.states import State
from app.loops.off_loop import off_loop
from app.store import batches
from app.store.batches import Batch, Ended, LineState
from app.store.database import Database
from app.store.files import NewFile
from app.telemetry import BATCHES_ENDED, FILE_BYTES

OUTPUT_PURPOSE = "batch_output"
# What is in memory at a time of the answers that are written.
PAGE_LINES = 200
PAGE_BYTES = 4 * 1024 * 1024

_WRITTEN = FILE_BYTES.labels("in")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a line may be, and how deeply nested."""

    max_body_bytes: int
    max_json_depth: int

    @property
    def max_line_bytes(self) -> int:
        return self.max_body_bytes + ENVELOPE_BYTES


class BatchResults:
    def __init__(self, database: Database, artifacts: ArtifactStore, limits: BatchLimits) -> None:
        self._database = database
        self._artifacts = artifacts
        self._limits = limits

    async def finalize(self, batch: Batch, state: str) -> bool:
        """Write the files of a batch whose lines have all ended, and that ends in this state; False when
        somebody else did."""
        lines = await batches.lines(self._database, batch.job_id)
        done = [line for line in lines if line.state == State.DONE]
        others = [line for line in lines if line.state != State.DONE]
        missing = await self._missing(batch, lines)
        total = max(batch.total or 0, len(lines))
        output = await self._write(batch, "output", self._outcomes(batch, done, state)) if done else None
        errors = None
        try:
            if others or missing:
                told = self._errors(batch, others, missing, state)
                errors = await self._write(batch, "error", told)
            written = await batches.finalize(
                self._database, batch.job_id, output, errors, len(done), total - len(done)
            )
        except BaseException:
            await self._throw_away(output, errors)
            raise
        if not written:
            await self._throw_away(output, errors)
            return False
        _WRITTEN.inc(sum(file.size for file in (output, errors) if file is not None))
        BATCHES_ENDED.labels(state).inc()
        return True

    async def _write(self, batch: Batch, name: str, lines: AsyncIterator[bytes]) -> NewFile:
        file_id = new_id()
        location = self._artifacts.new_location(file_id, f"{name}.jsonl")
        counted = _Counted(lines)
        await upload(self._database, self._artifacts, location, counted.pieces())
        filename = f"batch_{batch.job_id}_{name}.jsonl"
        return NewFile(
            file_id, batch.tenant, filename, OUTPUT_PURPOSE, counted.size, location, _keep_seconds(batch)
        )

    async def _throw_away(self, *files: NewFile | None) -> None:
        for file in files:
            if file is not None:
                await abandon(self._database, file.location)

    async def _outcomes(self, batch: Batch, lines: Sequence[LineState], state: str) -> AsyncIterator[bytes]:
        dialect = ENDPOINTS[batch.endpoint].dialect

        def written(ended: Ended) -> bytes:
            match ended.state:
                case State.DONE:
                    return answered(ended.id, ended.custom_id, ended.result)
                case State.FAILED | State.DISMISSED:
                    return refused(ended.id, ended.custom_id, ended.error, dialect)
            return unanswered(ended.id, ended.custom_id, why_unanswered(ended.state, state))

        for page in _pages(lines):
            for ended in await batches.outcomes(self._database, [line.id for line in page]):
                yield written(ended)

    async def _errors(
        self, batch: Batch, lines: Sequence[LineState], missing: Sequence[str], state: str
    ) -> AsyncIterator[bytes]:
        async for line in self._outcomes(batch, lines, state):
            yield line
        for custom_id in missing:
            yield unanswered(new_id(), custom_id, why_missing(state))

    async def _missing(self, batch: Batch, lines: Sequence[LineState]) -> list[str]:
        """The lines that have no job: their batch ended before they got one, or somebody deleted it."""
        if batch.total is None or len(lines) >= batch.total:
            return []
        file = await batches.input_file(self._database, batch.input_file_id)
        if file is None:
            return []
        there = {line.custom_id for line in lines}
        found: list[str] = []
        splitter = LineSplitter(self._limits.max_line_bytes)
        endpoint, depth = ENDPOINTS[batch.endpoint], self._limits.max_json_depth

        def look(raw: Sequence[bytes | None]) -> None:
            for data in raw:
                try:
                    custom_id = None if data is None else read_line(data, endpoint, depth).custom_id
                except WrongLineError:
                    continue
                if custom_id is not None and custom_id not in there:
                    found.append(custom_id)

        try:
            async for piece in self._artifacts.read(file.location, 0, file.size):
                await off_loop(len(piece), look, [line.data for line in splitter.feed(piece)])
            look([line.data for line in splitter.rest()])
        except NotFound:
            return found
        return found


class _Counted:
    """Lines on their way into a file, in pieces that are worth a write."""

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self._lines = lines
        self.size = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        async for line in self._lines:
            self.size += len(line)
            yield line


def _pages(lines: Sequence[LineState]) -> Iterator[list[LineState]]:
    page: list[LineState] = []
    size = 0
    for line in lines:
        if page and (len(page) == PAGE_LINES or size + line.size > PAGE_BYTES):
            yield page
            page, size = [], 0
        page.append(line)
        size += line.size
    if page:
        yield page


def _keep_seconds(batch: Batch) -> float:
    """What the caller said of its files, in the payload of its job."""
    said = orjson.loads(batch.payload).get("output_expires_after") or {}
    return float(said.get("seconds") or KEPT_SECONDS)
