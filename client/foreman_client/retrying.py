"""When a request is sent again, and after how long.

What certainly did no harm is repeated: a connection that was never made, a 429. What may have arrived (cut
off, timed out, 502–504) is repeated only if the request is repeatable: reads, or writes with an idempotency
key. The server's Retry-After is honoured, and nobody sleeps past the budget only to fail then.
"""

from collections.abc import Awaitable, Callable

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_before_delay,
    stop_never,
    wait_random_exponential,
)

from foreman_client.errors import ApiError, QueueFull, RateLimited, Unavailable, Unreachable

_backoff = wait_random_exponential(multiplier=0.2, max=5.0)


def worth_repeating(error: BaseException, *, repeatable: bool) -> bool:
    if isinstance(error, Unreachable):
        return repeatable or not error.maybe_received
    if isinstance(error, Unavailable):
        return repeatable
    return isinstance(error, (QueueFull, RateLimited))


def pause(state: RetryCallState) -> float:
    """Jittered and growing, but never shorter than the server asked for."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, ApiError) else None
    return max(asked or 0.0, _backoff(state))


def policy(
    sleep: Callable[[float], Awaitable[None]], *, repeatable: bool, budget_seconds: float
) -> AsyncRetrying:
    return AsyncRetrying(
        sleep=sleep,
        wait=pause,
        stop=stop_before_delay(budget_seconds) if budget_seconds != float("inf") else stop_never,
        retry=retry_if_exception(lambda error: worth_repeating(error, repeatable=repeatable)),
        reraise=True,
    )
