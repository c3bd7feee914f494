"""Work that grows with what a caller sent: small at once, large in a thread, while the loop goes on.

A thread alone frees nobody: whoever decodes or validates in C keeps the interpreter to itself until it is
through. So what is done here goes through a large body in pieces (see jobs/verbatim.py and
jobs/payload_schema.py).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

LARGE_BYTES = 128 * 1024

Given = ParamSpec("Given")
Result = TypeVar("Result")

# One at a time: the interpreter is one, and so is the room for what is made of a large body.
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")


async def off_loop(
    size: int, work: Callable[Given, Result], *given: Given.args, **more: Given.kwargs
) -> Result:
    """Do the work on something of this size, where it holds nobody up."""
    if size <= LARGE_BYTES:
        return work(*given, **more)
    return await asyncio.get_running_loop().run_in_executor(_THREAD, lambda: work(*given, **more))
