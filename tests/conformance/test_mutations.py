"""Every scenario can fail: one wrong line in what it covers turns it red.

No mutation outlives its test: a mutant script is exchanged on the wire, Python is patched and put back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import echomq_worker
from echomq_worker import backoff, handshake, pool, rows
from echomq_worker.batch import BatchExecutor
from echomq_worker.conformance import Outcome, Target, checks, chosen, run, scenarios
from echomq_worker.connector import Wire
from echomq_worker.events import Stream
from echomq_worker.identity import EPOCH_MS, Mint
from echomq_worker.lanes import Lanes
from echomq_worker.observers import Observers
from echomq_worker.outcome import COMPLETE
from echomq_worker.pool import Pool
from echomq_worker.publisher import Publisher
from echomq_worker.script import scripts
from tests.conformance.mutations import MUTATIONS, Mutation
from tests.support.mutants import MutantWire, mutated

LUA = Path(echomq_worker.__file__).parent / "lua"


async def outcomes(url: str, names: str, wrapped: Callable[[Wire], Wire] | None = None) -> list[Outcome]:
    """What becomes of some scenarios, their names in one text."""
    return [one async for one in run(Target(url), chosen(names.split()), wrapped=wrapped)]


def assert_red(found: Sequence[Outcome]) -> None:
    """Each has failed by a check of its own, not by a script that does not run."""
    assert {one.name: one.result for one in found} == {one.name: "FAILED" for one in found}
    assert [one.said for one in found if one.said.startswith(("ServerError", "Script"))] == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: f"{one.script}-{one.reds.split()[0]}")
async def test_a_wrong_script_turns_its_scenarios_red(
    url: str, monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    """A script with one wrong line is seen by each scenario that is said to cover it."""
    monkeypatch.setattr(checks, "PATIENCE_S", 0.5)
    mutant = mutated(mutation.script, mutation.old, mutation.new)

    assert_red(await outcomes(url, mutation.reds, lambda wire: MutantWire(wire, [mutant])))


# --------------------------------------------------------------------------------------------------------- no script


def no_fence() -> Any:
    """A handshake that takes any version for the expected one."""
    return lambda _reply, _endpoint, wire_version: wire_version


def a_trusting_mint() -> Any:
    """A mint that goes back when its clock does."""
    jump = Mint._jump

    def trusting(self: Mint, now_ms: int) -> int:
        self._ms = EPOCH_MS - 1
        return jump(self, now_ms)

    return trusting


def a_pool_that_sends_twice() -> Any:
    """A pool that repeats what it sends."""
    call = Pool.call

    async def twice(self: Pool, *args: Any) -> Any:
        await call(self, *args)
        return await call(self, *args)

    return twice


def observers_that_tell_twice() -> Any:
    """Observers that are told of each verdict twice."""
    settled = Observers.settled

    def twice(self: Observers, queue: str, answers: Any) -> None:
        settled(self, queue, answers)
        settled(self, queue, answers)

    return twice


def nothing(answer: Any = None) -> Any:
    """A coroutine function that does nothing."""

    async def does_nothing(*_args: Any, **_options: Any) -> Any:
        return answer

    return does_nothing


def a_stream_that_subscribes_once() -> Any:
    """A stream that connects again without asking for its channels."""
    connect = Stream._connect

    async def once(self: Stream) -> None:
        if not self._open:
            await connect(self)

    return once


PYTHON: dict[str, tuple[object, str, Callable[[], Any]]] = {
    "fence": (handshake, "fence_value", no_fence),
    "mint": (Mint, "_jump", a_trusting_mint),
    "backoff": (backoff, "_drawn", lambda: lambda bound, _draw: bound),
    "pool_enqueue": (Pool, "call", a_pool_that_sends_twice),
    "pool_order": (pool, "_PENDING", lambda: lambda _connector: 0),
    "lane_depth": (Lanes, "depth", lambda: nothing(0)),
    "counts lane_depth": (rows, "groups", lambda: nothing([])),
    "resubscribe": (Stream, "_connect", a_stream_that_subscribes_once),
    "events": (Publisher, "settled", lambda: lambda *_args: None),
    "batch_partition": (BatchExecutor, "_answered", lambda: lambda *_args: COMPLETE),
    "telemetry": (Observers, "settled", observers_that_tell_twice),
}


@pytest.mark.parametrize("reds", PYTHON)
async def test_wrong_python_turns_its_scenarios_red(url: str, monkeypatch: pytest.MonkeyPatch, reds: str) -> None:
    """Where no script does it, a wrong function is seen."""
    owner, name, made = PYTHON[reds]
    monkeypatch.setattr(checks, "PATIENCE_S", 0.5)
    monkeypatch.setattr(owner, name, made())

    assert_red(await outcomes(url, reds))


# ------------------------------------------------------------------------------------------------- nothing left out


def test_every_script_is_mutated() -> None:
    """No script is without a wrong line that some scenario sees; the one that is admit_many with a trace beside has no
    scenario, as no other client traces.
    """
    assert set(scripts()) - {mutation.script for mutation in MUTATIONS} == {"admit_traced"}


def test_every_scenario_turns_red() -> None:
    """No scenario is without a wrong line that it sees."""
    reds = {name for mutation in MUTATIONS for name in mutation.reds.split()}
    reds |= {name for names in PYTHON for name in names.split()}

    assert set(scenarios()) - reds == set()


def test_every_include_is_mutated() -> None:
    """What scripts share is mutated too, in one of them."""
    texts = {path.stem: path.read_text() for path in (LUA / "include").glob("*.lua")}
    inside = {name for name, text in texts.items() for mutation in MUTATIONS if mutation.old in text}

    assert set(texts) - inside == set()


class Written:
    """A wire that answers with what it was given."""

    async def call(self, *args: Any) -> Any:
        """One command."""
        return args

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Several."""
        return [tuple(command) for command in commands]


async def test_a_mutant_wire_sends_the_mutant() -> None:
    """By its sha and by its text, in calls and in pipelines; every other command, and every other script, as it is."""
    mutant, own, other = mutated("claim", "-- claim:", "-- claimed:"), scripts()["claim"], scripts()["retry"]
    wire = MutantWire(Written(), [mutant])

    assert await wire.call("EVALSHA", own.sha, 1, "key", "value") == ("EVALSHA", mutant.sha, 1, "key", "value")
    assert await wire.call("EVAL", own.source, 0) == ("EVAL", mutant.source, 0)
    plain = [("EVALSHA", other.sha, 0), ("GET", own.sha)]
    assert await wire.pipeline([*plain, ("EVALSHA", own.sha, 0)]) == [*plain, ("EVALSHA", mutant.sha, 0)]
    assert own is scripts()["claim"]
    with pytest.raises(AssertionError, match="expected a mutation that fits"):
        mutated("claim", "no such line", "")
