"""Client and server are released apart: which of them go together, and what is said when they do not.

Each names the versions of the other that it was made for: the client in SERVER_VERSIONS, the server in its
answer to `GET /version`. They fit if both agree.
"""

import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from foreman_client import __version__
from foreman_client.errors import ApiError, MethodNotAllowed, NotFound

SERVER_VERSIONS: Final = ">=0.1,<0.2"

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_NUMBER: Final = r"\d{1,9}(?:\.\d{1,9})*"
_VERSION: Final = re.compile(rf"\s*v?({_NUMBER})(?!\d)", re.ASCII)
_BOUND: Final = re.compile(rf"\s*(>=|<=|==|!=|>|<)\s*({_NUMBER})\s*", re.ASCII)
# What a stranger says is shown only so far.
_LONGEST: Final = 64


class VersionMismatchWarning(UserWarning):
    """Server and client were not made for each other."""


@dataclass(frozen=True, slots=True)
class ServerVersion:
    version: str
    # The versions of this client that the server was made for; None if it does not say.
    client: str | None = None

    @classmethod
    def from_wire(cls, answer: Mapping[str, Any]) -> "ServerVersion":
        client = answer.get("client")
        return cls(_shown(answer["version"]), _shown(client) if isinstance(client, str) else None)

    @property
    def mismatch(self) -> str | None:
        """Why server and client do not fit, in a sentence; None if they do."""
        reasons = []
        if not fits(self.version, SERVER_VERSIONS):
            reasons.append(f"this client is for servers {SERVER_VERSIONS}")
        if self.client is not None and not fits(__version__, self.client):
            reasons.append(f"this server is for clients {self.client}")
        if not reasons:
            return None
        pair = f"server {self.version} and foreman-client {__version__}"
        return f"{pair} were not made for each other: {', '.join(reasons)}"


def fits(version: str, versions: str) -> bool:
    """Whether a version is within bounds such as ">=0.1,<0.2"; a pre-release counts as its release.

    What cannot be read is taken to fit: nobody is alarmed by a guess.
    """
    found = _VERSION.match(version)
    if found is None:
        return True
    release = _release(found[1])
    bounds = filter(None, map(_BOUND.fullmatch, versions.split(",")))
    return all(_COMPARISONS[bound[1]](release, _release(bound[2])) for bound in bounds)


def _release(number: str) -> tuple[int, ...]:
    """0.1 and 0.1.0 are the same."""
    parts = [int(part) for part in number.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def _shown(text: object) -> str:
    return "".join(letter for letter in str(text)[:_LONGEST] if letter.isprintable())


_warned: set[str] = set()


def warn_once(mismatch: str) -> None:
    """Once a process, whatever the filters for warnings say; raises where they make errors of them."""
    if mismatch not in _warned:
        warnings.warn(mismatch, VersionMismatchWarning, stacklevel=2)
        _warned.add(mismatch)


def lacks_route(error: ApiError, path: str) -> bool:
    """Whether a refusal may mean that the server has no such route, rather than no such thing."""
    if isinstance(error, NotFound):
        # `/jobs/{id}` and its like: things come and go. The batch is a route by itself.
        is_thing = path.count("/") == 2 and path != "/jobs/batch"
        return not (is_thing and error.problem.get("code") == error.code)
    return isinstance(error, MethodNotAllowed)
