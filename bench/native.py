"""`python -m bench.native`: the server's CPU for a job's way by scripts and by the commands of the module, A B A B in
one run on one server.

A way is enqueue_many, claim_many and settle of completions, in batches as a worker sends them. What is counted is the
server's own: microseconds in EVALSHA or in the commands (INFO commandstats), and the CPU of the whole process, sockets
and all, beside it. `--batch` jobs per claim and settle, `--lanes N` spreads the jobs over N groups. Prints one line of
JSON: per job medians and spread of the rounds, and the ratio of the medians, scripts to commands. Needs the module:
`make -C native`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from pathlib import Path
from typing import Any

from bench.harness import PAYLOAD, commands, report, server, spread
from echomq_worker.connector import Connector, connect
from echomq_worker.jobs import Jobs, New
from echomq_worker.keyspace import Keys
from echomq_worker.lanes import Lanes
from echomq_worker.script import evaluate

QUEUE = "bench"
MODULE = Path(__file__).parents[1] / "native" / "emq.so"
LEASE_MS = 30_000
WAYS = ("scripts", "commands")
_STRIDE = 6


async def _cpu_us(connector: Connector) -> float:
    """CPU of the server's process so far."""
    info = (await connector.call("INFO", "cpu")).decode()
    fields = dict(line.split(":") for line in info.splitlines() if ":" in line)
    return (float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"])) * 1e6


async def _spent_us(connector: Connector) -> tuple[float, float]:
    """Microseconds so far in the verbs, however they are spoken, and of the whole process."""
    counted = (await commands(connector)).usec
    verbs = sum(us for name, us in counted.items() if name in ("evalsha", "eval") or name.startswith("EMQ."))
    return verbs, await _cpu_us(connector)


async def drain(connector: Connector, count: int, batch: int) -> None:
    """Claim and complete `count` jobs. Raises RuntimeError when a job is not handed out or not completed."""
    keys, number = Keys(QUEUE), 0
    declared = (keys.pending, keys.active, keys.ring, keys.meta, keys.receipt("bench"))
    left = count
    while left > 0:
        values = (keys.base, LEASE_MS, batch, number, f"r{number}", 5, 1)
        number, _, random, flat, _, _ = await evaluate(connector, "claim_many", declared, values)
        verdicts: list[Any] = []
        for at in range(0, len(flat), _STRIDE):
            verdicts += ("c", flat[at], flat[at + 2] + b":" + random, flat[at + 3])
        sets = (keys.active, keys.pending, keys.schedule, keys.dead)
        answers = await evaluate(connector, "settle", sets, (keys.base, *verdicts))
        if not answers or set(answers) != {b"done"}:
            raise RuntimeError(f"{left} jobs left, settle answered {set(answers)}")
        left -= len(answers)
    await connector.call("DEL", keys.receipt("bench"))


async def way(connector: Connector, count: int, batch: int, lanes: int) -> dict[str, float]:
    """Microseconds per job of one round."""
    groups = [Lanes.group_for(f"tenant-{n}") for n in range(lanes)]
    new = [New(PAYLOAD, group=groups[n % lanes]) if lanes else PAYLOAD for n in range(count)]
    start, process_start = await _spent_us(connector)
    await Jobs(connector).enqueue_many(QUEUE, new)
    enqueued, process_enqueued = await _spent_us(connector)
    await drain(connector, count, batch)
    drained, process_drained = await _spent_us(connector)
    return {
        "enqueue_us": (enqueued - start) / count,
        "claim_and_settle_us": (drained - enqueued) / count,
        "process_enqueue_us": (process_enqueued - process_start) / count,
        "process_claim_and_settle_us": (process_drained - process_enqueued) / count,
    }


async def run(count: int, batch: int, lanes: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Scripts and commands in turn; a round before the first is not counted."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    with server("--loadmodule", str(MODULE)) as url:
        async with connect(url, wire="4") as scripts, connect(url, wire="6") as twins:
            for number in range(rounds + 1):
                for name, connector in (("scripts", scripts), ("commands", twins)):
                    row = await way(connector, count, batch, lanes)
                    if number:
                        rows[name].append(row)
    return rows


def main() -> None:
    """Run the benchmark with the options of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=20_000)
    options.add_argument("--batch", type=int, default=50)
    options.add_argument("--lanes", type=int, default=0)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    if not MODULE.is_file():
        raise SystemExit(f"{MODULE} is not there, expected make -C native")
    rows = asyncio.run(run(given.jobs, given.batch, given.lanes, given.rounds))
    figures = {name: {one: spread([row[one] for row in rows[name]]) for one in rows[name][0]} for name in rows}
    ratios = {
        one: round(
            statistics.median(row[one] for row in rows["scripts"])
            / statistics.median(row[one] for row in rows["commands"]),
            2,
        )
        for one in rows["scripts"][0]
    }
    report("native", **vars(given), **figures, ratio=ratios)


if __name__ == "__main__":
    main()
