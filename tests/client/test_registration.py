"""Handlers are checked when they are registered."""

import asyncio
from datetime import timedelta
from typing import Any

import pydantic
import pytest

from foreman_client import Worker
from foreman_client.worker.tasks import make_task


def takes_nothing() -> None: ...
def takes_payload(payload: Any) -> None: ...
def takes_both(payload: Any, job: Any) -> None: ...
def takes_both_and_more(payload: Any, job: Any, extra: int = 3) -> None: ...


@pytest.mark.parametrize(
    "wrong", [("OSError",), OSError("an instance"), (OSError, 3), KeyboardInterrupt, "x", int]
)
def test_a_wrong_retry_on_raises_at_registration(wrong: Any) -> None:
    worker = Worker()
    with pytest.raises(TypeError, match="retry_on"):

        @worker.task("a", retry_on=wrong)
        async def handler(payload: Any, job: Any) -> None: ...

    assert not worker.tasks


def test_one_class_or_several_are_right() -> None:
    assert make_task("a", takes_nothing, retry_on=OSError).retry_on == (OSError,)
    assert make_task("a", takes_nothing, retry_on=(OSError, ValueError)).retry_on == (OSError, ValueError)
    assert make_task("a", takes_nothing).retry_on == ()


def test_two_handlers_for_one_kind_raise_at_registration() -> None:
    worker = Worker()

    @worker.task("a")
    async def first(payload: Any, job: Any) -> None: ...

    with pytest.raises(ValueError, match="already has a handler"):

        @worker.task("a")
        async def second(payload: Any, job: Any) -> None: ...

    assert worker.tasks["a"].handler is first


@pytest.mark.parametrize("kind", ["", "has space", "-dash", "x" * 129])
def test_a_kind_the_server_would_refuse_raises_at_registration(kind: str) -> None:
    with pytest.raises(ValueError, match="kind"):
        Worker().task(kind)(takes_payload)


def test_the_decorator_without_a_kind_is_explained() -> None:
    with pytest.raises(TypeError, match=r"@worker\.task\("):

        @Worker().task  # type: ignore[arg-type]
        async def handler(payload: Any, job: Any) -> None: ...


@pytest.mark.parametrize("wrong", [0, -1, timedelta(0)])
def test_a_wrong_max_duration_raises_at_registration(wrong: Any) -> None:
    with pytest.raises(ValueError, match="max_duration"):
        make_task("a", takes_nothing, max_duration=wrong)


def test_a_handler_that_cannot_be_called_raises_at_registration() -> None:
    def three(payload: Any, job: Any, more: Any) -> None: ...
    def keyword(payload: Any, *, needed: Any) -> None: ...

    for handler in (three, keyword):
        with pytest.raises(TypeError, match="callable as"):
            make_task("a", handler)


def test_handlers_take_as_much_as_they_name() -> None:
    job = object()
    assert make_task("a", takes_nothing).arguments({"x": 1}, job) == ()
    assert make_task("a", takes_payload).arguments({"x": 1}, job) == ({"x": 1},)
    assert make_task("a", takes_both).arguments({"x": 1}, job) == ({"x": 1}, job)
    assert make_task("a", takes_both_and_more).arguments({"x": 1}, job) == ({"x": 1}, job)


def test_a_plain_function_blocks_and_a_coroutine_function_does_not() -> None:
    class Callable:
        async def __call__(self, payload: Any) -> None: ...

    assert make_task("a", takes_nothing).blocking
    assert not make_task("a", asyncio.sleep).blocking
    assert not make_task("a", Callable()).blocking


class Order(pydantic.BaseModel):
    amount: int


class Receipt(pydantic.BaseModel):
    total: int


def test_models_in_the_signature_check_payload_and_result() -> None:
    async def handler(order: Order) -> Receipt:
        return Receipt(total=order.amount)

    task = make_task("a", handler)
    assert task.arguments({"amount": "3"}, None) == (Order(amount=3),)
    assert task.encoded(Receipt(total=4)) == b'{"total":4}'
    assert task.encoded({"total": 5}) == b'{"total":5}'
    with pytest.raises(pydantic.ValidationError):
        task.arguments({"amount": "many"}, None)
    with pytest.raises(pydantic.ValidationError):
        task.encoded({"sum": 5})


def test_without_models_everything_goes_as_it_is() -> None:
    task = make_task("a", takes_payload)
    assert task.encoded(None) == b"null"
    assert (
        task.encoded([Receipt(total=1), {"deep": Receipt(total=2)}]) == b'[{"total":1},{"deep":{"total":2}}]'
    )
    with pytest.raises(TypeError):
        task.encoded({1, 2})


def test_a_worker_without_tasks_does_not_start() -> None:
    with pytest.raises(ValueError, match="no tasks"):
        Worker().run()


def test_concurrency_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="concurrency"):
        Worker(concurrency=0)
