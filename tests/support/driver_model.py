"""What the driver knows: every job's row and places as the protocol says they must be, and what each worker holds.

Source: protocol section 4. The model is told every reply, also those that the simulated worker never reads, so it can
predict each answer. A job stands in one place, unless a foreign verb put it in a second one: such a job is `loose` once
ours has met it, and the next look at the server says where it is.
"""

from __future__ import annotations

from tests.support.driver_job import CLAIMABLE, GROUPS, MAX_CRASHES, STATE_OF, SUSPECT, WORKERS, Job, Violation, require
from tests.support.driver_worker import Hold, Receipt, Sent, Worker

__all__ = [
    "GROUPS",
    "MAX_CRASHES",
    "STATE_OF",
    "SUSPECT",
    "WORKERS",
    "Hold",
    "Job",
    "Model",
    "Receipt",
    "Sent",
    "Violation",
    "Worker",
    "require",
]

# A sweep of ours leaves them where they are.
_STAYS = {"dead", "awaiting_children"}
_FINISHED = 6


class Model:
    """All of one queue. Methods that predict an answer also write what follows from it."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.by_id: dict[str, Job] = {}
        self._finished: dict[int, Job] = {}
        self.workers = [Worker(i) for i in range(WORKERS)]
        self.completed = 0
        self.failed = 0
        self.limits: dict[str, int] = {}
        self.paused: set[str] = set()
        self.halted = False
        self.ceiling = 0
        self.miscounted: set[str] = set()
        """Groups whose gactive a foreign verb got wrong, until a recount."""
        self.look = False
        """The server must be looked at before the next step."""
        self.met: set[str] | None = None
        """The last claim had slots left: what stands in pending now may only be a suspect, when `suspects` is in it."""

    def job(self, n: int) -> Job:
        """The job of that number; its group and whether it is poison follow from the number."""
        found = self.jobs.get(n) or self._finished.pop(n, None)
        if found is None:
            lane = n % 5
            found = self.make(n, GROUPS[lane] if lane < len(GROUPS) else None)
            found.key = found.id.encode()
        self.jobs[n] = self.by_id[found.id] = found
        return found

    def make(self, n: int, lane: str | None) -> Job:
        """A job that nobody has met before."""
        return Job(n, f"JOB{n:011d}", lane, n % 23 == 7)

    def tidy(self) -> None:
        """Set aside what is finished, all but the last few: there is nothing left of it to look at."""
        finished = [job for job in self.jobs.values() if not job.row and not job.places]
        for job in finished[:-_FINISHED]:
            self._finished[job.n] = job
            del self.jobs[job.n], self.by_id[job.id]

    def every(self) -> list[Job]:
        """Every job that ever was in this world."""
        return [*self.jobs.values(), *self._finished.values()]

    def loosen(self, job: Job) -> None:
        """Something of ours met a job in two places: the next look says what is left."""
        job.loose = self.look = True

    def admit(self, job: Job, payload: bytes, state: str, group: str | None) -> int:
        """1, or 0 where the row is there."""
        if job.row:
            return 0
        job.fresh(payload, state)
        job.group = group
        job.places.add("schedule" if state == "scheduled" else job.home)
        job.due = job.due and state != "scheduled"
        return 1

    # -- the holder's calls

    def stale(self, job: Job, given: str) -> bool:
        """Whether the claim that `given` (token, or token and random) stands for is not the row's."""
        token, colon, _ = given.partition(":")
        return str(job.token) != token or bool(colon and job.held and job.held != given)

    def answered(self, job: Job, given: str) -> str | None:
        """The answer that an earlier verdict under this token has had."""
        token = given.partition(":")[0]
        return job.settled[1] if job.settled and str(job.settled[0]) == token else None

    def verdict(self, job: Job, kind: str, given: str, most: int, group: str = "") -> str:
        """What settle answers for `c`, `r` or `d`, and what follows. `group`: what the holder was told at its claim."""
        if not job.row or job.bare:
            job.places &= set() if group or job.group else {"lane"}
            job.row = False
            return "gone"
        if self.stale(job, given):
            return "stale"
        before, dead = self.answered(job, given), job.state == "dead"
        if kind == "c":
            return "stale" if before and not (dead and before == "dead") else self._finish(job)
        if kind == "d":
            fresh = not (before or dead)
            return self._ended(job, "delayed", "schedule") if fresh else before if before == "delayed" else "stale"
        if before:
            return "stale" if before == "delayed" else before
        return self._failed(job, most)

    def _finish(self, job: Job) -> str:
        self.completed += 1
        job.put(*self._unknown(job))
        job.row, job.held, job.group, job.state = False, None, None, ""
        return "done"

    def _ended(self, job: Job, answer: str, place: str) -> str:
        job.held = job.crashes = None
        job.settled = (job.token, answer)
        job.state = STATE_OF[place]
        job.put(place, *self._unknown(job))
        return answer

    @staticmethod
    def _unknown(job: Job) -> set[str]:
        """Where an ending does not look: in the lane, when the row does not name it."""
        return job.places & (set() if job.group else {"lane"})

    def _failed(self, job: Job, most: int) -> str:
        job.failures += 1
        late = job.state == "dead"
        dead = late or job.failures >= most
        if not late:
            job.error = "boom"
            self.failed += dead
        return self._ended(job, "dead" if dead else "scheduled", "dead" if dead else "schedule")

    def given_up(self, job: Job, verb: str, given: str) -> str:
        """What release and disown answer, and what follows."""
        if not job.row or job.bare:
            return "gone"
        if self.stale(job, given) or (verb == "release" and self.answered(job, given)):
            return "stale"
        if "active" not in job.places or (verb == "release" and job.state == "dead"):
            return "not_active"
        job.held = None
        if verb == "release":
            job.state = "pending"
            job.put(job.home, *(job.places - {"active"}))
        return "ok"

    def kept(self, job: Job, given: str) -> str:
        """What keep says of a job: empty where its lease was extended."""
        if not job.row or job.bare:
            return "gone"
        if self.stale(job, given):
            return "stale"
        if "active" not in job.places:
            return "not_active"
        job.overdue = False
        return ""

    # -- claims

    def take(self, job: Job, lane: str | None, token: int, held: str | None) -> int:
        """A claim of ours brought this job. Answers the crashes that it must have counted."""
        who = f"{job.id} ({job.held or 'nobody'})"
        require("active" not in job.places or job.overdue, "two-holders", f"{who} was claimed under a live lease")
        require(job.places & CLAIMABLE, "from-nowhere", f"{who} was claimed, it was in {sorted(job.places)}")
        require(job.state != "dead" or not job.row, "dead-claimed", f"{who} was claimed, it is dead")
        require(
            token == job.token + 1 or (token == 1 and not job.row), "token", f"{who}: token {token} after {job.token}"
        )
        if not job.row:
            job.fresh(None, "active")
        # A skeleton may stand in a lane that its row does not name: the claim writes it.
        if lane and "active" in job.places and job.group != lane:
            self.miscount(job)
        job.group = job.group or lane
        require(job.group == lane, "group", f"{who} was claimed from {lane or 'flat pending'}, it is of {job.group}")
        count = job.crash_count()
        require(not (job.held and count >= MAX_CRASHES), "not-buried", f"{who} was handed out after {count} crashes")
        job.token, job.held, job.state, job.bare = token, held, "active", False
        if count:
            job.crashes = (count, token)
        # A claim cannot know the lane of a row that says of none.
        job.put("active", *(job.places & {"lane"} if not job.group else ()))
        return count

    def bury(self, job: Job, reason: str) -> None:
        """A claim of ours buried this job for its crashes."""
        count = job.crash_count()
        right = job.row and job.held and count >= MAX_CRASHES and job.places & CLAIMABLE
        require(right, "buried", f"{job.id} was buried after {count} crashes in a row, in {sorted(job.places)}")
        job.error = f"crashed: {count} claims in a row never ended"
        require(reason == job.error, "buried", f"{job.id}: {reason!r}, expected {job.error!r}")
        job.held = job.crashes = None
        job.state = "dead"
        job.put("dead", *self._unknown(job))
        self.failed += 1

    def meet(self) -> None:
        """A claim of ours is about to meet what foreign verbs have put in two places."""
        for job in self.jobs.values():
            if job.misplaced:
                self.loosen(job)

    # -- the sweeps

    def overdue(self) -> list[Job]:
        """Jobs in active whose lease has run out."""
        return [job for job in self.jobs.values() if job.overdue and "active" in job.places]

    def due(self) -> list[Job]:
        """Jobs in the schedule whose time has come."""
        return [job for job in self.jobs.values() if job.due and "schedule" in job.places]

    def reaped(self, job: Job) -> bool:
        """Our recovery takes a job from active. Answers whether it can run again, and so went back."""
        job.places.discard("active")
        job.overdue = False
        elsewhere = job.state in _STAYS or (job.state == "scheduled" and "schedule" in job.places)
        if job.row and not elsewhere:
            self._put_back(job)
        return job.row and not elsewhere

    def promoted(self, job: Job) -> None:
        """Our promote takes a job from the schedule; one that somebody holds, or that is dead, goes nowhere else."""
        job.places.discard("schedule")
        job.due = False
        if ("active" in job.places and not job.overdue) or job.state in _STAYS:
            return
        job.places.discard("active")
        job.overdue = False
        if not job.row:
            job.fresh(None, "pending", bare=True)
            job.group = None
        self._put_back(job)

    def buried_by_sweep(self, job: Job) -> None:
        """The counting sweep has taken this job from active, and it is dead."""
        job.state, job.held, job.crashes, job.error = "dead", None, None, "stalled"
        job.places = {"dead", *self._unknown(job)}
        self.failed += 1

    @staticmethod
    def _put_back(job: Job) -> None:
        job.places = (job.places - {"schedule"}) | {job.home}
        job.due = False
        job.state = "pending"

    # -- the foreign client

    def miscount(self, job: Job) -> None:
        """A foreign verb may have got this job's group wrong."""
        for group in (job.group, job.lane):
            if group:
                self.miscounted.add(group)
