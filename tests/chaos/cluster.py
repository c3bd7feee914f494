"""A cluster of real processes on this machine, every connection between them a relay that can be told to misbehave.

callers → API replicas → PostgreSQL (primary, synchronous standby) ← workers, one of the replicas by way of a PgBouncer;
workers over HTTP → API replicas; webhooks → receivers of every temper; jobs → an HTTP target and an Ollama.
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any

from app.embedded.processes import ends_with_parent
from tests import forkserver
from tests.chaos import callers, workers
from tests.chaos.network import Network, Relay
from tests.chaos.postgres import Postgres
from tests.chaos.records import Tail
from tests.chaos.shape import QUEUES, SCHEDULE_SECONDS, TARGET_SLOTS, Shape
from tests.conftest import ROOT
from tests.events import pgbouncer
from tests.fakes.process import FakeOllama
from tests.patience import wait_until

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
DISK_MEGABYTES = 3072


def _spawn(
    command: Sequence[str], log: IO[bytes], environment: dict[str, str] | None = None, folder: Path = ROOT
) -> subprocess.Popen[bytes]:
    """Killed with us, should we be killed. (To ask for that is one call to the kernel, which no other thread can hold up.)"""
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=log,
        stderr=log,
        preexec_fn=partial(ends_with_parent, signal.SIGKILL, os.getpid()),  # noqa: PLW1509
    )


class Process:
    """One that we started: by the fork server, or by itself where its environment or its source is another."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        self._process: forkserver.Process | None = None
        self.is_frozen = False

    def launch(
        self, module: str, arguments: Sequence[str], environment: dict[str, str], tree: Path | None = None
    ) -> None:
        assert not self.is_alive, f"{self.name} runs already"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("FOREMAN_")}
        with self.log_path.open("ab") as log:
            if tree is None and "LD_PRELOAD" not in environment:
                self._process = forkserver.started(module, arguments, clean | environment, log)
            else:
                command = [sys.executable, "-m", module, *arguments]
                self._process = _spawn(command, log, clean | environment, tree or ROOT)

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
        self.is_frozen = False

    def freeze(self) -> None:
        self.is_frozen = True
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.is_frozen = False
        self.signal(signal.SIGCONT)

    def terminate(self, seconds: float = 60) -> int:
        """SIGTERM, and how it ended."""
        assert self._process is not None
        self.signal(signal.SIGTERM)
        return self._process.wait(seconds)


