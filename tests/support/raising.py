"""A worker whose handlers raise what their job's payload names, for worker processes under test.

Run as `python -m echomq_worker run tests.support.raising:worker`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from echomq_worker import Job, Retry, Worker


class Own(BaseException):
    """What other libraries steer by: no Exception."""


class Silent(Exception):
    """It has no text."""

    def __str__(self) -> str:
        raise KeyboardInterrupt("str")

    __repr__ = __str__


def refuse(*_: object) -> Any:
    """What every attribute of the worst exception says."""
    raise KeyboardInterrupt("asked")


_ASKED = ("__class__", "__cause__", "__context__", "__traceback__", "__notes__", "__suppress_context__", "args")
_CALLED = ("__str__", "__repr__", "__bool__", "__eq__", "__hash__", "with_traceback", "__format__")
_STEERS = ("delay_ms", "reason")
_HOLDS = ("exceptions", "message", "subgroup", "split", "derive")


def hostile(name: str, base: type[BaseException], *more: str) -> Any:
    """A class of exceptions that raise whatever they are asked: class, text, trace, what they hold."""
    asked = {one: property(refuse, lambda *_: None) for one in (*_ASKED, *more)}
    return type(name, (base,), asked | dict.fromkeys(_CALLED, refuse))


Hostile = hostile("Hostile", Exception)
HostileRetry = hostile("HostileRetry", Retry, *_STEERS)
HostileGroup = hostile("HostileGroup", ExceptionGroup, *_HOLDS)


class Odd(Retry):
    """A retry whose delay is none."""

    def __init__(self) -> None:
        super().__init__(5)
        self.delay_ms = cast("int", "soon")


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
    "hostile": lambda: Hostile("x"),
    "hostile retry": lambda: HostileRetry.__new__(HostileRetry),
    "hostile group": lambda: HostileGroup("g", [ValueError("bad"), Hostile("x")]),
    "odd": Odd,
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
    "hostile": "Hostile: (its text cannot be read)",
    "hostile retry": "HostileRetry: (its text cannot be read)",
    "hostile group": "HostileGroup: (its text cannot be read)",
    "odd": "Odd",
    "group": "BaseExceptionGroup: two (2 sub-exceptions): KeyboardInterrupt; ValueError: bad",
    "group of one": "GeneratorExit",
}
OF_COROUTINES = ERRORS | {"stop": "RuntimeError: coroutine raised StopIteration"}

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
    await asyncio.create_task(fall_later(job.payload.decode()))


@worker.handler("fine")
async def fine() -> None:
    """Nothing is raised."""
