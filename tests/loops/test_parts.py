"""Parts start in the order of their list and stop in the reverse one, whatever became of the start."""

import pytest

from app.errors import Unavailable
from app.loops.parts import Parts, Resource


class Noted:
    """A part that says what is done with it, and whose database is away when it is told so."""

    def __init__(self, name: str, said: list[str]) -> None:
        self._name = name
        self._said = said
        self.away = False

    async def start(self) -> None:
        self._say("start")

    async def stop(self) -> None:
        self._say("stop")

    def _say(self, verb: str) -> None:
        self._said.append(f"{verb} {self._name}")
        if self.away:
            raise Unavailable("away", retry_after=1)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def three(said: list[str]) -> list[Noted]:
    return [Noted(name, said) for name in "abc"]


async def test_they_stop_in_the_reverse_of_the_order_in_which_they_start(
    three: list[Noted], said: list[str]
) -> None:
    parts = Parts(three)
    await parts.start()
    await parts.stop()
    assert said == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]


async def test_a_start_that_failed_goes_on_where_it_was(three: list[Noted], said: list[str]) -> None:
    parts = Parts(three)
    three[1].away = True
    for _ in range(2):
        with pytest.raises(Unavailable):
            await parts.start()
    three[1].away = False
    await parts.start()
    assert said == ["start a", "start b", "start b", "start b", "start c"]


async def test_all_are_stopped_once_also_after_half_a_start_and_with_the_database_away(
    three: list[Noted], said: list[str]
) -> None:
    parts = Parts(three)
    three[1].away = True
    with pytest.raises(Unavailable):
        await parts.start()
    said.clear()
    await parts.stop()
    await parts.stop()
    assert said == ["stop c", "stop b", "stop a"]


async def test_a_bug_in_stopping_is_not_kept_silent() -> None:
    async def broken() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        await Parts([Resource(broken)]).stop()


async def test_a_resource_is_opened_only_where_there_is_something_to_open(said: list[str]) -> None:
    part = Noted("a", said)
    for resource in (Resource(part.stop, open=part.start), Resource(part.stop)):
        await resource.start()
        await resource.stop()
    assert said == ["start a", "stop a", "stop a"]
