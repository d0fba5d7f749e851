"""Moments at which the machine did not run this process: the workers' neighbours on a busy machine are no fault of the
plan, and an account has to know of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.chaos.evidence import STARVED, Happened
from bench.chaos.notes import now_ms
from bench.chaos.plan import SERVER

_LOOK_S = 0.1
GAP_MS = 400


@contextmanager
def watch_gaps() -> Iterator[list[Happened]]:
    """The list grows by each gap of this process, which is that of the proxies: nothing gets through meanwhile."""
    found: list[Happened] = []
    ending = threading.Event()

    def watch() -> None:
        before, used = now_ms(), time.process_time()
        while not ending.wait(_LOOK_S):
            at, cpu = now_ms(), time.process_time()
            if at - before > GAP_MS and (cpu - used) * 1000 < (at - before) / 2:
                found.append(Happened(STARVED, SERVER, before, at, detail="the bench itself did not run"))
            before, used = at, cpu

    thread = threading.Thread(target=watch, name="gaps", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ending.set()
        thread.join()
