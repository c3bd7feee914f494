"""Retry arithmetic. Which rung of the backoff comes next is decided in `store/settle.py`, by the attempt.

Randomness comes in as an argument: a factor in [0, 1).
"""

DEFAULT_MAX_ATTEMPTS = 5
DEFAULT_BACKOFF_SECONDS: tuple[float, ...] = (5.0, 30.0, 120.0, 600.0, 1800.0)
# Of a job whose caller waits on the line: what is not over at once is told, and not tried again later.
NO_BACKOFF: tuple[float, ...] = ()
JITTER = 0.2
MAX_DEFER_SECONDS = 300.0


def jitter(dice: float) -> float:
    """A factor around 1 that spreads retries by ±20 %, so that a herd does not come back as one."""
    return 1.0 - JITTER + 2 * JITTER * dice


def defer_delay(deferrals: int, dice: float) -> float:
    """Seconds to wait for a target that is away: doubling from 1 s up to 5 min, jittered."""
    return float(min(MAX_DEFER_SECONDS, 2.0 ** min(deferrals, 12)) * jitter(dice))
