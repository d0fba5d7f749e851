"""The driver's steps for flows: producers that add trees and die half-way, Pumps that deliver and die half-way.

Source: protocol section 6. Adding and delivering are the package's own code, a round trip a step, so anything may
happen in between; what each script of it does is told to the model by its call and its reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from echomq_worker.errors import StateRefused
from echomq_worker.flows import Flows, Node, deliver
from tests.support import driver_audit, driver_control_audit
from tests.support.driver_control_job import SPAN, ControlJob
from tests.support.driver_control_model import ControlModel
from tests.support.driver_flow_foreign import ForeignFlows
from tests.support.driver_foreign import as_text
from tests.support.driver_model import require
from tests.support.driver_trips import NAMES, Calls, Command, Trips, as_reply, word
from tests.support.driver_wire import Packed, pack
from tests.support.driver_world import Turn

Tree = tuple[tuple[int, int, str], ...]
"""Nodes of a flow, parents first: number, the parent's number (0 for the root), policy."""

_QUEUE = re.compile(r"emq:\{([^}]+)\}:")
_DEATH = b"\0fail\0"
MALFORMED = b"no entry of the protocol's"


@dataclass(slots=True)
class Producer:
    """Somebody who adds flows: the tree under way, and those that were begun and never brought to an end."""

    tree: Tree = ()
    coroutine: Trips | None = None
    commands: list[Command] = field(default_factory=list)
    unfinished: dict[int, Tree] = field(default_factory=dict)


@dataclass(slots=True)
class Pump:
    """Somebody who delivers one queue's outbox: what comes next."""

    coroutine: Trips | None = None
    commands: list[Command] = field(default_factory=list)


