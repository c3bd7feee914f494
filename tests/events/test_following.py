"""The follower: live where the job runs, through the log elsewhere, and honest when a run begins anew."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from app.engine import event_writer
from app.engine.event_writer import EventWriter, Transcript
from app.errors import InvalidRequest, NotFound
from app.events.follow import AT_ONCE, Ended, Followed, Follower, Output, Quiet, Restarted
from app.events.hub import Hub
from app.events.live_output import JOIN_AFTER, LiveOutput, LiveOutputs, Part
from app.jobs.states import Verb
from app.store.database import Database
from app.store.events import NewEvent
from app.store.settle import Settlement, settle
from tests.live_tables import write
from tests.patience import until
from tests.store.making import TENANT, claim, put_one, row_of

QUIET = 0.2


class Services:
    """What a process has: here with one job in it, run by the test itself."""

    def __init__(self, database: Database, job_id: str) -> None:
        self.database = database
        self.job_id = job_id
        self.hub = Hub(database, None, 0.05)
        self.live = LiveOutputs(self.hub.nudge)
        self.event_writer = EventWriter(database, self.hub, self.live)
        self.token = ""

    async def begin(self) -> Transcript:
        """Claim the job; what is said into the transcript is said by that run."""
        [job] = await claim(self.database, lanes=["llm|||m"])
        self.token = job.lease_token
        return Transcript(self.event_writer, job)

    async def write(self, offset: int, text: str, *parts: Any) -> None:
        """A row of output, as the run would write it on another replica."""
        data: dict[str, Any] = {"offset": offset, "text": text, **({"parts": list(parts)} if parts else {})}
        await self.event_writer.append(
            NewEvent(self.job_id, "output", orjson.dumps(data).decode(), self.token)
        )

    async def settle(self, verb: Verb, **more: Any) -> None:
        changes = await settle(self.database, [Settlement(self.job_id, self.token, verb, **more)])
        assert [each.ok for each in changes.answers] == [True]
        self.hub.announce(changes)

    async def complete(self, text: str) -> None:
        result = orjson.dumps({"message": {"role": "assistant", "content": text}}).decode()
        await self.settle(Verb.COMPLETE, result=result)

    def follower(self) -> Follower:
        return Follower(self.database, self.hub, self.live, self.job_id, TENANT)


@pytest.fixture
async def services(database: Database) -> AsyncIterator[Services]:
    job_id = await put_one(database, kind="chat", lane="llm|||m", model="m")
    services = Services(database, job_id)
    await services.hub.start()
    yield services
    await services.event_writer.drain()
    await services.hub.stop()


class Reader:
    """Follows in a task; what it got so far."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.got: list[Followed] = []
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for told in self.follower.follow(QUIET):
            self.got += told

    @property
    def parts(self) -> list[Any]:
        return [each.part for each in self.got if isinstance(each, Output)]

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    async def until(self, text: str) -> None:
        def is_told() -> bool:
            assert text.startswith(self.text), self.text
            return self.text == text

        await until(is_told)

    async def has_nothing_more(self) -> None:
        """Told of silence twice from now on, it has seen all that was there."""
        before = len(self.got)
        await until(lambda: sum(isinstance(each, Quiet) for each in self.got[before:]) >= 2)

    async def end(self) -> Followed:
        async with asyncio.timeout(10):
            await self.task
        return self.got[-1]


async def test_each_token_is_told_at_once_where_the_job_runs(services: Services) -> None:
    reader = Reader(services.follower())
    transcript = await services.begin()
    for word in ("one ", "two ", "three"):
        transcript.say(word)
        await reader.until(reader.text + word)
    await transcript.finish(result_follows=True)
    await services.complete("one two three")
    transcript.close()
    assert isinstance(await reader.end(), Ended)
    assert reader.parts == ["one ", "two ", "three"]


async def test_what_is_said_together_comes_together_but_never_too_much_of_it(services: Services) -> None:
    transcript = await services.begin()
    transcript.open()
    told: list[int] = []
    follower = services.follower()

    async def read() -> None:
        async for each in follower.follow(3600):
            told.append(len(each))  # noqa: PERF401 - on the way, not in the end

    reading = asyncio.create_task(read())
    await until(lambda: follower._watch is not None and follower._watch.hears_the_run)
    transcript.say("alone")
    await until(lambda: told)
    for _ in range(3):
        transcript.say("word ")
    await until(lambda: len(told) == 2)
    for _ in range(2 * AT_ONCE + 1):
        transcript.say("word ")
    await until(lambda: sum(told) == 4 + 2 * AT_ONCE + 1)
    assert told == [1, 3, AT_ONCE, AT_ONCE, 1]
    follower.abandon()
    await reading
    transcript.close()


