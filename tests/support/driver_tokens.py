"""The driver's steps for readiness tokens and the rate: consumers that park, and what is owed to one that does.

Source: protocol section 4 ("Readiness tokens"), section 1 (`ready`, `wake`, `limiter`), decision 0008. A consumer parks
behind a claim that had slots left. Where all are parked, no token is there and something can be claimed, it came by
somebody who pushes no tokens, or a promise is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from echomq_worker.admin import Admin
from tests.support.driver_control_job import ControlJob
from tests.support.driver_controls import ControlWorld
from tests.support.driver_model import SUSPECT, Hold, Worker, require
from tests.support.driver_plain import Rate
from tests.support.driver_trips import Calls
from tests.support.driver_wire import Packed, pack
from tests.support.driver_world import LEASE_MS, READ, Turn

TOKENS = 64
_SLOTS = 50
READY_MS = 60_000
# ARGV: queue base, and for how long tokens stay from here on: in the driver no time goes by, however slow the machine.
TOKEN_LOOK = """
local p = ARGV[1]
local expires = redis.call('PTTL', p .. 'ready')
if expires > 0 then redis.call('PEXPIRE', p .. 'ready', ARGV[2]) end
return {redis.call('LLEN', p .. 'ready'), expires, redis.call('LLEN', p .. 'wake'),
  redis.call('GET', p .. 'limiter') or '0', redis.call('PTTL', p .. 'limiter')}
