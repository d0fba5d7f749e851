"""`python -m bench.chaos --minutes 30 --workers 6 --seed 7`: a chaos run and its account. See docs/chaos.md.

Exit codes: 0 the account balances, 1 it does not (or the run broke), 2 a wrong option.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from bench.chaos import lab, report
from bench.chaos.account import make_account
from bench.chaos.evidence import Terms
from bench.chaos.plan import Fault, make_plan

_FAULTS_PER_MINUTE = 14
_LEAST_FAULTS = 24
_SHORTEST_S = 10


def main() -> int:
    """Run, print the account, and answer the exit code."""
    given = _options().parse_args()
    length_ms = round(given.seconds * 1000 if given.seconds is not None else given.minutes * 60_000)
    if length_ms < _SHORTEST_S * 1000 or given.workers < 1 or given.rate <= 0:
        sys.stderr.write(f"bench.chaos: expected {_SHORTEST_S} s or more, a worker or more, and a rate above 0\n")
        return 2
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    plan = _plan(given, seed, length_ms)
    if given.plan:
        print("\n".join(map(str, plan)))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="echomq-chaos-"))
    print(f"seed {seed}, {len(plan)} faults planned, notes and logs in {folder}", flush=True)
    order = lab.Order(
        seed=seed,
        length_ms=length_ms,
        workers=given.workers,
        jobs_per_s=given.rate,
        terms=Terms(given.lease_ms, given.beat_ms, given.margin_ms),
        plan=plan,
        folder=folder,
        forget=given.forget,
        wire=given.wire,
        module=given.module,
        replica=given.replica,
    )
    try:
        outcome = asyncio.run(_run(order))
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.stderr.write(f"bench.chaos: stopped; notes and logs are in {folder}\n")
        return 1
    account = make_account(outcome.evidence)
    told = report.Told(account, outcome.evidence, seed, outcome.missed, outcome.drained_ms)
    print(report.text(told), flush=True)
    if given.json is not None:
        given.json.write_text(report.as_json(told) + "\n")
    for line in report.findings(told, folder):
        print(line)
    if account.balanced and not given.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if account.balanced else 1


async def _run(order: lab.Order) -> lab.Outcome:
    """The run; SIGTERM ends it as Ctrl-C does, so that no worker and no server is left behind."""
    task = asyncio.current_task()
    assert task is not None, "asyncio.run runs this in a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await lab.run(order, lambda line: print(line, flush=True))


def _plan(given: argparse.Namespace, seed: int, length_ms: int) -> list[Fault]:
    faults = given.faults
    if faults is None:
        faults = max(_LEAST_FAULTS, length_ms * _FAULTS_PER_MINUTE // 60_000)
    return make_plan(
        seed,
        length_ms=length_ms,
        workers=given.workers,
        lease_ms=given.lease_ms,
        faults=faults,
        forget=given.forget,
    )


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m bench.chaos", description="Faults at random, and an account.")
    length = options.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=3.0, help="how long jobs and faults come (default: 3)")
    length.add_argument("--seconds", type=float, help="the same in seconds")
    options.add_argument("--workers", type=int, default=6, help="worker processes, one of each kind in turn (6)")
    options.add_argument("--seed", type=int, help="makes the schedule of faults and the jobs (default: at random)")
    options.add_argument("--faults", type=int, help="how many (default: 14 a minute, 24 at least)")
    options.add_argument("--rate", type=float, default=80.0, help="jobs a second (80)")
    options.add_argument("--lease-ms", type=int, default=5_000, help="the workers' lease (5000)")
    options.add_argument("--beat-ms", type=int, default=500, help="the workers' beat and tick (500)")
    options.add_argument("--margin-ms", type=int, default=1_500, help="beyond lease and beat after a kill (1500)")
    options.add_argument("--forget", action="store_true", help="no append-only file, and one restart that loses all")
    options.add_argument("--wire", default="4", choices=("4", "auto"), help="what workers and producers speak (4)")
    options.add_argument("--module", type=Path, help="the module emq, loaded into the server")
    options.add_argument(
        "--replica", action="store_true", help="attach one; compare it and a restart's data at the end"
    )
    options.add_argument("--plan", action="store_true", help="print the schedule of faults and exit")
    options.add_argument("--json", type=Path, help="write the account there as well")
    options.add_argument("--keep", action="store_true", help="keep notes and logs of a run that balances too")
    return options


if __name__ == "__main__":
    sys.exit(main())
