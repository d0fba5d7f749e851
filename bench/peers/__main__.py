"""`python -m bench.peers`: other job queues and this one, in turn on one machine: A B A B, and the ratio of each pair.

Installs each peer in a virtual environment of its own under `--root` (kept for the next time). Prints one line of JSON
per peer and scenario. A peer that cannot be installed or does not end is reported as such; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import enqueue, io, latency, throughput
from bench.harness import report, spread
from bench.peers.scenarios import Peer
from bench.peers.venvs import PACKAGES, python_of, version_of

# At which each peer drained fastest of 10, 50, 100 and 500.
BEST = {"arq": 500, "saq": 50, "streaq": 10, "taskiq": 500, "dramatiq": 50, "celery": 50, "ardiq": 100, "bullmq": 10}
OURS = ("--concurrency", "1000")


def _throughput(kind: str) -> float:
    options = [*OURS, "--kind", kind]
    return asyncio.run(throughput.run(40_000, options, 0))["jobs_per_s"]


# Scenario -> a run of ours and one of the peer's; of `latency` smaller is better.
SCENARIOS: dict[str, tuple[Callable[[], float], Callable[[Peer], float]]] = {
    "noop": (lambda: _throughput("noop"), Peer.noop),
    "plain": (lambda: _throughput("plain"), Peer.noop),
    "enqueue_one": (lambda: asyncio.run(enqueue.run("one", 3_000))["jobs_per_s"], lambda peer: peer.enqueue("one")),
    "enqueue_concurrent": (
        lambda: asyncio.run(enqueue.run("concurrent", 10_000))["jobs_per_s"],
        lambda peer: peer.enqueue("concurrent"),
    ),
    "enqueue_bulk": (
        lambda: asyncio.run(enqueue.run("many", 100_000))["jobs_per_s"],
        lambda peer: peer.enqueue("bulk"),
    ),
    "latency_p50": (lambda: asyncio.run(latency.run(1, 100))["p50_ms"], lambda peer: peer.latency(100)[0]),
    "latency_p99": (lambda: asyncio.run(latency.run(1, 100))["p99_ms"], lambda peer: peer.latency(100)[1]),
    "io": (lambda: asyncio.run(io.run(100, 100, 1_000))["jobs_per_s"], Peer.sleeps),
}


def compare(name: str, scenario: str, runs: int, root: Path, base: str) -> None:
    """Run both in turn and report. Raises RuntimeError when the peer fails."""
    peer = Peer(name, python_of(root, name, base), BEST.get(name, 10))
    ours, theirs = SCENARIOS[scenario]
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    pairs = []
    for _ in range(runs):
        pair = []
        for run in (ours, lambda: theirs(peer)):
            pair.append(run())
            if cores:
                os.sched_setaffinity(0, cores)
        pairs.append(pair)
    report(
        "peers",
        peer=name,
        version=version_of(root, name),
        scenario=scenario,
        runs=runs,
        ours=spread([a for a, _ in pairs]),
        theirs=spread([b for _, b in pairs]),
        ratio=spread([a / b for a, b in pairs]),
    )


def main() -> int:
    """Run the comparisons of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("peers", nargs="*", choices=[[], *PACKAGES], default=[], metavar="PEER")
    options.add_argument("--scenario", action="append", choices=SCENARIOS, default=[], help="all, unless given")
    options.add_argument("--root", type=Path, default=Path(tempfile.gettempdir()) / "echomq-peers")
    options.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="instead of this one")
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    pythons = dict(text.split("=", 1) for text in given.python)
    failed = 0
    for name in given.peers or PACKAGES:
        for scenario in given.scenario or SCENARIOS:
            try:
                compare(name, scenario, given.runs, given.root, pythons.get(name, sys.executable))
            except RuntimeError as error:
                failed += 1
                print(json.dumps({"bench": "peers", "peer": name, "scenario": scenario, "failed": str(error)}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
