"""The ways of speaking to models, and the way from one to another.

Pure: no I/O, no clock, no randomness. A job keeps its payload and its output in the dialect it came in;
translation happens only where a target or a reader speaks another one. Nobody outside asks which dialect
it has at hand: what differs between them stands behind `Dialect`.
"""

from typing import TYPE_CHECKING, Literal

from app.dialects.ollama import Ollama
from app.dialects.openai import OpenAI
from app.dialects.protocol import Dialect

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (Ollama(), OpenAI())}
# What jobs, targets and readers speak who do not say.
DEFAULT_DIALECT = DIALECTS["ollama"]

if TYPE_CHECKING:
    DialectName = str
else:
    # For schemas, which refuse any other name.
    DialectName = Literal[tuple(DIALECTS)]


def dialect_named(name: str | None) -> Dialect:
    return DIALECTS.get(name or "", DEFAULT_DIALECT)
