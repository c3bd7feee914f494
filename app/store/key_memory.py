"""What one process remembers of keys, so that a look at one reads what lives there, and not all that ever did: a
transaction held open elsewhere keeps whatever came and went in the indexes.

**Whom it counted** decides who may run, so it is never wrong, whatever another process does. A job comes to a key, and
to a place of the key, only under the key's lock, and draws a number there: from one sequence and after the lock was got,
so it is higher than all that were drawn for this key before. Whoever counted under the lock and remembers whom it found,
and what the last number was, later counts those of them that are still there, and all that have a higher number. A job
that goes on holding its place (claimed, rescued, released) keeps its number, and so does one that gives it back and
waits: so who remembers those that waited remembers those that held a place, too. One that came in without the lock has none,
and is counted by everybody (revived, or from before there were numbers).

Some of what was counted may never have happened for the server that is asked next, where commits were lost with the one
before it. So a memory counts only for the server process that it is of: by the moment of its start, which every count
compares.

**Where those begin who wait** is a hint, by rank, and only for a line that many went through: what appears before it is
passed over until the next look from the beginning. That comes after so many times as long as the last one took, so it is
a small share of all, and after some seconds at the latest.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ulid import ULID

from app.jobs.ids import id_floor
from app.store.changes import Key
from app.store.low_water import HIGHEST, LOWEST, THE_BEGINNING, trusted_seconds
from app.store.remembered import Remembered

# So many jobs of a key are remembered by their ids; the others are found from the first of them on.
KNOWN = 32
# Commits do not come in the order of the ids (see low_water.py).
SLACK = timedelta(seconds=2)
# Marks are worth it only for a line from which so many were let in since a look from the beginning was quick: before
# that it costs next to nothing, and passes over nobody. However long it takes, they are believed no longer than this.
WORTH_IT = 500
QUICK_SECONDS = 0.002
LONGEST_TRUST_SECONDS = 10.0

# The process that answers, and the last number that was drawn. It is read as it is, not as it was when the statement
# began, and no job of a key draws one while its lock is held.
SERVER = "pg_postmaster_start_time()"
LAST_NUMBER = "(SELECT last_value - (NOT is_called)::int FROM key_numbers)"

_HOLD = (("running", "true"), ("queued", "ready_at IS NOT NULL"))
_WAIT = (("queued", "ready_at IS NULL"),)


def mark_of(mark: str, server: str) -> str:
    """A mark, if it is of the server that answers."""
    return f"CASE WHEN {server} = {SERVER} THEN {mark} ELSE -1 END"


def _found(parts: Iterable[tuple[str, str]], of: str, limit: str = "") -> str:
    """Jobs of the key `asked`: those with a number beyond the mark, those without one, and those that are known."""
    selects = []
    for table, which in parts:
        runs = table == "running"
        columns = f"SELECT id, key_number, {runs} AS runs FROM {table}"
        of_key = f"queue = asked.queue AND concurrency_key = asked.key AND {which}"
        selects.append(
            f"({columns} WHERE {of_key} AND key_number > asked.{of}_mark ORDER BY key_number {limit})"
        )
        selects.append(f"({columns} WHERE {of_key} AND key_number IS NULL {limit})")
        # OFFSET 0 is a fence: by the id, and by nothing else.
        selects.append(
            f"""(SELECT live.id, live.key_number, {runs} FROM unnest(asked.{of}_ids::text[]) AS known (id)
            CROSS JOIN LATERAL (SELECT * FROM {table} WHERE id = known.id OFFSET 0) AS live
            WHERE {of_key} AND key_number <= asked.{of}_mark)"""
        )
    return "\n            UNION ALL ".join(selects)


_REMEMBERED = f"""
            ARRAY(SELECT id FROM found WHERE key_number IS NOT NULL ORDER BY key_number LIMIT {KNOWN}) AS ids,
            coalesce(
                (SELECT key_number - 1 FROM found WHERE key_number IS NOT NULL ORDER BY key_number OFFSET {KNOWN} LIMIT 1),
                {LAST_NUMBER}
            ) AS mark"""


def holding(*more: str) -> str:
    """Who has the places of the key `asked`: those that run, and those that could be claimed any moment; how many they
    are, and what is to be remembered."""
    columns = "".join(f"{each}, " for each in more)
    return f"""(
        WITH found AS MATERIALIZED (
            {_found(_HOLD, "places")}
        )
        SELECT count(*) AS jobs, {columns}{_REMEMBERED} FROM found
    )"""


def waiting(*more: str) -> str:
    """The same of all the others of the key, counted no further than one more than `most`: what is to be remembered is so
    only if there are not more than `most`."""
    columns = "".join(f"{each}, " for each in more)
    return f"""(
        WITH found AS MATERIALIZED (
            {_found(_WAIT, "waiting", "LIMIT asked.most + 1")}
        )
        SELECT count(*) AS jobs, {columns}{_REMEMBERED} FROM found
    )"""


@dataclass(frozen=True, slots=True)
class Known:
    """Jobs that were found, and the number up to which there were no others."""

    ids: tuple[str, ...] = ()
    mark: int = -1


_NOBODY = Known()


class Counted:
    """Whom one process found when it counted, under the keys' locks: by key, all of them at one server."""

    def __init__(self) -> None:
        self._known: Remembered[Key, Known] = Remembered()
        # None was ever counted at the beginning of time.
        self.server: datetime = THE_BEGINNING

    def sent(self, keys: Iterable[Key]) -> tuple[list[int], list[str]]:
        """For each key the mark, and the ids as one text (ragged arrays cannot be unnested)."""
        known = [self._known.get(key) or _NOBODY for key in keys]
        return [each.mark for each in known], [array_literal(each.ids) for each in known]

    def learn(self, server: datetime, known: Mapping[Key, Known]) -> None:
        """Of counts that were made under the locks, and that nothing can take back any more which they have seen: not of
        one in a transaction that had given back a place before, unless it has been committed."""
        if server != self.server:
            self._known = Remembered()
            self.server = server
        for key, each in known.items():
            self._known.put(key, each)