class Replica(Process):
    """A `foreman serve`."""

    def __init__(self, cluster: "Cluster", name: str, role: str, *, pooled: bool) -> None:
        super().__init__(name, cluster.folder)
        self.role = role
        self.port = cluster.network.ports.take()
        self.pooled = pooled
        self._cluster = cluster
        network = cluster.network
        self.to_postgres = [
            network.relay(f"{name} → postgres {n}", partial(_socket, cluster.postgres, n))
            for n in range(len(cluster.postgres.nodes))
        ]
        self.from_callers = network.relay(f"callers → {name}", self.port)
        self.from_workers = network.relay(f"workers → {name}", self.port)
        self.skew = ""

    @property
    def serves(self) -> bool:
        return self.role != "worker"

    @property
    def direct_url(self) -> str:
        """Of whichever of the two servers is the primary."""
        hosts = ",".join(f"127.0.0.1:{relay.port}" for relay in self.to_postgres)
        return f"postgresql://foreman@{hosts}/foreman?target_session_attrs=read-write"

    def start(self) -> None:
        """Started, and not waited for."""
        cluster = self._cluster
        environment = cluster.settings | {
            "FOREMAN_AUTH": "off",
            "FOREMAN_ROLE": self.role,
            "FOREMAN_PORT": str(self.port),
        }
        if self.pooled and cluster.bouncer is not None:
            environment["FOREMAN_DATABASE_URL"] = cluster.bouncer.url
            environment["FOREMAN_LISTEN_DATABASE_URL"] = self.direct_url
        else:
            environment["FOREMAN_DATABASE_URL"] = self.direct_url
        if self.skew:
            environment |= {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME": self.skew,
                # How long things take is measured by another clock, which nobody sets.
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        if cluster.shape.planted is not None:
            environment["CHAOS_PLANTED"] = cluster.shape.planted
            self.launch("tests.chaos.planted", ["serve"], environment)
        else:
            self.launch("app", ["serve"], environment, cluster.tree)

    def answers(self) -> bool:
        return self.is_alive and not self.is_frozen and ask(self.port, "GET", "/readyz")[0] == 200


class Bouncer(Process):
    """A PgBouncer in transaction mode, in front of whichever server is the primary."""

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__("pgbouncer", cluster.folder)
        self._port = cluster.network.ports.take()
        self.to_postgres = cluster.network.relay(
            "pgbouncer → postgres", lambda: cluster.postgres.primary.socket_path
        )
        self._config = cluster.folder / "pgbouncer.ini"
        self._config.write_text(
            pgbouncer.CONFIG.format(port=self.to_postgres.port, user="foreman", listen_port=self._port)
            # By default it lets 15 s pass before it tries a server again that refused it (docs/operators.md).
            + "server_login_retry = 1\n"
        )

    @property
    def url(self) -> str:
        return f"postgresql://foreman@127.0.0.1:{self._port}/foreman"

    def start(self) -> None:
        command = [
            str(pgbouncer.binary()),
            *(["-u", "nobody"] if os.geteuid() == 0 else []),
            str(self._config),
        ]
        with self.log_path.open("ab") as log:
            self._process = _spawn(command, log)


class Receiver(Process):
    def __init__(self, cluster: "Cluster", temper: str) -> None:
        super().__init__(f"receiver-{temper}", cluster.folder)
        self.temper = temper
        self._port = cluster.network.ports.take()
        self.arrivals = cluster.records / f"arrivals-{temper}.jsonl"
        self.from_foreman = cluster.network.relay(f"webhooks → {temper}", self._port)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.from_foreman.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/hook"

    def start(self) -> None:
        arguments = [str(self._port), str(self.arrivals), self.temper, "0.33"]
        self.launch("tests.webhooks.receiver_process", arguments, {})


class Cluster:
    def __init__(self, folder: Path, shape: Shape, seed: int, load: dict[str, Any]) -> None:
        """`load`: what callers do (see callers.Config), less what the cluster knows itself."""
        self.folder = folder
        folder.chmod(0o711)
        self.records = folder / "records"
        self.records.mkdir()
        self.shape = shape
        self.seed = seed
        self._load = load
        # The version of Foreman that is started; None: this one.
        self.tree: Path | None = None
        self.version = 0
        self.network = Network()
        self._mounted: list[Path] = []
        self.postgres = Postgres(folder, self.network, standby=shape.standby, disk=self._mount)
        self.bouncer = Bouncer(self) if shape.pgbouncer and pgbouncer.binary() else None
        last = shape.replicas[-1][0]
        self.replicas = [
            Replica(self, name, role, pooled=self.bouncer is not None and name == last)
            for name, role in shape.replicas
        ]
        self.receivers = [Receiver(self, temper) for temper in shape.receivers]
        self.target = Process("target", folder)
        self._target_port = self.network.ports.take()
        self.to_target = self.network.relay("jobs → target", self._target_port)
        self.ollama = FakeOllama(models=["m"], token_seconds=0.005, parallel=64)
        self.to_ollama: Relay | None = None
        self.callers = Process("callers", folder)
        self.workers = [Process(f"workers-{n}", folder) for n in range(shape.worker_processes)]
        self.client_worker = Process("client-worker", folder)
        self._starts = 0
        self._told = Tail(self.records / "callers.jsonl")
        self.acknowledged = 0
        self._refusals: list[str] = []
        # What is still to be done once a fault is over, and what was found out by one.
        self._afterwards: list[Callable[[], None]] = []
        self.found: list[tuple[str, str]] = []
        # When rolling restarts began and ended.
        self.rolled: list[tuple[float, float]] = []

    # -- settings ----------------------------------------------------------------------------------

    @property
    def settings(self) -> dict[str, str]:
        shape = self.shape
        return {
            "FOREMAN_OUTBOUND_ALLOW": "127.0.0.0/8",
            "FOREMAN_LEASE_SECONDS": str(shape.lease_seconds),
            "FOREMAN_SWEEP_SECONDS": str(shape.sweep_seconds),
            "FOREMAN_POLL_SECONDS": str(shape.poll_seconds),
            "FOREMAN_CANCEL_GRACE_SECONDS": "2",
            "FOREMAN_SHUTDOWN_GRACE_SECONDS": "3",
            "FOREMAN_INVENTORY_SECONDS": "2",
            "FOREMAN_LOG_FORMAT": "json",
            "FOREMAN_OLLAMA_URL": f"http://127.0.0.1:{self.to_ollama.port if self.to_ollama else 0}",
            "FOREMAN_OLLAMA_SLOTS": str(TARGET_SLOTS),
            **shape.settings,
        }

    @property
    def apis(self) -> list[Replica]:
        return [each for each in self.replicas if each.serves]

    @property
    def relays(self) -> dict[str, Relay]:
        return self.network.relays

    # -- start and end -----------------------------------------------------------------------------

    def start(self) -> None:
        self.postgres.start()
        self.ollama.start()
        self.to_ollama = self.network.relay("jobs → ollama", lambda: self.ollama.port)
        if self.bouncer is not None:
            self.bouncer.start()
        for receiver in self.receivers:
            receiver.start()
        self.start_target()
        for replica in self.replicas:
            replica.start()
        for replica in self.replicas:
            wait_until(replica.answers, 60, replica.log_path.read_text)
        self._configure()
        for number in range(len(self.workers)):
            self.start_workers(number)
        self.start_client_worker()

    def _configure(self) -> None:
        api = self.apis[0].port
        for name, settings in QUEUES.items():
            status, said = ask(api, "PUT", f"/queues/{name}", settings)
            assert status in {200, 201}, said
        tick = {
            "cron": f"*/{SCHEDULE_SECONDS} * * * * *",
            "timezone": "UTC",
            "job": {"kind": "noop", "queue": "ticks"},
        }
        status, said = ask(api, "PUT", "/schedules/ticks", tick)
        assert status in {200, 201}, said

    def start_callers(self) -> None:
        config = callers.Config(
            ports=[each.from_callers.port for each in self.apis],
            receivers={each.temper: each.url for each in self.receivers},
            target=f"http://127.0.0.1:{self.to_target.port}",
            records=str(self.records / "callers.jsonl"),
            seed=self.seed,
            lease_seconds=self.shape.lease_seconds,
            **self._load,
        )
        self.callers.launch("tests.chaos.callers", [json.dumps(asdict(config))], {})

    def start_workers(self, number: int, environment: dict[str, str] | None = None) -> None:
        self._starts += 1
        config = workers.Config(
            name=f"outside-{number}",
            ports=[each.from_workers.port for each in self.apis],
            records=str(self.records / f"workers-{number}.jsonl"),
            seed=self.seed * 1000 + self._starts,
            loops=3,
            lease_seconds=self.shape.lease_seconds,
            # One of them takes whatever there is.
            kinds=["chaos.work"] if number else [],
            queues=["work", "keyed", "limited", "rated"],
        )
        self.workers[number].launch("tests.chaos.workers", [json.dumps(asdict(config))], environment or {})

    def start_client_worker(self) -> None:
        url = f"http://127.0.0.1:{self.apis[0].from_workers.port}"
        records = str(self.records / "client-worker.jsonl")
        arguments = [url, str(self.shape.lease_seconds), records]
        self.client_worker.launch("tests.chaos.client_worker", arguments, {})

    def start_target(self) -> None:
        arguments = [str(self._target_port), str(self.records / "target.jsonl")]
        self.target.launch("tests.chaos.http_target", arguments, {})

    @property
    def processes(self) -> list[Process]:
        found = [
            self.callers,
            *self.workers,
            self.client_worker,
            *self.replicas,
            *self.receivers,
            self.target,
        ]
        return found + ([self.bouncer] if self.bouncer else [])

    def stop(self) -> None:
        """However it ended."""
        for process in self.processes:
            process.kill()
        self.ollama.kill()
        self.postgres.stop()
        self.network.close()
        for place in self._mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)

    # -- the disk ----------------------------------------------------------------------------------

    def _mount(self, place: Path) -> None:
        """A disk of its own for a server, where that is possible."""
        if not self.shape.small_disk:
            return
        place.mkdir(parents=True, exist_ok=True)
        options = f"size={DISK_MEGABYTES}m,mode=711"
        mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            self._mounted.append(place)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        place = self.postgres.primary.data_dir
        filler = place / "filler"
        with filler.open("wb") as file:
            # Less than the next piece of the write-ahead log takes.
            os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(place).free - (6 << 20)))
        try:
            yield
        finally:
            filler.unlink()

    @property
    def disk_can_be_filled(self) -> bool:
        return self.postgres.primary.data_dir in self._mounted

    # -- faults ------------------------------------------------------------------------------------

    def afterwards(self, work: Callable[[], None]) -> None:
        """To be done once it was seen how long it took to recover."""
        self._afterwards.append(work)

    def clear_up(self) -> None:
        while self._afterwards:
            self._afterwards.pop(0)()

    def stop_politely(self, replica: Replica) -> None:
        """By SIGTERM, after which it must end by itself, and well."""
        ended = replica.terminate()
        if ended != 0:
            self.found.append(("stopped badly", f"{replica.name} ended with {ended} after SIGTERM"))

    # -- looking -----------------------------------------------------------------------------------

    def hear_callers(self) -> None:
        """Read on in what the callers write down."""
        for each in self._told.more():
            if each["what"] == "acknowledged":
                self.acknowledged += len(each["jobs"])
            elif each["what"] == "refused":
                self._refusals.append(str(each["said"]))

    def refusals_that_name(self, word: str) -> int:
        self.hear_callers()
        return sum(word in each for each in self._refusals)

    def log(self) -> str:
        return "\n".join(f"--- {each.name}\n{tail(each.log_path)}" for each in self.processes)


def _socket(postgres: Postgres, number: int) -> Path:
    return postgres.nodes[number].socket_path


def tail(path: Path, size: int = 3000) -> str:
    return path.read_bytes()[-size:].decode(errors="replace") if path.exists() else ""


def ask(port: int, method: str, path: str, body: Any = None, timeout: float = 10.0) -> tuple[int, Any]:
    """One call, and its status and JSON; status 0 when there was no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"content-type": "application/json"} if content else {})
        answer = connection.getresponse()
        read = answer.read()
        return answer.status, json.loads(read) if read else None
    except (OSError, http.client.HTTPException, ValueError) as problem:
        return 0, str(problem)
    finally:
        connection.close()
