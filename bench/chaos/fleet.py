"""The workers: real processes, each behind a proxy of its own, started again when they end."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.chaos.evidence import Exit, Terms
from bench.chaos.notes import first_lines, now_ms
from bench.chaos.roles import role_of
from tests.support.proxy import Proxy

_PROJECT = Path(__file__).resolve().parents[2]
_RESTART_S = 0.3
_LAST_S = 30.0
_YOUNG_MS = 5_000
_PORTS = (20_000, 32_000)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run keeps what it writes."""

    folder: Path

    def clock(self, name: str) -> Path:
        """The file with the step of a worker's clock, or of the producers'."""
        return self.folder / f"clock-{name}"

    def log(self, name: str) -> Path:
        """The log of a worker's processes."""
        return self.folder / f"log-{name}"


class Kept:
    """One worker: started, started again when it ends, until `stop`."""

    def __init__(self, number: int, proxy: Proxy, place: Place, terms: Terms, *, wire: str = "4") -> None:
        # Where it answers probes and metrics, also when it is started again.
        self.port = _port(number)
        self.number = number
        self.role = role_of(number)
        self.proxy = proxy
        self.exits: list[Exit] = []
        self.fated = False
        self._place = place
        self._terms = terms
        self._wire = wire
        self._process: Process | None = None
        self._asked = False
        self._stopping = False

    @property
    def name(self) -> str:
        """The worker's number as text: what faults and notes call it."""
        return str(self.number)

    @property
    def running(self) -> bool:
        """Whether its process, the supervisor of several say, runs."""
        return self._process is not None and self._process.returncode is None

    def pids(self) -> list[int]:
        """Its processes that run handlers and have started, oldest first; of a worker of several its children."""
        ups = sorted(first_lines(self._place.folder, f"runs-{self.name}-"), key=lambda fields: float(fields[1]))
        return [pid for pid in (int(fields[3]) for fields in ups) if _alive(pid)]

    @property
    def pid(self) -> int:
        """The process that was started: the worker, or the supervisor of several."""
        assert self._process is not None, "run() starts it"
        return self._process.pid

    async def run(self) -> None:
        """Keep it running until it is told to stop."""
        while not self._stopping:
            with self._place.log(self.name).open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command(),
                    cwd=_PROJECT,
                    env=self._environment(),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
            self._asked = self.fated = False
            started = now_ms()
            code = await self._process.wait()
            # Told to stop before it listened to signals.
            young = self._asked and code == -signal.SIGTERM and now_ms() - started < _YOUNG_MS
            self.exits.append(Exit(self.name, self._process.pid, code, now_ms(), self.fated or young, self._asked))
            await asyncio.sleep(_RESTART_S)

    def send(self, number: signal.Signals, pid: int | None = None) -> None:
        """Send a signal to its process, or to one of its children."""
        with suppress(ProcessLookupError):
            os.kill(self.pid if pid is None else pid, number)

    def terminate(self) -> None:
        """SIGTERM: a deploy."""
        self._asked = True
        self.send(signal.SIGTERM)

    async def ended(self) -> None:
        """When the process that runs now has ended."""
        assert self._process is not None, "run() starts it"
        await self._process.wait()

    async def stop(self, keeping: asyncio.Task[None]) -> None:
        """End it for good; what does not end in time is killed, which its exit tells."""
        self._stopping = True
        if self.running:
            self.terminate()
        _, late = await asyncio.wait({keeping}, timeout=_LAST_S)
        if late:
            self.send(signal.SIGKILL)
            await keeping

    def kill_all(self) -> None:
        """SIGKILL whatever is left of it."""
        self._stopping = True
        for pid in [*([self.pid] if self.running else []), *self.pids()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _command(self) -> list[str]:
        options = [word for queue in self.role.queues for word in ("--queue", queue)]
        options += ["--processes", str(self.role.processes), "--pump" if self.role.pump else "--no-pump"]
        return [sys.executable, "-m", "echomq_worker", "run", "bench.chaos.app:worker", *options]

    def _environment(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("ECHOMQ_")}
        settings = {
            "URL": self.proxy.url,
            "WIRE": self._wire,
            "LEASE_MS": self._terms.lease_ms,
            "BEAT_MS": self._terms.beat_ms,
            "TICK_MS": self._terms.beat_ms,
            "GRACE_MS": 2_000,
            "CONNECT_TIMEOUT_MS": 1_500,
            "COMMAND_TIMEOUT_MS": 1_500,
            "LOG_FORMAT": "json",
            "HTTP": f"127.0.0.1:{self.port}",
        }
        chaos = {
            "NOTES": self._place.folder,
            "WORKER": self.name,
            "CONCURRENCY": self.role.concurrency,
            "CLOCK": self._place.clock(self.name),
        }
        ours |= {f"ECHOMQ_{name}": str(value) for name, value in settings.items()}
        ours |= {f"CHAOS_{name}": str(value) for name, value in chaos.items()}
        return ours | {"PYTHONPATH": str(_PROJECT)}


def _port(number: int) -> int:
    """A port that is free now, of those that connections of this machine are not given."""
    while True:
        port = random.randrange(*_PORTS) // 50 * 50 + number % 50
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