class Direct:
    """A reader who takes words where they are said, when it can; the rest comes to its task."""

    def __init__(self, services: Services) -> None:
        self.follower = services.follower()
        self.ready = True
        self.all: list[Part] = []
        self.by_task: list[Part] = []
        self.ended: Followed | None = None
        # Closed: the task is in the middle of telling what it got.
        self.gate = asyncio.Event()
        self.gate.set()
        self.task = asyncio.create_task(self._run())

    def tell_now(self, part: Part) -> bool:
        if part == "trouble ":
            raise RuntimeError("this reader has a problem")
        if self.ready:
            self.all.append(part)
        return self.ready

    async def _run(self) -> None:
        async for told in self.follower.follow(3600, tell_now=self.tell_now):
            parts = [each.part for each in told if isinstance(each, Output)]
            self.by_task += parts
            await self.gate.wait()
            self.all += parts
            self.ended = told[-1]

    async def is_listening(self) -> None:
        await until(lambda: self.follower._is_listening)


async def test_who_can_be_told_at_once_is_told_where_the_run_speaks(services: Services) -> None:
    transcript = await services.begin()
    transcript.open()
    reader = Direct(services)
    await reader.is_listening()
    frame = {"choices": [{"index": 0, "delta": {"tool_calls": []}}]}
    said: list[Part] = ["one ", "two ", frame, "three"]
    for part in said:
        transcript.say(part)
    # No turn of the loop has passed.
    assert reader.all == said
    await transcript.finish(result_follows=True)
    await services.complete("one two three")
    transcript.close('{"message": {}}')
    async with asyncio.timeout(600):
        await reader.task
    assert isinstance(reader.ended, Ended)
    assert (reader.all, reader.by_task) == (said, [])


async def test_what_cannot_be_told_at_once_comes_to_the_task_and_nothing_overtakes_it(
    services: Services,
) -> None:
    transcript = await services.begin()
    transcript.open()
    reader = Direct(services)
    await reader.is_listening()
    reader.ready = False
    transcript.say("one ")
    reader.ready = True
    # The task is woken for the first and has not run yet.
    transcript.say("two ")
    reader.gate.clear()
    await until(lambda: reader.by_task)
    # It has taken them, and still waits to hand them on.
    transcript.say("three ")
    assert reader.all == []
    reader.gate.set()
    await until(lambda: reader.all == ["one ", "two ", "three "])
    await reader.is_listening()
    transcript.say("four ")
    assert reader.all == ["one ", "two ", "three ", "four "]
    assert reader.by_task == ["one ", "two ", "three "]
    reader.follower.abandon()
    await reader.task
    transcript.close()


async def test_a_readers_trouble_is_not_the_runs(services: Services) -> None:
    transcript = await services.begin()
    transcript.open()
    reader = Direct(services)
    await reader.is_listening()
    transcript.say("trouble ")
    await until(lambda: reader.by_task == ["trouble "])
    reader.follower.abandon()
    await reader.task
    transcript.close()


async def test_a_new_run_is_compared_before_anybody_is_told(services: Services) -> None:
    first = await services.begin()
    first.open()
    reader = Direct(services)
    await reader.is_listening()
    first.say("one ")
    first.say("two ")
    await first.finish(result_follows=False)
    await services.write(0, "one two ")
    await services.settle(Verb.RELEASE)
    first.close()
    second = await services.begin()
    second.open()
    await reader.is_listening()
    second.say("one ")
    second.say("two ")
    second.say("three")
    await until(lambda: "".join(str(part) for part in reader.all) == "one two three")
    reader.follower.abandon()
    await reader.task
    second.close()


async def test_a_reader_that_left_before_it_was_served_waits_for_nothing(services: Services) -> None:
    follower = services.follower()
    follower.abandon()
    async with asyncio.timeout(600):
        assert [each async for each in follower.follow(3600, fresh=True)] == []


