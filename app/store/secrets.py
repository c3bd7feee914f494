"""Sealed secrets as they lie in the database: which keys they need, and how they get another one.

Each sealed secret names its key. There is an index of that where there may be many, so it takes a look per key, not a
walk, to know what a server must be able to open. Nothing is remembered beside the secrets: it could be wrong.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from app.secretbox import GIVEN_UP, KEY_ID_OF, SecretBox, SecretBoxError
from app.store.database import Database, Runner, in_transaction
from app.store.rows import looked_up

BATCH = 500
# Of what cannot be read at the start: so many are named, and it is not counted any further than that.
NAMED = 3
COUNTED = 1000


@dataclass(frozen=True, slots=True)
class Kind:
    """A column of sealed secrets. What each belongs to is sealed in with it."""

    name: str
    one: str
    many: str
    table: str
    column: str
    # By which its row is named.
    row: str
    belongs: str

    def aad(self, row: str) -> str:
        return self.belongs + row

    def sql(self, statement: str) -> str:
        return statement.format(
            kind=self.name,
            table=self.table,
            column=self.column,
            row=self.row,
            key=KEY_ID_OF.format(self.column),
        )

    def words(self, number: int) -> str:
        return self.one if number == 1 else self.many


JOB = Kind("job", "webhook secret of a job", "webhook secrets of jobs", "jobs", "webhook_secret", "id", "")
TOKEN = Kind("target", "token of a target", "tokens of targets", "targets", "token", "name", "target:")
WAKE = Kind(
    "wake", "wake URL of a target", "wake URLs of targets", "targets", "wake_url", "name", "target-wake:"
)
KINDS = (JOB, TOKEN, WAKE)


@dataclass(frozen=True, slots=True)
class Sealed:
    row: str
    secret: bytes


# -- which keys are needed ---------------------------------------------------------------------------------

# From one key to the next, the newest of each first: the oldest may have been removed by the million.
_USED = """
(
    WITH RECURSIVE used AS (
        (SELECT {key} AS key FROM {table} WHERE {column} IS NOT NULL ORDER BY {key} DESC, {row} DESC LIMIT 1)
        UNION ALL
        SELECT before.key FROM used CROSS JOIN LATERAL (
            SELECT {key} AS key FROM {table} WHERE {column} IS NOT NULL AND {key} < used.key
            ORDER BY {key} DESC, {row} DESC LIMIT 1
        ) AS before
    )
    SELECT '{kind}' AS kind, key FROM used
)
"""
KEYS_IN_USE = " UNION ALL ".join(kind.sql(_USED) for kind in KINDS)


async def keys_in_use(database: Database) -> list[tuple[Kind, bytes]]:
    """Which keys have sealed what is stored; one look per key, however many secrets there are."""
    known = {kind.name: kind for kind in KINDS}
    found = [(known[row["kind"]], row["key"]) for row in await database.fetch_in_order(KEYS_IN_USE)]
    # Those that were given up need none.
    return [(kind, key) for kind, key in found if key]


_NEWEST = (
    "SELECT {row} AS row FROM {table} WHERE {column} IS NOT NULL AND {key} = $1 ORDER BY {row} DESC LIMIT $2"
)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What a key has sealed that is not here; `rows` are the newest of them, and no more than can be told."""

    kind: Kind
    key: bytes
    rows: list[str]

    def __str__(self) -> str:
        number = len(self.rows)
        count = f"more than {COUNTED:,}" if number > COUNTED else f"{number:,}"
        names = ", ".join(self.rows[:NAMED]) + (", …" if number > NAMED else "")
        return f"{count} {self.kind.words(number)} ({names}), sealed with the key {self.key.hex()}"


async def unreadable(database: Database, box: SecretBox | None) -> list[Unreadable]:
    """What is stored and cannot be opened with these keys, by kind and key. Quick, whatever there is."""
    here = box.key_ids if box is not None else ()
    missing = [(kind, key) for kind, key in await keys_in_use(database) if key not in here]
    return [
        Unreadable(
            kind,
            key,
            [row["row"] for row in await database.fetch_in_order(kind.sql(_NEWEST), key, COUNTED + 1)],
        )
        for kind, key in missing
    ]


