"""`python -m bench.idle`: what a worker costs that has nothing to do: round trips, commands, CPU, memory, connections.

With one queue and with fifty, in one process; beside the memory of a process that only imports what the worker depends
on. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.harness import PAYLOAD, commands, report, server, serving, spread, until_parked
from echomq_worker.connector import Connector, connect
from echomq_worker.jobs import Jobs

QUEUE = "bench"
# What the package demands, as a process that only imports it.
IMPORTS = "import redis.asyncio, hiredis, anyio, structlog, pydantic_settings; print(open('/proc/self/status').read())"


def rss_mb(status: str) -> float:
    """VmRSS of a /proc status, in MB."""
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_and_threads(pid: int) -> tuple[float, int]:
    status = Path(f"/proc/{pid}/status").read_text()
    return rss_mb(status), int(next(line for line in status.splitlines() if line.startswith("Threads:")).split()[1])


async def run(queues: int, seconds: float, jobs: int) -> dict[str, float]:
    """One worker that has done `jobs` jobs and then idles for `seconds`."""
    with server() as url:
        async with connect(url) as connector:
            with serving(url, "--queues", str(queues)) as process:
                await until_parked(connector)
                await Jobs(connector).enqueue_many(QUEUE, [PAYLOAD] * jobs)
                await _until_done(connector, jobs)
                await asyncio.sleep(2)
                return await watch(connector, process.pid, seconds)


async def watch(connector: Connector, pid: int, seconds: float) -> dict[str, float]:
    """What the process and its server do in so many seconds."""
    before, used, started = await commands(connector), _cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    spent = (await commands(connector)).since(before)
    cpu, elapsed = _cpu_s(pid) - used, time.monotonic() - started
    clients = await connector.call("CLIENT", "LIST")
    memory, threads = _memory_and_threads(pid)
    # Without the two INFOs that asked.
    return {
        "round_trips_per_s": (spent.reads - 1) / elapsed,
        "commands_per_s": (sum(spent.calls.values()) - 2) / elapsed,
        "server_us_per_s": sum(spent.usec.values()) / elapsed,
        "core_percent": cpu / elapsed * 100,
        "rss_mb": memory,
        "connections": len(clients.splitlines()) - 1,
        "threads": threads,
    }


async def _until_done(connector: Connector, jobs: int) -> None:
    deadline = time.monotonic() + 10 + jobs / 1_000
    counts = await Jobs(connector).counts(QUEUE)
    while counts.pending or counts.active:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{counts.pending} of {jobs} jobs are still pending")
        await asyncio.sleep(0.1)
        counts = await Jobs(connector).counts(QUEUE)


def main() -> None:
    """Run the benchmark with the options of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=20)
    options.add_argument("--jobs", type=int, default=1_000, help="done before it idles")
    options.add_argument("--runs", type=int, default=3)
    given = options.parse_args()
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    figures: dict[str, object] = {"imports_only_rss_mb": round(rss_mb(done.stdout), 1)}
    for queues in (1, 50):
        rows = [asyncio.run(run(queues, given.seconds, given.jobs)) for _ in range(given.runs)]
        figures[f"queues_{queues}"] = {name: spread([row[name] for row in rows]) for name in rows[0]}
    report("idle", seconds=given.seconds, jobs=given.jobs, runs=given.runs, **figures)


if __name__ == "__main__":
    main()
