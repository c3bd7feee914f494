"""Recognises callers by their API keys.

A key that was seen within the last second is recognised from memory, without waiting: so it is with nearly
every request. A loop asks the database again about all keys that are in use, so that one that was revoked, by
whichever replica, is refused within a second; what it still has open is hung up on. Where the loop cannot ask
(the database is away, the process was frozen), nothing is believed that is older than that second.

A string that is no key by its checksum never costs a query. Keys are looked up by their SHA-256: how long
that takes tells nothing about a key.
"""

import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import structlog

from app.errors import Unauthorized
from app.identity.account import Account
from app.identity.key import hash_of, is_key
from app.identity.limits import Limits
from app.identity.scopes import Scope
from app.loops.batcher import Batcher
from app.loops.loop import Loop
from app.store import api_keys, sessions
from app.store.database import Database
from app.store.remembered import Remembered
from app.telemetry import UNAUTHENTICATED

log = structlog.get_logger()

SCHEME = b"bearer "
BLANKS = b" \t"
ASK_SECONDS = 0.4
BELIEVED_SECONDS = 0.9
# How long a key that is not used is remembered at all, with what it has used of its rate.
FORGET_SECONDS = 60.0
NOTE_SECONDS = 60.0
MAX_LOOKED_UP = 500
SESSION_BYTES = 32


# What stands for two different keys. It is none itself.
TWO_KEYS = b"two keys"


def presented(authorization: bytes | None, api_key: bytes | None) -> bytes | None:
    """What a caller shows, as one header: Anthropic's clients send their key as `x-api-key`.

    Of two different keys neither is believed: whoever stands in between might look at the other one.
    """
    if api_key is None:
        return authorization
    key = api_key.strip(BLANKS)
    is_bearer = authorization is not None and authorization[: len(SCHEME)].lower() == SCHEME
    if authorization is None or (is_bearer and authorization[len(SCHEME) :].strip(BLANKS) == key):
        return b"Bearer " + key
    return TWO_KEYS


class Visit(NamedTuple):
    """A session that was looked up just now, and how long that is believed."""

    account: Account
    believed_until: float


