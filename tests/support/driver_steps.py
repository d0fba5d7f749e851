"""The dice: what happens next in a world, drawn from its seed and from what its model holds.

A drawn step names jobs and workers by their numbers, so that it means the same when others are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.support.driver_model import GROUPS, WORKERS, Job, Model, Worker
from tests.support.driver_world import CALL_LOST, READ, REPLY_LOST, Step

POPULATION = 16
_DEAD = 6
_OURS = (
    ("enqueue", 10),
    ("claim", 22),
    ("settle", 20),
    ("resend", 5),
    ("echo", 4),
    ("again", 1),
    ("keep", 4),
    ("release", 2),
    ("shutdown", 2),
    ("crash", 2),
    ("expire", 8),
    ("lapse", 1),
    ("due", 7),
    ("reap", 6),
    ("promote", 6),
    ("recount", 3),
    ("stalled", 1),
    ("remove", 1),
    ("operate", 3),
    ("reuse", 1),
)
_FOREIGN = (
    ("fclaim", 8),
    ("fgclaim", 8),
    ("fend", 14),
    ("freap", 2),
    ("fpromote", 2),
    ("freprocess", 2),
    ("fkeep", 1),
    ("mischief", 3),
)


class Dice:
    """Draws steps. `foreign` is how often the foreign client acts, as a multiple of its usual share; 0: never.
    `population` is about how many jobs there are at a time; their numbers are those behind `first`.
    """

    def __init__(
        self, seed: str, model: Model, foreign: float, population: int = POPULATION, *, first: int = 0
    ) -> None:
        self._random = random.Random(seed)
        self._model = model
        self._first = self._next = first
        self._foreign = foreign
        self._population = population
        self._planned: list[Step] = []
        shares = [*_OURS, *((verb, share * foreign) for verb, share in _FOREIGN)]
        self._verbs = [verb for verb, _ in shares]
        self._weights = []
        total = 0.0
        for _, share in shares:
            total += share
            self._weights.append(total)
        self._draws: dict[str, Callable[[], Step]] = {
            "enqueue": self._enqueue,
            "claim": lambda: ("claim", self._worker(), self._chance(1, 2, 3, 5, 50), self._fate()),
            "settle": self._settle,
            "resend": lambda: ("resend", self._of(self._open()), self._fate(), self._chance(1, 1, 9)),
            "echo": lambda: ("echo", self._worker(), self._random.randrange(6)),
            "again": lambda: ("again", self._worker()),
            "keep": lambda: ("keep", self._of(self._busy()), self._fate()),
            "release": self._release,
            "shutdown": lambda: ("shutdown", self._worker(), self._random.randrange(3)),
            "crash": lambda: ("crash", self._worker()),
            "expire": lambda: ("expire", self._some("active")),
            "lapse": lambda: ("lapse", self._worker()),
            "due": lambda: ("due", self._some("schedule")),
            "stalled": lambda: ("stalled", self._chance(1, 3, 3, 5)),
            "remove": lambda: ("remove", self._one(self._dead())),
            "operate": self._operate,
            "fclaim": lambda: ("fclaim", self._random.randrange(2)),
            "fgclaim": lambda: ("fgclaim", self._random.randrange(2)),
            "fend": self._foreign_end,
            "freprocess": lambda: ("freprocess", self._one(self._dead())),
            "mischief": self._mischief,
            "fkeep": lambda: ("fkeep", *self._foreign_end()[2:4]),
            "reuse": self._reuse,
        }

    def draw(self) -> Step:
        """The next step."""
        model = self._model
        if model.halted and self._random.random() < 0.2:
            return ("halt", 0)
        if len(self._dead()) > _DEAD:
            return ("remove", self._dead()[0].n)
        if self._planned and self._random.random() < 0.6:
            return self._planned.pop(0)
        (verb,) = self._random.choices(self._verbs, cum_weights=self._weights)
        alive = sum(job.row for job in model.jobs.values())
        if alive < self._population / 2 and self._random.random() < 0.5:
            verb = "enqueue"
        if verb == "enqueue" and alive > self._population * 2:
            verb = "settle"
        draw = self._draws.get(verb)
        return draw() if draw else (verb,)

    # -- whom and what

    def _chance(self, *values: int) -> int:
        return self._random.choice(values)

    def _fate(self) -> int:
        roll = self._random.random()
        return REPLY_LOST if roll < 0.12 else CALL_LOST if roll < 0.16 else READ

    def _worker(self) -> int:
        return self._random.randrange(WORKERS)

    def _of(self, workers: Sequence[Worker]) -> int:
        return self._random.choice(workers).index if workers else self._worker()

    def _busy(self) -> list[Worker]:
        return [worker for worker in self._model.workers if worker.hand]

    def _open(self) -> list[Worker]:
        return [worker for worker in self._model.workers if worker.open]

    def _dead(self) -> list[Job]:
        return [job for job in self._model.jobs.values() if job.places == {"dead"}]

    def _one(self, jobs: Sequence[Job]) -> int:
        return self._random.choice(jobs).n if jobs else 0

    def _some(self, place: str) -> tuple[int, ...]:
        there = [job.n for job in self._model.jobs.values() if place in job.places]
        return tuple(self._random.sample(there, self._chance(*range(1, len(there) + 1)))) if there else ()

    # -- steps

    def number(self) -> int:
        """A new job's number, now and then one that was there before."""
        if self._next > self._first + 4 and self._random.random() < 0.1:
            return self._random.choice([*self._model.jobs] or [self._next])
        return self.fresh()

    def fresh(self) -> int:
        """A number that nobody has had."""
        self._next += 1
        return self._next

    def _enqueue(self) -> Step:
        roll = self._random.random()
        if roll < 0.35:
            return ("admit", tuple(self.number() for _ in range(self._chance(1, 2, 4))), int(roll < 0.1))
        how = "later" if roll < 0.45 else "foreign" if roll < 0.65 and self._foreign else "plain"
        return ("enqueue", how, self.number())

    def _settle(self) -> Step:
        index = self._of(self._busy())
        hand = self._model.workers[index].hand
        chosen = [n for n in hand if self._random.random() < 0.6] or list(hand)[:1]
        verdicts = tuple((self._random.choice("ccrrd"), n, self._chance(1, 2, 4, 9)) for n in chosen)
        return ("settle", index, verdicts, self._fate())

    def _release(self) -> Step:
        index = self._of(self._busy())
        hand = list(self._model.workers[index].hand)
        return ("release", index, tuple(n for n in hand if self._random.random() < 0.5), self._random.randrange(2))

    def _operate(self) -> Step:
        group = self._random.choice(GROUPS)
        roll = self._random.random()
        if roll < 0.3:
            return ("limit", group, self._chance(1, 2, 4))
        if roll < 0.45:
            return ("pause", group)
        if roll < 0.8:
            return ("resume", group)
        if roll < 0.85:
            return ("weight", group, self._chance(1, 2, 5))
        return ("halt", 1) if roll < 0.9 else ("ceiling", self._chance(0, 0, 6, 10))

    def _reuse(self) -> Step:
        """An id is enqueued again when it is finished; what an old holder sent of it arrives once more."""
        echoes = [
            (job.n, worker.index, k)
            for worker in self._model.workers
            for k, call in enumerate(worker.past)
            for job, *_ in call.items
            if not job.row
        ]
        if not echoes:
            return self._enqueue()
        n, w, k = self._random.choice(echoes)
        self._planned = [("claim", self._worker(), 50, READ), ("echo", w, k), ("echo", w, k)]
        return ("enqueue", "plain", n)

    def _mischief(self) -> Step:
        """A foreign worker that comes late: what it does to one job, between whatever else happens."""
        late = [job for job in self._model.jobs.values() if job.tokens and job.tokens[-1] == job.token and job.row]
        if not late:
            return ("freap",)
        job = self._random.choice(late)
        n, again = job.n, ("fgclaim" if job.group else "fclaim", self._random.randrange(2))
        self._planned = [
            (self._random.choice(("freap", "reap")),),
            ("fend", self._random.choice("rd"), n, 0, 0),
            again,
            *([again] if self._random.random() < 0.5 else []),
            # Put back beside what the late verdict has scheduled, or released while somebody holds it.
            *([("expire", (n,)), ("freap",)] if self._random.random() < 0.5 else [("due", (n,)), ("fpromote",)]),
        ]
        return ("expire", (n,))

    def _foreign_end(self) -> Step:
        jobs = [job for job in self._model.jobs.values() if job.tokens]
        kind = self._random.choice("ccrrd")
        return ("fend", kind, self._one(jobs), self._chance(0, 0, 0, 1, 2), self._random.randrange(2))
