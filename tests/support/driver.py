"""The seeded random driver: three of our workers and a foreign client on a real server, every promise held to account.

Source: protocol section 4; "a seeded random driver over the verbs on a real server". It works at the level of verbs:
claims, endings, crashes, leases that run out, replies that are lost and calls that are sent again, shutdowns. Time
passes by rewriting scores, so a run is fast and depends on its seed alone. Many short worlds (a queue each) run side by
side over one connection: while the server works for one half of them, the other half is judged here.

    python -m tests.support.driver --steps 1000000 --seed 7
    python -m tests.support.driver --controls --steps 500000 --seed 1
    python -m tests.support.driver --replay failure.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.driver_kinds import CONTROLS, VERBS, Kind
from tests.support.driver_model import Violation
from tests.support.driver_shrink import shrink
from tests.support.driver_wire import LUA, Mutation, Packed, Pipe, Scripts, sources
from tests.support.driver_world import Step, Turn
from tests.support.valkey import ValkeyServer

WORLD_STEPS = 1_000
_HALF = 24
_AUDIT_EVERY = 8
_SELDOM = 10_000
# How much the foreign client does in a world, as a multiple of its usual share.
_FOREIGN = (0.0, 0.5, 1.0, 2.0)
# Every so many worlds one is crowded, so that a claim has more than it can take.
_CROWDED = 9


@dataclass(slots=True)
class Failure(Exception):
    """A broken promise, with the steps that led to it and the seed of their world."""

    violation: Violation
    seed: str
    steps: list[Step]

    def __str__(self) -> str:
        lines = "\n".join(json.dumps(step) for step in self.steps)
        return f"{self.violation}\nworld {self.seed}, {len(self.steps)} steps, as a file for --replay:\n{lines}"


@dataclass(slots=True)
class Run:
    """One world on its way: its generator, and the steps that it has done."""

    seed: str
    turn: Turn
    steps: list[Step]


# A world and how many replies it waits for.
Waiting = tuple[Run, int]


class Driver:
    """Drives worlds of a kind on one server. `texts` are the scripts, see `driver_wire.sources`."""

    def __init__(self, socket_path: Path, texts: Mapping[str, str], kind: Kind = VERBS) -> None:
        self._path = socket_path
        self._kind = kind
        self._pipe = Pipe(socket_path)
        self._scripts = Scripts(self._pipe, {**texts, **kind.texts})
        self._queues = itertools.count()

    @property
    def unused(self) -> set[str]:
        """The names of the scripts that were not called yet."""
        return self._scripts.unused

    def close(self) -> None:
        """Close the connection."""
        self._pipe.close()

    def run(self, steps: int, seed: int) -> None:
        """Random worlds until so many steps are done. Raises Failure, not yet shrunk."""
        lengths = [WORLD_STEPS] * (steps // WORLD_STEPS) + [steps % WORLD_STEPS] * bool(steps % WORLD_STEPS)
        worlds = (
            self._world(f"{seed}.{i}", length, _FOREIGN[i % len(_FOREIGN)], crowded=i % _CROWDED == 1)
            for i, length in enumerate(lengths)
        )
        here, there = (self._send([(run, None) for run in itertools.islice(worlds, _HALF)], worlds) for _ in range(2))
        while here:
            answered = [(run, self._pipe.receive(count)) for run, count in here]
            here, there = there, self._send(answered, worlds)
            if not here:
                here, there = there, here

    def _send(self, runs: Sequence[tuple[Run, list[Any] | None]], fresh: Iterator[Run]) -> list[Waiting]:
        packed: list[Packed] = []
        waiting: list[Waiting] = []
        for run, replies in runs:
            current: Run | None = run
            commands = self._advance(run, replies)
            while current and not commands:
                # This world is over: the next one takes its place.
                current = next(fresh, None)
                commands = self._advance(current, None) if current else []
            if current:
                waiting.append((current, len(commands)))
                packed += commands
        self._pipe.send(packed)
        return waiting

    def _advance(self, run: Run, replies: list[Any] | None) -> list[Packed]:
        try:
            # A generator that has just been made takes nothing but None.
            commands = next(run.turn) if replies is None else run.turn.send(replies)
            # No commands mean that it is over: a trip of none is answered here.
            while not commands:
                commands = run.turn.send([])
            return commands
        except StopIteration:
            return []
        except Violation as violation:
            raise Failure(violation, run.seed, run.steps) from violation

    def _world(self, seed: str, count: int, foreign: float, *, crowded: bool) -> Run:
        world = self._make()
        dice = self._kind.dice(seed, world, foreign, crowded)
        steps: list[Step] = []

        def draws() -> Iterator[Step]:
            for _ in range(count):
                steps.append(dice.draw())
                yield steps[-1]

        return Run(seed, self._live(world, draws(), _AUDIT_EVERY), steps)

    def _make(self) -> Any:
        return self._kind.world(f"d{next(self._queues)}", self._scripts)

    def _live(self, world: Any, steps: Iterable[Step], audit_every: int) -> Turn:
        """A whole life of a world: its steps, a look every so often, and its end."""
        for number, step in enumerate(steps, 1):
            yield from world.execute(step)
            if number % audit_every == 0:
                yield from world.audit()
        yield from self._kind.drain(world)

    def replay(self, steps: Sequence[Step], *, audit_every: int = 1) -> Violation | None:
        """Do these steps in a world of their own, with a look after each, then drain it; what broke, if anything."""
        return self._replays([steps], audit_every)[0]

    def _replays(self, lists: Sequence[Sequence[Step]], audit_every: int) -> list[Violation | None]:
        runs = [Run("", self._live(self._make(), steps, audit_every), []) for steps in lists]
        found: list[Violation | None] = [None] * len(lists)
        answers: dict[int, list[Any] | None] = dict.fromkeys(range(len(lists)))
        while answers:
            sent: dict[int, list[Packed]] = {}
            for i, replies in answers.items():
                try:
                    sent[i] = self._advance(runs[i], replies)
                except Failure as failure:
                    found[i] = failure.violation
            sent = {i: commands for i, commands in sent.items() if commands}
            self._pipe.send([command for commands in sent.values() for command in commands])
            answers = {i: self._pipe.receive(len(commands)) for i, commands in sent.items()}
        return found

    def shrunk(self, failure: Failure, *, budget_s: float = 60.0) -> Failure:
        """The shortest part of a failure's steps that breaks the same promise, or how far it got in this time."""
        until = time.monotonic() + budget_s
        # Replies to other worlds may still be on their way.
        self._pipe.close()
        self._pipe = Pipe(self._path)

        def first_failing(lists: Sequence[Sequence[Step]]) -> int | None:
            if time.monotonic() > until:
                return None
            self._pipe.call("FLUSHDB")
            same = [found and found.kind == failure.violation.kind for found in self._replays(lists, every)]
            return same.index(True) if True in same else None

        # Few looks are fast; and a look takes over what foreign verbs left open, so it may hide what shows without it.
        for every in (_SELDOM, _AUDIT_EVERY, 1):
            if first_failing([failure.steps]) is not None:
                steps = shrink(failure.steps, first_failing)
                failure = Failure(self.replay(steps, audit_every=every) or failure.violation, failure.seed, steps)
        return failure


