"""Files and batches under the names that OpenAI's clients know: a prefix, and an id of ours."""

from app.jobs.ids import is_id

FILE = "file-"
BATCH = "batch_"


def wire_id(own: str | None, prefix: str = FILE) -> str | None:
    """As callers see it."""
    return None if own is None else f"{prefix}{own}"


def own_id(given: str, prefix: str) -> str | None:
    """The id behind such a name; None for what is none."""
    bare = given.removeprefix(prefix)
    return bare if given.startswith(prefix) and is_id(bare) else None
