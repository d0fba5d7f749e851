"""`python -m bench.scale`: what a job, or a beat, costs as things grow: the backlog, the schedule set, the number of
queues, lanes and repeats, the concurrency.

Prints one line of JSON per table: the server's and the worker's microseconds per job (`backlog`, `lanes`,
`concurrency`), and what a worker that has nothing to do asks for (`scheduled`, `repeats`, `queues`).
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable

from bench import idle, limit, throughput
from bench.harness import report, server, serving, spread, until_parked
from echomq_worker.connector import Connector, connect
from echomq_worker.jobs import Jobs, New
from echomq_worker.repeat import Repeat

QUEUE = "bench"
_YEAR_MS = 365 * 86_400_000
_IDLE_S = 10.0
_DRAINED = 40_000

Row = dict[str, float]


async def backlog(jobs: int) -> Row:
    """A drain of the whole backlog, and which share that is of what the server can do with one of that size. What the
    clock would find claimed at its start, and not at its end, is left out at both: of a small backlog it is a part.
    """
    most = (await limit.run(jobs, limit.BATCH))["jobs_per_s"]
    done = await throughput.run(jobs, ["--concurrency", "1000", "--apart", "1000"], 0)
    return {**done, "limit_per_s": most, "share_of_limit": done["jobs_per_s"] / most}


async def lanes(groups: int) -> Row:
    """A drain of jobs that are spread over so many lanes."""
    return await throughput.run(_DRAINED, ["--concurrency", "1000"], groups)


async def concurrency(slots: int) -> Row:
    """A drain with so many slots."""
    return await throughput.run(_DRAINED, ["--concurrency", str(slots)], 0)


async def queues(count: int) -> Row:
    """A worker of so many queues that idles."""
    return await idle.run(count, _IDLE_S, 1_000)


async def scheduled(jobs: int) -> Row:
    """A worker that idles beside so many jobs of next year."""

    async def fill(connector: Connector) -> None:
        for at in range(0, jobs, 100_000):
            count = min(100_000, jobs - at)
            await Jobs(connector).enqueue_many(QUEUE, [New(b"{}", in_ms=_YEAR_MS) for _ in range(count)])

    return await _beside(fill)


async def repeats(count: int) -> Row:
    """A worker that idles beside so many repeats of next year."""

    async def fill(connector: Connector) -> None:
        repeat = Repeat(connector)
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(repeat.register(QUEUE, f"yearly-{number}", _YEAR_MS, b"{}", first_in_ms=_YEAR_MS))

    return await _beside(fill)


async def _beside(fill: Callable[[Connector], Awaitable[None]]) -> Row:
    with server() as url:
        async with connect(url) as connector:
            await fill(connector)
            with serving(url) as process:
                await until_parked(connector)
                await asyncio.sleep(2)
                return await idle.watch(connector, process.pid, _IDLE_S)


TABLES: dict[str, tuple[Callable[[int], Awaitable[Row]], tuple[int, ...]]] = {
    "backlog": (backlog, (10_000, 100_000, 1_000_000)),
    "lanes": (lanes, (10, 100, 1_000, 10_000)),
    "concurrency": (concurrency, (10, 50, 100, 500, 1_000)),
    "queues": (queues, (1, 10, 50)),
    "scheduled": (scheduled, (0, 10_000, 1_000_000)),
    "repeats": (repeats, (0, 100, 10_000)),
}


async def _run(table: str, size: int) -> Row:
    return await TABLES[table][0](size)


def main() -> None:
    """Run the tables of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("tables", nargs="*", choices=[[], *TABLES], default=[], metavar="TABLE")
    options.add_argument("--most", type=int, default=1_000_000, help="leave out what is larger")
    options.add_argument("--runs", type=int, default=3)
    given = options.parse_args()
    for table in given.tables or TABLES:
        figures = {}
        for size in TABLES[table][1]:
            if size <= given.most:
                rows = [asyncio.run(_run(table, size)) for _ in range(given.runs)]
                figures[str(size)] = {name: spread([row[name] for row in rows]) for name in rows[0]}
        report("scale", table=table, runs=given.runs, **figures)


if __name__ == "__main__":
    main()