# -- walking through them ----------------------------------------------------------------------------------

_PAGE = """
SELECT {row} AS row, {column} AS secret FROM {table}
WHERE {column} IS NOT NULL AND {key} = $1 AND {row} > $2 ORDER BY {row} LIMIT $3
"""


async def _pages(database: Database, kind: Kind, key: bytes) -> AsyncIterator[list[Sealed]]:
    after = ""
    while True:
        found = await database.fetch_in_order(kind.sql(_PAGE), key, after, BATCH)
        page = [Sealed(row["row"], row["secret"]) for row in found]
        if page:
            yield page
            after = page[-1].row
        if len(page) < BATCH:
            return


_COUNT = """
SELECT count(*) AS secrets, max(row) AS last FROM (
    SELECT {row} AS row FROM {table} WHERE {column} IS NOT NULL AND {key} = $1 AND {row} > $2 ORDER BY {row} LIMIT $3
) AS step
"""
COUNT_STEP = 50_000


async def _count(database: Database, kind: Kind, key: bytes) -> int:
    """In steps: no statement takes longer the more there are."""
    counted, after = 0, ""
    while True:
        [found] = await database.fetch_in_order(kind.sql(_COUNT), key, after, COUNT_STEP)
        counted += int(found["secrets"])
        if found["secrets"] < COUNT_STEP:
            return counted
        after = found["last"]


_ALL_OF_A_TARGET = (
    "SELECT name, settings->'wake'->>'url' AS url FROM targets WHERE settings->'wake' ? 'url' ORDER BY name"
)


async def _wake_urls_in_the_clear(database: Database) -> list[tuple[str, str]]:
    """From before they were sealed, or from a time without a key."""
    return [(row["name"], row["url"]) for row in await database.fetch(_ALL_OF_A_TARGET) if row["url"]]


@dataclass(slots=True)
class Tally:
    """One kind of secret under one key."""

    kind: Kind
    # Empty: not sealed at all.
    key: bytes
    secrets: int = 0
    # Of those, the ones that cannot be opened, and why not.
    unreadable: int = 0
    why: str | None = None
    examples: list[str] = field(default_factory=list)

    def cannot(self, row: str, why: str) -> None:
        self.unreadable += 1
        self.why = self.why or why
        if len(self.examples) < NAMED:
            self.examples.append(row)


async def examine(database: Database, box: SecretBox | None) -> list[Tally]:
    """Open every secret there is, and count."""
    tallies = []
    for kind, key in await keys_in_use(database):
        tally = Tally(kind, key)
        async for page in _pages(database, kind, key):
            for each in page:
                tally.secrets += 1
                _try(tally, kind, box, each)
        tallies.append(tally)
    clear = await _wake_urls_in_the_clear(database)
    return tallies + ([Tally(WAKE, b"", len(clear))] if clear else [])


def _try(tally: Tally, kind: Kind, box: SecretBox | None, sealed: Sealed) -> str | None:
    """What it opens to; if it does not open, it is counted as such."""
    if box is None:
        tally.cannot(sealed.row, "there is no FOREMAN_SECRET_KEY")
        return None
    try:
        return box.open(sealed.secret, kind.aad(sealed.row))
    except SecretBoxError as problem:
        tally.cannot(sealed.row, str(problem))
        return None


# -- another key -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Rotation:
    """What became of the secrets of one kind. `passed`: changed or removed by somebody else meanwhile."""

    kind: Kind
    resealed: int = 0
    current: int = 0
    passed: int = 0
    unreadable: list[Tally] = field(default_factory=list)
    # Sealed with another key after the walk had come by, and readable: somebody still uses that key.
    remaining: int = 0