async def test_the_first_token_does_not_wait_for_the_first_row(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_writer, "FIRST_ROW_SECONDS", 3600.0)
    reader = Reader(services.follower())
    transcript = await services.begin()
    await reader.has_nothing_more()
    transcript.say("now")
    await reader.until("now")
    transcript.close()


async def test_text_and_frames_come_through_the_log_in_order(services: Services) -> None:
    await services.begin()
    frame = {"message": {"thinking": "hm"}}
    reader = Reader(services.follower())
    await services.write(0, "", frame)
    await services.write(1, "one ")
    await services.write(5, "two", "t", frame, "wo")
    await services.settle(Verb.FAIL, error='{"code":"x","message":"x","retryable":false}')
    ended = await reader.end()
    assert isinstance(ended, Ended)
    assert ended.state == "failed"
    assert reader.parts == [frame, "one ", "t", frame, "wo"]
    assert [each.position for each in reader.got if isinstance(each, Output)] == [1, 5, 6, 7, 9]


@pytest.mark.parametrize("position", range(8))
async def test_a_reader_resumes_at_any_position(services: Services, position: int) -> None:
    await services.begin()
    await services.write(0, "abc")
    await services.write(3, "defg")
    await services.complete("abcdefg")
    follower = services.follower()
    await follower.resume(2, position)
    reader = Reader(follower)
    assert isinstance(await reader.end(), Ended)
    assert reader.text == "abcdefg"[position:]


async def test_a_reader_ahead_of_the_log_waits_until_it_has_caught_up(services: Services) -> None:
    """It heard the last tokens where the job runs, before they were written down."""
    await services.begin()
    await services.write(0, "abc")
    follower = services.follower()
    await follower.resume(2, 5)
    reader = Reader(follower)
    await services.write(3, "de")
    await services.write(5, "fg")
    await reader.until("fg")
    await services.complete("abcdefg")
    await reader.end()
    assert reader.text == "fg"


async def test_a_place_that_was_never_given_out_is_refused(services: Services) -> None:
    await services.begin()
    for run in (1, 3, 99):
        with pytest.raises(InvalidRequest):
            await services.follower().resume(run, 0)


async def test_a_second_run_that_repeats_the_first_is_not_noticed(services: Services) -> None:
    reader = Reader(services.follower())
    await services.begin()
    await services.write(0, "one two ")
    await reader.until("one two ")
    await services.settle(Verb.RELEASE)
    await services.begin()
    await services.write(0, "one ")
    await services.write(4, "two three")
    await services.complete("one two three")
    assert isinstance(await reader.end(), Ended)
    assert reader.text == "one two three"
    assert {each.run for each in reader.got if isinstance(each, Output)} == {2, 5}


async def test_a_second_run_that_says_something_else_ends_the_stream(services: Services) -> None:
    reader = Reader(services.follower())
    await services.begin()
    await services.write(0, "one two ")
    await reader.until("one two ")
    await services.settle(Verb.RELEASE)
    await services.begin()
    await services.write(0, "one plus ")
    assert isinstance(await reader.end(), Restarted)
    assert reader.text == "one two "
    # From the start there is only the new run.
    again = Reader(services.follower())
    await services.complete("one plus one")
    await again.end()
    assert again.text == "one plus one"


async def test_a_long_history_of_earlier_runs_is_passed_over(services: Services) -> None:
    for _ in range(3):
        await services.begin()
        for n in range(150):
            await services.write(n, "x")
        await services.settle(Verb.RELEASE)
    await services.begin()
    await services.write(0, "the one that counts")
    await services.complete("the one that counts")
    reader = Reader(services.follower())
    assert isinstance(await reader.end(), Ended)
    assert reader.text == "the one that counts"


async def test_a_second_run_in_this_process_is_compared_as_well(services: Services) -> None:
    reader = Reader(services.follower())
    first = await services.begin()
    first.say("one two ")
    await reader.until("one two ")
    await services.settle(Verb.RELEASE, output=await first.finish(result_follows=False))
    first.close()
    second = await services.begin()
    for word in ("one ", "two ", "three"):
        second.say(word)
    await reader.until("one two three")
    await second.finish(result_follows=True)
    await services.complete("one two three")
    second.close()
    assert isinstance(await reader.end(), Ended)


