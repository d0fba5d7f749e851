"""Guest: a coroutine of the user's that a loop of ours awaits: a hook, an observer, a lifespan.

Source: issue "The five promises" (no loop dies alone). A task that finds a GeneratorExit in the future it waits for
throws that into its coroutine, and by that the interpreter closes every coroutine between the task and the future, ours
among them. Handlers have runners for that, see `slots`; here the future's end is read where it was awaited.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

import anyio

# What is cancelled gets so long to end before it is left behind.
LEAVE_S = 0.5

T = TypeVar("T")


@types.coroutine
def hosted(guest: Awaitable[T]) -> Generator[Any, Any, T]:
    """Await `guest`, in this very task and context. Whatever a future raises that it awaits, GeneratorExit too, is
    raised in the guest, and from there on as any exception.
    """
    coroutine = _awaited(guest)
    step: Callable[[Any], Any] = coroutine.send
    argument: Any = None
    while True:
        try:
            asked = step(argument)
        except StopIteration as stop:
            value: T = stop.value
            return value
        step, argument = coroutine.send, None
        try:
            if _is_of_this_loop(asked):
                # The guest asks it for its result.
                yield from _End(asked)
            else:
                yield asked
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as exc:  # noqa: BLE001 - all of them are for the guest
            step, argument = coroutine.throw, exc


async def apart(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Have `work`, which awaits guests, done in a task of its own. Who is cancelled here cancels that, and leaves it
    behind where it does not end: a guest that swallows its cancellation keeps no task group, and no process.
    """
    task = asyncio.get_running_loop().create_task(work(), name=name)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task], timeout=LEAVE_S)
        raise
    task.result()


class _End(asyncio.Future[None]):
    """The end of another future, however it ended. What cancels the task that waits cancels that one."""

    def __init__(self, asked: asyncio.Future[Any]) -> None:
        super().__init__(loop=asked.get_loop())
        self._asked = asked
        asked.add_done_callback(self._over)

    def cancel(self, msg: Any | None = None) -> bool:
        return self._asked.cancel(msg)

    def _over(self, _asked: asyncio.Future[Any]) -> None:
        if not self.done():
            self.set_result(None)


async def _awaited(guest: Awaitable[T]) -> T:
    return await guest


def _is_of_this_loop(asked: object) -> bool:
    """Whether it is a future that the task would wait for; any other it refuses."""
    task = asyncio.current_task()
    return isinstance(asked, asyncio.Future) and asked is not task and asked.get_loop() is asyncio.get_running_loop()
