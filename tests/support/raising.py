"""A worker whose handlers raise what their job's payload names, for worker processes under test.

Run as `python -m echomq_worker run tests.support.raising:worker`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from echomq_worker import Job, Worker


class Own(BaseException):
    """What other libraries steer by: no Exception."""


class Silent(Exception):
    """It has no text."""

    def __str__(self) -> str:
        raise KeyboardInterrupt("str")

    __repr__ = __str__


def endless() -> None:
    """Until the interpreter has enough."""
    endless()


# What is raised, by its name; made anew each time.
KINDS: dict[str, Callable[[], BaseException]] = {
    "error": lambda: ValueError("bad"),
    "generator exit": GeneratorExit,
    "interrupt": lambda: KeyboardInterrupt("mine"),
    "exit": lambda: SystemExit(0),
    "cancelled": lambda: asyncio.CancelledError("mine"),
    "stop": StopIteration,
    "async stop": StopAsyncIteration,
    "memory": MemoryError,
    "recursion": RecursionError,
    "own": lambda: Own("stop"),
    "silent": Silent,
    "group": lambda: BaseExceptionGroup("two", [KeyboardInterrupt(), ValueError("bad")]),
    "group of one": lambda: BaseExceptionGroup("one", [GeneratorExit()]),
}
# What a row says of it, where that is another text of a coroutine: of Python's own making.
ERRORS = {
    "error": "ValueError: bad",
    "generator exit": "GeneratorExit",
    "interrupt": "KeyboardInterrupt: mine",
    "exit": "SystemExit: 0",
    "cancelled": "CancelledError: mine",
    "stop": "StopIteration",
    "async stop": "StopAsyncIteration",
    "memory": "MemoryError",
    "recursion": "RecursionError: maximum recursion depth exceeded",
    "own": "Own: stop",
    "silent": "Silent: (its text cannot be read)",
    "group": "BaseExceptionGroup: two (2 sub-exceptions): KeyboardInterrupt; ValueError: bad",
    "group of one": "GeneratorExit",
}
OF_COROUTINES = ERRORS | {"stop": "RuntimeError: coroutine raised StopIteration"}
# What a task that a handler awaits can raise: one with a GeneratorExit closes who awaits it.
OF_TASKS = {name: text for name, text in OF_COROUTINES.items() if name not in {"generator exit", "group of one"}}

worker = Worker()


def fall(kind: str) -> None:
    """Raise it."""
    if kind == "recursion":
        endless()
    error = KINDS[kind]()
    raise error


async def fall_later(kind: str) -> None:
    """Raise it in another turn of the loop."""
    await asyncio.sleep(0)
    fall(kind)


@worker.handler("async", max_attempts=1)
async def of_a_coroutine(job: Job) -> None:
    """Raised by a coroutine."""
    fall(job.payload.decode())


@worker.handler("plain", max_attempts=1)
def of_a_function(job: Job) -> None:
    """Raised in a thread."""
    fall(job.payload.decode())


@worker.batch_handler("batch", min_size=1, timeout_ms=0, concurrency=1, max_attempts=1)
async def of_a_batch(jobs: list[Job]) -> None:
    """Raised by one call for many jobs."""
    fall(jobs[0].payload.decode())


@worker.handler("task", max_attempts=1)
async def of_a_task(job: Job) -> None:
    """Raised in a task of its own, which the handler awaits."""
    await asyncio.gather(fall_later(job.payload.decode()))


@worker.handler("fine")
async def fine() -> None:
    """Nothing is raised."""
