"""The driver's steps for every control: lanes, an operator on one job and on the whole queue, dedup keys, expiry,
cancel.

Source: protocol sections 4 and 5; issue "Every control". The scripts are called as the package's classes call them;
what takes several round trips (the dead set, obliterate) is the package's own code, driven a trip at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from echomq_worker.admin import Admin
from echomq_worker.dead import DeadFilter
from echomq_worker.operate import removal, revival
from tests.support.driver_audit import PAST
from tests.support.driver_control_audit import KEYS_OF_DEDUP
from tests.support.driver_control_job import ControlJob
from tests.support.driver_foreign import FAR_MS
from tests.support.driver_model import Hold, Job, Sent, Worker, require
from tests.support.driver_repeats import RepeatWorld
from tests.support.driver_trips import SCRIPTS, Calls
from tests.support.driver_wire import pack
from tests.support.driver_world import LEASE_MS, Turn

_SETS = ("pending", "active", "schedule", "dead")


class ControlWorld(RepeatWorld):
    """A queue with every control, one of several that flows join."""

    def __init__(self, queue: str, scripts: Any, realm: Any) -> None:
        super().__init__(queue, scripts, realm)
        self.handlers |= {
            "park": self.park,
            "forget": self.forget,
            "spoil": self.spoil,
            "fade": self.fade,
            "cancel": self.cancel,
            "remove": self.remove,
            "erase": self.erase,
            "reprocess": self.reprocess,
            "update": self.update,
            "log": self.log,
            "reassign": self.reassign,
            "unlimit": self.unlimit,
            "ldrain": self.lane_drain,
            "lreap": self.lane_reap,
            "drain": self.drain,
            "requeue": self.requeue,
            "bin": self.delete_dead,
            "obliterate": self.obliterate,
        }

    # -- what workers send and read, with what controls add to it

    def rest_of(self, kind: str, job: Job) -> tuple[str | int | bytes, ...]:
        """What a verdict carries behind id, held and group."""
        if kind == "v":
            assert isinstance(job, ControlJob)
            return (job.result,)
        return super().rest_of(kind, job)

    def claimed(self, worker: Worker, reply: Any, asked: int, read: int) -> list[Hold]:
        """A claim's reply also names the children of flows, and releases nobody that it should have brought."""
        before = self.model.releases
        holds = super().claimed(worker, reply, asked, read)
        told = [id.decode() for id in reply[5]]
        right = [hold.job.id for hold in holds if isinstance(hold.job, ControlJob) and hold.job.parent is not None]
        require(told == right, "kin", f"a claim named {told} as children of flows, expected {right}")
        if self.model.releases != before:
            self.model.met = None
        return holds

    def answer(self, call: Sent, reply: Any) -> list[str]:
        """Settle looks for what hangs on rows once for all of its verdicts."""
        if call.verb == "settle":
            jobs = [job for job, *_ in call.items if isinstance(job, ControlJob)]
            self.model.littered = any(job.locked or job.logs or job.out is not None for job in jobs)
        told = super().answer(call, reply)
        self.model.littered = True
        return told

    # -- admission with a dedup key and an expiry

    def park(self, jobs: Sequence[tuple[int, int, int, str]], later: int) -> Turn:
        """Jobs with a dedup key (1.. or 0 for none) that expires or not, and an expiry (`ahead`, `past` or none)."""
        keys, words = self.keys, list[Any]()
        known = {n: (key, ttl, expires) for n, key, ttl, expires in jobs}
        for n, (key, ttl, expires) in known.items():
            job = self.model.kin(n)
            mode = ("at", FAR_MS) if later else ("", "")
            over = {"ahead": f"in:{LEASE_MS}", "past": f"at:{PAST}", "": ""}[expires]
            dedup = KEYS_OF_DEDUP[key - 1] if key else ""
            words += [job.id, f"payload {n}", job.lane or "", *mode, dedup, LEASE_MS if ttl else "", over]
        # A producer that is traced has one word more, and the same answers.
        name, head = ("admit_traced", (keys.base, "{}")) if len(known) % 2 else ("admit_many", (keys.base,))
        (reply,) = yield [self.scripts(name, (keys.pending, keys.schedule), [*head, *words])]
        self.sound(reply)
        state = "scheduled" if later else "pending"
        expected = [
            self.model.admit_one(n, b"payload %d" % n, state, KEYS_OF_DEDUP[key - 1] if key else "", ttl, expires)
            for n, (key, ttl, expires) in known.items()
        ]
        told = [one.decode() if isinstance(one, bytes) else one for one in reply]
        require(told == expected, "admit", f"{list(known)}: {told}, expected {expected}")

    def forget(self, key: int) -> Turn:
        """The time of a dedup key is over."""
        name = KEYS_OF_DEDUP[key - 1]
        if name in self.model.ttl and name in self.model.parked:
            del self.model.parked[name]
            yield [pack(("DEL", self.keys.dedup(name)))]

    def spoil(self, numbers: Sequence[int]) -> Turn:
        """Expiries come."""
        jobs = [job for n in numbers if (job := self.known(n)) and job.row and job.expires]
        for job in jobs:
            job.expired = True
        if jobs:
            yield [pack(("HSET", self.row(job), "expires_at", PAST)) for job in jobs]

    def fade(self, numbers: Sequence[int]) -> Turn:
        """The marks of keepers run out."""
        jobs = [job for n in numbers if (job := self.known(n)) and job.locked]
        for job in jobs:
            job.locked = False
        if jobs:
            yield [pack(("DEL", *(self.keys.lock(job.id) for job in jobs)))]

    # -- one job

    def cancel(self, n: int, reason: str) -> Turn:
        """Somebody asks for the end of a job."""
        job = self.known(n)
        if job is None:
            return
        keys = (self.row(job), self.keys.pending, self.keys.active, self.keys.schedule)
        (reply,) = yield [self.scripts("cancel", keys, (job.id, reason, self.keys.base))]
        self.sound(reply)
        expected = self._cancelled(job, reason)
        require(reply.decode() == expected, "answer", f"cancel of {job.id}: {reply!r}, expected {expected}")

    def _cancelled(self, job: ControlJob, reason: str) -> str:
        if not job.row:
            return "gone"
        if job.state == "dead":
            return "ended"
        if "active" in job.places:
            job.cancel = reason
            return "asked"
        self.model.removed(job, job.group, f"cancelled: {reason}")
        return "removed"

    def remove(self, n: int) -> Turn:
        """A dead job is removed."""
        yield from self.erase(n, "dead")

    def erase(self, n: int, how: str) -> Turn:
        """A job is removed, wherever it is; `how`: force, dead or neither."""
        job = self.known(n)
        if job is not None:
            yield from self.one(removal(self.keys, job.id, how, dedup=job.dedup))

    def reprocess(self, n: int, force: int) -> Turn:
        """A dead job gets a new life."""
        job = self.known(n)
        if job is not None:
            yield from self.one(revival(self.keys, job.id, force=bool(force)))

    def update(self, n: int, version: int) -> Turn:
        """Another payload."""
        job = self.known(n)
        if job is None:
            return
        payload = b"payload %d.%d" % (n, version)
        (reply,) = yield [self.scripts("update_data", (self.row(job),), (payload,))]
        require(reply == (1 if job.row else -1), "answer", f"update of {job.id}: {reply!r}")
        if job.row:
            job.payload = payload

    def log(self, n: int, keep: int) -> Turn:
        """A line of log."""
        job = self.known(n)
        if job is None:
            return
        (reply,) = yield [self.scripts("add_log", (self.row(job), self.keys.logs(job.id)), ("line", keep or ""))]
        if job.row:
            job.logs = min(job.logs + 1, keep or job.logs + 1)
        expected = job.logs if job.row else -1
        require(reply == expected, "answer", f"log of {job.id}: {reply!r}, expected {expected}")

    # -- lanes

    def reassign(self, n: int, group: str) -> Turn:
        """A waiting job moves to another lane."""
        job = self.known(n)
        # The model knows one lane of a job: not that in which an earlier row was left, beside the one it moves to.
        if job is None or ("lane" in job.places and job.group != job.lane):
            return
        keys = self.keys
        declared = (self.row(job), keys.lane(group), keys.ring, keys.paused, keys.glimit, keys.gactive, keys.wake)
        (reply,) = yield [self.scripts("lane_reassign", declared, (job.id, group, keys.base))]
        expected = self._moved(job, group)
        require(reply == expected, "answer", f"reassign of {job.id} to {group}: {reply!r}, expected {expected}")

    def _moved(self, job: ControlJob, group: str) -> int:
        if not job.row:
            return -1
        flat, stands = "pending" in job.places, "lane" in job.places and job.group == job.lane
        if not flat and not stands:
            return -2
        if job.group == group and not flat:
            return 0
        if "active" in job.places:
            self.model.miscounted |= {name for name in (job.group, job.lane, group) if name}
        job.places = (job.places - {"pending"}) | {"lane"}
        job.group = job.lane = group
        return 1

    def limit(self, group: str, most: int) -> Turn:
        """A ceiling for a lane."""
        self.model.limits[group] = most
        yield from self._limit(group, most)

    def unlimit(self, group: str) -> Turn:
        """A lane without a ceiling."""
        self.model.limits.pop(group, None)
        yield from self._limit(group, "")

    def _limit(self, group: str, most: int | str) -> Turn:
        keys = self.keys
        names = (keys.glimit, keys.gactive, keys.ring, keys.paused, keys.wake)
        yield from self.plainly("lane_limit", names, (keys.base, group, most))

    def pause(self, group: str) -> Turn:
        """Nothing of this lane is claimed."""
        self.model.paused.add(group)
        yield from self.plainly("lane_pause", (self.keys.paused, self.keys.ring), (group,))

    def resume(self, group: str) -> Turn:
        """The lane is served again."""
        keys = self.keys
        self.model.paused.discard(group)
        names = (keys.paused, keys.ring, keys.glimit, keys.gactive, keys.wake)
        yield from self.plainly("lane_resume", names, (keys.base, group))

    def weight(self, group: str, share: int) -> Turn:
        """A lane's share per turn."""
        self.weights[group] = share
        yield from self.plainly("lane_weight", (self.keys.gweight,), (group, share))

    def lane_drain(self, group: str) -> Turn:
        """The waiting jobs of a lane go."""
        model = self.model
        jobs = [job for job in model.controls() if "lane" in job.places and job.lane == group]
        stay = [job for job in jobs if model.elsewhere(job)]
        keys = (self.keys.base, self.keys.lane(group), self.keys.ring)
        (reply,) = yield [self.scripts("lane_drain", keys, (group,))]
        require(reply == len(jobs), "drained", f"{group}: {reply!r}, expected {[job.id for job in jobs]}")
        for job in sorted(jobs, key=_by_id):
            if job in stay:
                job.places = job.places - {"lane"}
            else:
                model.removed(job, group, "drained")

    def lane_reap(self, group: str, most: int) -> Turn:
        """Leases of one lane that have run out."""
        model = self.model
        over = sorted((job for job in model.overdue() if job.row and job.group == group), key=_by_id)[:most]
        (reply,) = yield [self.scripts("lane_reap", (self.keys.active, self.keys.base), (group, most))]
        for job in self.swept(reply, over):
            model.reaped(job)

    # -- the whole queue

    def halt(self, on: int) -> Turn:
        """The whole queue is paused, or goes on."""
        self.model.halted = bool(on)
        yield from self.plainly("queue_pause" if on else "queue_resume", (self.keys.meta,), ())

    def drain(self, scheduled: int) -> Turn:
        """All that waits in flat pending goes, with the schedule where asked."""
        model, names = self.model, ("pending", *(("schedule",) if scheduled else ()))
        keys = tuple(f"{self.keys.base}{name}" for name in names)
        # In which order parents hear of it, only the server's clock knows.
        *members, reply = yield [
            *(pack(("ZRANGE", key, 0, -1)) for key in keys),
            self.scripts("drain", (self.keys.base, *keys), ()),
        ]
        found = [model.of(id.decode()) for ids in members for id in ids]
        right = [job.id for name in names for job in model.controls() if name in job.places]
        require(sorted(job.id for job in found) == sorted(right), "drained", f"{found}, expected {right}")
        stay = [job for job in found if model.elsewhere(job)]
        require(reply == len(found), "drained", f"{reply!r}, expected {[job.id for job in found]}")
        for job in dict.fromkeys(found):
            if job in stay:
                job.places = job.places - set(names)
            else:
                model.removed(job, job.group, "drained")

    def requeue(self, most: int, force: int) -> Turn:
        """Many dead jobs get a new life."""
        admin = Admin(Calls())
        yield from self.through(admin.requeue_dead(self.keys.queue, DeadFilter(limit=most), force=bool(force)))

    def delete_dead(self, most: int) -> Turn:
        """Many dead jobs go."""
        yield from self.through(Admin(Calls()).delete_dead(self.keys.queue, DeadFilter(limit=most)))

    def obliterate(self) -> Turn:
        """Nothing is left of the queue; parents elsewhere hear of every child that goes."""
        yield from self.halt(1)
        model = self.model
        right = [one.entry for one in model.outbox]
        alive = [job for job in model.controls() if job.row and job.state != "dead" and job.parent_queue]
        deaths = sorted((job.parent_queue, job.parent or "", job.id) for job in alive)
        self.erasing = []
        yield from self.through(Admin(Calls()).obliterate(self.keys.queue, force=True))
        told, self.erasing = self.erasing, None
        rest = list(told)
        for entry in right:
            require(entry in rest, "obliterated", f"{entry!r} was in the outbox and was not delivered")
            rest.remove(entry)
        heard = sorted(self.death_in(entry) for entry in rest)
        require(heard == deaths, "obliterated", f"deaths told: {heard}, expected {deaths}")
        model.forget()
        self.weights.clear()
        self.records.clear()
        (keys,) = yield [pack(("KEYS", f"emq:[{{]{self.keys.queue}[}}]:*"))]
        require(not keys, "obliterated", f"there is still {keys}")

    # -- how

    def plainly(self, name: str, keys: Sequence[str], values: Sequence[Any]) -> Turn:
        """A script that answers 1."""
        (reply,) = yield [self.scripts(name, keys, values)]
        self.sound(reply)
        require(reply == 1, "answer", f"{name} answered {reply!r}")

    def one(self, call: tuple[str, Sequence[Any], Sequence[Any]]) -> Turn:
        """One call of the package's, its effects told to the model."""
        name, keys, values = call
        yield from self.trip([("EVALSHA", SCRIPTS[name].sha, len(keys), *keys, *values)])


def _by_id(job: Job) -> str:
    return job.id
