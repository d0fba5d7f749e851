"""The end of a world: no more faults, and everything that was admitted is completed, or dead for a stated reason.

Source: protocol section 4 (claims, crashes, retries); the promise that no job is lost.
"""

from __future__ import annotations

import re

from tests.support.driver_foreign import Everybody
from tests.support.driver_model import GROUPS, MAX_CRASHES, Job, require
from tests.support.driver_wire import pack
from tests.support.driver_world import READ, Turn

_ROUNDS = 80
_EVERYTHING = 200
_CRASHED = re.compile(rf"crashed: {MAX_CRASHES} claims in a row never ended")


def drain(world: Everybody) -> Turn:
    """Work off the queue with our three workers; raises Violation where something is left or died without a reason."""
    model = world.model
    for group in GROUPS:
        yield from world.resume(group)
    yield from world.halt(0)
    yield from world.ceiling(0)
    for _ in range(_ROUNDS):
        for worker in model.workers:
            yield from _work(world, worker.index)
        yield from world.expire(list(model.jobs))
        yield from world.due(list(model.jobs))
        for sweep in (world.reap, world.promote, world.recount):
            yield from world.looking(sweep())
        if all(job.places <= {"dead"} for job in model.jobs.values()):
            break
    else:
        left = {job.id: sorted(job.places) for job in model.jobs.values() if job.places - {"dead"}}
        require(not left, "not-drained", f"after {_ROUNDS} fair rounds there is still {left}")
    for job in model.jobs.values():
        require(not job.row or _has_reason(job), "reason", f"{job.id} is dead: {job.error}, {job.failures} failures")
    yield from _nothing_left(world)


def _nothing_left(world: Everybody) -> Turn:
    (keys,) = yield [pack(("KEYS", f"emq:[{{]{world.keys.queue}[}}]:*"))]
    left = {key.decode().removeprefix(world.keys.base) for key in keys}
    dead = {f"job:{job.id}" for job in world.model.jobs.values() if job.row}
    marks = {name for name in left if name.startswith("job:")} - dead
    # A foreign ending leaves the mark of a keeper behind; it expires.
    allowed = {f"job:{job.id}:lock" for job in world.model.every() if job.tokens}
    require(marks <= allowed, "litter", f"there is still {sorted(marks - allowed)}")
    others = left & {"pending", "active", "schedule", "ring", "gactive", "paused"}
    require(not others and not any(name.startswith("g:") for name in left), "litter", f"there is still {sorted(left)}")
    if keys:
        yield [pack(("UNLINK", *keys))]


def _work(world: Everybody, w: int) -> Turn:
    worker = world.model.workers[w]
    while worker.open:
        yield from world.resend(w, READ)
    yield from world.looking(world.claim(w, _EVERYTHING, READ))
    yield from world.settle(w, [("c", n, 0) for n in worker.hand], READ)


def _has_reason(job: Job) -> bool:
    if job.error == "boom":
        return job.failures > 0
    return job.error == "stalled" or bool(_CRASHED.fullmatch(job.error or ""))