class Authenticator(Loop):
    def __init__(self, database: Database, usual: Limits) -> None:
        self._database = database
        self._usual = usual
        self._accounts: dict[bytes, Account] = {}
        # Those of them that were seen just now, by the very header that they came with: to hash it once more
        # for each request would cost as much as all the rest of this.
        self._said: dict[bytes | None, Account] = {}
        # By id: from when on another use is worth a write.
        self._noted: Remembered[str, float] = Remembered()
        # By the hash of a session's cookie.
        self._visits: Remembered[bytes, Visit] = Remembered()
        self._look_ups: Batcher[bytes, Account] = Batcher("keys", self._look_up, max_weight=MAX_LOOKED_UP)
        super().__init__("authenticator", self._ask_again, interval=ASK_SECONDS)

    def recall(self, authorization: bytes | None, now: float) -> Account | None:
        """Whose key this is, if it was seen just now (by time.perf_counter); else `identify` has to look."""
        account = self._said.get(authorization)
        if account is None or now >= account.believed_until:
            return None
        account.used = True
        return account

    async def identify(self, authorization: bytes | None) -> Account:
        """Whose key this is. Raises Unauthorized, which says what is wrong with it."""
        if authorization is None:
            raise _refused("missing", "This needs an API key: Authorization: Bearer fmn_…")
        if authorization == TWO_KEYS:
            raise _refused("malformed", "Two different API keys were sent: send one.", "invalid_request")
        if authorization[: len(SCHEME)].lower() != SCHEME:
            raise _refused("malformed", "The Authorization header must be: Bearer fmn_…", "invalid_request")
        key = authorization[len(SCHEME) :].strip(b" ")
        if not is_key(key):
            raise _refused(
                "malformed", "This is not an API key: it is incomplete or misspelt.", "invalid_token"
            )
        digest = hash_of(key)
        account = await self._look_ups.put(digest)
        account.used = True
        # Unless it was dropped meanwhile.
        if self._accounts.get(digest) is account and account.said is None:
            account.said = authorization
            self._said[authorization] = account
        return account

    # -- sessions of the dashboard ---------------------------------------------------------------------

    async def open_session(self, account: Account, seconds: float) -> str:
        """For a person who came with that key: what the browser is to send from now on."""
        assert account.key_id is not None  # noqa: S101  # only a key is signed in with
        token = secrets.token_urlsafe(SESSION_BYTES)
        await sessions.add(self._database, hash_of(token.encode()), account.key_id, seconds)
        return token

    async def visitor(self, token: bytes | None) -> Account:
        """Whose session this is: as good as its key, for as long as both hold. Raises Unauthorized."""
        if token is None:
            raise _refused("missing", "Sign in with an API key.")
        digest = hash_of(token)
        now = time.perf_counter()
        visit = self._visits.get(digest)
        if visit is None or now >= visit.believed_until or visit.account.ended:
            visit = await self._look_up_session(digest, now)
        visit.account.used = True
        return visit.account

    async def _look_up_session(self, digest: bytes, now: float) -> Visit:
        found = await sessions.find(self._database, digest)
        if found is None:
            self._visits.forget(digest)
            raise _refused("session", "This session has ended: sign in again.")
        account = await self._look_ups.put(found.key_hash)
        visit = Visit(account, now + min(BELIEVED_SECONDS, found.ends_in_seconds))
        self._visits.put(digest, visit)
        return visit

    async def end_session(self, token: bytes) -> None:
        digest = hash_of(token)
        self._visits.forget(digest)
        await sessions.end(self._database, digest)

    async def note_use(self) -> None:
        """Write down which keys were used, now rather than in a while."""
        used = [each.key_id for each in self._accounts.values() if each.key_id is not None and each.used]
        await self._note(used)

    def forget(self, key_id: str) -> None:
        """It was revoked by this very process."""
        for digest, account in list(self._accounts.items()):
            if account.key_id == key_id:
                self._drop(digest, account, "revoked")

    # -- asking --------------------------------------------------------------------------------------

    async def _look_up(self, digests: Sequence[bytes]) -> list[Account | Exception]:
        began = time.perf_counter()
        wanted = dict.fromkeys(digests)
        found = await api_keys.find(self._database, wanted)
        known = {digest: self._learn(digest, found.get(digest), began) for digest in wanted}
        return [known[digest] for digest in digests]

    def _learn(self, digest: bytes, found: api_keys.KnownKey | None, now: float) -> Account | Exception:
        if found is None:
            return _refused("unknown", "There is no such API key.", "invalid_token")
        if found.revoked:
            return _refused("revoked", "This API key was revoked.", "invalid_token")
        if found.expires_in_seconds is not None and found.expires_in_seconds <= 0:
            return _refused("expired", "This API key has expired.", "invalid_token")
        account = self._accounts.get(digest)
        if account is None:
            account = self._accounts[digest] = Account(
                found.id,
                found.tenant,
                [Scope(each) for each in found.scopes if each in set(Scope)],
                msgspec.json.decode(found.limits, type=Limits).over(self._usual),
                name=found.name,
                lease_secret=digest,
            )
        self._believe(account, found, now)
        return account

    def _believe(self, account: Account, found: api_keys.KnownKey, now: float) -> None:
        account.verified_at = now
        seconds = found.expires_in_seconds
        believed = BELIEVED_SECONDS if seconds is None else min(seconds, BELIEVED_SECONDS)
        account.believed_until = now + believed

    async def _ask_again(self) -> float | None:
        now = time.perf_counter()
        in_use = {}
        for digest, account in list(self._accounts.items()):
            if account.used or account.requests.taken:
                in_use[digest] = account
            elif now - account.verified_at > FORGET_SECONDS and not account.connections:
                self._forget(digest, account)
        if not in_use:
            return None
        used = [each.key_id for each in in_use.values() if each.used and each.key_id is not None]
        for account in in_use.values():
            account.used = False
        found = await api_keys.find(self._database, in_use)
        for digest, account in in_use.items():
            known = found.get(digest)
            if known is None or known.revoked:
                self._drop(digest, account, "revoked")
            elif known.expires_in_seconds is not None and known.expires_in_seconds <= 0:
                self._drop(digest, account, "expired")
            else:
                self._believe(account, known, now)
        await self._note(used)
        return None

    def _drop(self, digest: bytes, account: Account, why: str) -> None:
        self._forget(digest, account)
        if account.connections:
            log.info("key.ended", key_id=account.key_id, why=why, connections=len(account.connections))
        account.end()

    def _forget(self, digest: bytes, account: Account) -> None:
        self._accounts.pop(digest, None)
        self._said.pop(account.said, None)

    async def _note(self, key_ids: Sequence[str]) -> None:
        """Once a minute each; a use that comes in between changes nothing that anybody looks at."""
        now = time.perf_counter()
        due = [each for each in key_ids if now >= (self._noted.peek(each) or 0)]
        if due:
            await api_keys.note_use(self._database, due)
            for each in due:
                self._noted.put(each, now + NOTE_SECONDS)


def _refused(why: str, detail: str, problem: str | None = None) -> Unauthorized:
    UNAUTHENTICATED.labels(why).inc()
    return Unauthorized(detail, problem=problem)
