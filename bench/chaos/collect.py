"""Evidence from the notes of all processes, and from what passed the proxies."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from bench.chaos.evidence import STARVED, Evidence, Exit, Fire, Grid, Happened, Order, Run, Scrape, Terms, Try
from bench.chaos.fleet import Kept
from bench.chaos.notes import RUN_WORDS, first_lines, host_minus_ms, lines, now_ms
from bench.chaos.roles import LIMITS, QUEUES, TICKS
from echomq_worker import Lanes
from echomq_worker.keyspace import Keys
from echomq_worker.script import scripts

_REGISTRY = Keys(TICKS).repeat.encode()


class Tap:
    """Hears the commands of workers and keeps what concerns repeats: which id was made for which name, and when."""

    def __init__(self) -> None:
        self.fires: list[Fire] = []
        script = scripts()["repeat_fire"]
        self._heads = (script.sha.encode(), script.source.encode())

    def command(self, command: bytes) -> None:
        """Called with every command."""
        if not any(head in command for head in self._heads):
            return
        words = _words(command)
        if _REGISTRY not in words:
            return
        # EVALSHA sha 2 registry pending base now name id name id …
        _, _, count, *rest = words
        now, *pairs = rest[int(count) + 1 :]
        for name, id in zip(pairs[::2], pairs[1::2], strict=True):
            self.fires.append(Fire(name.decode(), id.decode(), int(now), now_ms()))


def _words(command: bytes) -> list[bytes]:
    """The words of a command as it stands on the wire."""
    words: list[bytes] = []
    at = command.index(b"\r\n") + 2
    while at < len(command):
        end = command.index(b"\r\n", at)
        size = int(command[at + 1 : end])
        words.append(command[end + 2 : end + 2 + size])
        at = end + 4 + size
    return words


def collect(
    folder: Path,
    *,
    terms: Terms,
    faults: Sequence[Happened],
    fires: Sequence[Fire],
    grids: Sequence[Grid],
    workers: Sequence[Kept],
    scrapes: Sequence[Scrape] = (),
) -> Evidence:
    """Everything that was noted; what the server holds is added later."""
    orders, tries = _orders(folder)
    happened = sorted([*faults, *_gaps(folder, faults)], key=lambda one: one.begin_ms)
    exits = [one for worker in workers for one in worker.exits]
    killed = frozenset(pid for one in happened if one.kind == "kill" for pid in one.pids or ())
    serves = {queue: [one.name for one in workers if queue in one.role.queues] for queue in QUEUES}
    return Evidence(
        terms=terms,
        orders=orders,
        tries=tries,
        runs=_runs(folder),
        faults=happened,
        fires=fires,
        grids=grids,
        exits=[*exits, *_children(folder, workers, killed)],
        limits={Lanes.group_for(name): limit for name, limit in LIMITS.items() if limit is not None},
        serves=serves,
        pumps=[one.name for one in workers if one.role.pump and TICKS in one.role.queues],
        scrapes=scrapes,
        answers_for=supervisors(folder, {one.name for one in workers if one.role.processes > 1}),
        forgotten_ms=next((one.end_ms for one in happened if one.kind == "server_forget"), None),
    )


def supervisors(folder: Path, several: Collection[str]) -> dict[int, int]:
    """Of processes of the workers `several`, which run under a supervisor, which one that is."""
    begun = [words for words in first_lines(folder, "runs-") if words[0] == "up"]
    return {int(pid): int(parent) for _, _, worker, pid, parent in begun if worker in several}


def _orders(folder: Path) -> tuple[dict[str, Order], dict[str, list[Try]]]:
    orders: dict[str, Order] = {}
    tries: defaultdict[str, list[Try]] = defaultdict(list)
    for word, at, _, _, id, *rest in lines(folder, "orders"):
        if word == "order":
            queue, does, group, parent, policy, children = ("" if field == "-" else field for field in rest)
            kin = tuple(children.split(",")) if children else ()
            orders[id] = Order(id, queue, does, group, parent, policy, kin)
        elif word == "try":
            tries[id].append(Try(id, float(at), float("inf"), "unsure"))
        elif word == "answer":
            tries[id][-1] = replace(tries[id][-1], answered_ms=float(at), answer=rest[0])
    return orders, dict(tries)


def _runs(folder: Path) -> dict[str, list[Run]]:
    by_claim: dict[tuple[str, str, str], Run] = {}
    extra: list[Run] = []
    for word, at, worker, pid, *rest in lines(folder, "runs-"):
        if word not in RUN_WORDS:
            continue
        queue, id, attempts, held, group, *more = rest
        claim = (id, held, pid)
        if word == "start":
            run = Run(id, queue, worker, int(pid), int(attempts), held, float(at), group=group.replace("-", ""))
            if claim in by_claim:
                extra.append(by_claim[claim])
            by_claim[claim] = run
        elif word == "read":
            by_claim[claim] = replace(by_claim[claim], read=(int(more[0]), int(more[1])))
        else:
            by_claim[claim] = replace(by_claim[claim], end_ms=float(at), outcome=word)
    runs: defaultdict[str, list[Run]] = defaultdict(list)
    for run in sorted([*by_claim.values(), *extra], key=lambda one: one.start_ms):
        runs[run.id].append(run)
    return dict(runs)


def _gaps(folder: Path, faults: Sequence[Happened]) -> Iterator[Happened]:
    """Gaps of workers in which they did not compute, and were not frozen by the plan."""
    freezes = [one for one in faults if one.kind.startswith("freeze")]
    for word, _, worker, pid, *rest in lines(folder, "runs-"):
        if word == "gap":
            begin, end, cpu = map(float, rest)
            frozen = any(one.touches(worker, int(pid)) and one.begin_ms < end and one.end_ms > begin for one in freezes)
            if cpu < (end - begin) / 2 and not frozen:
                yield Happened(STARVED, worker, begin, end, frozenset({int(pid)}))


def _children(folder: Path, workers: Sequence[Kept], killed: frozenset[int]) -> Iterator[Exit]:
    """How the children of supervisors ended, by their log; a code of 0 says nothing."""
    up = {int(fields[3]) for fields in first_lines(folder, "runs-")}
    for worker in workers:
        if worker.role.processes == 1:
            continue
        for line in (folder / f"log-{worker.name}").read_text(errors="replace").splitlines():
            if '"process ended"' not in line:
                continue
            record = json.loads(line)
            pid, code = record["pid"], record["code"]
            # Told to stop by its supervisor before it listened to signals.
            young = code == -signal.SIGTERM and pid not in up
            if code != 0:
                yield Exit(worker.name, pid, code, _at(record), young or (pid in killed and code == -signal.SIGKILL))


def _at(record: Mapping[str, str]) -> float:
    """A log line's time on the monotonic clock."""
    return datetime.fromisoformat(record["timestamp"]).timestamp() * 1000 - host_minus_ms()
