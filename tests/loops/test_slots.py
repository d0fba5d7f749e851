"""Slots: as many jobs at a time as there are slots, and the event loop gets its turns."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from echomq_worker.job import Job
from echomq_worker.outcome import Outcome
from echomq_worker.slots import TURN_MS, SlotLost, Slots
from echomq_worker.verdict import Complete
from tests.support.clock import ManualClock
from tests.support.plain import job as id_of
from tests.support.stations import job_of
from tests.support.waiting import wait_until


class Work:
    """An `execute` that is told what to do with each job, and what was seen of it."""

    def __init__(self, body: Callable[[Job], Any] | None = None) -> None:
        self.body = body
        self.gate = asyncio.Event()
        self.now = 0
        self.most = 0
        self.runners: set[str] = set()
        self.ended: list[Job] = []

    async def execute(self, job: Job, runner: asyncio.Task[Any] | None = None, /) -> Outcome:
        """Without a body: wait for the gate."""
        assert runner is not None
        assert runner is asyncio.current_task()
        self.runners.add(runner.get_name())
        self.now += 1
        self.most = max(self.most, self.now)
        if self.body is None:
            await self.gate.wait()
        else:
            self.body(job)
        self.now -= 1
        return Complete()

    def end(self, job: Job, outcome: Outcome) -> None:
        """What the slots call as a job ends."""
        assert isinstance(outcome, Complete)
        self.ended.append(job)


@asynccontextmanager
async def slots(size: int, work: Work, clock: ManualClock | None = None) -> AsyncIterator[Slots[Job, Outcome]]:
    """Slots whose runners are gone afterwards."""
    async with anyio.create_task_group() as tasks:
        yield Slots(size, tasks=tasks, name="slot", clock=clock or ManualClock(), execute=work.execute, on_end=work.end)
        tasks.cancel_scope.cancel()


def jobs(count: int) -> list[Job]:
    """Jobs in hand."""
    return [job_of(id=id_of(number)) for number in range(count)]


async def test_never_more_than_size_at_once() -> None:
    """Free slots are those that no job has, started or not; they come back as jobs end."""
    work = Work()
    async with slots(5, work) as made:
        assert made.free == 5
        made.start(jobs(5))
        assert made.free == 0
        await wait_until(lambda: work.now == 5, "all slots run")
        assert made.free == 0
        assert len(made.running) == 5
        work.gate.set()
        await wait_until(lambda: len(work.ended) == 5, "they end")
        assert made.free == 5
        work.gate.clear()
        made.start(jobs(3))
        await wait_until(lambda: work.now == 3, "three run")
        assert made.free == 2
        made.start(jobs(2))
        await wait_until(lambda: work.now == 5, "all slots run again")
        assert work.most == 5
        assert len(work.runners) == 5, "runners are made once"


async def test_a_slot_is_free_when_the_end_of_its_job_is_told() -> None:
    """Who claims on hearing of the end finds the slot."""
    work, free = Work(lambda job: None), list[int]()
    async with slots(2, work) as made:
        work.end = lambda job, outcome: free.append(made.free)  # type: ignore[method-assign]  # what the slots call
        made._on_end = work.end
        made.start(jobs(1))
        await wait_until(lambda: free, "the job ended")
    assert free == [2]


async def test_a_burst_of_jobs_that_never_suspend_is_worked_off_by_few_runners() -> None:
    """A hundred no-op jobs cost no hundred tasks."""
    work = Work(lambda job: None)
    async with slots(100, work) as made:
        made.start(jobs(100))
        await wait_until(lambda: len(work.ended) == 100, "all have run")
        assert len(work.runners) <= 3
        assert [one.id for one in work.ended] == [id_of(number) for number in range(100)], "in the order of the claim"


async def test_a_burst_of_jobs_that_suspend_is_spread_over_all_slots_in_few_turns() -> None:
    """Each runner that arrives calls two more while work waits."""
    work = Work()
    async with slots(100, work) as made:
        made.start(jobs(100))
        turns = 0
        while work.now < 100:
            await asyncio.sleep(0)
            turns += 1
            assert turns < 60, f"only {work.now} of 100 run after {turns} turns"
        # And once more, with the runners that are there.
        work.gate.set()
        await wait_until(lambda: made.free == 100, "all have ended")
        work.gate.clear()
        made.start(jobs(100))
        for _ in range(60):
            await asyncio.sleep(0)
        assert work.now == 100


@pytest.mark.parametrize("size", [1, 10, 100])
async def test_jobs_that_never_suspend_give_the_event_loop_its_turns(size: int) -> None:
    """After 5 ms of jobs whatever else is due comes first (claims, verdicts, pings), however many slots there are."""
    clock = ManualClock()
    work, loop = Work(lambda job: clock.advance(1)), asyncio.get_running_loop()
    seen: list[int] = []

    def turn() -> None:
        seen.append(len(work.ended))
        if len(work.ended) < 100:
            loop.call_soon(turn)

    async with slots(size, work, clock) as made:

        def refill(job: Job, outcome: Outcome) -> None:
            work.ended.append(job)
            if len(work.ended) + size <= 100:
                made.start([job_of()])

        made._on_end = refill
        made.start(jobs(size))
        loop.call_soon(turn)
        await wait_until(lambda: len(work.ended) == 100, "all have run")
    assert max(later - earlier for earlier, later in itertools.pairwise(seen)) <= TURN_MS + 1


async def test_what_was_not_begun_can_be_taken_back() -> None:
    """One job, or all; what runs cannot."""
    work = Work()
    async with slots(4, work) as made:
        first, second, third = jobs(3)
        made.start([first])
        await wait_until(lambda: work.now == 1, "the first runs")
        made.start([second, third])
        assert not made.drop(first)
        assert made.drop(second)
        assert not made.drop(second)
        assert made.free == 2
        assert made.take_unstarted() == [third]
        assert made.take_unstarted() == []
        assert made.free == 3
        work.gate.set()
        await wait_until(lambda: made.free == 4, "the first has ended")
        assert work.ended == [first]
        made.start(jobs(4))
        await wait_until(lambda: len(work.ended) == 5, "runners that were called for nothing are not lost")


async def test_once_they_are_held_no_job_begins() -> None:
    """Neither in this turn of the loop nor in any other, behind one that ends: what waits is there to be taken."""
    begun: list[Job] = []
    first, *others = jobs(4)

    def body(job: Job) -> None:
        begun.append(job)
        if job is first:
            # As the handler of a signal does it, between two steps of what runs.
            made.hold()

    work = Work(body)
    async with slots(2, work) as made:
        made.start([first, *others[:2]])
        await wait_until(lambda: work.ended == [first], "the first has ended")
        made.start(others[2:])
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == [first]
        assert made.take_unstarted() == others


class Signalled(ManualClock):
    """A signal comes while the clock is read."""

    signal: Callable[[], object] = staticmethod(int)

    def monotonic_ms(self) -> float:
        """The time, once the signal's handler has returned."""
        self.signal()
        return super().monotonic_ms()


