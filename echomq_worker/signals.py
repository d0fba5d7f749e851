"""Signals: SIGTERM and SIGINT, as the event loop hears them, and at once.

Source: issue "The five promises" (A stop). A loop hears of a signal when it turns: behind a handler that blocks it the
next jobs would begin before that. Python itself calls a signal's handler between two steps of whatever runs.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def heard(tell: Callable[[signal.Signals], object], *, at_once: Callable[[], object] | None = None) -> Iterator[None]:
    """`tell` is called by the loop with each signal that comes while the block lasts. `at_once` is called before that,
    between any two steps of the main thread, which is the loop's: it may set what others look at, and nothing else.

    Afterwards a signal does what it did before, where the loop did not hear of it then: by itself a loop has it end the
    process.
    """
    loop = asyncio.get_running_loop()
    before = {}
    for number in SIGNALS:
        # A handler that the loop had installed cannot be put back by `signal`: without the loop it does nothing.
        loop.remove_signal_handler(number)
        before[number] = signal.getsignal(number)
        loop.add_signal_handler(number, tell, number)
        if at_once is not None:
            _call_at_once(number, at_once)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)


def _call_at_once(number: signal.Signals, call: Callable[[], object]) -> None:
    # In place of a handler that does nothing; the loop hears of the signal all the same.
    signal.signal(number, lambda *_: call())
    # As the loop does: system calls that a signal interrupts are continued.
    signal.siginterrupt(number, False)
