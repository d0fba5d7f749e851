"""Operations: what takes longer than a page may, done in bounded steps behind it, with how far it is.

Source: issue "Made for the people who run it", A dashboard (requeue and delete all that match). An operation goes on
when the browser is gone, and ends with the process: what was done stays done, and it can be begun again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from echomq_worker.dead import Handled
from echomq_worker.errors import EchoMQError
from echomq_worker.logs import Logger, get_logger
from echomq_worker.rows import Progress

AT_A_TIME = 4
KEPT = 50
REFUSED_SHOWN = 50
_STEP_S = 2.0

Work = Callable[[Progress], Awaitable[Handled]]


class Stopped(Exception):
    """Somebody has stopped it."""


class Operation:
    """One of them: `state` is running, done, failed or stopped; `refused` tells of some jobs why not."""

    def __init__(self, id: str, title: str, queue: str, back: str) -> None:
        self.id = id
        self.title = title
        self.queue = queue
        self.back = back
        self.state = "running"
        self.done = 0
        self.total = 0
        self.refused: dict[str, str] = {}
        self.refused_total = 0
        self.error = ""
        self.task: asyncio.Task[None] | None = None
        self.stopping = False

    def so_far(self, done: int, total: int) -> None:
        """Part of Progress: between two steps, where it ends if it is to."""
        self.done, self.total = done, total
        if self.stopping:
            raise Stopped

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self.state == "running"


class Operations:
    """Those of one dashboard: some at a time, the last ones remembered."""

    def __init__(self) -> None:
        self._all: dict[str, Operation] = {}
        self._log: Logger = get_logger("echomq_worker.web")

    def get(self, id: str) -> Operation | None:
        """One of them by its id."""
        return self._all.get(id)

    def start(self, title: str, queue: str, back: str, work: Work) -> Operation | None:
        """Begin one; None where too many are running already."""
        if sum(one.running for one in self._all.values()) >= AT_A_TIME:
            return None
        operation = Operation(secrets.token_urlsafe(9), title, queue, back)
        self._all[operation.id] = operation
        for old in [id for id, one in self._all.items() if not one.running][: max(0, len(self._all) - KEPT)]:
            del self._all[old]
        operation.task = asyncio.create_task(self._run(operation, work), name="dashboard:operation")
        return operation

    async def stop(self, operation: Operation) -> None:
        """End it between two steps; what was done stays done."""
        if operation.task is None or not operation.running:
            return
        operation.stopping = True
        await asyncio.wait({operation.task}, timeout=_STEP_S)
        # A step that finds nothing reports no progress.
        operation.task.cancel()
        await asyncio.wait({operation.task})

    async def aclose(self) -> None:
        """End all that run."""
        for operation in list(self._all.values()):
            await self.stop(operation)

    async def _run(self, operation: Operation, work: Work) -> None:
        try:
            handled = await work(operation.so_far)
        except EchoMQError as error:
            operation.state, operation.error = "failed", str(error) or type(error).__name__
            self._log.warning("operation failed", operation=operation.title, queue=operation.queue, reason=str(error))
            return
        except Stopped:
            operation.state = "stopped"
            return
        except BaseException:
            operation.state = "stopped" if operation.stopping else "failed"
            operation.error = "it was broken off"
            raise
        operation.state = "done"
        operation.done = handled.done
        operation.refused_total = len(handled.refused)
        operation.refused = dict(list(handled.refused.items())[:REFUSED_SHOWN])
        self._log.info("operation done", operation=operation.title, queue=operation.queue, jobs=handled.done)