async def test_a_hold_while_a_turn_begins_is_not_written_over() -> None:
    """Python calls a signal's handler in whatever function a runner has called, that of the clock too."""
    work, clock = Work(lambda _job: None), Signalled()
    async with slots(2, work, clock) as made:
        clock.signal = made.hold
        made.start(waiting := jobs(3))
        for _ in range(5):
            await asyncio.sleep(0)
        assert work.ended == []
        assert made.take_unstarted() == waiting


async def test_one_id_may_be_in_hand_twice() -> None:
    """A lease that was lost unnoticed: the job is claimed again while its handler still runs. Both have a slot."""
    work = Work()
    async with slots(3, work) as made:
        old, new = job_of(attempts=1), job_of(attempts=2)
        made.start([old])
        await wait_until(lambda: work.now == 1, "the first runs")
        made.start([new])
        await wait_until(lambda: work.now == 2, "both run")
        assert made.free == 1
        assert made.running == {old, new}
        work.gate.set()
        await wait_until(lambda: made.free == 3, "both have ended")
        assert work.ended == [old, new]


class Stop(BaseException):
    """Nothing that a slot may swallow."""


@pytest.mark.parametrize(("raised", "ends_with"), [(Stop, Stop), (asyncio.CancelledError, SlotLost)])
async def test_what_a_slot_cannot_go_on_after_ends_the_task_group(
    raised: type[BaseException], ends_with: type[BaseException]
) -> None:
    """A KeyboardInterrupt is not swallowed by its slot, and a cancellation of its own task leaves no slot lost."""

    def end(job: Job) -> None:
        raise raised

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            work = Work(end)
            made = Slots(1, tasks=tasks, name="slot", clock=ManualClock(), execute=work.execute, on_end=work.end)
            made.start(jobs(1))
            await anyio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await run()
    assert caught.group_contains(ends_with)


