"""Signals: SIGTERM and SIGINT, as the event loop hears them, and at once.

Source: issue "The five promises" (A stop). A loop hears of a signal when it turns: behind a handler that blocks it the
next jobs would begin before that. Python itself calls a signal's handler between two steps of whatever runs.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import anyio

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def heard(*, at_once: Callable[[], object]) -> Iterator[AsyncIterator[signal.Signals]]:
    """The signals that come while the block lasts. `at_once` is called first, between any two steps of the main
    thread, which is the loop's: it may set what others look at, and nothing else.
    """
    with anyio.open_signal_receiver(*SIGNALS) as received:
        for number in SIGNALS:
            # In place of one that does nothing; the loop hears of the signal all the same.
            signal.signal(number, lambda *_: at_once())
            # As the loop has it: a call into the system goes on.
            signal.siginterrupt(number, False)
        yield received
