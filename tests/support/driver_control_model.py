"""What the driver knows of a queue with every control: dedup keys, cancellation, expiry, locks, logs and flows,
beside all that `driver_model` knows.

Source: protocol sections 4 and 6. A job's `out`, `processed`, `failed` and `unsuccessful` are a flow parent's subkeys;
they stand beside the row, so a job may have them without one: what a foreign client has told a parent that is gone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.support.driver_control_job import ControlJob, number_of
from tests.support.driver_model import Job, Model, require

Entry = bytes


@dataclass(slots=True)
class Underway:
    """A report to a parent in another queue: the entry as it stands in the outbox, and which hold of the parent was
    there when it was pushed (0: none).
    """

    entry: Entry
    hold: int


class ControlModel(Model):
    """One of several queues. `peers` are all of them by name, this one too."""

    def __init__(self, queue: str, peers: dict[str, ControlModel]) -> None:
        super().__init__()
        self.queue = queue
        self.peers = peers
        self.parked: dict[str, ControlJob] = {}
        self.ttl: set[str] = set()
        self.outbox: list[Underway] = []
        self.littered = True
        """Whether the ending that is modelled looks for what hangs on a row (settle does where it has found any)."""
        self.releases = 0
        peers[queue] = self

    def make(self, n: int, group: str | None) -> ControlJob:
        """A job of this kind."""
        return ControlJob(n, f"JOB{n:011d}", group, n % 23 == 7)

    def kin(self, n: int) -> ControlJob:
        """The job of that number."""
        job = self.job(n)
        assert isinstance(job, ControlJob)
        return job

    def of(self, id: str) -> ControlJob:
        """The job of that id, in whichever state."""
        return self.kin(number_of(id))

    def controls(self) -> list[ControlJob]:
        """All jobs that there is something to look at of."""
        return [job for job in self.jobs.values() if isinstance(job, ControlJob)]

    # -- admission

    def admit_one(self, n: int, payload: bytes, state: str, dedup: str, ttl: int, expires: str) -> int | str:
        """What admit_many answers for one job: 1, 0 for a row that stands, or the id that has the dedup key."""
        job = self.kin(n)
        first = self.parked.get(dedup) if dedup else None
        if not job.row and first and first is not job and first.row:
            return first.id
        if self.admit(job, payload, state, job.lane) == 0:
            return 0
        if dedup:
            job.dedup, self.parked[dedup] = dedup, job
            (self.ttl.add if ttl else self.ttl.discard)(dedup)
        job.expires, job.expired = bool(expires), expires == "past"
        return 1

    # -- endings: what others hear

    def release_dedup(self, job: ControlJob) -> None:
        """The key goes where it still stands for this job."""
        if job.dedup is not None and self.parked.get(job.dedup) is job:
            del self.parked[job.dedup]

    def completed_one(self, job: ControlJob, result: bytes | None) -> None:
        """A job is done: the key goes, the parent hears."""
        self.release_dedup(job)
        if job.parent is None:
            return
        text = job.key if result is None else result
        if job.parent_queue:
            self.push(job, b"\0".join([job.parent_queue.encode(), job.parent.encode(), job.key, text]))
        else:
            self.child_done(job.parent, job.id, text)

    def died(self, job: ControlJob, reason: str) -> None:
        """A job is dead: the key goes, the parent hears, every level of it in the same queue."""
        self.release_dedup(job)
        if job.parent is None:
            return
        policy = "id" if job.policy == "id" else "fp"
        if job.parent_queue:
            words = ["", "fail", job.parent_queue, job.parent, job.id, policy, reason]
            self.push(job, "\0".join(words).encode())
        else:
            self.child_dead(job.parent, job.id, reason, policy)

    def push(self, job: ControlJob, entry: Entry) -> None:
        """A report goes into the outbox."""
        assert job.parent is not None
        self.outbox.append(Underway(entry, self.peers[job.parent_queue].of(job.parent).hold_now))

    def push_raw(self, entry: Entry) -> None:
        """Somebody else's entry."""
        self.outbox.append(Underway(entry, 0))

    def child_done(self, parent_id: str, child: str, result: bytes) -> None:
        """A completion reaches a parent of this queue."""
        parent = self.of(parent_id)
        if not parent.row or parent.out is None or child in parent.processed:
            return
        parent.processed[child] = result
        if child not in parent.unsuccessful:
            self.count_down(parent)

    def child_dead(self, parent_id: str, child: str, reason: str, policy: str) -> None:
        """A death reaches a parent of this queue."""
        parent = self.of(parent_id)
        if not parent.row or parent.out is None:
            return
        if policy == "id":
            if child not in parent.unsuccessful:
                parent.unsuccessful[child] = reason.encode()
                if child not in parent.processed:
                    self.count_down(parent)
            return
        parent.failed.setdefault(child, reason.encode())
        if child in parent.processed or parent.state != "awaiting_children":
            return
        parent.state, parent.error = "dead", f"child {child} died: {reason}"
        parent.places.add("dead")
        self.failed += 1
        self.died(parent, parent.error)

    def count_down(self, parent: ControlJob) -> None:
        """One child less is out; at zero the parent is released, once, when all of them are accounted for."""
        assert parent.out is not None
        parent.out -= 1
        if parent.out > 0 or parent.state != "awaiting_children":
            return
        self.released(parent, parent.home)

    def released(self, parent: ControlJob, place: str) -> None:
        """The parent goes where it can be claimed."""
        left = parent.children - parent.processed.keys() - parent.unsuccessful.keys()
        require(not left, "released-early", f"{parent.id} is released, {sorted(left)} have not reported")
        require(not parent.released, "released-twice", f"{parent.id} is released a second time")
        parent.released, parent.state = True, "pending"
        parent.places.add(place)
        self.releases += 1

    # -- endings of our own

    def verdict(  # noqa: PLR0911 - one answer per case, as the script has them
        self, job: Job, kind: str, given: str, most: int, group: str = ""
    ) -> str:
        """What settle answers, and what follows; also for a job that was asked to end."""
        assert isinstance(job, ControlJob)
        if not job.row or job.bare:
            return self._gone(job, group)
        if self.stale(job, given):
            return "stale"
        before, dead = self.answered(job, given), job.state == "dead"
        if kind in {"c", "v"}:
            if before and not (dead and before == "dead"):
                return "stale"
            return self._done(job, job.result if kind == "v" else None)
        if kind == "d":
            if before == "delayed" or (before == "dead" and job.cancel is not None):
                return before
            if before or dead:
                return "stale"
            return self._ended(job, "delayed", "schedule") if job.cancel is None else self._die(job, counted=False)
        if before:
            return "stale" if before == "delayed" else before
        return self._failed(job, most)

    def _gone(self, job: ControlJob, group: str) -> str:
        told = job.group or group
        if told and told != job.lane and job.lane and "active" in job.places:
            self.miscounted |= {told, job.lane}
        job.put(*(job.places & (set() if told and told == job.lane else {"lane"})))
        job.row = False
        if self.littered:
            job.wipe()
        return "gone"

    def _done(self, job: ControlJob, result: bytes | None) -> str:
        self._finish(job)
        if self.littered:
            job.wipe()
        self.completed_one(job, result)
        return "done"

    def _die(self, job: ControlJob, *, counted: bool) -> str:
        job.failures += counted
        job.error = "boom" if job.cancel is None else f"cancelled: {job.cancel}"
        self.failed += 1
        self._ended(job, "dead", "dead")
        self.died(job, job.error)
        return "dead"

    def _failed(self, job: Job, most: int) -> str:
        assert isinstance(job, ControlJob)
        if job.state == "dead":
            job.failures += 1
            return self._ended(job, "dead", "dead")
        if job.cancel is not None or job.failures + 1 >= most:
            return self._die(job, counted=True)
        job.failures += 1
        job.error = "boom"
        return self._ended(job, "scheduled", "schedule")

    def _ended(self, job: Job, answer: str, place: str) -> str:
        assert isinstance(job, ControlJob)
        job.locked = False
        return super()._ended(job, answer, place)

    def given_up(self, job: Job, verb: str, given: str) -> str:
        """What release and disown answer; a job that is released is nobody's, so its mark goes."""
        answer = super().given_up(job, verb, given)
        if answer == "ok" and verb == "release":
            assert isinstance(job, ControlJob)
            job.locked = False
        return answer

    def kept(self, job: Job, given: str) -> str:
        """What keep says: empty, why it is lost, or that it was asked to end; what is kept is marked."""
        assert isinstance(job, ControlJob)
        said = super().kept(job, given)
        if said:
            return said
        job.locked = True
        return "" if job.cancel is None else f"cancel:{job.cancel}"

    # -- claims and sweeps

    def take(self, job: Job, lane: str | None, token: int, held: str | None) -> int:
        """A claim brought this job: not one that is over, nor a parent that waits."""
        assert isinstance(job, ControlJob)
        if job.row:
            require(job.cancel is None, "cancelled-claimed", f"{job.id} was claimed, it was asked to end")
            require(not job.expired, "expired-claimed", f"{job.id} was claimed after its expiry")
            require(job.state != "awaiting_children", "early-claimed", f"{job.id} was claimed, its children are out")
        return super().take(job, lane, token, held)

    def bury(self, job: Job, reason: str) -> None:
        """A claim buried this job: it was asked to end, has expired, or never ended."""
        assert isinstance(job, ControlJob)
        if job.cancel is None and not job.expired:
            super().bury(job, reason)
        else:
            right = "expired" if job.cancel is None else f"cancelled: {job.cancel}"
            require(job.row and job.places & {"pending", "lane"}, "buried", f"{job.id} in {sorted(job.places)}")
            require(reason == right, "buried", f"{job.id}: {reason!r}, expected {right!r}")
            job.error, job.state = reason, "dead"
            job.held = job.crashes = None
            job.put("dead", *self._unknown(job))
            self.failed += 1
        job.locked = False
        self.died(job, reason)

    def buried_by_sweep(self, job: Job) -> None:
        """The counting sweep buried it."""
        assert isinstance(job, ControlJob)
        super().buried_by_sweep(job)
        job.locked = False
        self.died(job, "stalled")

    # -- an operator

    def elsewhere(self, job: ControlJob) -> bool:
        """Whether what waits is also held under a lease that runs, or dead: a foreign client has put it back."""
        return ("active" in job.places and not job.overdue) or (job.state == "dead" and "dead" in job.places)

    def removed(self, job: ControlJob, group: str | None, reason: str | None) -> None:
        """A job goes for good, out of the lane of `group` too; `reason`: it counts as a death for its parent."""
        if reason is None:
            self.excuse(job)
        if "active" in job.places and group != job.group:
            self.miscount(job)
        told = job.row
        job.put(*(set() if group and group == job.lane else job.places & {"lane"}))
        job.row, job.group, job.held, job.state = False, None, None, ""
        job.wipe()
        if not told:
            return
        if reason is None:
            self.release_dedup(job)
        else:
            self.died(job, reason)

    def excuse(self, job: ControlJob) -> None:
        """A death that a foreign client kept to itself cannot be told any more: its parent waits for ever."""
        if job.row and job.mute and job.parent is not None:
            self.peers[job.parent_queue or self.queue].of(job.parent).excused = True

    def revived(self, job: ControlJob) -> None:
        """A dead job has got a new life."""
        self.excuse(job)
        self.release_dedup(job)
        job.places = (job.places - {"dead"}) | {job.home}
        job.failures = job.stalled = 0
        job.state, job.error, job.crashes, job.held, job.cancel = "pending", None, None, None, None
        job.dedup = job.parent = job.policy = None
        job.parent_queue, job.expires, job.expired, job.mute = "", False, False, False

    def still_out(self, job: ControlJob) -> int:
        """How many children of a dead parent may still report."""
        return (job.out or 0) - len(job.failed.keys() - job.processed.keys())

    def forget(self) -> None:
        """Nothing of the queue is left."""
        for job in self.every():
            assert isinstance(job, ControlJob)
            self.excuse(job)
            job.put()
            job.row, job.group, job.held, job.state, job.loose = False, None, None, "", False
            job.wipe()
        for worker in self.workers:
            worker.receipt = None
        self.completed = self.failed = self.ceiling = 0
        self.halted = False
        for kept in (self.limits, self.paused, self.miscounted, self.parked, self.ttl, self.outbox):
            kept.clear()

    # -- flows

    def held_parent(self, n: int, payload: bytes, count: int, fields: dict[str, str]) -> int | str:
        """What flow_hold answers, and what follows."""
        job = self.kin(n)
        if job.row:
            same = (job.parent, job.parent_queue) == (fields.get("parent"), fields.get("parent_queue", ""))
            other = job.kin_text and "children" in fields and job.kin_text != fields["children"]
            if other or not same:
                return "EMQSTATE"
            self._tell_again(job)
            return 0
        job.fresh(payload, "awaiting_children")
        job.hold(fields.get("children", ""), count)
        self._name(job, fields)
        return 1

    def admitted_child(self, n: int, payload: bytes, fields: dict[str, str]) -> int | str:
        """What flow_child answers, and what follows; a child that is dead already says so again."""
        job, (parent, queue) = self.kin(n), (fields["parent"], fields.get("parent_queue", ""))
        if job.row:
            if (job.parent, job.parent_queue) != (parent, queue):
                return "EMQSTATE"
            self._tell_again(job)
            return 0
        self._once(job, self.peers[queue or self.queue].of(parent))
        job.fresh(payload, "pending")
        self._name(job, fields)
        job.places.add(job.home)
        return 1

    def _tell_again(self, job: ControlJob) -> None:
        if job.state == "dead":
            job.mute = False
            self.died(job, job.error or "")

    def _name(self, job: ControlJob, fields: dict[str, str]) -> None:
        job.group = fields.get("group") or None
        job.parent, job.parent_queue = fields.get("parent"), fields.get("parent_queue", "")
        job.policy = fields.get("parent_policy")

    def _once(self, job: ControlJob, parent: ControlJob) -> None:
        """A child that has reported is not run again by an add, as long as its parent is there."""
        if not parent.row or job.id not in parent.children:
            return
        heard = job.id in parent.processed or job.id in parent.failed or job.id in parent.unsuccessful
        mark = b"%b\0%b\0" % (parent.key, job.key)
        underway = any(one.hold == parent.hold_now and mark in one.entry for one in self.outbox)
        require(not (heard or underway), "run-again", f"{job.id} has reported to {parent.id} and is admitted again")

    def take_outbox(self, entries: list[Entry]) -> None:
        """The outbox as the server has it must be what the model has, in any order."""
        right = Counter(one.entry for one in self.outbox)
        require(Counter(entries) == right, "outbox", f"{entries}, expected {[one.entry for one in self.outbox]}")

    def trimmed(self, entry: Entry) -> int:
        """What LREM of one entry answers."""
        for at, one in enumerate(self.outbox):
            if one.entry == entry:
                del self.outbox[at]
                return 1
        return 0
