"""What a command ends with when it cannot go on."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Documented in docs/cli.md; scripts rely on them."""

    DONE = 0
    JOB_UNSUCCESSFUL = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    UNAUTHORIZED = 5
    CONFLICT = 6
    TOO_MUCH = 7
    TIMED_OUT = 8
    INTERRUPTED = 130


class CommandError(Exception):
    """A command that cannot go on: said in one line on stderr."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.code = code
