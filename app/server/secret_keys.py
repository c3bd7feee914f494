"""Before anything is started: can what is stored be read with the keys that are given here?"""

from app.secretbox import SecretBox
from app.server import ServeError
from app.store.database import Database
from app.store.secrets import Unreadable, unreadable


async def refuse_wrong_keys(url: str, box: SecretBox | None) -> None:
    """Raises ServeError that names what cannot be read. It only looks, once per key that is in use."""
    # As behind a PgBouncer, which is right everywhere.
    database = Database(url, pooled=True, size=1)
    await database.open()
    try:
        found = await unreadable(database, box)
    finally:
        await database.close()
    if found:
        raise ServeError(_words(found, box))


def _words(found: list[Unreadable], box: SecretBox | None) -> str:
    given = (
        "there is none"
        if box is None
        else f"it has the key{'s' * (len(box.key_ids) > 1)} {', '.join(key.hex() for key in box.key_ids)}"
    )
    lost = sorted({each.key.hex() for each in found})
    return "\n".join(
        [
            f"FOREMAN_SECRET_KEY is not the one that secrets in this database were sealed with; {given}.",
            "Nothing was changed. These cannot be read:",
            *(f"  {each}" for each in found),
            "Give the missing key as well, behind the one to seal with (FOREMAN_SECRET_KEY=new,old), or in "
            "the embedded mode bring back secret.key in FOREMAN_DATA_DIR. `foreman secrets rotate` then "
            "frees you of the old one.",
            "If a key is lost for good, give up what it has sealed: "
            f"`foreman secrets forget {' '.join(lost)}`.",
        ]
    )