async def rotate(database: Database, box: SecretBox, *, dry_run: bool = False) -> list[Rotation]:
    """Seal everything with the first key. Safe beside servers, twice, and after it was broken off anywhere."""
    first = box.key_ids[0]
    rotations = {kind: Rotation(kind) for kind in KINDS}
    in_use = await keys_in_use(database)
    for kind, key in in_use:
        if key == first:
            rotations[kind].current = await _count(database, kind, key)
    for kind, key in in_use:
        if key != first:
            await _rotate_key(database, box, rotations[kind], key, dry_run=dry_run)
    for name, url in await _wake_urls_in_the_clear(database):
        done = dry_run or await seal_wake_url(database, box, name, url)
        rotations[WAKE].resealed += done
        rotations[WAKE].passed += not done
    if not dry_run:
        for kind, key in await keys_in_use(database):
            if key in box.key_ids[1:]:
                broken = sum(each.unreadable for each in rotations[kind].unreadable if each.key == key)
                rotations[kind].remaining += max(0, await _count(database, kind, key) - broken)
    return list(rotations.values())


async def _rotate_key(
    database: Database, box: SecretBox, rotation: Rotation, key: bytes, *, dry_run: bool
) -> None:
    kind = rotation.kind
    tally = Tally(kind, key)
    async for page in _pages(database, kind, key):
        opened = [(each, _try(tally, kind, box, each)) for each in page]
        given = [(each, text) for each, text in opened if text is not None]
        tally.secrets += len(page)
        if dry_run:
            rotation.resealed += len(given)
            continue
        sealed = [box.seal(text, kind.aad(each.row)) for each, text in given]
        done = await replace(database, kind, [each for each, _ in given], sealed)
        rotation.resealed += done
        rotation.passed += len(given) - done
    if tally.unreadable:
        rotation.unreadable.append(tally)


# In the order in which everybody locks rows.
_HOLD = """
SELECT held.row FROM unnest($1::text[]) WITH ORDINALITY AS given (row, position)
CROSS JOIN LATERAL (SELECT {row} AS row FROM {table} WHERE {row} = given.row LIMIT 1 FOR UPDATE) AS held
ORDER BY given.position
"""
# Only what is still sealed as it was when it was read: whoever has changed it meanwhile knows better.
_REPLACE = """
UPDATE {table} AS t SET {column} = given.becomes
FROM unnest($1::text[], $2::bytea[], $3::bytea[]) AS given (row, was, becomes)
WHERE {looked_up} AND t.{column} = given.was
RETURNING t.{row}
"""


async def replace(database: Database, kind: Kind, was: Sequence[Sealed], becomes: Sequence[bytes]) -> int:
    """Put the one in the place of the other, in one commit; how many were still as they had been."""
    if not was:
        return 0
    rows = [each.row for each in was]
    statement = kind.sql(_REPLACE.replace("{looked_up}", looked_up(f"t.{kind.row}", "given.row")))

    async def steps(connection: Runner) -> int:
        await connection.fetch(kind.sql(_HOLD), rows)
        return len(await connection.fetch(statement, rows, [each.secret for each in was], list(becomes)))

    return await in_transaction(database, steps)


_SEAL_WAKE_URL = """
UPDATE targets SET wake_url = $3, settings = settings #- '{wake,url}'
WHERE name = $1 AND settings->'wake'->>'url' = $2 RETURNING name
"""


async def seal_wake_url(database: Database, box: SecretBox, name: str, url: str) -> bool:
    """One that lies in the clear, if it is still that one."""
    sealed = box.seal(url, WAKE.aad(name))
    return await database.fetchval(_SEAL_WAKE_URL, name, url, sealed) is not None


async def give_up(database: Database, key: bytes) -> dict[Kind, int]:
    """For a key that is lost for good: what it has sealed stays unreadable for ever, and no server asks for it."""
    given_up = dict.fromkeys(KINDS, 0)
    for kind in KINDS:
        async for page in _pages(database, kind, key):
            given_up[kind] += await replace(database, kind, page, [GIVEN_UP] * len(page))
    return given_up
