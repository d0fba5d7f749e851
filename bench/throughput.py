"""`python -m bench.throughput`: jobs drained by one worker process, and what each costs on the wire.

`--kind`: noop (default), model (payloads that pydantic reads), plain (a `def` handler, in threads), failing (one job in
twenty fails once); `--lanes N` spreads the jobs over N groups; `--wire 6` (or auto) with `--module FILE` has the server
run commands in place of scripts; `--limit` runs `limit` before each drain and tells the share of it. Prints one line of
JSON: jobs per second (from the first handler call to the last, median and spread of the runs), calls of verbs per job,
server and worker CPU per job. What `failing` counts holds the wait of the last retried jobs for the next beat, up to a
second: `--jobs 300000` keeps that below a tenth. Exits with 1 when a job is not completed; never because of a time.
"""

from __future__ import annotations

import argparse
import asyncio

from bench import limit
from bench.app import QUEUE
from bench.harness import PAYLOAD, commands, report, server, spread, worker
from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs, New
from echomq_worker.lanes import Lanes
from echomq_worker.twins import WIRES


async def run(jobs: int, options: list[str], lanes: int, *, wire: str = "4", module: str = "") -> dict[str, float]:
    """One drain of `jobs` jobs on a server of its own."""
    with server(*(["--loadmodule", module] if module else [])) as url:
        return await _drain(url, jobs, options, lanes, wire)


async def beside_limit(jobs: int, options: list[str], lanes: int, *, wire: str, module: str) -> dict[str, float]:
    """The same behind a run of `limit`, and which share of it that is."""
    most = (await limit.run(limit.JOBS, limit.BATCH))["jobs_per_s"]
    done = await run(jobs, options, lanes, wire=wire, module=module)
    return {**done, "limit_per_s": most, "share_of_limit": done["jobs_per_s"] / most}


async def _drain(url: str, jobs: int, options: list[str], lanes: int, wire: str) -> dict[str, float]:
    groups = [Lanes.group_for(f"tenant-{n}") for n in range(lanes)]
    async with connect(url, wire=wire) as connector:
        new = [New(PAYLOAD, group=groups[n % lanes]) if lanes else PAYLOAD for n in range(jobs)]
        await Jobs(connector).enqueue_many(QUEUE, new)
        before = await commands(connector)
        figures = await asyncio.to_thread(worker, "bench.app", url, "--jobs", str(jobs), *options, ECHOMQ_WIRE=wire)
        spent = (await commands(connector)).since(before)
    verbs = [name for name in spent.calls if name in {"eval", "evalsha"} or name.upper().startswith("EMQ.")]
    calls = sum(spent.calls[name] for name in verbs)
    usec = sum(spent.usec[name] for name in verbs)
    return {
        "jobs_per_s": figures["jobs"] / figures["seconds"],
        "evalsha_per_job": calls / jobs,
        "server_us_per_job": usec / jobs,
        "worker_us_per_job": figures["cpu_s"] / figures["jobs"] * 1e6,
        "rss_mb": figures["rss_mb"],
    }


def main() -> None:
    """Run the benchmark with the options of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kind", default="noop", choices=("noop", "model", "plain", "failing"))
    options.add_argument("--jobs", type=int, default=40_000)
    options.add_argument("--concurrency", type=int, default=100)
    options.add_argument("--consumers", type=int, default=1)
    options.add_argument("--lanes", type=int, default=0)
    options.add_argument("--wire", default="4", choices=WIRES)
    options.add_argument("--module", default="", help="the module emq, loaded into the server")
    options.add_argument("--limit", action="store_true")
    options.add_argument("--uvloop", action="store_true")
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    chosen = {name: getattr(given, name) for name in ("kind", "concurrency", "consumers")}
    words = [word for name, value in chosen.items() for word in (f"--{name}", str(value))]
    words += ["--uvloop"] * given.uvloop
    one = beside_limit if given.limit else run
    rows = [
        asyncio.run(one(given.jobs, words, given.lanes, wire=given.wire, module=given.module))
        for _ in range(given.runs)
    ]
    report(
        "throughput",
        jobs=given.jobs,
        **chosen,
        lanes=given.lanes,
        wire=given.wire,
        uvloop=given.uvloop,
        runs=given.runs,
        **{name: spread([row[name] for row in rows]) for name in rows[0]},
    )


if __name__ == "__main__":
    main()
