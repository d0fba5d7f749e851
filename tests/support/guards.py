"""What must be true after every test: nothing left behind, nothing blocked. Each guard is a context manager here, so
that it can be shown to fail; conftest wraps them around the tests.

Source: style anchor 17.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

import redis
import structlog
from blockbuster import BlockBuster

from tests.support.keyspace import complaints, key_facts, text
from tests.support.waiting import passes_plainly

_CLOSING_S = 20.0
_POLL_S = 0.005
# A cancelled task needs some turns to run its finally blocks; more than these is a task that was left.
_TURNS = 20

# Variables that change what the package or its console does.
_OURS = "ECHOMQ_"
_CONSOLE = ("FORCE_COLOR", "NO_COLOR", "GITHUB_ACTIONS", "PYTEST_ADDOPTS", "COLUMNS", "TERMINAL_WIDTH")


@contextmanager
def clean_environment() -> Iterator[None]:
    """Inside, no `ECHOMQ_*` is set and nothing forces colours or widths; afterwards all is as it was."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(_OURS) or name in _CONSOLE:
            del os.environ[name]
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            # pytest's and coverage's own bookkeeping stays.
            if name.startswith(_OURS):
                del os.environ[name]
        os.environ.update(before)


@contextmanager
def logging_as_it_was() -> Iterator[None]:
    """Afterwards lines go where they went before: a command that ran in this process would keep from `caplog` those of
    all later tests.
    """
    root = logging.getLogger()
    configured, handlers, level = structlog.is_configured(), list(root.handlers), root.level
    yield
    if structlog.is_configured() and not configured:
        structlog.reset_defaults()
        logging.captureWarnings(capture=False)
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
        root.setLevel(level)


@contextmanager
def signals_as_they_were() -> Iterator[None]:
    """Afterwards SIGINT and SIGTERM do what they did before: `run` ends with both ignored, which every process that a
    later test starts would inherit.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _may_block(otherwise: Callable[..., bool]) -> Callable[..., bool]:
    """What measures coverage takes a lock of its own wherever a thread comes to a new file: that is no call of ours."""

    def may_block(lock: object, *args: object, **kwargs: object) -> bool:
        # Looked for where it is loaded: a run without it needs it neither.
        measuring = sys.modules["coverage"].Coverage.current() if "coverage" in sys.modules else None
        own = getattr(getattr(measuring, "_collector", None), "data_lock", None)
        return lock is own or otherwise(lock, *args, **kwargs)

    return may_block


@contextmanager
def blocking_refused() -> Iterator[BlockBuster]:
    """Inside, a blocking call made by code of echomq_worker on a running event loop raises BlockingError."""
    guard = BlockBuster(scanned_modules="echomq_worker")
    # Read once per process, when the first script is used.
    for function in guard.functions.values():
        function.can_block_in("echomq_worker/catalogue.py", {"scripts"})
        # A small file, read once per time zone and process.
        function.can_block_in("echomq_worker/cron.py", {"_zone"})
        # The same, when the first dashboard is made.
        function.can_block_in("echomq_worker/web/render.py", {"environment", "static_files"})
        # A log that nobody has set up shows a trace with the lines of the source.
        function.can_block_in("rich/traceback.py", {"__rich_console__", "_render_stack", "extract"})
        # The kernel's own memory, no disk.
        function.can_block_in("echomq_worker/probes/probe.py", {"_resident"})
        # When a connector is made, as the certificates themselves are read.
        function.can_block_in("echomq_worker/endpoint.py", {"_check_files"})
    # Held for the few instructions of one mint, by threads and loop alike.
    for name in ("threading.Lock.acquire", "threading.Lock.acquire_lock"):
        guard.functions[name].can_block_in("echomq_worker/identity.py", {"next"})
        guard.functions[name].can_block_predicate = _may_block(guard.functions[name].can_block_predicate)
    guard.activate()
    try:
        yield guard
    finally:
        guard.deactivate()


@contextmanager
def no_threads_left() -> Iterator[None]:
    """Afterwards no non-daemon thread runs that did not run before; one that is just ending gets 20 s."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + _CLOSING_S
    while left := [thread.name for thread in set(threading.enumerate()) - before if not thread.daemon]:
        assert time.monotonic() < deadline, f"threads left running: {', '.join(sorted(left))}"
        passes_plainly(_POLL_S * 1000, "what is left behind may end yet")


@asynccontextmanager
async def no_tasks_left() -> AsyncIterator[None]:
    """Afterwards no asyncio task is pending that was not before, save the one that asks."""
    before = asyncio.all_tasks()
    yield
    turns = itertools.count()
    while left := asyncio.all_tasks() - before - {asyncio.current_task()}:
        names = ", ".join(sorted(f"{task.get_name()} ({task.get_coro()!r})" for task in left))
        assert next(turns) < _TURNS, f"tasks left running: {names}"
        await asyncio.sleep(0)


def _clients(admin: redis.Redis) -> dict[str, str]:
    """Client id -> name, address and last command of every connection."""
    rows: Iterable[dict[str, str]] = admin.client_list()
    return {row["id"]: f"{row.get('name') or 'unnamed'} {row['addr']} last={row.get('cmd')}" for row in rows}


@contextmanager
def no_connections_left(admin: redis.Redis) -> Iterator[None]:
    """Afterwards the server has no connection that it did not have before; one that is just closing gets 20 s."""
    before = _clients(admin)
    yield
    deadline = time.monotonic() + _CLOSING_S
    while left := {id_: what for id_, what in _clients(admin).items() if id_ not in before}:
        assert time.monotonic() < deadline, f"connections left open: {'; '.join(left.values())}"
        passes_plainly(_POLL_S * 1000, "what is left behind may end yet")


@contextmanager
def only_protocol_keys(admin: redis.Redis) -> Iterator[None]:
    """Afterwards every key is one of the protocol's table, of its type, and what must expire does."""
    yield
    found = complaints(key_facts(admin))
    assert not found, "keys left: " + "; ".join(text(line) for line in found)
