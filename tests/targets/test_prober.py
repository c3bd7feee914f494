"""Who asks a target when."""

import asyncio
import time
from typing import Any, cast

from app.targets.prober import Prober
from app.targets.target import Target


class Counting(Prober):
    """Puts its questions to nobody."""

    def __init__(self) -> None:
        unused: Any = None
        nobody = cast("Target", type("Nobody", (), {"name": "nobody"})())
        super().__init__(
            nobody, unused, unused, interval=60, serving_lane=unused, changed=unused, unpark=unused
        )
        self.asked = 0

    async def _put_questions(self) -> None:
        self.asked += 1
        began = time.monotonic()
        # Long enough for all the others to come and wait.
        await asyncio.wait([asyncio.get_running_loop().create_task(self._answered())])
        self._began = began

    async def _answered(self) -> None:
        """What a target says is not looked at here."""


async def test_many_who_want_to_know_what_is_now_put_one_question() -> None:
    prober = Counting()
    moment = time.monotonic()
    await asyncio.gather(*(prober.ask_since(moment) for _ in range(1000)))
    assert prober.asked == 1
    await prober.ask_since(moment)
    assert prober.asked == 1
    await prober.ask_since(time.monotonic())
    assert prober.asked == 2
