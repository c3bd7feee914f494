"""When a delivery is tried again, and when it is given up on.

Pure. Randomness comes in as an argument: a factor in [0, 1).
"""

from app.jobs.retry import jitter

LADDER_SECONDS: tuple[float, ...] = (5, 30, 120, 600, 1800, 7200, 28_800)
# Nobody may push a delivery beyond the horizon.
MAX_RETRY_AFTER_SECONDS = 86_400.0
GONE = 410


def next_delay(tries: int, dice: float, retry_after: float | None = None) -> float | None:
    """Seconds until the next try after `tries` of them have failed; None when that was the last."""
    if tries > len(LADDER_SECONDS):
        return None
    delay = LADDER_SECONDS[max(tries, 1) - 1] * jitter(dice)
    if retry_after is None:
        return delay
    # "Not before": the receiver may ask for more patience than the ladder has, never for less.
    return max(delay, min(retry_after, MAX_RETRY_AFTER_SECONDS))
