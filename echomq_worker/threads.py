"""Threads: daemon threads of our own for plain functions.

Source: design.md section 4 (`run_in_executor` costs 35 µs a call; what still runs in a thread must not keep a process
that has to go). Threads are made when work waits and none is idle, up to a limit, and reused; they are never joined.
One thread at a time is on its way to the queue: a burst of short functions is worked off by the few threads that got
there first, a burst of long ones wakes one thread after the other. Results go back in batches, one wake-up of the event
loop for all that ended meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from echomq_worker.errors import InvalidArgument

Tag = TypeVar("Tag", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Raised:
    """What a function raised, of whatever class (a future cannot carry a StopIteration as its exception)."""

    exception: BaseException


class Threads(Generic[Tag]):
    """At most `limit` daemon threads, named `<name>-<n>`. Made and used on one event loop's thread.

    `submit` starts a call, `running()` tells which have not ended, `close()` lets idle threads end.
    """

    def __init__(self, limit: int, *, name: str) -> None:
        if limit < 1:
            raise InvalidArgument(f"threads of {name}: expected a limit of 1 or more, got {limit}")
        self._limit = limit
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._mutex = threading.Lock()
        self._work: deque[tuple[asyncio.Future[Any], Tag, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._ended: deque[tuple[asyncio.Future[Any], Tag, Any]] = deque()
        self._idle: list[threading.Lock] = []
        self._made = 0
        # A thread was called and has not arrived yet; one has ended its call and is about to look for the next.
        self._coming = False
        self._returning = False
        self._posted = False
        self._closed = False
        self._out: set[Tag] = set()

    @property
    def made(self) -> int:
        """How many threads were made so far; they are reused, so this is the largest number at one time."""
        return self._made

    def running(self) -> list[Tag]:
        """Tags of the calls that have not ended: waiting for a thread, or running in one."""
        return list(self._out)

    def submit(self, tag: Tag, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run `function(*args)` in a thread. The future becomes its value, or a Raised.

        Cancelling the future stops a call that no thread has taken yet; one that runs goes on, and stays in
        `running()` until it ends. `tag` is what `running()` reports, one call at a time. RuntimeError when the system
        gives no thread and none is there.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self._out.add(tag)
        self._work.append((future, tag, function, args))
        try:
            self._call_one()
        except RuntimeError:
            # No thread could be started and there is none that would take it.
            self._work.pop()
            self._out.discard(tag)
            raise
        return future

    def close(self) -> None:
        """Idle threads end now, busy ones after their call. Nothing is waited for."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        for lock in idle:
            lock.release()

    def _call_one(self) -> None:
        with self._mutex:
            if self._coming or self._returning:
                return
            if self._idle:
                self._coming = True
                self._idle.pop().release()
                return
            if self._made >= self._limit:
                return
            self._coming = True
            self._made += 1
            number = self._made
        try:
            threading.Thread(target=self._serve, name=f"{self._name}-{number}", daemon=True).start()
        except RuntimeError:
            with self._mutex:
                self._coming = False
                self._made -= 1
            if self._made == 0:
                raise

    def _serve(self) -> None:
        parked = threading.Lock()
        parked.acquire()
        called = True
        while True:
            call = None
            with self._mutex:
                self._returning = False
                if called:
                    self._coming = called = False
                if self._work:
                    call = self._work.popleft()
                elif self._closed:
                    return
                else:
                    self._idle.append(parked)
            if call is None:
                parked.acquire()
                called = True
                continue
            if self._work:
                self._call_one()
            self._run(*call)

    def _run(self, future: asyncio.Future[Any], tag: Tag, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        result: Any = None
        if not future.cancelled():
            try:
                result = function(*args)
            except BaseException as exc:  # noqa: BLE001 - the executor decides what it means; a thread must not die of it
                result = Raised(exc)
        # Before the result is handed over: whoever submits the next call on seeing it finds this thread idle.
        self._returning = True
        self._ended.append((future, tag, result))
        if not self._posted:
            self._posted = True
            # The loop is closed when the process goes while functions still run: nobody waits for them any more.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # The flag is cleared before the results are taken: a call that ends after this posts a wake-up of its own.
        self._posted = False
        while self._ended:
            future, tag, result = self._ended.popleft()
            self._out.discard(tag)
            if not future.done():
                future.set_result(result)
