"""`python -m bench.limit`: what this server can do. Claims and completes in one plain script (`limit.lua`), driven flat
out by a client without handlers, with two calls on their way at any time.

Prints one line of JSON. The worker's `throughput` is stated as a share of it.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hiredis

from bench.harness import PAYLOAD, commands, report, server, spread
from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import Keys

QUEUE = "limit"
JOBS = 100_000
BATCH = 250
_LEASE_MS = 30_000
_IN_FLIGHT = 2


class _Client:
    """A blocking client that sends without waiting and reads replies in order."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def send(self, *arguments: Any) -> None:
        self._socket.sendall(hiredis.pack_command(arguments))

    def read(self) -> Any:
        while (reply := self._reader.gets()) is False:
            chunk = self._socket.recv(1 << 18)
            if not chunk:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(chunk)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def close(self) -> None:
        self._socket.close()


def drain(url: str, batch: int) -> tuple[int, float, float]:
    """Claim and complete until nothing is left; jobs, seconds, CPU seconds of this client."""
    keys = Keys(QUEUE)
    client = _Client(url)
    client.send("SCRIPT", "LOAD", Path(__file__).with_name("limit.lua").read_text())
    sha = client.read()
    head = ("EVALSHA", sha, 3, keys.pending, keys.active, keys.completed, f"{keys.base}job:", _LEASE_MS)
    started, used = time.perf_counter(), time.process_time()
    for _ in range(_IN_FLIGHT):
        client.send(*head, batch)
    unread, jobs = _IN_FLIGHT, 0
    while unread:
        claimed = client.read()
        unread -= 1
        if claimed:
            jobs += len(claimed) // 3
            del claimed[2::3]
            client.send(*head, batch, *claimed)
            unread += 1
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    client.close()
    return jobs, seconds, cpu


async def run(jobs: int, batch: int) -> dict[str, float]:
    """One drain of `jobs` jobs on a server of its own. Raises RuntimeError when a job is left."""
    with server() as url:
        async with connect(url) as connector:
            await Jobs(connector).enqueue_many(QUEUE, [PAYLOAD] * jobs)
            before = await commands(connector)
            done, seconds, cpu = drain(url, batch)
            spent = (await commands(connector)).since(before)
            left = await connector.call("EXISTS", Keys(QUEUE).pending, Keys(QUEUE).active)
    if done != jobs or left:
        raise RuntimeError(f"{done} of {jobs} jobs were completed")
    return {
        "jobs_per_s": jobs / seconds,
        "server_us_per_job": spent.usec["evalsha"] / jobs,
        "client_us_per_job": cpu / jobs * 1e6,
    }


def main() -> None:
    """Run the benchmark with the options of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=JOBS)
    options.add_argument("--batch", type=int, default=BATCH)
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    rows = [asyncio.run(run(given.jobs, given.batch)) for _ in range(given.runs)]
    figures = {name: spread([row[name] for row in rows]) for name in rows[0]}
    report("limit", jobs=given.jobs, batch=given.batch, runs=given.runs, **figures)


if __name__ == "__main__":
    main()
