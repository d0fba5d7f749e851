"""`python -m bench.memory outage|scheduled`: what a worker's memory is after an outage, and beside a full schedule.

Source: issue "The five promises" (RSS after a 10 minute outage within 5 MB of before; 1,000,000 scheduled jobs leave a
worker's RSS where it was). Prints one line of JSON; the exit code is 1 where a limit is broken. CI runs both small.
`--cap-ms` shortens the degraded curve, so that an outage of seconds has as many tries as one of minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.idle import rss_mb
from echomq_worker import Job, Jobs, Worker, degraded
from echomq_worker.connector import connect
from tests.support.process import WorkerProcess
from tests.support.valkey import ValkeyServer, raw_client
from tests.support.waiting import wait_until

LIMIT_MB = 5.0
QUEUE = "bench"
_CAP = "BENCH_CAP_MS"
_TRIES = "BENCH_TRIES"
_WARM = 20_000
_HELD = 50
# A chunk of rows per call: a script holds up the server, and its reply must come before the client gives up.
_ROWS = 50_000
_FILL = """
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local id = string.format('JOB%011d', i)
  redis.call('HSET', KEYS[1] .. 'job:' .. id, 'state', 'scheduled', 'attempts', '0', 'payload', ARGV[4])
  redis.call('ZADD', KEYS[1] .. 'schedule', ARGV[3], id)
end
"""
worker = Worker()


@worker.handler(QUEUE, concurrency=100)
async def handle(job: Job) -> None:
    """Nothing; with a payload of seconds it sleeps."""
    if job.payload != b"0":
        await asyncio.sleep(float(job.payload))


def _count_tries() -> None:
    """In the worker: each failed beat of a loop is a line of a file, and the curve ends where it is told to."""
    # Both are constants, but for this.
    module: Any = degraded
    fail = module.Degraded.fail

    def counted(self: Any, *what: Any) -> int:
        with Path(os.environ[_TRIES]).open("a") as tries:
            tries.write(f"{self.name}\n")
        return int(fail(self, *what))

    module.CAP_MS, module.Degraded.fail = int(os.environ[_CAP]), counted


if os.environ.get(_CAP):
    _count_tries()


@dataclass(frozen=True, slots=True)
class Figures:
    """A worker's resident memory in MB; `tries`: failed beats of its loops meanwhile."""

    before_mb: float
    after_mb: float
    seconds: float
    tries: int = 0

    @property
    def grown_mb(self) -> float:
        """What was added."""
        return self.after_mb - self.before_mb


def _rss_mb(process: WorkerProcess) -> float:
    return rss_mb(Path(f"/proc/{process.pid}/status").read_text())


@asynccontextmanager
async def _warm_worker(server: ValkeyServer, warm: int, **settings: object) -> AsyncIterator[WorkerProcess]:
    """A worker that has run some jobs: its memory is what it is at work."""
    env = {"ECHOMQ_URL": server.url, "ECHOMQ_LOG_LEVEL": "warning", "ECHOMQ_LOG_FORMAT": "json"}
    env |= {name: str(value) for name, value in settings.items()}
    with WorkerProcess("run", "bench.memory:worker", env=env) as process:
        async with connect(server.url) as connector:
            await Jobs(connector).enqueue_many(QUEUE, [b"0"] * warm)
        await _completed(server, warm)
        yield process


async def _completed(server: ValkeyServer, count: int, deadline_s: float = 120) -> None:
    async with raw_client(server.url) as raw:

        async def done() -> bool:
            return int(await raw.hget(f"emq:{{{QUEUE}}}:metrics:completed", "count") or 0) >= count

        await wait_until(done, f"{count} jobs are completed", deadline_s)


async def outage(seconds: float, *, cap_ms: int = 0, beat_ms: int = 1_000, warm: int = _WARM) -> Figures:
    """The server is away for so long, with jobs in hand that end meanwhile; then it all goes on."""
    server = ValkeyServer(append_only=True).start()
    tries = server.directory / "tries"
    settings: dict[str, object] = {"ECHOMQ_BEAT_MS": beat_ms, "ECHOMQ_TICK_MS": beat_ms}
    settings |= {_CAP: cap_ms or degraded.CAP_MS, _TRIES: tries}
    try:
        async with _warm_worker(server, warm, **settings) as process:
            before_mb, began = _rss_mb(process), time.monotonic()
            async with connect(server.url) as connector:
                await Jobs(connector).enqueue_many(QUEUE, [b"1.5"] * _HELD)
                key = f"emq:{{{QUEUE}}}:active"

                async def held() -> bool:
                    return bool(await connector.call("ZCARD", key) == _HELD)

                await wait_until(held, "they run")
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(server.start)
            await _completed(server, warm + _HELD)
            await process.saw('"recovered"|"degraded"')
            after_mb = _rss_mb(process)
            count = len(tries.read_text().splitlines())
            return Figures(before_mb, after_mb, time.monotonic() - began, count)
    finally:
        server.close()


async def scheduled(jobs: int, *, beats: int = 10, beat_ms: int = 1_000, warm: int = _WARM) -> Figures:
    """So many jobs become scheduled beside a worker, for the year 2096, and it beats on."""
    server = ValkeyServer().start()
    try:
        settings = {"ECHOMQ_BEAT_MS": beat_ms, "ECHOMQ_TICK_MS": beat_ms}
        async with _warm_worker(server, warm, **settings) as process:
            before_mb, began = _rss_mb(process), time.monotonic()
            async with raw_client(server.url) as raw:
                for at in range(0, jobs, _ROWS):
                    last = min(at + _ROWS, jobs) - 1
                    await raw.eval(_FILL, 1, f"emq:{{{QUEUE}}}:", str(at), str(last), "4000000000000", "x" * 64)
                assert await raw.zcard(f"emq:{{{QUEUE}}}:schedule") == jobs
            await asyncio.sleep(beats * beat_ms / 1000)
            async with connect(server.url) as connector:
                await Jobs(connector).enqueue_many(QUEUE, [b"0"] * 1_000)
            await _completed(server, warm + 1_000)
            return Figures(before_mb, _rss_mb(process), time.monotonic() - began)
    finally:
        server.close()


def main() -> int:
    """Run what the command line asks for; 1 where the memory has grown beyond the limit."""
    options = argparse.ArgumentParser(description=__doc__)
    kinds = options.add_subparsers(dest="kind", required=True)
    away = kinds.add_parser("outage")
    away.add_argument("--minutes", type=float, default=10)
    away.add_argument("--cap-ms", type=int, default=0)
    full = kinds.add_parser("scheduled")
    full.add_argument("--jobs", type=int, default=1_000_000)
    given = options.parse_args()
    if given.kind == "outage":
        figures = asyncio.run(outage(given.minutes * 60, cap_ms=given.cap_ms))
    else:
        figures = asyncio.run(scheduled(given.jobs))
    report(
        f"memory {given.kind}",
        before_mb=round(figures.before_mb, 1),
        after_mb=round(figures.after_mb, 1),
        limit_mb=LIMIT_MB,
        seconds=round(figures.seconds, 1),
        tries=figures.tries,
        **{name: value for name, value in vars(given).items() if name != "kind"},
    )
    return 0 if figures.grown_mb <= LIMIT_MB else 1


if __name__ == "__main__":
    sys.exit(main())
