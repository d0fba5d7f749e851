"""Signals: the loop hears of them while somebody listens, and afterwards they do what they did before."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from echomq_worker.signals import SIGNALS, heard
from tests.support.waiting import in_time, wait_until


@pytest.fixture
def earlier() -> Iterator[list[int]]:
    """Signals that came while nobody else listened; the handlers of the test's own process are put back."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    came: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda number, _: came.append(number))
    yield came
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop])
def test_afterwards_a_signal_does_what_it_did_before(
    earlier: list[int], loop_factory: Callable[[], Any] | None
) -> None:
    """It ends no process that is about to end by itself; a loop alone would leave it to do that."""
    told: list[int] = []
    held: list[int] = []

    async def listen() -> None:
        with heard(told.append, at_once=lambda: held.append(len(told))):
            for number in SIGNALS:
                os.kill(os.getpid(), number)
            await wait_until(lambda: sorted(told) == sorted(SIGNALS), "the loop was told")
        assert held[0] == 0, "at once is before the loop turns"
        assert earlier == []
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        await wait_until(lambda: sorted(earlier) == sorted(SIGNALS), "who listened before hears again")

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(in_time(listen()))
    assert len(told) == len(held) == len(SIGNALS)
