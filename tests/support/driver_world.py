"""One queue of the driver: executes steps on the server and holds every reply against the model.

Source: protocol section 4. A step is a tuple of words and numbers, self-contained: what does not apply (any more) is
skipped, so that any part of a recorded list can be run. Here are the steps of our own workers; the foreign client's and
the operator's are in `driver_foreign`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from hiredis import ReplyError

from echomq_worker.keyspace import Keys
from tests.support import driver_audit
from tests.support.driver_audit import PAST
from tests.support.driver_model import MAX_CRASHES, SUSPECT, Hold, Job, Model, Receipt, Sent, Worker, require
from tests.support.driver_wire import Packed, Scripts, pack

LEASE_MS = 36_000_000
STRIDE = 6

# What became of a call: answered, its reply lost, or itself lost on the way.
READ, REPLY_LOST, CALL_LOST = range(3)

Step = tuple[Any, ...]
Turn = Generator[list[Packed], list[Any], None]


class World:
    """A queue, its model, and how each step is done."""

    def __init__(self, queue: str, scripts: Scripts) -> None:
        self.keys = Keys(queue)
        self.model = Model()
        self.scripts = scripts
        self.handlers: dict[str, Callable[..., Turn]] = {
            "claim": self.claim,
            "again": self.again,
            "settle": self.settle,
            "resend": self.resend,
            "echo": self.echo,
            "keep": self.keep,
            "release": self.release,
            "shutdown": self.shutdown,
            "crash": self.crash,
            "expire": self.expire,
            "lapse": self.lapse,
            "due": self.due,
            "reap": self.reap,
            "promote": self.promote,
            "recount": self.recount,
            "stalled": self.stalled,
        }

    def execute(self, step: Step) -> Turn:
        """Do one step; raises Violation."""
        yield from self.looking(self.handlers[step[0]](*step[1:]))

    def looking(self, turn: Turn) -> Turn:
        """The turn, and a look at the whole queue where the model is not sure of it afterwards."""
        yield from turn
        if self.model.look:
            yield from self.audit()

    def audit(self) -> Turn:
        """Look at the whole queue; raises Violation."""
        model = self.model
        (reply,) = yield [self.scripts("audit", (), driver_audit.ask(model, self.keys.base))]
        self.sound(reply)
        model.look = False
        driver_audit.check(model, driver_audit.read(model, reply))
        model.met = None

    @staticmethod
    def sound(reply: Any) -> None:
        """A script of ours never fails."""
        require(not isinstance(reply, ReplyError), "error", str(reply))

    # -- claims

    def claim_call(self, worker: Worker, n: int, number: int) -> Packed:
        """A claim as a worker sends it: at most one suspect per process."""
        worker.sent += 1
        keys = self.keys
        declared = (keys.pending, keys.active, keys.ring, keys.meta, keys.receipt(worker.name))
        random, allowed = f"{worker.name}.{worker.sent}", 0 if worker.suspects else 1
        return self.scripts("claim_many", declared, (keys.base, LEASE_MS, n, number, random, MAX_CRASHES, allowed))

    def claim(self, w: int, n: int, fate: int) -> Turn:
        """A claim for n slots. One whose reply is lost is claimed again later, with the same number."""
        worker = self.model.workers[w]
        packed = self.claim_call(worker, n, worker.number)
        worker.unread = fate != READ
        if fate == CALL_LOST:
            return
        (reply,) = yield [packed]
        holds = self.claimed(worker, reply, n, worker.number)
        if fate == READ:
            self.in_hand(worker, int(reply[0]), holds)
            if any(hold.job.poison for hold in holds):
                worker.restart()

    def again(self, w: int) -> Turn:
        """A claim that was delayed on the way arrives when its worker has read later ones: it must take nothing."""
        worker = self.model.workers[w]
        if worker.receipt is None or worker.number < 1 or worker.receipt.number < worker.number:
            return
        (reply,) = yield [self.claim_call(worker, 5, worker.number - 1)]
        self.claimed(worker, reply, 5, worker.number - 1)

    def in_hand(self, worker: Worker, number: int, holds: Sequence[Hold]) -> None:
        """The worker reads a claim's reply."""
        worker.number = number
        for hold in holds:
            worker.hand[hold.job.n] = hold

    def claimed(self, worker: Worker, reply: Any, asked: int, read: int) -> list[Hold]:
        """Hold a claim's reply against the model; the jobs that it brought."""
        self.sound(reply)
        number, why, random, flat, buried = int(reply[0]), reply[1].decode(), reply[2].decode(), reply[3], reply[4]
        receipt, model = worker.receipt, self.model
        rows = [flat[at : at + STRIDE] for at in range(0, len(flat), STRIDE)]
        newer = receipt is not None and receipt.number > read
        require((why == "replayed") == newer, "receipt", f"{worker.name} read {read}, noted {receipt}: {why}")
        if receipt is not None and newer:
            return self._replayed(receipt, number, random, rows)
        require(number == read + bool(rows), "number", f"{worker.name} read {read}, was told {number}")
        require(len(rows) <= asked, "too-many", f"{len(rows)} jobs for {asked} slots")
        require(not model.halted or not (rows or buried), "paused", "a claim took from a paused queue")
        model.meet()
        moved = {job.group for job in model.jobs.values() if job.misplaced and job.group}
        busy = sum("active" in job.places for job in model.jobs.values())
        for at in range(0, len(buried), 2):
            model.bury(model.by_id[buried[at].decode()], buried[at + 1].decode())
        allowed = 0 if worker.suspects else 1
        holds = [self._taken(row, random, why) for row in rows]
        suspects = sum(hold.crashes >= SUSPECT for hold in holds)
        require(suspects <= allowed, "suspects", f"{worker.name} got {suspects} suspects, {allowed} allowed")
        if rows:
            worker.receipt = Receipt(number, random, tuple((hold.job, hold.job.token) for hold in holds))
        if model.ceiling:
            require(not rows or busy + len(rows) <= model.ceiling, "ceiling", f"{busy} in hand, {len(rows)} more")
        elif self.short(len(rows), asked) and not model.halted:
            model.met = {group for group in moved if group} | ({"suspects"} if why == "suspects" else set())
            model.look = True
        return holds

    def short(self, taken: int, asked: int) -> bool:
        """Whether a claim had slots left that it might have filled."""
        return taken < asked

    def _taken(self, row: list[Any], random: str, why: str) -> Hold:
        model = self.model
        id, payload, token, group, failures, crashes = row
        job = model.by_id.get(id.decode())
        require(job is not None, "stranger", f"{id.decode()} was claimed, nobody admitted it")
        assert job is not None
        lane = group.decode() or None
        require(lane not in model.paused, "paused", f"{job.id} was claimed from a paused lane")
        held = f"{int(token)}:{random}"
        count = model.take(job, lane, int(token), held)
        require(int(crashes) == count, "crashes", f"{job.id}: {crashes} crashes, expected {count}")
        require(int(failures) == job.failures, "failures", f"{job.id}: {failures} failures, expected {job.failures}")
        require(payload == job.payload, "payload", f"{job.id}: {payload!r}, expected {job.payload!r}")
        if lane and lane in model.limits and lane not in model.miscounted:
            busy = sum("active" in other.places and other.group == lane for other in model.jobs.values())
            require(busy <= model.limits[lane], "limit", f"{lane}: {busy} in hand, the limit is {model.limits[lane]}")
        return Hold(job, held, lane or "", count)

    def _replayed(self, receipt: Receipt, number: int, random: str, rows: list[list[Any]]) -> list[Hold]:
        require((number, random) == (receipt.number, receipt.random), "receipt", f"{number}, expected {receipt}")
        left = [
            Hold(job, held, job.group or "", job.crashes[0] if job.crashes and job.crashes[1] == token else 0)
            for job, token in receipt.jobs
            if "active" in job.places and job.token == token and job.held == (held := f"{token}:{random}")
        ]
        told = [(row[0].decode(), int(row[2]), row[3].decode(), int(row[5])) for row in rows]
        expected = [(hold.job.id, hold.job.token, hold.group, hold.crashes) for hold in left]
        require(told == expected, "replay", f"the receipt's jobs are {expected}, the claim brought {told}")
        for hold in left:
            hold.job.overdue = False
        return left

    # -- endings

    def send(self, call: Sent) -> Packed:
        """A worker's call, packed."""
        keys = self.keys
        words: list[str | int | bytes] = []
        for job, held, group, kind, most in call.items:
            if call.verb != "settle":
                words += [job.id, held]
            elif kind == "r":
                words += ["r", job.id, held, group, LEASE_MS, most, "boom"]
            else:
                words += [kind, job.id, held, group, *self.rest_of(kind, job)]
        if call.verb == "settle":
            return self.scripts("settle", (keys.active, keys.pending, keys.schedule, keys.dead), [keys.base, *words])
        if call.verb == "release":
            return self.scripts("release", (keys.active, keys.pending), [keys.base, *words])
        if call.verb == "keep":
            return self.scripts("keep", (keys.active,), [keys.base, LEASE_MS, *words])
        return self.scripts("disown", (keys.active,), [keys.base, *words])

    def rest_of(self, kind: str, job: Job) -> tuple[str | int | bytes, ...]:
        """What a verdict that is no retry carries behind id, held and group."""
        return ("in", LEASE_MS) if kind == "d" else ()

    def answer(self, call: Sent, reply: Any) -> list[str]:
        """Hold the answers of a worker's call against the model, in the order of its jobs."""
        self.sound(reply)
        model = self.model
        if call.verb == "settle":
            expected = [model.verdict(job, kind, held, most, group) for job, held, group, kind, most in call.items]
        elif call.verb == "keep":
            expected = [model.kept(job, held) for job, held, *_ in call.items]
            lost = {reply[at].decode(): reply[at + 1] for at in range(0, len(reply), 2)}
            reply = [lost.get(job.id, b"") for job, *_ in call.items]
        else:
            expected = [model.given_up(job, call.verb, held) for job, held, *_ in call.items]
        told = [answer.decode() for answer in reply]
        require(told == expected, "answer", f"{call.verb} answered {told}, expected {expected}")
        return told

    def items(self, worker: Worker, verb: str, numbers: Sequence[int]) -> Sent | None:
        """A call about those of the numbers that the worker has in hand, or None."""
        holds = [worker.hand[n] for n in numbers if n in worker.hand]
        return Sent(verb, tuple((hold.job, hold.held, hold.group, "", 0) for hold in holds)) if holds else None

    def settle(self, w: int, verdicts: Sequence[tuple[str, int, int]], fate: int) -> Turn:
        """Verdicts on jobs in hand; they stay open until they are answered."""
        worker = self.model.workers[w]
        holds = [(worker.hand.pop(n), kind, most) for kind, n, most in verdicts if n in worker.hand]
        if not holds:
            return
        call = Sent("settle", tuple((hold.job, hold.held, hold.group, kind, most) for hold, kind, most in holds))
        worker.remember(call)
        if fate != READ:
            worker.open.append(call)
        if fate != CALL_LOST:
            (reply,) = yield [self.send(call)]
            self.answer(call, reply)

    def resend(self, w: int, fate: int, most: int = 1) -> Turn:
        """The oldest verdicts that were not answered go out again, those of so many calls in one."""
        worker = self.model.workers[w]
        calls = worker.open[:most]
        if calls and fate != CALL_LOST:
            call = Sent("settle", tuple(item for one in calls for item in one.items))
            (reply,) = yield [self.send(call)]
            self.answer(call, reply)
            if fate == READ:
                del worker.open[:most]

    def echo(self, w: int, k: int) -> Turn:
        """A call that was answered long ago arrives once more, word for word."""
        past = self.model.workers[w].past
        if k < len(past):
            (reply,) = yield [self.send(past[k])]
            self.answer(past[k], reply)

    def keep(self, w: int, fate: int) -> Turn:
        """The leases of all in hand are extended; what was lost is learned here."""
        worker = self.model.workers[w]
        call = self.items(worker, "keep", list(worker.hand))
        if call is None or fate == CALL_LOST:
            return
        worker.remember(call)
        (reply,) = yield [self.send(call)]
        answers = self.answer(call, reply)
        if fate == READ:
            for (job, *_), answer in zip(call.items, answers, strict=True):
                if answer and not answer.startswith("cancel:"):
                    worker.hand.pop(job.n)

    def release(self, w: int, numbers: Sequence[int], fate: int) -> Turn:
        """Jobs in hand go back unstarted; released again where the reply is lost."""
        worker = self.model.workers[w]
        call = self.items(worker, "release", numbers)
        if call is None:
            return
        worker.remember(call)
        for _ in range(fate + 1):
            (reply,) = yield [self.send(call)]
            self.answer(call, reply)
        for job, *_ in call.items:
            worker.hand.pop(job.n)

    def shutdown(self, w: int, rest: int) -> Turn:
        """An orderly end: receipt read, open verdicts sent, jobs released or (one in three) disowned; a new process."""
        worker = self.model.workers[w]
        (reply,) = yield [self.claim_call(worker, 0, worker.number)]
        self.in_hand(worker, int(reply[0]), self.claimed(worker, reply, 0, worker.number))
        calls = list(worker.open)
        threads = [n for n in worker.hand if n % 3 == rest]
        for verb, numbers in (("release", [n for n in worker.hand if n not in threads]), ("disown", threads)):
            call = self.items(worker, verb, numbers)
            calls += [call] if call else []
        if calls:
            replies = yield [self.send(call) for call in calls]
            for call, said in zip(calls, replies, strict=True):
                self.answer(call, said)
        worker.restart()

    def crash(self, w: int) -> Turn:
        """The process dies with all that it has in hand."""
        self.model.workers[w].restart()
        yield from ()

    # -- time

    def rescore(self, key: str, jobs: Sequence[Job]) -> Turn:
        """Time passes for these jobs: their score is in the past now."""
        if jobs:
            yield [pack(("ZADD", key, "XX", *(word for job in jobs for word in (PAST, job.id))))]

    def expire(self, numbers: Sequence[int]) -> Turn:
        """Leases run out."""
        jobs = [job for n in numbers if (job := self.model.jobs.get(n)) and "active" in job.places]
        for job in jobs:
            job.overdue = True
        yield from self.rescore(self.keys.active, jobs)

    def lapse(self, w: int) -> Turn:
        """A worker stood still for a lease: all that it held has run out, its receipt too."""
        worker = self.model.workers[w]
        mark = f":{worker.name}."
        yield [pack(("DEL", self.keys.receipt(worker.name)))]
        worker.receipt = None
        yield from self.expire([job.n for job in self.model.jobs.values() if mark in (job.held or "")])

    def due(self, numbers: Sequence[int]) -> Turn:
        """Run-ats come."""
        jobs = [job for n in numbers if (job := self.model.jobs.get(n)) and "schedule" in job.places]
        for job in jobs:
            job.due = True
        yield from self.rescore(self.keys.schedule, jobs)

    # -- sweeps of ours

    def reap(self) -> Turn:
        """Our recovery."""
        (count,) = yield [self.scripts("reap", (self.keys.active, self.keys.pending), (self.keys.base,))]
        for job in self.swept(count, self.model.overdue()):
            self.model.reaped(job)

    def promote(self) -> Turn:
        """Our promote."""
        keys = self.keys
        (count,) = yield [self.scripts("promote", (keys.schedule, keys.pending), (keys.base, 100))]
        for job in self.swept(count, self.model.due()):
            self.model.promoted(job)

    def swept(self, count: Any, jobs: list[Job]) -> list[Job]:
        """A sweep has taken these jobs out of the set where their time was past."""
        self.sound(count)
        require(count == len(jobs), "swept", f"{count} members were past, expected {[job.id for job in jobs]}")
        return jobs

    def recount(self) -> Turn:
        """Our repair of lanes: whatever a foreign verb got wrong is right afterwards."""
        (count,) = yield [self.scripts("recount", (self.keys.active,), (self.keys.base, 5_000))]
        self.sound(count)
        require(count == 0 or self.model.miscounted, "recount", f"{count} corrections where nothing was wrong")
        self.model.miscounted.clear()
        self.model.look = True

    def stalled(self, most: int) -> Turn:
        """The counting sweep."""
        keys, model = self.keys, self.model
        (reply,) = yield [self.scripts("stalled_check", (keys.active, keys.pending, keys.dead), (keys.base, most, 100))]
        self.sound(reply)
        told = [sorted(id.decode() for id in ids) for ids in reply]
        # In the order of the server, which is that in which parents hear of it.
        back = [job for job in sorted(model.overdue(), key=lambda job: job.id) if model.reaped(job)]
        for job in back:
            job.stalled += 1
            if job.stalled >= most:
                model.buried_by_sweep(job)
        expected = [sorted(job.id for job in back if (job.state == "dead") == dead) for dead in (False, True)]
        require(told == expected, "stalled", f"recovered and dead: {told}, expected {expected}")
