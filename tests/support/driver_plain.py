"""The driver's further verbs: batches that a foreign client claims and keeps, progress, and what only looks.

Source: protocol section 4 (tables of verbs), section 5 (weights). They are the package's own scripts, which any client
may call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hiredis import ReplyError

from tests.support.driver_control_job import ControlJob
from tests.support.driver_flows import FlowWorld
from tests.support.driver_model import GROUPS, Job, require
from tests.support.driver_world import LEASE_MS, Turn

# The order in which `where` says which set holds an id, the lane of its row before flat pending.
_ORDER = ("active", "lane", "pending", "schedule", "dead")


@dataclass(slots=True)
class Rate:
    """At most `most` jobs start in a window (0: no such limit), `spent` have in this one."""

    most: int = 0
    spent: int = 0

    @property
    def left(self) -> int | None:
        """How many more may start in this window, or None without a limit."""
        return self.most - self.spent if self.most else None


class PlainVerbs(FlowWorld):
    """A queue with every plain verb that is not one of flows or lanes."""

    def __init__(self, queue: str, scripts: Any, realm: Any) -> None:
        super().__init__(queue, scripts, realm)
        self.rate = Rate()
        self.weights: dict[str, int] = {}
        self.handlers |= {
            "flood": self.flood,
            "fbatch": self.foreign_batch,
            "fwclaim": self.foreign_weighted,
            "fhold": self.foreign_hold,
            "progress": self.progress,
            "look": self.look,
            "where": self.where,
        }

    def known(self, n: int) -> ControlJob | None:
        """The job of that number, where there is something of it."""
        return self.model.kin(n) if n in self.model.jobs else None

    # -- producers

    def flood(self, numbers: Sequence[int]) -> Turn:
        """Many flat jobs by our own verb; an id may come twice."""
        jobs = [self.model.kin(n) for n in numbers]
        words = [word for job in jobs for word in (job.id, f"payload {job.n}")]
        (reply,) = yield [self.scripts("enqueue_many", (self.keys.pending,), (self.keys.base, *words))]
        expected = [self.model.admit(job, b"payload %d" % job.n, "pending", None) for job in jobs]
        require(reply == expected, "enqueue", f"{[job.id for job in jobs]}: {reply}, expected {expected}")

    # -- the foreign client

    def foreign_batch(self, size: int) -> Turn:
        """The lowest ids of flat pending, under one deadline."""
        keys, model = self.keys, self.model
        right = sorted(job.id for job in model.jobs.values() if "pending" in job.places)[:size]
        values = (f"{keys.base}job:", LEASE_MS, size)
        (reply,) = yield [self.scripts("claim_batch", (keys.pending, keys.active), values)]
        self.sound(reply)
        told = [row[0].decode() for row in reply]
        require(told == right, "batch", f"a batch of {size} brought {told}, expected {right}")
        for row in reply:
            job = model.of(row[0].decode())
            if job.group:
                model.miscount(job)
            self._took(job, "pending", row)

    def foreign_weighted(self) -> Turn:
        """The turn of the next lane: as many as its weight, its depth and its limit let it have."""
        keys, model = self.keys, self.model
        (reply,) = yield [self.scripts("lane_claim_weighted", (keys.ring, keys.active), (keys.base, LEASE_MS))]
        self.sound(reply)
        if not reply:
            return
        group = reply[0][3].decode()
        require(group not in model.paused, "paused", f"a turn of {group}, which is paused")
        right = self._turn_of(group)
        told = [row[0].decode() for row in reply]
        require({row[3].decode() for row in reply} == {group}, "group", f"one turn of several lanes: {reply}")
        if group not in model.miscounted:
            require(told == right, "turn", f"a turn of {group} brought {told}, expected {right}")
        for row in reply:
            job = model.of(row[0].decode())
            if "active" in job.places or job.group != job.lane:
                model.miscount(job)
            self._took(job, "lane", row)
            job.group = job.group or job.lane

    def _turn_of(self, group: str) -> list[str]:
        model = self.model
        ids = sorted(job.id for job in model.jobs.values() if "lane" in job.places and job.lane == group)
        room = self.weights.get(group, 1)
        if group in model.limits:
            room = min(room, model.limits[group] - self.busy(group))
        return ids[: max(room, 0)]

    def _took(self, job: ControlJob, place: str, row: Sequence[Any]) -> None:
        payload = job.payload if job.row else None
        require(row[1] == payload, "payload", f"{job.id}: {row[1]!r}, expected {payload!r}")
        self.foreign_took(job, place, int(row[2]))

    def foreign_hold(self, held: Sequence[tuple[int, int]]) -> Turn:
        """The plain extension of many leases: numbers of jobs, and with which of its tokens of each."""
        pairs: list[tuple[Job, int]] = []
        for n, which in held:
            job = self.model.jobs.get(n)
            if job is not None and which < len(job.tokens):
                pairs.append((job, job.tokens[-1 - which]))
        if not pairs:
            return
        words = [word for job, token in pairs for word in (job.id, token)]
        (reply,) = yield [self.scripts("extend_locks", (self.keys.active,), (self.keys.base, LEASE_MS, *words))]
        self.sound(reply)
        said = [(job.id, self.model.kept(job, str(token))) for job, token in pairs]
        # A request to end is told by `keep` only.
        lost = [id for id, why in said if why and not why.startswith("cancel:")]
        told = [id.decode() for id in reply]
        require(told == lost, "answer", f"foreign extension of {words}: {told} were lost, expected {lost}")

    # -- one job

    def progress(self, n: int, percent: int) -> Turn:
        """A job's progress."""
        job = self.known(n)
        if job is None:
            return
        values = (str(percent), job.id, self.keys.base)
        (reply,) = yield [self.scripts("update_progress", (self.row(job),), values)]
        require(reply == (1 if job.row else -1), "answer", f"progress of {job.id}: {reply!r}")
        if job.row:
            job.progress = str(percent)

    def where(self, n: int) -> Turn:
        """Which set holds a job, and whether that is as it should be."""
        job = self.known(n)
        if job is None:
            return
        values = (self.keys.base, job.id, job.lane or "")
        (reply,) = yield [self.scripts("where", (self.row(job),), values)]
        self.sound(reply)
        told = tuple(word.decode() for word in reply)
        if len(job.places) > 1 or job.loose:
            require(told[2] in {"two_sets", "id_without_row"}, "where", f"{job.id} in {job.places}: {told}")
            return
        right = (next(iter(job.places), ""), job.state if job.row else "", self._complaint(job))
        require(told == right, "where", f"{job.id}: {told}, expected {right}")

    @staticmethod
    def _complaint(job: ControlJob) -> str:
        if not job.row:
            return "id_without_row" if job.places else "subkeys_without_row" if job.litter else ""
        return "nothing_out" if not job.places and (job.out or 0) < 1 else ""

    # -- the whole queue

    def busy(self, group: str) -> int:
        """How many jobs of a lane are in hand."""
        return sum("active" in job.places and job.group == group for job in self.model.jobs.values())

    def look(self, n: int) -> Turn:
        """How many a claim could take, counted up to n."""
        keys = self.keys
        (reply,) = yield [self.scripts("look", (keys.pending, keys.active, keys.ring, keys.meta), (keys.base, n))]
        require(not isinstance(reply, ReplyError), "error", str(reply))
        right = self._claimable_up_to(n)
        if self.model.miscounted:
            require(0 <= reply <= n, "look", f"a look for {n} says {reply}")
        else:
            require(reply == right, "look", f"a look for {n} says {reply}, expected {right}")

    def _claimable_up_to(self, n: int) -> int:
        model, jobs = self.model, self.model.controls()
        if model.halted:
            return 0
        room = n if self.rate.left is None else min(n, self.rate.left)
        if model.ceiling:
            room = min(room, model.ceiling - sum("active" in job.places for job in jobs))
        count = sum("pending" in job.places for job in jobs)
        for group in set(GROUPS) - model.paused:
            depth = sum("lane" in job.places and job.lane == group for job in jobs)
            if group in model.limits:
                depth = min(depth, max(0, model.limits[group] - self.busy(group)))
            count += depth
        return max(0, min(room, count))
