"""Every guard fails when what it guards is violated, and only then."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import structlog
from blockbuster import BlockingError
from redis.asyncio import Redis

import echomq_worker
from echomq_worker.logs import configure_logging
from tests.support import guards
from tests.support.valkey import ValkeyServer, raw_client
from tests.support.waiting import works_plainly_for

_PACKAGE = Path(echomq_worker.__file__).parent


def _as_package_code(source: str, file: str = "made_up.py") -> types.SimpleNamespace:
    """Run `source` as if it stood in a file of the package."""
    names: dict[str, object] = {"time": time, "threading": threading}
    exec(compile(source, str(_PACKAGE / file), "exec"), names)  # noqa: S102 - only so does code stand in the package
    return types.SimpleNamespace(**names)


def test_environment_is_clean_inside_and_restored_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ECHOMQ_ variable is seen inside, one that is set inside does not outlive it, the old ones come back."""
    monkeypatch.setenv("ECHOMQ_URL", "redis://production")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with guards.clean_environment():
        assert not [name for name in os.environ if name.startswith("ECHOMQ_")]
        assert "FORCE_COLOR" not in os.environ
        os.environ["ECHOMQ_BEAT_MS"] = "5"
    assert os.environ["ECHOMQ_URL"] == "redis://production"
    assert "ECHOMQ_BEAT_MS" not in os.environ


def test_every_test_runs_in_a_clean_environment() -> None:
    """The guard is around this test too."""
    assert not [name for name in os.environ if name.startswith("ECHOMQ_")]


def test_signals_are_as_they_were() -> None:
    """A test whose command has ended with Ctrl-C ignored leaves it to the next one as it was."""
    before = signal.getsignal(signal.SIGINT)
    with guards.signals_as_they_were():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is before


def test_logging_is_as_it_was() -> None:
    """What a command sets up in this process does not outlive it: a line is `caplog`'s again."""
    root = logging.getLogger()
    before = (list(root.handlers), root.level, structlog.is_configured())
    with guards.logging_as_it_was():
        configure_logging("json", "error")
        assert (list(root.handlers), root.level, structlog.is_configured()) != before
    assert (list(root.handlers), root.level, structlog.is_configured()) == before


async def test_blocking_code_of_the_package_is_refused() -> None:
    """time.sleep on the loop raises when the package is in the stack, not when only a test is; not in a thread."""
    code = _as_package_code("def nap(): time.sleep(0.001)")
    with pytest.raises(BlockingError, match=r"time\.sleep"):
        code.nap()
    works_plainly_for(1)
    await asyncio.to_thread(code.nap)


async def test_reading_scripts_and_minting_may_block() -> None:
    """What is read once, and a lock held for instructions, are allowed by name."""
    read = _as_package_code("def scripts(path): return path.read_text()", "catalogue.py").scripts
    assert "version" in read(_PACKAGE / "__init__.py")
    with pytest.raises(BlockingError, match="io"):
        _as_package_code("def other(path): return path.read_text()", "catalogue.py").other(_PACKAGE / "__init__.py")
    lock = threading.Lock()
    lock.acquire()
    releaser = threading.Timer(0.01, lock.release)
    releaser.start()
    _as_package_code("def next(lock): lock.acquire()", "identity.py").next(lock)
    releaser.join()


async def test_the_lock_of_what_measures_coverage_may_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken in the middle of any code of ours, of no doing of ours; every other lock that is held is refused."""
    own, other = threading.Lock(), threading.Lock()
    collector = types.SimpleNamespace(data_lock=own)
    measuring = types.SimpleNamespace(current=lambda: types.SimpleNamespace(_collector=collector))
    monkeypatch.setitem(sys.modules, "coverage", types.SimpleNamespace(Coverage=measuring))
    acquire = _as_package_code("def work(lock): return lock.acquire(timeout=0.01)").work
    for lock in (own, other):
        lock.acquire()
    assert acquire(own) is False
    with pytest.raises(BlockingError, match=r"lock\.acquire"):
        acquire(other)


@pytest.mark.blocks("shows that the mark lets it")
async def test_a_marked_test_may_block() -> None:
    """With the mark the guard is off."""
    _as_package_code("def nap(): time.sleep(0.001)").nap()


def test_a_thread_that_is_left_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that still runs fails the guard by name; a daemon thread and one that ended do not."""
    over = threading.Event()
    left = threading.Thread(target=over.wait, name="lingerer")
    daemon = threading.Thread(target=over.wait, daemon=True)

    def leave() -> None:
        with guards.no_threads_left():
            left.start()

    with monkeypatch.context() as patch:
        patch.setattr(guards, "_CLOSING_S", 0.02)
        with pytest.raises(AssertionError, match="threads left running: lingerer"):
            leave()
    with guards.no_threads_left():
        daemon.start()
        threading.Timer(0, lambda: None).start()
    over.set()
    left.join()


async def test_a_task_that_is_left_is_named() -> None:
    """A pending task fails the guard by name; one that ends within a few turns does not."""
    over = asyncio.Event()

    async def leave() -> asyncio.Task[bool]:
        async with guards.no_tasks_left():
            return asyncio.create_task(over.wait(), name="lingerer")

    with pytest.raises(AssertionError, match="tasks left running: lingerer"):
        await leave()
    async with guards.no_tasks_left():
        over.set()
        ending = asyncio.create_task(over.wait())
    assert ending.done()


async def test_a_connection_that_is_left_is_named(
    url: str, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open connection fails the guard with its name and last command; a closed one does not."""
    client = raw_client(url)

    async def leave() -> None:
        with guards.no_connections_left(server.admin):
            await client.ping()

    with monkeypatch.context() as patch:
        patch.setattr(guards, "_CLOSING_S", 0.02)
        with pytest.raises(AssertionError, match=r"connections left open: tests-raw 127\.0\.0\.1:\d+ last=ping"):
            await leave()
    await client.aclose()
    with guards.no_connections_left(server.admin):
        async with raw_client(url) as closed:
            await closed.ping()


@pytest.mark.leaves_keys("shows what the guard says of a stray key")
async def test_a_stray_key_is_named(raw: Redis, server: ValkeyServer) -> None:
    """A key outside the protocol's table fails the guard; keys of the table do not."""
    with guards.only_protocol_keys(server.admin):
        await raw.zadd("emq:{q}:pending", {"JOB0KHTOWnGLuC": 0})

    async def leave() -> None:
        with guards.only_protocol_keys(server.admin):
            await raw.lpush("emq:{q}:ready", "1")
            await raw.set("stray", "1")

    with pytest.raises(
        AssertionError, match=r"keys left: emq:\{q\}:ready: no time to live, expected one; stray: not in"
    ):
        await leave()


async def test_each_test_starts_with_an_empty_server(raw: Redis) -> None:
    """What other tests left in the table's keys is gone."""
    assert await raw.dbsize() == 0
