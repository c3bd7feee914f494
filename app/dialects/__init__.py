"""The ways of speaking to models, and the way from one to another.

Pure: no I/O, no clock, no randomness. A job keeps its payload and its output in the dialect it came in;
translation happens only where a target or a reader speaks another one. Nobody outside asks which dialect
it has at hand: what differs between them stands behind `Dialect`.
"""

from typing import TYPE_CHECKING, Literal

from app.dialects.anthropic import Anthropic
from app.dialects.ollama import Ollama
from app.dialects.openai import OpenAI
from app.dialects.protocol import Dialect, TargetDialect
from app.dialects.responses import Responses

# What targets speak.
TARGET_DIALECTS: dict[str, TargetDialect] = {dialect.name: dialect for dialect in (Ollama(), OpenAI())}
# What callers speak, though no target does.
ANTHROPIC, RESPONSES = Anthropic(), Responses()
# What callers speak.
DIALECTS: dict[str, Dialect] = {**TARGET_DIALECTS, ANTHROPIC.name: ANTHROPIC, RESPONSES.name: RESPONSES}
# What jobs, targets and readers speak who do not say.
DEFAULT_DIALECT = TARGET_DIALECTS["ollama"]

if TYPE_CHECKING:
    TargetDialectName = str
else:
    # For schemas, which refuse any other name.
    TargetDialectName = Literal[tuple(TARGET_DIALECTS)]


def dialect_named(name: str | None) -> Dialect:
    return DIALECTS.get(name or "", DEFAULT_DIALECT)
