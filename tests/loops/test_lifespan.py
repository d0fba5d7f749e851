"""A lifespan that takes a connector: what an application does with the worker's server at its start and in handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from redis.asyncio import Redis

from echomq_worker import Connector, Jobs, Repeat, Worker, sync, testing
from echomq_worker.connector import connect
from echomq_worker.errors import LifespanLate
from tests.support.running import quick, running
from tests.support.waiting import never_ends, wait_until


@dataclass
class Shared:
    """What handlers share."""

    jobs: Jobs


def application() -> tuple[Worker, list[str]]:
    """A worker that registers a repeat when it starts, and whose handler enqueues; what its last handler was given."""
    worker, seen = Worker(), list[str]()

    @worker.lifespan
    async def shared(connector: Connector) -> AsyncIterator[Shared]:
        await Repeat(connector).register("first", "once-a-day", 86_400_000, "repeated")
        yield Shared(Jobs(connector))

    @worker.handler("first")
    async def pass_on(text: str, shared: Shared) -> None:
        await shared.jobs.enqueue("second", text)

    @worker.handler("second")
    async def note(text: str) -> None:
        seen.append(text)

    return worker, seen


async def test_the_connector_goes_where_the_worker_was_told(
    url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the settings of the run, whatever the environment says; it is of its own, and closed with the worker."""
    monkeypatch.setenv("ECHOMQ_URL", "redis://localhost:1/0")
    worker, seen = application()

    async with connect(url) as connector, running(worker, url):
        await Jobs(connector).enqueue("first", "enqueued")
        await wait_until(lambda: len(seen) == 2, "both jobs were passed on")
        assert "echomq-worker:lifespan" in {client["name"] for client in await raw.client_list()}

    assert sorted(seen) == ["enqueued", "repeated"]
    assert "echomq-worker:lifespan" not in {client["name"] for client in await raw.client_list()}


async def test_plain_functions_have_theirs(url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotated `sync.Connector` it is one for threads, to the same server, closed with the worker."""
    monkeypatch.delenv("ECHOMQ_URL", raising=False)
    worker, seen = Worker(), list[str]()

    @worker.lifespan
    async def shared(connector: sync.Connector) -> AsyncIterator[sync.Jobs]:
        yield sync.Jobs(connector)

    @worker.handler("first")
    def pass_on(text: str, jobs: sync.Jobs) -> None:
        jobs.enqueue("second", text)

    @worker.handler("second")
    def note(text: str) -> None:
        seen.append(text)

    async with connect(url) as connector, running(worker, url):
        await Jobs(connector).enqueue("first", "enqueued")
        await wait_until(lambda: seen == ["enqueued"], "the job was passed on")

    assert "echomq-worker:lifespan" not in {client["name"] for client in await raw.client_list()}


async def test_a_handler_that_is_called_as_a_function_has_it_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`call_handler` enters the lifespan, over the server of the environment, as the fixtures set it."""
    monkeypatch.setenv("ECHOMQ_URL", url)
    worker, _ = application()

    await testing.call_handler(worker, testing.make_job("called", queue="first"))

    async with connect(url) as connector:
        assert (await Jobs(connector).counts("second")).pending == 1


async def test_a_state_of_the_test_needs_no_server() -> None:
    """Where the lifespan is overridden nobody connects."""
    worker, _ = application()

    with worker.override_lifespan("instead"):
        async with worker.entered(quick("redis://localhost:1/0")) as state:
            assert state == "instead"


async def test_a_lifespan_hides_no_crash(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears of the error that ends the worker, and may not have it pass for a run that ended well."""
    worker = Worker()

    @worker.lifespan
    async def careless() -> AsyncIterator[None]:
        with suppress(Exception):
            yield

    @worker.handler("first")
    async def nothing() -> None: ...

    async def broken(_self: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("echomq_worker.pump.Pump.beat", broken)
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(worker.run(quick(url), signals=False), 20)
    assert caught.group_contains(RuntimeError, match="a bug")


async def test_a_crash_is_told_though_the_lifespan_swallows_its_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the process is told that it has to go without the lifespan, and what had ended the run."""
    worker, told, end = Worker(), list[LifespanLate](), asyncio.Event()

    @worker.lifespan
    async def stubborn() -> AsyncIterator[None]:
        try:
            yield
        finally:
            while not end.is_set():
                with suppress(asyncio.CancelledError):
                    await end.wait()

    @worker.handler("first")
    async def nothing() -> None: ...

    async def broken(_self: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("echomq_worker.pump.Pump.beat", broken)
    monkeypatch.setattr("echomq_worker.run._LAST_CLOSED_MS", 100)
    task = asyncio.create_task(worker.run(quick(url, grace_ms=0), signals=False, give_up=told.append))
    await wait_until(lambda: told, "the lifespan is given up")
    end.set()
    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(task, 20)
    assert str(told[0]).startswith("lifespan tests.loops.test_lifespan.")
    assert told[0].__cause__ is task.exception()


async def test_a_stop_during_a_start_that_swallows_its_cancellation_is_no_crash(url: str) -> None:
    """As old libraries do; nothing is claimed, and the run ends as if it had been let go."""
    worker, begun = Worker(), asyncio.Event()

    @worker.lifespan
    async def careless() -> AsyncIterator[None]:
        begun.set()
        with suppress(asyncio.CancelledError):
            await never_ends()
        yield

    @worker.handler("first")
    async def nothing() -> None: ...

    task = asyncio.create_task(worker.run(quick(url), signals=False))
    await asyncio.wait_for(begun.wait(), 20)
    worker.stop()
    report = await asyncio.wait_for(task, 20)
    assert report.exit_code == 0