@contextmanager
def driver(mutations: Sequence[Mutation] = (), folder: Path = LUA, *, kind: Kind = VERBS) -> Iterator[Driver]:
    """A driver on a server of its own, with the scripts of a folder and faults put into them."""
    texts = sources(mutations, folder)
    server = ValkeyServer(unix_socket=True)
    try:
        server.start()
        assert server.socket_path is not None
        made = Driver(server.socket_path, texts, kind)
        try:
            yield made
        finally:
            made.close()
    finally:
        server.close()


def read_steps(text: str) -> list[Step]:
    """The steps in what a failure prints: a JSON list a line, between other lines."""
    return [_tuples(json.loads(line)) for line in text.splitlines() if line.lstrip().startswith("[")]


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0 where every promise was kept, 1 with the shortest sequence that breaks one."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.driver", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", type=Path, help="a file of steps, one JSON list a line")
    parser.add_argument(
        "--scripts", type=Path, default=LUA, help="another folder of scripts, such as an older release's"
    )
    parser.add_argument("--controls", action="store_true", help="every control, over three queues that flows join")
    options = parser.parse_args(arguments)
    with driver(folder=options.scripts, kind=CONTROLS if options.controls else VERBS) as made:
        began = time.monotonic()
        if options.replay:
            found = made.replay(read_steps(options.replay.read_text()))
            sys.stdout.write(f"{found or 'every promise was kept'}\n")
            return 1 if found else 0
        try:
            made.run(options.steps, options.seed)
        except Failure as failure:
            sys.stdout.write(f"seed {options.seed}: {failure.violation}; shrinking {len(failure.steps)} steps\n")
            sys.stdout.write(f"{made.shrunk(failure, budget_s=600.0)}\n")
            return 1
        rate = options.steps / (time.monotonic() - began)
        sys.stdout.write(f"seed {options.seed}: {options.steps} steps, {rate:.0f} steps/s, every promise was kept\n")
        return 0


if __name__ == "__main__":
    sys.exit(main())
