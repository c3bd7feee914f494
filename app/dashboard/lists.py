"""What pages with lists have in common: what was asked for in the address, and where the next page is."""

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlencode

from app.dashboard.page import Page

PAGE_SIZE = 50
MAX_OFFSET = 10_000_000
MAX_SEARCH = 128


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks for; what it asks for and there is not is told in `problems`."""

    path: str
    search: str
    show: str
    offset: int
    problems: list[str]

    def address(self, **other: object) -> str:
        """This list, but for what is named; empty values are left out."""
        parts = {"q": self.search, "show": self.show, "offset": self.offset or "", **other}
        query = urlencode({name: value for name, value in parts.items() if value})
        return f"{self.path}?{query}" if query else self.path


def asked_of(visit: Page, shows: Collection[str] = ()) -> Asked:
    """`shows`: the parts of the list that may be asked for."""
    given = visit.request.query_params
    problems = [f"{name} is not a known filter." for name in given if name not in {"q", "show", "offset"}]
    search, show, offset = given.get("q", "").strip(), given.get("show", ""), given.get("offset", "")
    if len(search) > MAX_SEARCH or "\0" in search:
        problems.append(f"What is searched for may have at most {MAX_SEARCH} characters.")
        search = ""
    if show and show not in shows:
        problems.append(f"There is no part {show[:MAX_SEARCH]!r} of this list.")
        show = ""
    if offset and not (offset.isascii() and offset.isdigit() and int(offset[:20]) <= MAX_OFFSET):
        problems.append("The offset is not a number of rows.")
        offset = ""
    return Asked(visit.request.scope["path"], search, show, int(offset or 0), problems)
