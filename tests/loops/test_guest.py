"""A guest: whatever a future raises that a hook, an observer or a lifespan awaits, it is theirs, and no loop ends."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from echomq_worker.connector import connect
from echomq_worker.guest import hosted
from echomq_worker.jobs import Jobs
from echomq_worker.observers import Completed
from echomq_worker.worker import Worker
from tests.support.running import quick, running
from tests.support.waiting import never_ends, wait_until


async def closes() -> None:
    """Await a task that raises what closes every coroutine between itself and the task that waits."""

    async def raising() -> None:
        await asyncio.sleep(0)
        raise GeneratorExit

    await asyncio.create_task(raising())


async def test_what_a_task_raises_is_raised_in_the_guest() -> None:
    """GeneratorExit too: the guest sees it where it awaits the task, and whoever hosts it goes on."""
    seen: list[str] = []

    async def guest() -> None:
        try:
            await closes()
        except GeneratorExit:
            # Of a coroutine that is closed this would be the end.
            await asyncio.sleep(0)
            seen.append("guest")
            raise

    with pytest.raises(GeneratorExit):
        await hosted(guest())
    await asyncio.sleep(0)
    assert seen == ["guest"]
    with pytest.raises(ValueError, match="plain"):
        await hosted(falling(ValueError("plain")))


async def falling(error: BaseException) -> None:
    """Raise it in a task, and await that."""

    async def raising() -> None:
        raise error

    await asyncio.create_task(raising())


async def test_a_guest_is_in_the_task_and_the_context_of_its_host() -> None:
    """What it returns comes back, what it sets stays set, and it may be any awaitable."""
    number: contextvars.ContextVar[int] = contextvars.ContextVar("number")

    async def guest() -> asyncio.Task[Any] | None:
        number.set(5)
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(done.set_result, None)
        await done
        return asyncio.current_task()

    assert await hosted(guest()) is asyncio.current_task()
    assert number.get() == 5
    inner = asyncio.create_task(guest())
    assert await hosted(inner) is inner
    with pytest.raises(RuntimeError, match="await on itself"):
        await hosted(_of_itself())


async def _of_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    await task


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_cancellation_reaches_what_the_guest_waits_for(*, swallows: bool) -> None:
    """As without a host: the inner task is cancelled, and what it makes of it is what the guest sees."""
    begun = asyncio.Event()

    async def inner() -> str:
        begun.set()
        try:
            await never_ends()
        except asyncio.CancelledError:
            if not swallows:
                raise
        return "swallowed"

    async def guest() -> str:
        return await asyncio.create_task(inner())

    task: asyncio.Task[str] = asyncio.create_task(hosted(guest()))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() is not swallows
    if swallows:
        assert task.result() == "swallowed"
    with anyio.move_on_after(0.001) as scope:
        await hosted(never_ends())
    assert scope.cancelled_caught


async def test_a_host_that_is_closed_closes_its_guest() -> None:
    """As a loop does with what still runs on it."""
    ended: list[str] = []

    async def guest() -> None:
        try:
            await never_ends()
        finally:
            ended.append("closed")

    host = hosted(guest())
    host.send(None)
    host.close()
    assert ended == ["closed"]


async def test_hooks_and_observers_that_are_closed_from_inside_end_no_worker(url: str) -> None:
    """It is told as what they raised, the others hear of every job, and so do they of the next."""
    worker, told, tried = Worker(), list[str](), list[str]()

    @worker.handler("a")
    async def handle() -> None: ...

    @worker.observe
    async def closed_observer(_event: object) -> None:
        tried.append("observer")
        await closes()

    @worker.on_complete
    async def closed_hook() -> None:
        tried.append("hook")
        await closes()

    @worker.on_complete
    def plainly() -> Any:
        tried.append("plain")
        return closes()

    @worker.observe
    def observer(event: object) -> None:
        if isinstance(event, Completed):
            told.append("observer")

    @worker.on_complete
    async def hook() -> None:
        told.append("hook")

    async with connect(url) as connector, running(worker, url) as run:
        for count in (1, 2):
            await Jobs(connector).enqueue("a", b"")
            await wait_until(lambda: sorted(told) == ["hook"] * count + ["observer"] * count, "all are told")  # noqa: B023 - waited for in this turn of the loop
    assert run.report.completed == 2
    # A job starts and is completed.
    assert sorted(tried) == ["hook"] * 2 + ["observer"] * 4 + ["plain"] * 2


@pytest.mark.parametrize("end", ["enters", "leaves"])
async def test_a_lifespan_that_is_closed_from_inside_is_a_crash_with_its_error(url: str, end: str) -> None:
    """As with anything else that it raises: the run ends with that, and its connections are closed."""
    worker, steps = Worker(), list[str]()

    @worker.handler("a")
    async def handle() -> None: ...

    @worker.lifespan
    async def shared() -> AsyncIterator[None]:
        if end == "enters":
            await closes()
        yield
        steps.append("leaves")
        await closes()

    run = asyncio.create_task(worker.run(quick(url), signals=False, burst=True))
    await asyncio.wait([run], timeout=20)
    assert isinstance(run.exception(), GeneratorExit)
    assert steps == (["leaves"] if end == "leaves" else [])
    async with connect(url) as connector:
        names = await connector.call("CLIENT", "LIST")
    assert b"name=echomq-worker " not in names
