"""Two PostgreSQL servers, one of them the standby of the other: to be killed, promoted and filled up.

The standby is synchronous: what was acknowledged is on both. Which of the two is the primary changes with a failover; the
other is then made anew from it.
"""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg

from app.embedded import EmbeddedPostgres
from app.embedded.cluster import BINARIES
from tests.chaos.network import Network, Relay
from tests.patience import PATIENCE, wait_until
from tests.processes import kill_at_once

# What is not on disk yet stays in memory for long, so that a crash takes with it all that was told too early.
OPTIONS = {
    "wal_writer_delay": "10s",
    "max_wal_senders": "8",
    "hot_standby": "on",
    "wal_retrieve_retry_interval": "200ms",
    "wal_keep_size": "64MB",
    # Old pieces of the log are used again: so a full disk is found by a table that grows, as a rule, and not by the log.
    "min_wal_size": "256MB",
    "max_wal_size": "512MB",
    "max_connections": "300",
    # A standby whose primary is gone, and a primary whose standby is, are to notice soon.
    "wal_receiver_timeout": "5s",
    "wal_sender_timeout": "5s",
}
STANDBY_NAME = "standby"


class Node(EmbeddedPostgres):
    """One server, whose standby state counts as being up."""

    def _ready(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            lines = (self.cluster_dir / "postmaster.pid").read_bytes().splitlines()
            if len(lines) >= 8 and lines[0] == b"%d" % (self.pid or 0):
                return lines[7].strip() in {b"ready", b"standby"}
        return False

    @property
    def socket_path(self) -> Path:
        return self.socket_dir / f".s.PGSQL.{self._options['port']}"

    def kill(self) -> None:
        """kill -9 of all its processes at once: what was only in shared memory is gone."""
        postmaster = self.pid
        if postmaster is None:
            return
        kill_at_once(postmaster)
        wait_until(lambda: not self.running)

    def panics(self) -> int:
        """How often it had to give up, and began anew."""
        return self.log_path.read_text(errors="replace").count("PANIC:") if self.log_path.exists() else 0

    def execute(self, *statements: str) -> None:
        async def run() -> None:
            connection = await asyncpg.connect(self.dsn, timeout=10 * PATIENCE)
            try:
                for statement in statements:
                    await connection.execute(statement)
            finally:
                await connection.close()

        asyncio.run(run())

    def row(self, question: str, *arguments: object) -> tuple[Any, ...]:
        async def run() -> tuple[Any, ...]:
            connection = await asyncpg.connect(self.dsn, timeout=10 * PATIENCE)
            try:
                return tuple(await connection.fetchrow(question, *arguments))
            finally:
                await connection.close()

        return asyncio.run(run())

    def value(self, question: str) -> Any:
        return self.row(question)[0]


class Postgres:
    """The primary and its standby. `standby=False`: alone, for small runs."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        *,
        standby: bool,
        disk: Callable[[Path], object] = lambda _: None,
    ) -> None:
        """`disk` prepares the folder of each server before it is used."""
        self.nodes = [Node(folder / name, options=OPTIONS) for name in (("a", "b") if standby else ("a",))]
        self._network = network
        # The wire between the two, which leads to whichever is the primary.
        self.replication: Relay | None = None
        self._primary = 0
        self._disk = disk

    @property
    def primary(self) -> Node:
        return self.nodes[self._primary]

    @property
    def standby(self) -> Node | None:
        return self.nodes[1 - self._primary] if len(self.nodes) > 1 else None

    def start(self) -> None:
        for node in self.nodes:
            self._disk(node.data_dir)
        self.primary.start()
        if self.standby is not None:
            self.replication = self._network.relay("replication", lambda: self.primary.socket_path)
            self.follow()

    def follow(self) -> None:
        """Make the other one anew as a standby of the primary, and have commits wait for it from then on."""
        assert self.standby is not None
        assert self.replication is not None
        target = self.standby.cluster_dir
        if target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
        way = f"host=127.0.0.1 port={self.replication.port} user=foreman application_name={STANDBY_NAME}"
        subprocess.run(
            [BINARIES / "pg_basebackup", "-D", target, "-d", way, "-R", "-X", "stream", "-c", "fast"],
            check=True,
            capture_output=True,
        )
        self.standby.start()
        wait_until(self.is_followed, 30, lambda: "the standby does not follow")
        self.primary.execute(
            f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY_NAME}'", "SELECT pg_reload_conf()"
        )

    def is_followed(self) -> bool:
        question = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
        return bool(self.primary.value(question))

    def fail_over(self) -> None:
        """The primary is dead: the standby takes over, and accepts writes when this returns."""
        assert self.standby is not None
        heir = self.standby
        # Before it is one: nobody follows it yet, and its commits must not wait for that.
        heir.execute("ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")
        heir.execute("SELECT pg_promote(true, 60)")
        self._primary = 1 - self._primary
        wait_until(lambda: heir.value("SELECT NOT pg_is_in_recovery()"), 30)

    def kill_primary(self) -> None:
        self.primary.kill()

    def stop(self) -> None:
        """At once: a primary that shuts down politely waits for its standby to have everything."""
        for node in self.nodes:
            node.kill()
            for leftover in node.socket_dir.glob(".s.PGSQL.*"):
                leftover.unlink()
            node.stop()