class FlowWorld(ForeignFlows):
    """A queue of several. `realm` knows the others, and the producers."""

    def __init__(self, queue: str, scripts: Any, realm: Any) -> None:
        super().__init__(queue, scripts)
        self.realm = realm
        self.model: ControlModel = ControlModel(queue, realm.models)
        self.pumps = (Pump(), Pump())
        self.erasing: list[bytes] | None = None
        """Entries that an obliteration delivers; the model does not know them."""
        self.handlers |= {
            "add": self.add,
            "more": self.more,
            "die": self.die,
            "again!": self.add_again,
            "fadd": self.plain_add,
            "pump": self.pump,
            "pcrash": self.pump_crash,
            "garble": self.garble,
        }
        self.effects: dict[str, Callable[[list[str], list[str]], Any]] = {
            "flow_hold": self._hold,
            "flow_child": self._child,
            "flow_deliver": self._deliver,
            "flow_deliver_death": self._deliver_death,
            "flow_set_aside": self._set_aside,
            "remove_job": self._remove,
            "reprocess": self._reprocess,
            "mend": self._mend,
        }

    def audit(self) -> Turn:
        """Look at the whole queue, both ways."""
        # What the second look is about may be set aside by the first.
        model, jobs = self.model, self.model.controls()
        asked = driver_control_audit.ask(jobs, self.keys.base)
        calls = [
            self.scripts("audit", (), driver_audit.ask(model, self.keys.base)),
            self.scripts("audit:controls", (), asked),
        ]
        seen, beside, *more = yield [*calls, *self.looks()]
        self.sound(seen)
        self.sound(beside)
        model.look = False
        driver_audit.check(model, driver_audit.read(model, seen))
        driver_control_audit.check(model, jobs, beside)
        self.looked(more)
        model.met = None

    def looks(self) -> list[Packed]:
        """What else a look at the queue asks."""
        return []

    def looked(self, replies: list[Any]) -> None:
        """Raise Violation where a reply to that is not as it must be."""

    # -- the package's code

    def trip(self, commands: Sequence[Command]) -> Generator[list[Packed], list[Any], list[Any]]:
        """Do one round trip of it, and tell the model what its scripts did."""
        replies = yield [self._packed(command) for command in commands]
        for command, reply in zip(commands, replies, strict=True):
            self._told(command, reply)
        return [as_reply(reply) for reply in replies]

    def through(self, code: Trips) -> Generator[list[Packed], list[Any], Any]:
        """Do all round trips of it, and answer what it answers."""
        replies: list[Any] | None = None
        try:
            while True:
                replies = yield from self.trip(code.send(replies))
        except StopIteration as end:
            return end.value

    def _packed(self, command: Command) -> Packed:
        if command[0] != "EVALSHA":
            return pack(command)
        count = int(command[2])
        return self.scripts(NAMES[command[1]], command[3 : 3 + count], command[3 + count :])

    def _told(self, command: Command, reply: Any) -> None:
        if command[0] == "LREM" and word(command[1]).endswith(":flow:outbox"):
            right = self._world(word(command[1])).left(command[3])
            require(reply == right, "trimmed", f"{command[3]!r} was removed {reply} times, expected {right}")
        if command[0] != "EVALSHA":
            return
        name, count = NAMES[command[1]], int(command[2])
        keys, values = [[word(value) for value in part] for part in (command[3 : 3 + count], command[3 + count :])]
        world = self._world(keys[0])
        effect = world.effects.get(name)
        if effect is not None:
            expected = effect(keys, values)
            require(as_text(reply) == expected, "answer", f"{name} {values}: {reply!r}, expected {expected!r}")

    def _world(self, key: str) -> FlowWorld:
        match = _QUEUE.match(key)
        assert match is not None
        world = self.realm.worlds[match[1]]
        assert isinstance(world, FlowWorld)
        return world

    def left(self, entry: bytes) -> int:
        """How many of this entry left the outbox. During an obliteration the model does not know them."""
        if self.erasing is None:
            return self.model.trimmed(entry)
        self.erasing.append(entry)
        return 1

    # -- what its scripts do

    def _hold(self, keys: list[str], values: list[str]) -> int | str:
        fields = dict(zip(values[3::2], values[4::2], strict=True))
        job = self.model.of(values[0])
        return self.model.held_parent(job.n, values[1].encode(), int(values[2]), fields)

    def _child(self, keys: list[str], values: list[str]) -> int | str:
        id, payload, parent, queue, policy, group = values
        fields = {"parent": parent, "parent_queue": queue, "parent_policy": policy, "group": group}
        return self.model.admitted_child(self.model.of(id).n, payload.encode(), fields)

    def _deliver(self, keys: list[str], values: list[str]) -> int | str:
        child, result, parent, _ = values
        self.model.child_done(parent, child, result.encode())
        return 1

    def _deliver_death(self, keys: list[str], values: list[str]) -> int | str:
        child, reason, policy, _, parent = values
        self.model.child_dead(parent, child, reason, policy)
        return 1

    def _set_aside(self, keys: list[str], values: list[str]) -> int | str:
        return sum(self.left(entry.encode()) for entry in values)

    def _remove(self, keys: list[str], values: list[str]) -> int | str:
        job, how = self.model.of(values[0]), values[2]
        if not job.row:
            return -1
        dead = job.state == "dead"
        if how == "dead" and not (dead and "dead" in job.places):
            return "EMQSTATE"
        if how != "force":
            if job.locked or ("active" in job.places and not job.overdue):
                return "EMQLOCK"
            if job.parent is not None and not dead:
                return "EMQSTATE"
        self.model.removed(job, job.group, None if dead else "removed")
        return 1

    def _reprocess(self, keys: list[str], values: list[str]) -> int | str:
        job = self.model.of(values[0])
        if not job.row:
            return -1
        if job.state != "dead" or "dead" not in job.places:
            return "EMQSTATE"
        if self.model.still_out(job) > 0 and values[1] != "force":
            return "EMQSTATE"
        self.model.revived(job)
        return 1

    def _mend(self, keys: list[str], values: list[str]) -> int | str:
        """Of what may be wrong only what belongs to no row; anything else is a broken promise."""
        job, key = self.model.of(values[1]), values[3]
        require(not job.row, "mended", f"{job.id} is mended: {job}")
        parked = key and self.model.parked.get(key) is job
        said = "id_without_row" if job.places else "subkeys_without_row" if job.litter else ""
        job.put()
        job.wipe()
        if parked:
            del self.model.parked[key]
        return said or ("dedup_without_row" if parked else "")

    # -- producers

    def add(self, k: int, tree: Tree) -> Turn:
        """A producer begins to add a flow; one that it was at is left half-way."""
        yield from self.die(k)
        producer: Producer = self.realm.producers[k]
        root = self._node(tree)
        if root is None or not root.children:
            return
        producer.tree = producer.unfinished[tree[0][0]] = tree
        producer.coroutine = Flows(Calls()).add(root)
        self._next(producer, None)

    def add_again(self, k: int) -> Turn:
        """A producer adds once more what it has begun, or the last one that it has added."""
        producer: Producer = self.realm.producers[k]
        tree = next(iter(producer.unfinished.values()), producer.tree)
        if tree:
            yield from self.add(k, tree)

    def more(self, k: int) -> Turn:
        """A producer's next round trip."""
        producer: Producer = self.realm.producers[k]
        if producer.coroutine is not None:
            self._next(producer, (yield from self.trip(producer.commands)))

    def die(self, k: int) -> Turn:
        """A producer dies."""
        producer: Producer = self.realm.producers[k]
        if producer.coroutine is not None:
            producer.coroutine.close()
            producer.coroutine = None
        yield from ()

    def _next(self, producer: Producer, replies: list[Any] | None) -> None:
        assert producer.coroutine is not None
        try:
            producer.commands = producer.coroutine.send(replies)
        except StopIteration:
            self._over(producer)
        except StateRefused:
            self._over(producer)
            for n, _, _ in producer.tree:
                self._job(n).excused = True

    def _over(self, producer: Producer) -> None:
        producer.coroutine = None
        producer.unfinished.pop(producer.tree[0][0], None)

    def _job(self, n: int) -> ControlJob:
        job: ControlJob = self.realm.job(n)
        return job

    def _node(self, tree: Tree, at: int = 0) -> Node | None:
        if at >= len(tree):
            return None
        n, _, policy = tree[at]
        job = self._job(n)
        children = [self._node(tree, i) for i, (_, parent, _) in enumerate(tree) if parent == n and i > at]
        return Node(
            queue=self.realm.queues[n // SPAN].keys.queue,
            payload=f"payload {n}",
            children=[child for child in children if child is not None],
            id=job.id,
            group=job.lane,
            policy="id" if policy == "id" else "fp",
        )

    def plain_add(self, parent: int, numbers: Sequence[int]) -> Turn:
        """A whole flow in this queue by the plain verb."""
        model, keys = self.model, self.keys
        jobs = [model.kin(n) for n in (parent, *numbers)]
        root, *children = jobs
        declared = [self.row(root), keys.dependencies(root.id), keys.pending, *map(self.row, children)]
        pairs = [text for job in children for text in (job.id, f"payload {job.n}")]
        values = [root.id, f"payload {parent}", len(children), *pairs]
        (reply,) = yield [self.scripts("flow_add", declared, values)]
        expected = 0 if any(job.row for job in jobs) else len(children)
        require(reply == expected, "answer", f"flow_add of {root.id}: {reply!r}, expected {expected}")
        if expected:
            model.held_parent(parent, b"payload %d" % parent, len(children), {})
            root.children = frozenset(job.id for job in children)
            for job in children:
                fields = {"parent": root.id, "parent_policy": "fp"}
                model.admitted_child(job.n, b"payload %d" % job.n, fields)

    # -- Pumps

    def pump(self, p: int, most: int) -> Turn:
        """A Pump's next round trip: it reads the outbox, delivers what it has read, or takes it out."""
        pump = self.pumps[p]
        if pump.coroutine is None:
            (entries,) = yield [pack(("LRANGE", self.keys.outbox, 0, most - 1))]
            if entries:
                pump.coroutine = deliver(Calls(), self.keys, entries)
                self._turn(pump, None)
        else:
            self._turn(pump, (yield from self.trip(pump.commands)))

    def _turn(self, pump: Pump, replies: list[Any] | None) -> None:
        assert pump.coroutine is not None
        try:
            pump.commands = pump.coroutine.send(replies)
        except StopIteration:
            pump.coroutine = None

    def pump_crash(self, p: int) -> Turn:
        """A Pump dies, with what it has delivered and not taken out."""
        pump = self.pumps[p]
        if pump.coroutine is not None:
            pump.coroutine.close()
            pump.coroutine = None
        yield from ()

    def garble(self) -> Turn:
        """A foreign client leaves what is no entry."""
        yield [pack(("RPUSH", self.keys.outbox, MALFORMED))]
        self.model.push_raw(MALFORMED)

    @staticmethod
    def death_in(entry: bytes) -> tuple[str, str, str]:
        """Parent's queue, parent and child of a death's entry."""
        require(entry.startswith(_DEATH), "obliterated", f"{entry!r} was told, expected a death")
        queue, parent, child, *_ = entry.removeprefix(_DEATH).decode().split("\0")
        return queue, parent, child
