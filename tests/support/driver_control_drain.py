"""The end of a realm: no more faults, and everything has ended or is dead for a stated reason; nothing else is left.

Source: issue "Every control" (at the end of a fair run no counter, ring entry or outbox entry is left), protocol
section 4 ("Next to a foreign worker": what the audit names, and nothing more).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from echomq_worker.audit import Audit
from tests.support.driver_control_job import SPAN, ControlJob, number_of
from tests.support.driver_controls import ControlWorld
from tests.support.driver_model import GROUPS, MAX_CRASHES, WORKERS, require
from tests.support.driver_realm import Realm
from tests.support.driver_repeats import NAMES
from tests.support.driver_trips import Calls
from tests.support.driver_wire import pack
from tests.support.driver_world import READ, Turn

_ROUNDS = 80
_TRIPS = 400
_EVERYTHING = 200
_REASON = re.compile(
    rf"boom|stalled|expired|cancelled: .+|child JOB\d{{11}} died: .+|crashed: {MAX_CRASHES} claims in a row never ended"
)
_NEVER = {"pending", "active", "schedule", "ring", "gactive", "paused", "flow:outbox", "repeat", "limiter"}


def drain(realm: Realm) -> Turn:
    """Work off every queue; raises Violation where something is left, stuck, or dead without a reason."""
    yield from _open(realm)
    yield from _add_all(realm)
    yield from _work_off(realm)
    yield from _repair(realm)
    yield from _work_off(realm)
    while waiting := _stuck(realm):
        for job in waiting:
            yield from realm.execute((job.n // SPAN, "cancel", job.n, "its children will never report"))
        yield from _work_off(realm)
    # A dedup key may stand for a parent that has gone only now, and was somebody else's.
    yield from _repair(realm)
    for world in realm.queues:
        findings = yield from world.through(Audit(Calls()).audit(world.keys.queue))
        require(not findings, "audit", f"at the end the audit of {world.keys.queue} says {findings}")
        yield from _nothing_left(world)


def _open(realm: Realm) -> Turn:
    for q in range(len(realm.queues)):
        for group in GROUPS:
            yield from realm.execute((q, "resume", group))
            yield from realm.execute((q, "unlimit", group))
        yield from realm.execute((q, "halt", 0))
        yield from realm.execute((q, "ceiling", 0))
        yield from realm.execute((q, "rate", 0))
        for p in range(2):
            yield from realm.execute((q, "rcrash", p))
        for name in NAMES:
            yield from realm.execute((q, "unregister", name))


def _add_all(realm: Realm) -> Turn:
    """Every producer adds again what it has begun."""
    for k, producer in enumerate(realm.producers):
        while producer.unfinished:
            if producer.coroutine is None:
                yield from realm.execute((0, "again!", k))
            yield from _until(realm, (0, "more", k), partial(_ended, realm.producers, k))


def _until(realm: Realm, step: tuple[Any, ...], over: Callable[[], bool]) -> Turn:
    for _ in range(_TRIPS):
        if over():
            return
        yield from realm.execute(step)
    require(over(), "endless", f"{step} is not over after {_TRIPS} round trips")


def _work_off(realm: Realm) -> Turn:
    for _ in range(_ROUNDS):
        for q, world in enumerate(realm.queues):
            for w in range(WORKERS):
                yield from _work(realm, q, w)
            for verb in ("expire", "due"):
                yield from realm.execute((q, verb, [job.n for job in world.model.controls()]))
            for verb in ("reap", "promote", "recount"):
                yield from realm.execute((q, verb))
            for p in range(len(world.pumps)):
                yield from realm.execute((q, "pump", p, 100))
                yield from _until(realm, (q, "pump", p, 100), partial(_ended, world.pumps, p))
        if all(_quiet(world) for world in realm.queues):
            return
    left = {job.id: sorted(job.places) for world in realm.queues for job in world.model.controls() if _alive(job)}
    outboxes = [world.model.outbox for world in realm.queues]
    require(not left and not any(outboxes), "not-drained", f"after {_ROUNDS} fair rounds: {left}, {outboxes}")


def _work(realm: Realm, q: int, w: int) -> Turn:
    worker = realm.queues[q].model.workers[w]
    yield from _until(realm, (q, "resend", w, READ), lambda: not worker.open)
    yield from realm.execute((q, "claim", w, _EVERYTHING, READ))
    yield from realm.execute((q, "settle", w, [("v" if n % 2 else "c", n, 0) for n in worker.hand], READ))


def _alive(job: ControlJob) -> bool:
    return not job.places <= {"dead"}


def _quiet(world: ControlWorld) -> bool:
    return not world.model.outbox and not any(_alive(job) for job in world.model.controls())


def _repair(realm: Realm) -> Turn:
    """What foreign verbs have left is what the audit names, and the repair mends it."""
    for world in realm.queues:
        audit, queue = Audit(Calls()), world.keys.queue
        findings = yield from world.through(audit.audit(queue))
        told = {(one.kind, one.name) for one in findings}
        right = _left_by_others(world)
        require(told == right, "audit", f"the audit of {queue} says {sorted(told)}, expected {sorted(right)}")
        yield from world.through(audit.repair(queue, findings))


def _left_by_others(world: ControlWorld) -> set[tuple[str, str]]:
    model = world.model
    right: set[tuple[str, str]] = set()
    for job in model.every():
        assert isinstance(job, ControlJob)
        if job.row and job.state == "dead" and job.parent is not None:
            parent = model.peers[job.parent_queue or model.queue].of(job.parent)
            heard = {*parent.processed, *parent.failed, *parent.unsuccessful}
            # The repair of the queue before may have buried it: then its report is on its way.
            underway = any(b"%b\0%b\0" % (parent.key, job.key) in one.entry for one in model.outbox)
            if parent.row and parent.state == "awaiting_children" and job.id not in heard and not underway:
                require(job.mute, "mute", f"{job.id} is dead, {parent.id} has not heard of it")
                right.add(("death_not_reported", job.id))
        elif not job.row and job.places:
            require(job.tokens, "ghost", f"{job.id} is gone and stands in {sorted(job.places)}")
            right.add(("id_without_row", job.id))
        elif not job.row and job.litter:
            require(job.haunted, "litter", f"{job.id} has left something behind: {job}")
            right.add(("subkeys_without_row", job.id))
    for key, job in model.parked.items():
        if not job.row:
            require(job.tokens, "litter", f"{key} holds {job.id}, which is gone")
            right.add(("dedup_without_row", key))
    return right


def _stuck(realm: Realm) -> list[ControlJob]:
    """Parents to whom a report can never come; Violation for one that waits without a cause."""
    waiting = {
        job.id: job for world in realm.queues for job in world.model.controls() if job.state == "awaiting_children"
    }
    stuck: list[ControlJob] = []
    for job in waiting.values():
        out = job.children - job.processed.keys() - job.unsuccessful.keys()
        if not any(id in waiting for id in out):
            require(job.excused, "stuck", f"{job.id} waits for {sorted(out)}: {[_state(realm, id) for id in out]}")
            stuck.append(job)
    return stuck


def _state(realm: Realm, id: str) -> str:
    job = realm.queues[number_of(id) // SPAN].model.of(id)
    return f"{job.state or 'gone'} in {sorted(job.places)}, child of {job.parent}"


def _nothing_left(world: ControlWorld) -> Turn:
    model = world.model
    for job in model.controls():
        require(not job.row or _REASON.fullmatch(job.error or ""), "reason", f"{job.id} is dead: {job.error}")
    (keys,) = yield [pack(("KEYS", f"emq:[{{]{world.keys.queue}[}}]:*"))]
    left = {key.decode().removeprefix(world.keys.base) for key in keys}
    rows = {f"job:{job.id}" for job in model.controls() if job.row}
    parked = {f"de:{key}" for key, job in model.parked.items() if job.row}
    strays = {
        name
        for name in left - _NEVER - rows - parked
        if name.startswith(("g:", "de:", "repeat:"))
        or (name.startswith("job:") and name.rpartition(":")[0] not in rows)
    }
    require(not strays and not left & _NEVER, "litter", f"there is still {sorted(strays | (left & _NEVER))}")
    if keys:
        yield [pack(("UNLINK", *keys))]


def _ended(many: Sequence[Any], at: int) -> bool:
    """Whether nothing of the package's code is under way there."""
    return many[at].coroutine is None
