"""Three queues that flows join, each with three workers, a foreign client and two Pumps; two producers; one operator.

Source: issue "Every control" (the random driver grows to every verb). Steps are those of one queue with the queue's
number in front.
"""

from __future__ import annotations

from typing import Any

from tests.support.driver_control_job import QUEUES, SPAN, ControlJob
from tests.support.driver_control_model import ControlModel
from tests.support.driver_flows import Producer
from tests.support.driver_tokens import TokenWorld
from tests.support.driver_world import Step, Turn

ERASED = QUEUES - 1
"""The queue that is obliterated now and then."""


class Realm:
    """The queues of one world of the driver."""

    def __init__(self, name: str, scripts: Any) -> None:
        self.models: dict[str, ControlModel] = {}
        self.producers = (Producer(), Producer())
        self.queues = [TokenWorld(f"{name}{letter}", scripts, self) for letter in "abc"[:QUEUES]]
        self.worlds = {world.keys.queue: world for world in self.queues}

    def job(self, n: int) -> ControlJob:
        """The job of that number, whichever queue has it."""
        return self.queues[n // SPAN].model.kin(n)

    def execute(self, step: Step) -> Turn:
        """Do one step; raises Violation."""
        q, verb, *values = step
        yield from self.queues[q].step(verb, values)
        for world in self.queues:
            if world.model.look:
                yield from world.audit()

    def audit(self) -> Turn:
        """Look at every queue; raises Violation."""
        for world in self.queues:
            yield from world.audit()