async def test_a_quick_second_run_is_compared_by_its_result(services: Services) -> None:
    for text, last in (("one two three", Ended), ("something else", Restarted)):
        await write(
            services.database, "UPDATE jobs SET state = 'queued', ready_at = now(), completed_at = NULL"
        )
        reader = Reader(services.follower())
        await services.begin()
        await services.write(0, "one ")
        await reader.until("one ")
        await services.settle(Verb.RELEASE)
        await services.begin()
        await services.complete(text)
        assert isinstance(await reader.end(), last)
        if last is Restarted:
            return
        assert reader.text == text
        await services.database.execute("DELETE FROM chatter")


async def test_a_row_that_was_never_written_is_made_up_for_by_the_result(services: Services) -> None:
    """The database was away for a moment: what came after the hole is held back until all is known."""
    reader = Reader(services.follower())
    await services.begin()
    await services.write(0, "one ")
    await services.write(8, "three")
    await reader.until("one ")
    await reader.has_nothing_more()
    assert reader.text == "one "
    await services.complete("one two three")
    assert isinstance(await reader.end(), Ended)
    assert reader.text == "one two three"


async def test_rows_whose_day_was_dropped_are_made_up_for_by_the_result(services: Services) -> None:
    await services.begin()
    await services.write(0, "one ")
    await services.write(4, "two ")
    await services.database.execute("DELETE FROM chatter WHERE seq = 3")
    await services.complete("one two three")
    reader = Reader(services.follower())
    await reader.end()
    assert reader.text == "one two three"


async def test_silence_is_told_and_a_deleted_job_is_an_error(services: Services) -> None:
    reader = Reader(services.follower())
    await until(lambda: len(reader.got) >= 3)
    assert reader.got == [Quiet("queued")] * len(reader.got)
    await write(services.database, "DELETE FROM jobs")
    with pytest.raises(NotFound):
        await reader.end()


async def test_an_abandoned_follower_ends_without_a_last_word(services: Services) -> None:
    reader = Reader(services.follower())
    await reader.has_nothing_more()
    reader.follower.abandon()
    async with asyncio.timeout(5):
        await reader.task
    assert not any(isinstance(each, Ended) for each in reader.got)


async def test_an_older_run_that_goes_on_without_its_lease_is_not_listened_to(services: Services) -> None:
    zombie = await services.begin()
    zombie.say("old ")
    await zombie.finish(result_follows=False)
    await services.settle(Verb.RELEASE)
    await services.begin()
    run = (await row_of(services.database, services.job_id))["seq"]
    follower = services.follower()
    await follower.resume(run, 0)
    reader = Reader(follower)
    zombie.say("older")
    await services.write(0, "new")
    await reader.until("new")
    await services.complete("new")
    assert isinstance(await reader.end(), Ended)
    assert reader.text == "new"
    zombie.close()


def test_old_tokens_are_joined_and_positions_stay() -> None:
    live = LiveOutput(2)
    said: list[Part] = [f"{n} " for n in range(5 * JOIN_AFTER)]
    said[700:700] = [{"n": 1}]
    for part in said:
        live.add(part)
    assert len(live.after(0)) < 3 * JOIN_AFTER
    position = 0
    rebuilt: list[Part] = []
    for start, part in live.after(0):
        assert start == position
        position += len(part) if isinstance(part, str) else 1
        rebuilt.append(part)
    assert position == live.end
    text = "".join(part for part in rebuilt if isinstance(part, str))
    assert text == "".join(part for part in said if isinstance(part, str))
    assert {"n": 1} in rebuilt
    for reached in (0, 1, 999, 3000, live.end - 1, live.end, live.end + 5):
        rest = live.after(reached)
        assert not rest if reached >= live.end else rest[0][0] <= reached


async def test_who_heard_all_of_a_run_is_told_its_result_without_another_look(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(services.follower())
    transcript = await services.begin()
    transcript.say("all of it")
    await reader.until("all of it")
    await transcript.finish(result_follows=True)
    await services.complete("all of it")
    monkeypatch.setattr(Follower, "_job", None)
    monkeypatch.setattr(Follower, "_page", None)
    transcript.close('{"message":{"content":"all of it"}}')
    ended = await reader.end()
    assert isinstance(ended, Ended)
    assert ended.state == "done"
    assert orjson.loads(ended.result or "")["message"]["content"] == "all of it"
