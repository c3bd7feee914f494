"""What Linux tells of processes: their CPU time and memory. Elsewhere, or once they are gone: nothing."""

import os
from pathlib import Path

import asyncpg

PROC = Path("/proc")
TICKS = float(os.sysconf("SC_CLK_TCK"))
# Fields of /proc/<pid>/stat behind the name: its parent, own CPU time, and that of children that have ended.
PARENT, OWN, CHILDREN = 1, (11, 12), (13, 14)


def _fields(pid: int) -> list[str] | None:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _name(pid: int) -> str | None:
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return None


def cpu_seconds(pid: int, *, with_ended: bool = False) -> float | None:
    """CPU time a process has used so far; with that of its children that have ended, if wanted."""
    fields = _fields(pid)
    if fields is None:
        return None
    wanted = OWN + CHILDREN if with_ended else OWN
    return sum(int(fields[each]) for each in wanted) / TICKS


def children(pid: int) -> list[int]:
    try:
        everyone = [int(each.name) for each in PROC.iterdir() if each.name.isdigit()]
    except OSError:
        return []
    return [each for each in everyone if (fields := _fields(each)) and int(fields[PARENT]) == pid]


def family_cpu_seconds(pid: int) -> float | None:
    """The process, its children that live and those that have ended."""
    own = cpu_seconds(pid, with_ended=True)
    if own is None:
        return None
    return own + sum(cpu_seconds(each) or 0.0 for each in children(pid))


def _memory(pid: int, line: str) -> float | None:
    try:
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return None
    found = next((each for each in status.splitlines() if each.startswith(line)), None)
    return int(found.split()[1]) * 1024 / 1e6 if found else None


def resident_megabytes(pid: int) -> float | None:
    return _memory(pid, "VmRSS:")


def peak_megabytes(pid: int) -> float | None:
    """The most it ever had resident."""
    return _memory(pid, "VmHWM:")


async def postmaster_of(dsn: str) -> int | None:
    """The process whose children serve this database, if it runs on this machine."""
    connection = await asyncpg.connect(dsn)
    try:
        backend = await connection.fetchval("SELECT pg_backend_pid()")
        # Elsewhere that number may be anybody's.
        fields = _fields(backend) if _name(backend) == "postgres" else None
        return int(fields[PARENT]) if fields else None
    finally:
        await connection.close()
