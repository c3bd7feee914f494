"""Ids as people see and type them: `01M7P9TP..FT8N` for `01M7P9TPVBBRW7M0DY7CMFT8NX`.

An id begins with its moment, which all ids of a moment share, and ends in chance. A short one has both: the
end tells it from its neighbours, and the beginning says when to look for it, so that the lists the server has
anyway are enough to find the rest.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import foreman_client as fc
from app.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from foreman_client import Foreman

DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26
# Of these the first ten are the moment in milliseconds; eight of them are a second.
MOMENT_DIGITS = 10
BEGINNING = 8
SHORTEST_END = 4
GAP = ".."
# An id, and what may stand behind it: deliveries are named by their job and its event.
_ID = re.compile(rf"([0-7][{DIGITS}]{{{LENGTH - 1}}})(-\d+)?")
_SHORT = re.compile(rf"([{DIGITS}]*)(?:(?:\.\.+|…)([{DIGITS}]+))?")
# How many jobs are looked through for a short id.
MOST_LOOKED = 2000
PAGE = 200
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def shortened(ids: Iterable[str]) -> dict[str, str]:
    """The short form of each of these that is an id: as short as keeps them apart."""
    parts = {text: found for text in ids if (found := _ID.fullmatch(text))}
    whole = {found[1] for found in parts.values()}
    end = next(
        (
            size
            for size in range(SHORTEST_END, LENGTH - BEGINNING - len(GAP))
            if len({(each[:BEGINNING], each[-size:]) for each in whole}) == len(whole)
        ),
        None,
    )
    if end is None:
        return {}
    return {
        text: f"{found[1][:BEGINNING]}{GAP}{found[1][-end:]}{found[2] or ''}" for text, found in parts.items()
    }


def is_whole(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def matching(text: str, ids: Iterable[str]) -> list[str]:
    """Those of these ids that a short one may stand for."""
    found = _SHORT.fullmatch(text.upper())
    if found is None or not text:
        return []
    return [each for each in ids if each.startswith(found[1]) and each.endswith(found[2] or "")]


def one_of(text: str, ids: Iterable[str], what: str) -> str:
    """The one that is meant, among all that there are."""
    candidates = matching(text, ids)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise CommandError(f"there is no {what} {text}", ExitCode.NOT_FOUND)
    shown = ", ".join(candidates[:3]) + (" …" if len(candidates) > 3 else "")
    raise CommandError(f"{text} may be any of {len(candidates)} {what}s: {shown}")


def job_id(foreman: "Foreman", text: str) -> str:
    """The job that is meant; a whole id is taken at its word."""
    # Longer than an id there is nothing to complete: the server says that there is no such job.
    if len(text) >= LENGTH and GAP not in text and "…" not in text:
        return text.upper() if is_whole(text.upper()) else text
    found = _SHORT.fullmatch(text.upper())
    if found is None or (span := _span(found[1])) is None:
        raise CommandError(f"there is no job {text}", ExitCode.NOT_FOUND)
    return one_of(text, _jobs_between(foreman, *span, text), "job")


def _span(beginning: str) -> tuple[datetime, datetime] | None:
    """When jobs were made whose ids begin like this; None if none can have been."""
    moment = beginning[:MOMENT_DIGITS]
    first, last = (_milliseconds(moment.ljust(MOMENT_DIGITS, digit)) for digit in ("0", "Z"))
    try:
        begin = EPOCH + timedelta(milliseconds=first)
    except OverflowError:
        return None
    try:
        return begin, EPOCH + timedelta(milliseconds=last + 1)
    except OverflowError:
        return begin, datetime.max.replace(microsecond=0, tzinfo=UTC)


def _milliseconds(moment: str) -> int:
    number = 0
    for digit in moment:
        number = number * 32 + DIGITS.index(digit)
    return number


def _jobs_between(foreman: "Foreman", begin: datetime, end: datetime, text: str) -> list[str]:
    """All of them: with one left out, the wrong one might be taken for the only one."""
    ids: list[str] = []
    cursor = None
    while True:
        try:
            page = foreman.list_jobs(since=begin, until=end, limit=PAGE, cursor=cursor)
        except fc.Forbidden:
            raise CommandError(
                f"this key may not look for the job {text}: give the whole id", ExitCode.UNAUTHORIZED
            ) from None
        ids += [job.job_id for job in page.jobs]
        cursor = page.next_cursor
        if cursor is None:
            return ids
        if len(ids) >= MOST_LOOKED:
            raise CommandError(
                f"{text} is too short: more than {len(ids):,} jobs come into question; give more of the id"
            )
