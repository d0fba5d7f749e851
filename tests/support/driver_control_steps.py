"""The dice over every control: what happens next in a realm, drawn from its seed and from what its models hold.

A drawn step names jobs by their numbers, so that it means the same when others are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.support.driver_control_audit import KEYS_OF_DEDUP
from tests.support.driver_control_job import FIRST_OF, QUEUES, SPAN, ControlJob
from tests.support.driver_flows import Tree
from tests.support.driver_model import GROUPS, WORKERS
from tests.support.driver_realm import ERASED, Realm
from tests.support.driver_repeats import NAMES
from tests.support.driver_scenes import SCENES
from tests.support.driver_steps import Dice
from tests.support.driver_tokens import TOKENS
from tests.support.driver_world import READ, Step

_POPULATION = (10, 8, 5)
_OFTEN = (5, 4, 1.5)
_PLAIN = 0.55
_NODES = 7
_LEVELS = 3
_OURS = (
    ("park", 6.0),
    ("forget", 1),
    ("spoil", 2),
    ("fade", 3),
    ("cancel", 4),
    ("erase", 2),
    ("reprocess", 3),
    ("update", 1),
    ("log", 1),
    ("reassign", 4),
    ("unlimit", 1),
    ("ldrain", 0.5),
    ("lreap", 2),
    ("drain", 0.4),
    ("requeue", 0.8),
    ("bin", 0.4),
    ("obliterate", 0.2),
    ("add", 4),
    ("more", 14),
    ("die", 1.5),
    ("again!", 2),
    ("fadd", 1),
    ("pump", 16),
    ("pcrash", 2),
    ("late", 2),
    ("renew", 2),
    ("flood", 1),
    ("progress", 2),
    ("look", 4),
    ("where", 2),
    ("scene", 2.5),
    ("weight", 1),
    ("pop", 6),
    ("knock", 0.3),
    ("rate", 1),
    ("window", 1),
    ("register", 1.5),
    ("calendar", 1),
    ("unregister", 0.4),
    ("advance", 0.5),
    ("tick", 4),
    ("ring", 9),
    ("rcrash", 0.5),
)
_FOREIGN = (("fstall", 2.0), ("garble", 0.6), ("fbatch", 2.0), ("fwclaim", 2.0), ("fhold", 1.0))
_PERIODS_MS = (500, 1_000, 2_500)
# How often it is looked whether something rare can be done now.
_KEEN = 0.15


class ControlDice:
    """Draws steps. `foreign` is how often the foreign client acts, as a multiple of its usual share; 0: never. `crowd`
    is by how much there are more jobs than usual.
    """

    def __init__(self, seed: str, realm: Realm, foreign: float, *, crowd: int) -> None:
        self._random = random.Random(seed)
        self._realm = realm
        self._much = crowd
        self._roots: set[int] = set()
        self._planned: list[Step] = []
        self._dice = [
            Dice(f"{seed}/{q}", realm.queues[q].model, foreign, _POPULATION[q] * self._much, first=FIRST_OF[q])
            for q in range(QUEUES)
        ]
        shares = [*_OURS, *((verb, share * foreign) for verb, share in _FOREIGN)]
        self._verbs = [verb for verb, _ in shares]
        self._shares = [share for _, share in shares]
        self._draws = {**self._of_an_operator(), **self._of_all_others()}

    def _of_an_operator(self) -> dict[str, Callable[[int], Step]]:
        return {
            "park": self._park,
            "forget": lambda q: (q, "forget", 1 + self._random.randrange(len(KEYS_OF_DEDUP))),
            "spoil": lambda q: (q, "spoil", self._some(q, lambda job: job.row and job.expires)),
            "fade": lambda q: (q, "fade", self._some(q, lambda job: job.locked)),
            "cancel": lambda q: (q, "cancel", self._any(q), self._random.choice(("enough", "too late"))),
            "erase": lambda q: (q, "erase", self._any(q), self._random.choice(("", "", "force", "dead"))),
            "reprocess": lambda q: (q, "reprocess", self._dead(q), self._random.randrange(2)),
            "update": lambda q: (q, "update", self._any(q), self._random.randrange(9)),
            "log": lambda q: (q, "log", self._any(q), self._random.choice((0, 0, 1, 2))),
            "reassign": lambda q: (q, "reassign", self._waiting(q), self._random.choice(GROUPS)),
            "unlimit": lambda q: (q, "unlimit", self._random.choice(GROUPS)),
            "ldrain": lambda q: (q, "ldrain", self._random.choice(GROUPS)),
            "lreap": lambda q: (q, "lreap", self._random.choice(GROUPS), self._random.choice((1, 2, 100))),
            "drain": lambda q: (q, "drain", self._random.randrange(2)),
            "requeue": lambda q: (q, "requeue", self._random.choice((1, 3, 50)), self._random.randrange(2)),
            "bin": lambda q: (q, "bin", self._random.choice((1, 3))),
            "obliterate": lambda q: (ERASED, "obliterate"),
        }

    def _of_all_others(self) -> dict[str, Callable[[int], Step]]:
        return {
            "add": self._add,
            "more": lambda q: (0, "more", self._busy()),
            "die": lambda q: (0, "die", self._busy()),
            "again!": lambda q: (0, "again!", self._random.randrange(2)),
            "fadd": lambda q: (q, "fadd", self._root(q), tuple(self._dice[q].fresh() for _ in range(2))),
            "pump": self._pump,
            "pcrash": lambda q: (q, "pcrash", self._random.randrange(2)),
            "late": self._late,
            "renew": self._renew,
            "flood": lambda q: (q, "flood", self._flood(q)),
            "progress": lambda q: (q, "progress", self._any(q), self._random.randrange(101)),
            "look": lambda q: (q, "look", self._random.choice((1, 3, 10, 100))),
            "where": lambda q: (q, "where", self._any(q)),
            "scene": self._scene,
            "weight": lambda q: (q, "weight", self._random.choice(GROUPS), self._random.choice((1, 2, 4))),
            "pop": lambda q: (q, "pop", self._random.randrange(WORKERS)),
            "knock": lambda q: (q, "knock", self._random.choice(("", *GROUPS)), TOKENS + 2),
            "rate": lambda q: (q, "rate", self._random.choice((0, 0, 3, 9))),
            "window": lambda q: (q, "window"),
            "register": self._register,
            "calendar": lambda q: (
                *(q, "calendar", self._random.choice(NAMES)),
                *(self._random.choice((1, 2)), self._random.randrange(2)),
            ),
            "unregister": lambda q: (q, "unregister", self._random.choice(NAMES)),
            "advance": lambda q: (q, "advance", self._random.choice(NAMES), self._random.choice(_PERIODS_MS)),
            "tick": lambda q: (q, "tick", self._random.choice((1, 300, 1_000, 4_000, 60_000))),
            "ring": lambda q: (q, "ring", self._random.randrange(2), self._flood(q)),
            "rcrash": lambda q: (q, "rcrash", self._random.randrange(2)),
            "fbatch": lambda q: (q, "fbatch", self._random.choice((1, 2, 5))),
            "fwclaim": lambda q: (q, "fwclaim"),
            "fhold": self._fhold,
            "fstall": lambda q: (q, "fstall", self._random.choice((1, 2, 3))),
            "garble": self._garble,
        }

    def draw(self) -> Step:
        """The next step."""
        if self._planned and self._random.random() < 0.7:
            return self._planned.pop(0)
        (q,) = self._random.choices(range(QUEUES), weights=_OFTEN)
        left = self._realm.queues[q].rate.left
        if left is not None and left < 1 and self._random.random() < 0.2:
            return (q, "window")
        rare = self._random.random() < _KEEN and self._rare(q)
        if rare:
            return rare
        if self._random.random() >= _PLAIN:
            (verb,) = self._random.choices(self._verbs, weights=self._shares)
            if verb not in {"add", "fadd", "park", "flood", "ring"} or not self._crowded(q):
                return self._draws[verb](q)
        step = self._dice[q].draw()
        if step[0] == "settle":
            verdicts = tuple((self._with_result(kind), n, most) for kind, n, most in step[2])
            step = ("settle", step[1], verdicts, step[3])
        return (q, *step)

    # -- whom and what

    def _with_result(self, kind: str) -> str:
        return "v" if kind == "c" and self._random.random() < 0.5 else kind

    def _jobs(self, q: int) -> list[ControlJob]:
        return self._realm.queues[q].model.controls()

    def _crowded(self, q: int) -> bool:
        return sum(job.row for job in self._jobs(q)) > 3 * _POPULATION[q] * self._much

    def _one(self, jobs: Sequence[ControlJob]) -> int:
        return self._random.choice(jobs).n if jobs else 0

    def _any(self, q: int) -> int:
        jobs = self._jobs(q)
        standing = [job for job in jobs if job.row]
        return self._one(standing if standing and self._random.random() < 0.9 else jobs)

    def _dead(self, q: int) -> int:
        dead = [job for job in self._jobs(q) if job.state == "dead"]
        return self._one(dead) if dead and self._random.random() < 0.95 else self._any(q)

    def _waiting(self, q: int) -> int:
        waiting = [job for job in self._jobs(q) if job.places & {"pending", "lane"}]
        return self._one(waiting) if waiting and self._random.random() < 0.9 else self._any(q)

    def _some(self, q: int, fits: Callable[[ControlJob], object]) -> tuple[int, ...]:
        there = [job.n for job in self._jobs(q) if fits(job)]
        return tuple(self._random.sample(there, self._random.randint(1, len(there)))) if there else ()

    def _busy(self) -> int:
        busy = [k for k, producer in enumerate(self._realm.producers) if producer.coroutine is not None]
        return self._random.choice(busy or [0])

    # -- steps

    def _park(self, q: int) -> Step:
        jobs = tuple(
            (
                self._dice[q].number(),
                self._random.choice((0, *range(1, len(KEYS_OF_DEDUP) + 1))),
                self._random.randrange(2),
                self._random.choice(("", "", "ahead", "ahead", "past")),
            )
            for _ in range(self._random.choice((1, 1, 2, 3)))
        )
        return (q, "park", jobs, int(self._random.random() < 0.2))

    def _add(self, q: int) -> Step:
        root = self._root(q)
        nodes: list[tuple[int, int, str]] = [(root, 0, "fp")]
        level, there = {root: 1}, {root: q}
        for _ in range(self._random.randint(1, _NODES - 1)):
            parent = self._random.choice([n for n, depth in level.items() if depth < _LEVELS])
            child_q = there[parent] if self._random.random() < 0.5 else self._random.randrange(QUEUES)
            child = self._dice[child_q].fresh()
            nodes.append((child, parent, "id" if self._random.random() < 0.35 else "fp"))
            level[child], there[child] = level[parent] + 1, child_q
        tree: Tree = tuple(nodes)
        return (0, "add", self._random.randrange(2), tree)

    def _rare(self, q: int) -> Step | None:
        """What a foreign client has left in two places, or without a row, does not stay so for long."""
        twice = [job for job in self._jobs(q) if job.row and len(job.places) > 1 and job.places & {"pending", "lane"}]
        if twice and self._random.random() < 0.5:
            job = self._random.choice(twice)
            how: list[Step] = [("ldrain", job.lane)] if "lane" in job.places else [("drain", 0)]
            how += [("cancel", job.n, "enough"), ("erase", job.n, "force"), ("reassign", job.n, GROUPS[0])]
            return (q, *self._random.choice(how))
        ghosts = [job for job in self._jobs(q) if not job.row and job.places and job.n not in self._roots]
        if not ghosts:
            return None
        root = self._one(ghosts)
        self._roots.add(root)
        claim = (q, "claim", self._random.randrange(WORKERS), 50, READ)
        self._planned += [self._random.choice([claim, (q, "due", (root,)), (q, "expire", (root,))]), claim]
        self._planned += [(q, "promote"), (q, "reap")]
        return (q, "fadd", root, (self._dice[q].fresh(),))

    def _late(self, q: int) -> Step:
        """A job is buried while its worker goes on, and says so later."""
        workers = [worker for worker in self._realm.queues[q].model.workers if worker.hand]
        if not workers:
            return (q, "stalled", 1)
        worker = self._random.choice(workers)
        children = [n for n, hold in worker.hand.items() if isinstance(hold.job, ControlJob) and hold.job.parent]
        n = self._random.choice(children or list(worker.hand))
        settle = (q, "settle", worker.index, ((self._random.choice("cvrd"), n, 1),), READ)
        self._planned += [(q, "stalled", 1), settle]
        return (q, "expire", (n,))

    def _renew(self, q: int) -> Step:
        """A parent is taken away, and its flow is added again."""
        idle = [k for k, producer in enumerate(self._realm.producers) if producer.tree and producer.coroutine is None]
        if not idle:
            return (0, "more", self._busy())
        k = self._random.choice(idle)
        below = [(parent, self._realm.job(n)) for n, parent, _ in self._realm.producers[k].tree if parent]
        # Of those that are dead rather one that had children of its own.
        dead = [parent for parent, job in below if job.state == "dead" and job.children]
        dead = dead or [parent for parent, job in below if job.state == "dead"]
        abroad = [(parent, job) for parent, job in below if job.tokens and job.tokens[-1] == job.token and job.row]
        n = self._random.choice(dead or [parent for parent, _ in abroad] or [parent for parent, _ in below])
        # Who comes late tells a parent that is gone.
        self._planned += [(job.n // SPAN, "fend", "c", job.n, 0, 0) for parent, job in abroad if parent == n]
        self._planned += [(0, "again!", k), *[(0, "more", k)] * 4]
        return (n // SPAN, "erase", n, "force")

    def _flood(self, q: int) -> tuple[int, ...]:
        """A few numbers, now and then one that was there before, or one twice."""
        numbers = tuple(self._dice[q].number() for _ in range(self._random.choice((1, 2, 3))))
        return (*numbers, numbers[0]) if self._random.random() < 0.1 else numbers

    def _scene(self, q: int) -> Step:
        """Everybody parks, no token is left, and then something becomes free."""
        numbers = tuple(job.n for job in self._jobs(q))
        first, *rest = self._random.choice(SCENES)(q, numbers, tuple(self._dice[q].fresh() for _ in range(3)))
        self._planned += rest
        return first

    def _register(self, q: int) -> Step:
        every, first = self._random.choice(_PERIODS_MS), self._random.choice((0, 0, 700))
        fixed, update = self._random.randrange(2), self._random.randrange(2)
        return (q, "register", self._random.choice(NAMES), every, first, fixed, update)

    def _fhold(self, q: int) -> Step:
        held = [job.n for job in self._jobs(q) if job.tokens]
        some = self._random.sample(held, min(len(held), 3))
        return (q, "fhold", tuple((n, self._random.choice((0, 0, 1))) for n in some))

    def _garble(self, q: int) -> Step:
        """Both Pumps find what is no entry."""
        self._planned += [(q, "pump", p, 100) for _ in range(3) for p in range(2)]
        return (q, "garble")

    def _root(self, q: int) -> int:
        """A number for a parent: a new one, or one that a foreign client has left in a set without a row."""
        ghosts = [job for job in self._jobs(q) if not job.row and job.places and job.n not in self._roots]
        root = self._one(ghosts) if ghosts and self._random.random() < 0.5 else self._dice[q].fresh()
        # Never of two flows: what children of the first one say would count for the second.
        self._roots.add(root)
        return root

    def _pump(self, q: int) -> Step:
        pumps = [(world, p) for world in range(QUEUES) for p in range(2) if self._has_work(world, p)]
        world, p = self._random.choice(pumps or [(q, 0)])
        return (world, "pump", p, self._random.choice((1, 2, 100)))

    def _has_work(self, q: int, p: int) -> bool:
        world = self._realm.queues[q]
        return bool(world.model.outbox) or world.pumps[p].coroutine is not None
