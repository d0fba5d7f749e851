"""Threads: what the executor relies on for plain functions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from echomq_worker.errors import InvalidArgument
from echomq_worker.threads import Raised, Threads
from tests.support.waiting import wait_until, wait_until_sync


@asynccontextmanager
async def threads(limit: int = 4) -> AsyncIterator[Threads[str]]:
    """Closed afterwards, and its threads gone."""
    made: Threads[str] = Threads(limit, name="test-threads")
    try:
        yield made
    finally:
        made.close()
        await wait_until(lambda: not alive(), "the threads end after close")


def alive() -> list[str]:
    """Names of the pool's threads that run."""
    return [one.name for one in threading.enumerate() if one.name.startswith("test-threads")]


async def test_a_call_runs_elsewhere_and_its_value_comes_back() -> None:
    """The function runs in a daemon thread of the pool, the future becomes its value."""
    async with threads() as pool:
        name, daemon = await pool.submit(
            "a", lambda: (threading.current_thread().name, threading.current_thread().daemon)
        )

    assert name == "test-threads-1"
    assert daemon


@pytest.mark.parametrize(
    "exception", [ValueError, StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError]
)
async def test_anything_raised_comes_back_as_a_value(exception: type[BaseException]) -> None:
    """Also what a future refuses as its exception, and what would end a thread; the thread is used again."""

    def fails() -> None:
        raise exception

    async with threads(1) as pool:
        raised = await pool.submit("a", fails)
        again = await pool.submit("b", lambda: 7)
        made = pool.made

    assert isinstance(raised, Raised)
    assert isinstance(raised.exception, exception)
    assert (again, made) == (7, 1)


async def test_never_more_threads_than_the_limit() -> None:
    """Twenty blocking calls on three threads: three run at a time, all of them come to an end."""
    gate, running, most, mutex = threading.Event(), 0, 0, threading.Lock()

    def call() -> None:
        nonlocal running, most
        with mutex:
            running += 1
            most = max(most, running)
        gate.wait(10)
        with mutex:
            running -= 1

    async with threads(3) as pool:
        futures = [pool.submit(str(number), call) for number in range(20)]
        await wait_until(lambda: running == 3, "three calls run at the same time")
        assert len(pool.running()) == 20
        gate.set()
        await asyncio.gather(*futures)
        assert pool.made == 3
        assert pool.running() == []

    assert most == 3


async def test_every_blocking_call_gets_a_thread_up_to_the_limit() -> None:
    """A call that blocks holds up nobody: with a limit of fifty, fifty meet at one barrier."""
    barrier = threading.Barrier(50)
    async with threads(50) as pool:
        await asyncio.gather(*[pool.submit(str(number), barrier.wait, 20) for number in range(50)])
        assert pool.made == 50


async def test_idle_threads_are_reused() -> None:
    """One call after the other needs one thread."""
    async with threads(8) as pool:
        for number in range(100):
            assert await pool.submit("a", lambda value=number: value) == number
        assert pool.made == 1


async def test_calls_submitted_in_bursts_are_all_delivered() -> None:
    """No wake-up is lost, whatever the burst: the pool is never idle while calls wait."""
    async with threads(6) as pool:
        for size in [1, 2, 50, 3, 1, 200, 7] * 10:
            values = await asyncio.gather(*[pool.submit(str(number), lambda n=number: n) for number in range(size)])
            assert values == list(range(size))


async def test_a_cancelled_wait_leaves_the_running_call_on_record() -> None:
    """Who stops waiting does not stop the thread: the call stays in `running()` until it has really ended."""
    gate, started = threading.Event(), threading.Event()

    def call() -> None:
        started.set()
        gate.wait(10)

    async with threads(1) as pool:
        future = pool.submit("slow", call)
        await wait_until(started.is_set, "the call runs")
        future.cancel()
        await asyncio.sleep(0)
        assert pool.running() == ["slow"]
        gate.set()
        await wait_until(lambda: pool.running() == [], "the call has ended")


async def test_a_cancelled_wait_stops_a_call_that_no_thread_has_taken() -> None:
    """A call that waits behind a busy thread does not run once nobody waits for it."""
    ran: list[int] = []
    gate = threading.Event()
    async with threads(1) as pool:
        first = pool.submit("first", gate.wait, 10)
        second = pool.submit("second", ran.append, 2)
        second.cancel()
        gate.set()
        await first
        await pool.submit("third", ran.append, 3)
        assert pool.running() == []

    assert ran == [3]


async def test_close_twice_and_before_any_call() -> None:
    """Closing is safe at any time; a call submitted afterwards still runs."""
    async with threads(2) as pool:
        pool.close()
        assert await pool.submit("late", lambda: "ran") == "ran"
        pool.close()


async def test_no_thread_to_be_had_is_an_error_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives no thread and there is none, the call is refused and forgotten; later ones work."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with threads(2) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                pool.submit("a", lambda: 1)
        assert pool.running() == []
        assert await pool.submit("b", lambda: 2) == 2


async def test_no_second_thread_to_be_had_queues_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only one thread could be started, it works off what was meant for others."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    gate, started = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        gate.wait(10)

    async with threads(2) as pool:
        first = pool.submit("a", hold)
        await wait_until(started.is_set, "the only thread is busy")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            second = pool.submit("b", lambda: 2)
        gate.set()
        assert (await first, await second) == (None, 2)


def test_a_limit_below_one_is_refused() -> None:
    """A pool without threads would never run anything."""

    async def make() -> None:
        with pytest.raises(InvalidArgument, match="expected a limit of 1 or more, got 0"):
            Threads(0, name="none")

    asyncio.run(make())


def test_results_after_the_loop_has_closed_are_dropped() -> None:
    """A function that outlives its event loop ends quietly."""
    gate, started = threading.Event(), threading.Event()

    def call() -> None:
        started.set()
        gate.wait(10)

    async def leave() -> None:
        pool: Threads[str] = Threads(1, name="test-threads")
        pool.submit("a", call)
        pool.close()
        await wait_until(started.is_set, "the call runs")

    asyncio.run(leave())
    gate.set()
    wait_until_sync(lambda: not alive(), "the thread ends")


def test_the_process_does_not_wait_for_a_thread() -> None:
    """A function that never returns does not keep a process that has come to its end."""
    program = textwrap.dedent(
        """
        import asyncio, threading
        from echomq_worker.threads import Threads

        async def main():
            started = threading.Event()
            def forever():
                started.set()
                threading.Event().wait()
            Threads(1, name="t").submit("a", forever)
            while not started.is_set():
                await asyncio.sleep(0.001)

        asyncio.run(main())
        """
    )
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=90)

    assert (done.returncode, done.stderr) == (0, b"")
    assert time.monotonic() - begun < 20