"""
_FOREIGN = {"fclaim", "fbatch", "fgclaim", "fwclaim", "freap", "fpromote", "freprocess", "fstall"}
# Nobody is told of a ceiling that is raised, nor of the end of a window: whom a window stops waits for its end.
_BY_ITSELF = {"ceiling", "rate", "window"}
# Ours too, where they make room below a ceiling: found within a beat.
_MAKES_ROOM = {"erase", "remove", "stalled"}


class TokenWorld(ControlWorld):
    """A queue whose consumers park, and which may have a rate."""

    def __init__(self, queue: str, scripts: Any, realm: Any) -> None:
        super().__init__(queue, scripts, realm)
        self.asleep: set[str] = set()
        """Names of processes whose last claim had slots left: each waits for a token."""
        self.hushed = False
        """Something that can be claimed came without a token: a foreign client pushes none for flat jobs."""
        self.parks = False
        self.handlers |= {
            "pop": self.pop,
            "live": self.live,
            "knock": self.knock,
            "rate": self.limit_rate,
            "window": self.window,
        }

    def step(self, verb: str, values: Sequence[Any]) -> Turn:
        """Do one step of this queue."""
        before = self._tells_nobody(verb, values) and not self.claimable()
        yield from self.handlers[verb](*values)
        self.hushed = self.hushed or (before and bool(self.claimable()))

    def _tells_nobody(self, verb: str, values: Sequence[Any]) -> bool:
        if verb == "enqueue":
            return bool(values[0] == "foreign")
        if verb == "fend":
            return not values[3]
        return verb in _FOREIGN or verb in _BY_ITSELF or (verb in _MAKES_ROOM and self.model.ceiling > 0)

    # -- consumers that park

    def claim(self, w: int, n: int, fate: int) -> Turn:
        """A claim; whoever had slots left parks."""
        name = self.model.workers[w].name
        self.asleep.discard(name)
        self.parks = False
        yield from self._counting(super().claim(w, n, fate))
        if fate == READ and self.parks:
            self.asleep.add(name)

    def _counting(self, claim: Turn) -> Turn:
        """A claim takes tokens away only where it leaves nothing to wake anybody for."""
        try:
            calls = next(claim)
        except StopIteration:
            return
        count = [pack(("LLEN", self.keys.ready)), pack(("LLEN", self.keys.wake))]
        replies = yield [*count, *calls, *count]
        try:
            claim.send(replies[2:-2])
        except StopIteration:
            left = self.waiting()
            cleared = sum(replies[:2]) > 0 == sum(replies[-2:])
            require(not (cleared and left), "cleared", f"a claim took the tokens, {left} can still be claimed")

    def parked(self, worker: Worker) -> bool:
        """Whether it waits for a token. One with verdicts that cannot be delivered waits for them."""
        return worker.name in self.asleep and not worker.open

    def pop(self, w: int) -> Turn:
        """A consumer that is parked takes a token, if one is there."""
        worker = self.model.workers[w]
        if not self.parked(worker):
            return
        for key in (self.keys.ready, self.keys.wake):
            (token,) = yield [pack(("LPOP", key))]
            if token is not None:
                self.asleep.discard(worker.name)
                return

    def live(self, w: int) -> Turn:
        """A consumer goes on for as long as there are tokens: it takes one, claims for many slots and parks again."""
        worker = self.model.workers[w]
        for _ in range(2 * TOKENS):
            yield from self.pop(w)
            if self.parked(worker):
                return
            yield from self.looking(self.claim(w, _SLOTS, READ))

    def knock(self, group: str, times: int) -> Turn:
        """Somebody resumes a lane, or the queue where it is '', over and over: a token each where something waits."""
        keys, model = self.keys, self.model
        if group:
            model.paused.discard(group)
            names = (keys.paused, keys.ring, keys.glimit, keys.gactive, keys.wake)
            call = self.scripts("lane_resume", names, (keys.base, group))
        else:
            model.halted = False
            call = self.scripts("queue_resume", (keys.meta,), ())
        replies = yield [call] * times
        require(set(replies) == {1}, "answer", f"resume answered {set(replies)}")

    def claimable(self) -> list[str]:
        """What a claim would take now, whoever makes it."""
        model, left = self.model, self.rate.left
        busy = sum("active" in job.places for job in model.controls())
        full = (model.ceiling and busy >= model.ceiling) or (left is not None and left < 1)
        return [] if model.halted or full else self.waiting()

    def waiting(self) -> list[str]:
        """What there is to claim: no suspects, nor what a foreign client has put in two places."""
        busy = [job for job in self.model.controls() if "active" in job.places]
        return [job.id for job in self.model.controls() if self._waits(job, busy)]

    def _waits(self, job: ControlJob, busy: Sequence[ControlJob]) -> bool:
        model, group = self.model, job.group
        if not job.row or job.state != "pending" or job.crash_count() >= SUSPECT or not job.single:
            return False
        if "lane" not in job.places or group is None or group != job.lane:
            return job.places == {"pending"} and group is None
        most = model.limits.get(group)
        full = most is not None and sum(other.group == group for other in busy) >= most
        return not full and group not in model.paused and group not in model.miscounted

    # -- the rate

    def limit_rate(self, most: int) -> Turn:
        """At most so many starts in a window; 0 lifts it. The driver ends windows itself."""
        yield from self.through(Admin(Calls()).set_rate(self.keys.queue, most or None, LEASE_MS))
        self.rate = Rate(most)

    def window(self) -> Turn:
        """The window is over."""
        self.rate.spent = 0
        yield [pack(("DEL", self.keys.limiter))]

    def claimed(self, worker: Worker, reply: Any, asked: int, read: int) -> list[Hold]:
        """A claim keeps to the rate, and says so where that is all that stops it."""
        rate, most, model = self.rate, asked, self.model
        if model.ceiling:
            most = min(most, model.ceiling - sum("active" in job.places for job in model.jobs.values()))
        holds = super().claimed(worker, reply, asked, read)
        why = reply[1].decode()
        if asked < 1 or why in {"replayed", "paused"}:
            self.parks = why == "paused"
            return holds
        limited = rate.left is not None and rate.left < most
        room = min(most, rate.left) if rate.left is not None else most
        require(len(holds) <= max(room, 0), "rate", f"{len(holds)} jobs started, {room} may: {rate}")
        right = "rate" if limited and len(holds) >= room else "ceiling" if room < 1 else "ok"
        what, _, wait_ms = why.partition(":")
        require(what.replace("suspects", "ok") == right, "why", f"a claim says {why}, expected {right}: {rate}")
        require(what != "rate" or 0 < int(wait_ms) <= LEASE_MS, "why", f"the window ends in {wait_ms} ms")
        if rate.most:
            rate.spent += len(holds)
        self.parks = len(holds) < asked and what != "rate"
        if len(holds) < room:
            # It has looked at everything.
            self.hushed = False
        return holds

    def short(self, taken: int, asked: int) -> bool:
        """Whether a claim had slots left that it might have filled."""
        left = self.rate.left
        return taken < (asked if left is None else min(asked, left))

    # -- a look

    def looks(self) -> list[Packed]:
        """Tokens and the window, too."""
        return [*super().looks(), self.scripts("audit:tokens", (), (self.keys.base, READY_MS))]

    def looked(self, replies: list[Any]) -> None:
        """Raise Violation where a list of tokens is too long or stays for ever, or where everybody sleeps."""
        super().looked(replies[:-1])
        self.sound(replies[-1])
        ready, expires, wake, started, ends = replies[-1]
        require(max(ready, wake) <= TOKENS, "tokens", f"{ready} and {wake} tokens, at most {TOKENS} of each")
        require(not ready or 0 < expires <= READY_MS, "tokens", f"the tokens of flat jobs expire in {expires} ms")
        require(int(started) == self.rate.spent, "rate", f"the window says {started}: {self.rate}")
        require(not self.rate.spent or 0 < ends <= LEASE_MS, "rate", f"the window ends in {ends} ms")
        if not (ready or wake or self.hushed) and all(map(self.parked, self.model.workers)):
            waiting = self.claimable()
            require(not waiting, "asleep", f"{waiting} can be claimed, all are parked, and there is no token")

    def obliterate(self) -> Turn:
        """Nothing is left of the rate either."""
        yield from super().obliterate()
        self.rate = Rate()