@dataclass(slots=True)
class _Line:
    """Where those begin who wait for one key, by rank; and until when that is believed."""

    by_rank: dict[int, str] = field(default_factory=dict)
    trusted_until: float = 0.0
    # How many were let in since a look from the beginning was quick.
    let_in: int = 0
    # There are more of them than there are places.
    backlog: bool = False
    # Nobody was found from the marks on; there may be somebody before them.
    doubtful: bool = False

    def is_trusted(self, now: float) -> bool:
        return self.let_in >= WORTH_IT and now < self.trusted_until

    def spans(self) -> list[tuple[int, int, str]]:
        """Every rank is in exactly one span, best first."""
        spans, above = [], HIGHEST
        for rank in sorted(self.by_rank, reverse=True):
            if rank < above:
                spans.append((rank + 1, above, ""))
            mark = self.by_rank[rank]
            spans.append((rank, rank, mark if self.backlog else _a_little_before(mark)))
            above = rank - 1
        return [*spans, (LOWEST, above, "")]


def _a_little_before(job_id: str) -> str:
    return id_floor(ULID.from_str(job_id).datetime - SLACK) if SLACK else job_id


ALL = [(LOWEST, HIGHEST, "")]


@dataclass(slots=True)
class Look:
    """One look at those who wait for some keys."""

    keys: Sequence[Key]
    # Those of which it begins at the marks.
    marked: set[Key]
    # Arrays for each key, as text: (lowest rank, highest rank, first id).
    spans: list[list[str]]
    began: float


class Lines:
    """Where those begin who wait, as one process knows it. Of keys for which nobody ever waited it knows nothing."""

    def __init__(self) -> None:
        self._lines: Remembered[Key, _Line] = Remembered()

    def begin(self, keys: Sequence[Key]) -> Look:
        now = time.monotonic()
        spans, marked = [], set()
        for key in keys:
            line = self._lines.get(key)
            if line is not None and line.is_trusted(now):
                marked.add(key)
                spans.append(line.spans())
            else:
                spans.append(ALL)
        literals = [[array_literal(column) for column in zip(*each, strict=True)] for each in spans]
        return Look(keys, marked, [list(column) for column in zip(*literals, strict=True)], now)

    def took(self, look: Look, key: Key, taken: Sequence[tuple[str, int]], *, full: bool) -> None:
        """Of a key these are let in, by id and rank; and whether that was all that there was room for."""
        line = self._lines.get(key)
        if line is None:
            if not taken:
                return
            line = _Line()
            self._lines.put(key, line)
        line.backlog = full
        line.let_in += len(taken)
        lowest: dict[int, str] = {}
        for job_id, rank in taken:
            lowest[rank] = min(job_id, lowest.get(rank, job_id))
        line.by_rank |= lowest
        line.doubtful = not full and key in look.marked

    def ended(self, look: Look, found: Iterable[Key] | None = None) -> None:
        """How long it took is each key's share; `found`: those that somebody waits for, if that was all that was asked."""
        now = time.monotonic()
        seconds = (now - look.began) / max(1, len(look.keys))
        awaited = None if found is None else set(found)
        for key in look.keys:
            line = self._lines.get(key)
            if line is None:
                continue
            if key not in look.marked:
                line.trusted_until = now + min(LONGEST_TRUST_SECONDS, trusted_seconds(seconds))
                if seconds < QUICK_SECONDS:
                    line.let_in = 0
            if awaited is not None:
                line.doubtful = key in look.marked and key not in awaited

    def known(self) -> list[Key]:
        """The keys of which it is believed to be known where those begin who wait."""
        now = time.monotonic()
        return [key for key in self._lines if (line := self._lines.peek(key)) and line.is_trusted(now)]

    def doubts(self, keys: Iterable[Key]) -> dict[Key, float]:
        """Those of the keys that are to be looked at again, and when: from the beginning."""
        lines = ((key, self._lines.get(key)) for key in keys)
        return {key: line.trusted_until for key, line in lines if line is not None and line.doubtful}


class KeyMemory:
    """All that one process remembers of keys: who held places, who of all others there were, and who is next."""

    def __init__(self) -> None:
        self.places = Counted()
        self.waiting = Counted()
        self.lines = Lines()


def array_literal(values: Iterable[object]) -> str:
    """Of numbers and ids, which need no care."""
    return "{" + ",".join(f'"{value}"' for value in values) + "}"
