"""Watch: another thread notices that something blocks the event loop, and sees what it is.

Source: issue "The five promises" (a warning that names the handler and the time it blocked), user-needs 29. The
keeper's thread posts a callback to the loop and looks whether it was called. No job pays for it: what runs is read off
the loop's current task and its thread's stack, and only once the loop stands.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from echomq_worker.clock import Clock
from echomq_worker.job import Job
from echomq_worker.logs import Logger, RunningJob, current_job

# How many looks fit into the limit: the time that a loop was blocked is measured to within one look.
_LOOKS = 4
# One that lasts for so many limits is told before it ends, or, when the process is to stop, for one: it may never.
_LONG = 10
_PACKAGE = str(Path(__file__).parent)
_ASYNCIO = str(Path(sysconfig.get_paths()["stdlib"]) / "asyncio")


class Place(Protocol):
    """Where handlers run: the station of a queue."""

    queue: str

    @property
    def handler(self) -> str:
        """The name of the queue's handler."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a handler has begun and not ended; may be asked in any thread."""
        ...

    @property
    def running(self) -> list[Job]:
        """Jobs whose handler has begun and not ended."""
        ...


@dataclass(frozen=True, slots=True)
class Culprit:
    """What ran while the loop stood: the handler of a `queue` with the job's `id`, as far as they can be told (None:
    something else ran, or a batch), and `where`: the outermost and the innermost line of it.
    """

    queue: str | None
    handler: str | None
    id: str | None
    where: str

    def fields(self) -> dict[str, str]:
        """What is known of it, as fields of a log line."""
        known = {"queue": self.queue, "handler": self.handler, "id": self.id, "where": self.where}
        return {name: value for name, value in known.items() if value}


class _Question:
    """The loop was asked for a turn at `asked_ms`; what has kept it from one since, each as often as it was seen.

    One for each time that it is asked: the thread that looks must not touch what the loop has answered meanwhile.
    """

    __slots__ = ("asked_ms", "said", "seen")

    def __init__(self, asked_ms: float) -> None:
        self.asked_ms = asked_ms
        self.seen: Counter[Culprit] = Counter()
        self.said = False

    @property
    def worst(self) -> Culprit:
        """What was seen most often."""
        return self.seen.most_common(1)[0][0]


class Watch:
    """Made on the event loop that it watches; `run` belongs to another thread's loop."""

    __slots__ = (
        "_clock",
        "_limit_ms",
        "_log",
        "_look_ms",
        "_looked_ms",
        "_loop",
        "_places",
        "_question",
        "_tell",
        "_thread",
        "awaited",
    )

    def __init__(
        self,
        limit_ms: int,
        *,
        places: Sequence[Place],
        clock: Clock,
        log: Logger,
        tell: Callable[[Culprit, int], object] | None = None,
    ) -> None:
        """`tell(culprit, blocked_ms)` hears, on the watched loop, what the warning says."""
        self._limit_ms = limit_ms
        self._look_ms = limit_ms / _LOOKS
        self._places = places
        self._clock = clock
        self._log = log
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._question: _Question | None = None
        self._looked_ms = clock.monotonic_ms()
        # Somebody waits for the loop: what stands in its way is told as soon as it is over the limit.
        self.awaited = False

    async def run(self) -> None:
        """Look until cancelled. The watched loop is asked for a turn only while a handler runs."""
        while True:
            self.look()
            # An idle worker is to cost next to nothing.
            idle = self._question is None and not self._busy()
            await asyncio.sleep((2 if idle else 1) * self._look_ms / 1000)

    def look(self) -> None:
        """Ask the loop for a turn, or see what keeps it from one. In the other thread."""
        now, looked_ms, self._looked_ms = self._clock.monotonic_ms(), self._looked_ms, self._clock.monotonic_ms()
        question = self._question
        if question is None:
            if self._busy():
                self._question = question = _Question(now)
                with suppress(RuntimeError):  # the loop was closed
                    self._loop.call_soon_threadsafe(self._turned, question)
            return
        if now - looked_ms > 2 * self._look_ms:
            # The whole process stood still, frozen or without a processor: that is not the handler's time.
            question.asked_ms += now - looked_ms - self._look_ms
        stands_ms = now - question.asked_ms
        if stands_ms >= self._limit_ms / 2:
            question.seen[self._culprit()] += 1
        long_ms = (1 if self.awaited else _LONG) * self._limit_ms
        # The loop may have turned while we looked.
        if stands_ms >= long_ms and not question.said and self._question is question:
            question.said = True
            self._log.error("event loop still blocked", blocked_ms=round(stands_ms), **question.worst.fields())

    def _busy(self) -> bool:
        return any(place.busy for place in self._places)

    def _turned(self, question: _Question) -> None:
        """The loop has its turn. In the thread of the loop."""
        self._question = None
        now = min(self._clock.monotonic_ms(), self._looked_ms + 2 * self._look_ms)
        blocked_ms = now - question.asked_ms
        if blocked_ms < self._limit_ms or not question.seen:
            return
        culprit = question.worst
        self._log.warning("event loop blocked", blocked_ms=round(blocked_ms), **culprit.fields())
        if self._tell is not None:
            self._tell(culprit, round(blocked_ms))

    def _culprit(self) -> Culprit:
        task = asyncio.current_task(self._loop)
        # The one way to another thread's stack.
        where = _where(sys._current_frames().get(self._thread))  # noqa: SLF001 - documented, for this very purpose
        job = None if task is None else _job_of(task)
        name = "" if task is None else task.get_name()
        for place in self._places:
            running = next((one for one in _running(place) if task is not None and one.runner is task), None)
            if running is not None or name.startswith(f"slot:{place.queue}/"):
                return Culprit(place.queue, place.handler, None if running is None else running.id, where)
            if job is not None and job.queue == place.queue:
                return Culprit(place.queue, place.handler, job.id, where)
        return Culprit(None, None, None, where)


def _running(place: Place) -> list[Job]:
    try:
        return place.running
    except RuntimeError:  # the loop turns after all, and something ended while it was read
        return []


def _job_of(task: asyncio.Task[Any]) -> RunningJob | None:
    """The job in whose context a task runs that a handler has made; Python 3.11 does not tell."""
    context = getattr(task, "get_context", None)
    return None if context is None else context().get(current_job)


def _where(frame: FrameType | None) -> str:
    """The outermost line of what is not ours on a stack, and the innermost."""
    lines: list[str] = []
    while frame is not None:
        file = frame.f_code.co_filename
        if lines and file.startswith((_PACKAGE, _ASYNCIO)):
            break
        lines.append(f"{Path(file).name}:{frame.f_lineno} in {frame.f_code.co_qualname}")
        frame = frame.f_back
    return " > ".join(dict.fromkeys([lines[-1], lines[0]])) if lines else ""
