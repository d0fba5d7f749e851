"""The random driver over every control: lanes with limits, pauses and weights, an operator, flows in and across queues
with two Pumps, dedup, expiry, cancellation, the counting sweep, and the foreign worker still beside.

Source: issue "Every control"; protocol sections 4 to 6. A longer run:
`python -m tests.support.driver --controls --steps 500000 --seed 1`.
"""

from __future__ import annotations

import pytest

from tests.support.driver import Failure, driver
from tests.support.driver_kinds import CONTROLS
from tests.support.driver_wire import Mutation

STEPS = 30_000
SEED = 1


def test_every_promise_is_kept() -> None:
    """A parent is released once, when all its children have reported; in the end nothing is left or stuck."""
    with driver(kind=CONTROLS) as made:
        made.run(STEPS, SEED)


def test_a_fault_in_a_flow_is_found() -> None:
    """A child that counts twice for its parent turns a run red."""
    twice = Mutation("include/flow", "redis.call('HSETNX', key .. ':processed', child, result) == 0", "false")
    with driver([twice], kind=CONTROLS) as made, pytest.raises(Failure):
        made.run(STEPS, SEED)