@pytest.mark.parametrize("raised", [Stop, asyncio.CancelledError])
async def test_the_job_that_ends_the_task_group_is_not_given_back_with_the_others(raised: type[BaseException]) -> None:
    """Released it would end the next worker in the same way, for ever, and never count a crash."""
    guilty, other = jobs(2)
    both = asyncio.Event()
    made: list[Any] = []

    async def execute(job: Job, runner: asyncio.Task[Any] | None = None, /) -> Outcome:
        if job is guilty:
            await both.wait()
            raise raised
        both.set()
        waits: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        return await waits

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            made.append(
                Slots(2, tasks=tasks, name="slot", clock=ManualClock(), execute=execute, on_end=lambda *_: None)
            )
            made[0].start([guilty, other])

    with pytest.raises(BaseExceptionGroup):
        await run()
    assert made[0].running == {other}


async def test_whoever_cancels_the_slots_is_not_told_of_a_lost_one() -> None:
    """A worker inside somebody else's scope: its cancellation is no bug of a handler."""
    with anyio.CancelScope() as outer:
        async with anyio.create_task_group() as tasks:
            work = Work()
            made = Slots(1, tasks=tasks, name="slot", clock=ManualClock(), execute=work.execute, on_end=work.end)
            made.start(jobs(1))
            await wait_until(lambda: work.now == 1, "it runs")
            outer.cancel()
    assert outer.cancelled_caught


async def test_a_handler_that_does_not_let_itself_be_cancelled_is_left_behind() -> None:
    """The end of the task group waits half a second for it, and for the others as long as they need."""
    gate, said = asyncio.Event(), list[str]()

    async def execute(job: Job, runner: asyncio.Task[Any] | None = None, /) -> Outcome:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                said.append("no")
        return Complete()

    started = time.monotonic()
    async with anyio.create_task_group() as tasks:
        made = Slots(2, tasks=tasks, name="slot", clock=ManualClock(), execute=execute, on_end=Work().end)
        made.start(jobs(1))
        await wait_until(lambda: made.running, "it runs")
        tasks.cancel_scope.cancel()
    assert 0.4 < time.monotonic() - started < 20
    assert said == ["no"], "it is asked once, not in every turn"
    (left,) = made._runners
    gate.set()
    await asyncio.wait_for(left, 20)


async def test_a_runner_has_the_context_of_the_consumer_not_of_the_job_that_called_it() -> None:
    """What a handler leaves in its context does not reach another slot."""
    seen, variable = list[str](), ContextVar("variable", default="clean")

    def body(job: Job) -> None:
        seen.append(variable.get())
        variable.set("dirty")

    work = Work(body)
    gate = asyncio.Event()

    async def execute(job: Job, runner: asyncio.Task[Any] | None = None, /) -> Outcome:
        await work.execute(job, runner)
        await gate.wait()
        return Complete()

    async with anyio.create_task_group() as tasks:
        made = Slots(5, tasks=tasks, name="slot", clock=ManualClock(), execute=execute, on_end=work.end)
        made.start(jobs(5))
        await wait_until(lambda: len(seen) == 5, "all run")
        tasks.cancel_scope.cancel()
    assert seen == ["clean"] * 5
