"""The driver's other steps: producers, the foreign client with its plain verbs, and an operator.

Source: protocol section 4 (table of verbs, "Next to a foreign worker"), section 5. The foreign client speaks by Lua
of its own (`tests.support.foreign`) or, with `own`, by the package's plain scripts: any client may call them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hiredis import ReplyError

from tests.support.driver_model import STATE_OF, Job, require
from tests.support.driver_wire import pack
from tests.support.driver_world import LEASE_MS, Turn, World

FAR_MS = 4_000_000_000_000


def as_text(reply: Any) -> Any:
    """A reply as a model has it: a refusal by its first word."""
    if isinstance(reply, ReplyError):
        return str(reply).split(" ", 1)[0]
    return reply.decode() if isinstance(reply, bytes) else reply


class Everybody(World):
    """A world with producers, a foreign client and an operator beside our workers."""

    def __init__(self, queue: str, scripts: Any) -> None:
        super().__init__(queue, scripts)
        self.handlers |= {
            "enqueue": self.enqueue,
            "admit": self.admit,
            "fclaim": self.foreign_claim,
            "fgclaim": self.foreign_lane_claim,
            "fend": self.foreign_end,
            "fkeep": self.foreign_keep,
            "freap": self.foreign_reap,
            "fpromote": self.foreign_promote,
            "freprocess": self.foreign_reprocess,
            "remove": self.remove,
            "limit": self.limit,
            "pause": self.pause,
            "resume": self.resume,
            "weight": self.weight,
            "halt": self.halt,
            "ceiling": self.ceiling,
        }

    def row(self, job: Job) -> str:
        """The row's key."""
        return f"{self.keys.base}job:{job.id}"

    # -- producers

    def enqueue(self, how: str, n: int) -> Turn:
        """One job by the plain verbs: `plain` ours, `foreign`, or `later` (scheduled, flat)."""
        job, keys = self.model.job(n), self.keys
        payload = f"payload {n}"
        if how == "later":
            call = self.scripts("schedule", (self.row(job), keys.schedule), (job.id, payload, "in", LEASE_MS))
        elif job.lane is None:
            name = "f:enqueue" if how == "foreign" else "enqueue"
            call = self.scripts(name, (self.row(job), keys.pending), (job.id, payload))
        else:
            name = "f:genqueue" if how == "foreign" else "lane_enqueue"
            declared = (
                self.row(job),
                keys.lane(job.lane),
                keys.ring,
                keys.paused,
                keys.glimit,
                keys.gactive,
                keys.wake,
            )
            call = self.scripts(name, declared, (job.id, payload, job.lane))
        (reply,) = yield [call]
        later = how == "later"
        expected = self.model.admit(
            job, payload.encode(), "scheduled" if later else "pending", None if later else job.lane
        )
        require(as_text(reply) == expected, "enqueue", f"{job.id}: {as_text(reply)}, expected {expected}")

    def admit(self, numbers: Sequence[int], later: int) -> Turn:
        """Many jobs by our own verb, now or scheduled, each to its lane."""
        keys, model = self.keys, self.model
        jobs = [model.job(n) for n in dict.fromkeys(numbers)]
        # Neither dedup key nor expiry.
        mode = (*(("at", FAR_MS) if later else ("", "")), "", "", "")
        words = [word for job in jobs for word in (job.id, f"payload {job.n}", job.lane or "", *mode)]
        (reply,) = yield [self.scripts("admit_many", (keys.pending, keys.schedule), [keys.base, *words])]
        self.sound(reply)
        state = "scheduled" if later else "pending"
        expected = [model.admit(job, f"payload {job.n}".encode(), state, job.lane) for job in jobs]
        require(reply == expected, "enqueue", f"{[job.id for job in jobs]}: {reply}, expected {expected}")

    # -- the foreign client

    def foreign_claim(self, own: int) -> Turn:
        """The lowest id of flat pending."""
        keys = self.keys
        call = self.scripts("claim" if own else "f:claim", (keys.pending, keys.active), (f"{keys.base}job:", LEASE_MS))
        (reply,) = yield [call]
        self.sound(reply)
        if reply:
            job = self.model.by_id[reply[0].decode()]
            if job.group:
                self.model.miscount(job)
            self.foreign_took(job, "pending", int(reply[2]))

    def foreign_lane_claim(self, own: int) -> Turn:
        """The head of the next lane."""
        (reply,) = yield [
            self.scripts(
                "lane_claim" if own else "f:gclaim", (self.keys.ring, self.keys.active), (self.keys.base, LEASE_MS)
            )
        ]
        self.sound(reply)
        if reply:
            job = self.model.by_id[reply[0].decode()]
            if "active" in job.places or job.group != job.lane:
                self.model.miscount(job)
            self.foreign_took(job, "lane", int(reply[2]))
            if own and not job.group:
                job.group = job.lane

    def foreign_took(self, job: Job, place: str, token: int) -> None:
        """A foreign claim took a job out of a place; where it stands elsewhere, it goes on standing there."""
        require(place in job.places, "from-nowhere", f"{job.id} was claimed, it was in {sorted(job.places)}")
        # Also one that a worker of ours has in hand, where foreign verbs left the id in a second set.
        if not job.row:
            job.fresh(None, "active")
            job.group = None
        job.token += 1
        require(token == job.token, "token", f"{job.id}: token {token}, expected {job.token}")
        job.state, job.overdue, job.bare = "active", False, False
        job.places = (job.places - {place}) | {"active"}
        job.tokens = [*job.tokens[-4:], token]

    def foreign_end(self, kind: str, n: int, which: int, own: int) -> Turn:
        """Complete, retry or delay with one of the tokens that the foreign client has had of this job."""
        job = self.model.jobs.get(n)
        if job is None or which >= len(job.tokens):
            return
        token, keys = job.tokens[-1 - which], self.keys
        f = "" if own else "f:"
        row = self.row(job)
        if kind == "c":
            call = self.scripts(f + "complete", (keys.active, row), (job.id, token, keys.base))
        elif kind == "d":
            call = self.scripts(f + "delay", (row, keys.active, keys.schedule), (job.id, token, "in", LEASE_MS))
        else:
            values = (job.id, token, LEASE_MS, 3, "boom", keys.base)
            call = self.scripts(f + "retry", (keys.active, keys.schedule, keys.dead, row), values)
        (reply,) = yield [call]
        expected = self.ended_own(job, kind, token) if own else self.ended_foreign(job, kind, token)
        require(as_text(reply) == expected, "answer", f"foreign {kind} of {job.id}: {reply!r}, expected {expected}")

    def ended_own(self, job: Job, kind: str, token: int) -> int | str:
        """What the package's plain scripts do for a holder of this token."""
        if not job.row or job.bare:
            if kind != "c":
                return "EMQSTALE"
            if "active" in job.places:
                self.model.miscount(job)
            job.places -= {"active", "pending", "schedule"}
            job.row = False
            return 0
        if kind == "d" and job.state == "dead":
            return "EMQSTALE"
        buried = job.places & {"dead"}
        answer = self.model.verdict(job, kind, str(token), 3)
        if answer in {"scheduled", "delayed"}:
            # The plain verbs of ours do not look into the morgue, where a foreign retry may have left the id.
            job.places |= buried
        replies: dict[str, int | str] = {"done": 1, "delayed": 1, "stale": "EMQSTALE"}
        return replies.get(answer, answer)

    def ended_foreign(self, job: Job, kind: str, token: int) -> int | str:
        """What the foreign client's own scripts do: no other set is cleaned, and a slot may be given back twice."""
        model = self.model
        if not job.row or job.bare:
            if kind != "c":
                return "EMQSTALE"
            if "active" in job.places:
                model.miscount(job)
            job.places.discard("active")
            return 0
        if token != job.token:
            return "EMQSTALE"
        if job.group and ("active" in job.places) == (kind == "d"):
            model.miscount(job)
        job.places.discard("active")
        job.overdue = False
        if kind == "c":
            model.completed += 1
            job.row, job.group, job.held, job.state = False, None, None, ""
            return 1
        place = "schedule"
        if kind == "r":
            job.failures += 1
            job.error = "boom"
            if job.failures >= 3:
                place = "dead"
                model.failed += 1
        job.places.add(place)
        job.state = STATE_OF[place]
        job.due = job.due and place != "schedule"
        return 1 if kind == "d" else job.state

    def foreign_keep(self, n: int, which: int) -> Turn:
        """The plain extension of a lease, with one of its tokens."""
        job = self.model.jobs.get(n)
        if job is None or which >= len(job.tokens):
            return
        token = job.tokens[-1 - which]
        (reply,) = yield [self.scripts("extend_lock", (self.keys.active, self.row(job)), (job.id, token, LEASE_MS))]
        said = self.model.kept(job, str(token))
        expected = {"gone": -1, "not_active": 0, "stale": "EMQSTALE"}.get(said, 1)
        require(as_text(reply) == expected, "answer", f"foreign extension of {job.id}: {reply!r}, expected {expected}")

    def foreign_reap(self) -> Turn:
        """Its recovery: every expired lease goes back, whatever its row says."""
        (count,) = yield [self.scripts("f:reap", (self.keys.active, self.keys.pending), (self.keys.base,))]
        self.foreign_swept(self.swept(count, self.model.overdue()), "active")

    def foreign_promote(self) -> Turn:
        """Its promote: every due job is released, also one that somebody holds."""
        (count,) = yield [self.scripts("f:promote", (self.keys.schedule, self.keys.pending), (self.keys.base, 100))]
        self.foreign_swept(self.swept(count, self.model.due()), "schedule")

    def foreign_swept(self, jobs: list[Job], left: str) -> None:
        """A foreign sweep has moved these jobs out of `left`."""
        for job in jobs:
            if not job.row:
                self.model.miscount(job)
                job.fresh(None, "pending", bare=True)
                job.group = None
            job.places = (job.places - {left}) | {job.home}
            job.state = "pending"
            if left == "active":
                job.overdue = False
            else:
                job.due = False

    def foreign_reprocess(self, n: int) -> Turn:
        """A dead job comes back to flat pending, a grouped one too."""
        job = self.model.jobs.get(n)
        if job is None:
            return
        call = self.scripts("f:reprocess", (self.row(job), self.keys.dead, self.keys.pending), (job.id,))
        (reply,) = yield [call]
        expected: int | str = -1
        if job.row:
            expected = "EMQSTATE" if job.state != "dead" else 1
        if expected == 1:
            job.places = (job.places - {"dead"}) | {"pending"}
            job.failures = job.stalled = 0
            job.state, job.error = "pending", None
        require(as_text(reply) == expected, "answer", f"reprocess of {job.id}: {reply!r}, expected {expected}")

    # -- an operator

    def remove(self, n: int) -> Turn:
        """A dead job is removed."""
        job = self.model.jobs.get(n)
        if job and job.places == {"dead"}:
            yield [pack(("DEL", self.row(job), f"{self.row(job)}:lock")), pack(("ZREM", self.keys.dead, job.id))]
            job.put()
            job.row, job.group, job.held, job.state = False, None, None, ""

    def operate(self, verb: str, *values: str | int) -> Turn:
        """One of the operator's scripts."""
        (reply,) = yield [self.scripts(verb, (), (self.keys.base, *values))]
        self.sound(reply)

    def limit(self, group: str, most: int) -> Turn:
        """A ceiling for a lane."""
        self.model.limits[group] = most
        yield from self.operate("op:limit", group, most)

    def pause(self, group: str) -> Turn:
        """Nothing of this lane is claimed."""
        self.model.paused.add(group)
        yield from self.operate("op:pause", group)

    def resume(self, group: str) -> Turn:
        """The lane is served again."""
        self.model.paused.discard(group)
        yield from self.operate("op:resume", group)

    def weight(self, group: str, share: int) -> Turn:
        """A lane's share per turn."""
        yield [pack(("HSET", self.keys.gweight, group, share))]

    def halt(self, on: int) -> Turn:
        """The whole queue is paused, or goes on."""
        self.model.halted = bool(on)
        yield [pack(("HSET", self.keys.meta, "paused", 1) if on else ("HDEL", self.keys.meta, "paused"))]

    def ceiling(self, most: int) -> Turn:
        """At most so many jobs in hand in the whole queue; 0 lifts it."""
        self.model.ceiling = most
        yield [pack(("HSET", self.keys.meta, "concurrency", most) if most else ("HDEL", self.keys.meta, "concurrency"))]
