"""What the host of a virtual machine takes from it: processor time that was due and was given to others."""

from pathlib import Path

STAT = Path("/proc/stat")
# user, nice, system, idle, iowait, irq, softirq, steal; guest time is within user.
FIELDS, STEAL = 8, 7


def ticks() -> tuple[int, int]:
    """(stolen, all) since the machine started; nothing is known to be stolen where nobody counts it."""
    try:
        counted = [int(each) for each in STAT.read_text().split("\n", 1)[0].split()[1 : 1 + FIELDS]]
    except OSError:
        return 0, 1
    return counted[STEAL], sum(counted)


class Meter:
    """`percent` tells how much of the machine was stolen since it was made."""

    def __init__(self) -> None:
        self._stolen, self._all = ticks()

    def percent(self) -> float:
        stolen, total = ticks()
        return 100 * (stolen - self._stolen) / max(1, total - self._all)
