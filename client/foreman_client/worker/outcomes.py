"""What a handler can raise to say more than "it went wrong"."""

from foreman_client.errors import ForemanError


class Retry(ForemanError):
    """Try again, counting as an attempt; after `in_seconds`, or as the job's backoff says."""

    def __init__(
        self, message: str = "retry", *, in_seconds: float | None = None, code: str = "Retry"
    ) -> None:
        super().__init__(message)
        self.in_seconds = in_seconds
        self.code = code


class Defer(ForemanError):
    """Not now, and nobody's fault: back into the queue without spending an attempt."""

    def __init__(self, delay_seconds: float) -> None:
        super().__init__(f"deferred for {delay_seconds:g} s")
        self.delay_seconds = delay_seconds


class Fail(ForemanError):
    """A permanent failure with a code of its own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class JobInterrupted(ForemanError):
    """Raised in a blocking handler by `progress`, `log` and `recv_event` once it should stop: let it pass."""
