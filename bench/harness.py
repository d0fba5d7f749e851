"""What every benchmark needs: a server on one core, the measured process on another, and the server's own counters.

The server keeps nothing on disk (`--save '' --appendonly no`), as the peers' figures were made. Where the machine has
one core only, nothing is pinned and the report says so. BENCH_MALLOC names the library of an allocator for the server,
`/usr/lib/x86_64-linux-gnu/libjemalloc.so.2` say: official builds of Valkey bring jemalloc, the embedded one has libc's.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echomq_worker.connector import Connector
from echomq_worker.embedded import find_server

PAYLOAD = json.dumps({"id": 123456, "name": "a" * 35}, separators=(",", ":")).encode()
_CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
PINNED = len(_CORES) >= 2
_START_S = 10.0
_MALLOC = "BENCH_MALLOC"


@dataclass(frozen=True, slots=True)
class Commands:
    """The server's command counters at one moment: calls and microseconds by command name."""

    calls: dict[str, int]
    usec: dict[str, int]
    reads: int

    def since(self, before: Commands) -> Commands:
        """What was counted between `before` and this."""
        return Commands(
            {name: count - before.calls.get(name, 0) for name, count in self.calls.items()},
            {name: spent - before.usec.get(name, 0) for name, spent in self.usec.items()},
            self.reads - before.reads,
        )


async def commands(connector: Connector) -> Commands:
    """INFO commandstats and the number of socket reads, as the server counts them."""
    stats, info = await connector.pipeline([("INFO", "commandstats"), ("INFO", "stats")])
    calls: dict[str, int] = {}
    usec: dict[str, int] = {}
    for line in stats.decode().splitlines():
        if line.startswith("cmdstat_"):
            name, _, fields = line.removeprefix("cmdstat_").partition(":")
            values = dict(field.split("=") for field in fields.split(","))
            calls[name], usec[name] = int(values["calls"]), int(values["usec"])
    reads = next(
        int(line.split(":")[1]) for line in info.decode().splitlines() if line.startswith("total_reads_processed")
    )
    return Commands(calls, usec, reads)


@contextmanager
def server(*options: str) -> Iterator[str]:
    """A private server over loopback TCP on the first core; yields its URL. This process moves to the other core."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="echomq-bench-") as folder:
        given = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
        running = subprocess.Popen([str(find_server()), *given, *options], env=_allocator(), stdout=subprocess.DEVNULL)
        try:
            if PINNED:
                os.sched_setaffinity(running.pid, {_CORES[0]})
                os.sched_setaffinity(0, {_CORES[1]})
            _wait_until_up(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            running.terminate()
            running.wait()


@contextmanager
def pinned_to_server() -> Iterator[None]:
    """Inside, this process shares the server's core, so that a worker has its own to itself."""
    if PINNED:
        os.sched_setaffinity(0, {_CORES[0]})
    try:
        yield
    finally:
        if PINNED:
            os.sched_setaffinity(0, {_CORES[1]})


def _allocator() -> dict[str, str]:
    library = os.environ.get(_MALLOC)
    if not library:
        return dict(os.environ)
    if not Path(library).is_file():
        raise SystemExit(f"{_MALLOC}: {library} is no file, expected an allocator's shared library")
    return {**os.environ, "LD_PRELOAD": library}


def _wait_until_up(port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.01)
    raise RuntimeError(f"the server did not listen on port {port} within {_START_S} s")


def worker(module: str, url: str, *options: str, **environment: str) -> dict[str, Any]:
    """Run a bench worker process to its end; what it printed as its last line of JSON. Raises RuntimeError on
    failure.
    """
    with tempfile.TemporaryFile("w+") as err:
        done = subprocess.run(
            [sys.executable, "-m", module, *options],
            env={**os.environ, "ECHOMQ_URL": url, "ECHOMQ_LOG_LEVEL": "warning", **environment},
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            check=False,
        )
        err.seek(0)
        if done.returncode != 0 or not done.stdout.strip():
            raise RuntimeError(f"{module} exited with {done.returncode}: {err.read()[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest of several runs."""
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


def report(name: str, **figures: Any) -> None:
    """One line of JSON on stdout, with what it was measured on."""
    machine = {
        "python": sys.version.split()[0],
        "pinned": PINNED,
        "malloc": Path(os.environ.get(_MALLOC) or "libc").name,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    print(json.dumps({"bench": name, **figures, "machine": machine}), flush=True)


@contextmanager
def serving(url: str, *options: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A `bench.app` that serves on the second core until the block ends. Raises RuntimeError when it ends by itself."""
    with tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.app", "--forever", *options],
            env={**os.environ, "ECHOMQ_URL": url, "ECHOMQ_LOG_LEVEL": "warning", **environment},
            cwd=Path(__file__).parents[1],
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
        try:
            yield process
            if process.poll() is not None:
                err.seek(0)
                raise RuntimeError(f"the worker exited with {process.returncode}: {err.read()[-2000:].decode()}")
        finally:
            process.terminate()
            process.wait()


async def until_parked(connector: Connector, parked: int = 1) -> None:
    """Return when as many of a worker's connections park as are expected. Raises RuntimeError after 10 s."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        clients = await connector.call("CLIENT", "LIST")
        if sum(b"cmd=blpop" in line and b"flags=b" in line for line in clients.splitlines()) >= parked:
            return
        await asyncio.sleep(0.02)
    raise RuntimeError(f"the worker did not park {parked} connections within {_START_S} s")
