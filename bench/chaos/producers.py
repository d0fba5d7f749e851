"""The producers: jobs of every shape at a steady rate, each with an id of its own that is noted before it is sent.

An attempt without an answer leaves open whether the job was admitted. Half of those are given up, the others, and all
flows, are sent again until they are answered, as docs/producing.md says that one may.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from bench.chaos.evidence import Order
from bench.chaos.notes import Book, now_ms
from bench.chaos.roles import BATCH, FLOW, LANES, LIMITS, PARTS, PLAIN, POOL, SYNC, TICKS
from echomq_worker import EchoMQError, Flows, Jobs, Lanes, New, Node, Repeat
from echomq_worker.clock import Clock
from echomq_worker.connector import Wire
from echomq_worker.identity import Mint

REPEATS = {"two": 2_000, "three": 3_000, "seven": 7_000}
"""Registered at a fixed rate: name and period in ms."""

_TURN_MS = 200
_AGAIN_MS = 250
_TRIES = 200
_SINGLE = (PLAIN, POOL, SYNC, BATCH)

Policy = Literal["fp", "id"]
Send = Callable[[], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Work:
    """How much: jobs a second, and the longest that a job of the slow kind takes."""

    jobs_per_s: float
    slow_ms: int


class Producer:
    """Makes jobs until it is stopped; `made` counts them."""

    def __init__(self, wire: Wire, book: Book, *, seed: str, work: Work, clock: Clock) -> None:
        self.made = 0
        self._jobs = Jobs(wire)
        self._lanes = Lanes(wire)
        self._flows = Flows(wire)
        self._repeat = Repeat(wire)
        self._book = book
        self._dice = random.Random(f"jobs {seed}")
        self._work = work
        self._mint = Mint(clock)
        self._stopping = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Make nothing new; `run` returns when everything is answered, or given up."""
        self._stopping.set()

    async def limit_lanes(self) -> None:
        """Set the limits of the lanes; before any job."""
        for name, limit in LIMITS.items():
            await self._lanes.limit(LANES, self._lanes.group_for(name), limit)

    async def register(self) -> dict[str, int]:
        """Register the repeats; answers the first moment of each, ms on the host's clock."""
        for name, every_ms in REPEATS.items():
            await self._repeat.register(TICKS, name, every_ms, {"ms": 5}, fixed_rate=True, first_in_ms=every_ms)
        return {record.name: record.next_at_ms for record in await self._repeat.list(TICKS)}

    async def cancel(self) -> None:
        """Cancel the repeats."""
        for name in REPEATS:
            await self._repeat.cancel(TICKS, name)

    async def run(self) -> None:
        """Keep the rate: what an outage has held up is made up for, in turns."""
        begun = now_ms()
        while not self._stopping.is_set():
            due = int((now_ms() - begun) / 1000 * self._work.jobs_per_s)
            # A queue of unanswered attempts that long says that the server is away: wait with it.
            if self.made < due and len(self._sending) < 40:
                ids, send, again = self._next()
                task = asyncio.create_task(self._insist(ids, send, again=again))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _TURN_MS / 1000)
        await asyncio.gather(*self._sending)

    def _next(self) -> tuple[list[str], Send, bool]:
        """The next order: its ids, how to send it (answers by id), and whether it is sent again when in doubt."""
        shape = self._dice.choices(
            (self._one, self._later, self._many, self._lane, self._flow), weights=(20, 8, 12, 15, 5)
        )[0]
        orders, send = shape()
        for order in orders:
            words = (order.queue, order.does, order.group or "-", order.parent or "-", order.policy)
            self._book.note("order", order.id, *words, ",".join(order.children) or "-")
        self.made += len(orders)
        # A flow that was added half-way waits for ever: whoever wants it whole adds it again until it is answered.
        again = len(orders) > 1 and bool(orders[0].children)
        return [order.id for order in orders], send, again or self._dice.random() < 0.5

    async def _insist(self, ids: Sequence[str], send: Send, *, again: bool) -> None:
        for _ in range(_TRIES):
            for id in ids:
                self._book.note("try", id)
            try:
                answers = await send()
            except EchoMQError as error:
                for id in ids:
                    self._book.note("answer", id, "unsure", type(error).__name__)
                if not again:
                    return
                await asyncio.sleep(_AGAIN_MS / 1000)
                continue
            for id, answer in zip(ids, answers, strict=True):
                self._book.note("answer", id, answer)
            return

    def _payload(self, does: str, **more: object) -> dict[str, object]:
        ms = self._dice.randint(0, 30)
        if self._dice.random() < 0.03:
            ms = self._dice.randint(300, self._work.slow_ms)
        return {"ms": ms, "does": does, **more}

    def _does(self) -> str:
        return self._dice.choices(("done", "fail_once", "delay_once", "fail", "reject"), weights=(88, 5, 4, 1, 2))[0]

    def _order(self, queue: str, **more: str) -> Order:
        does: str = self._does()
        return Order(self._mint.next(), queue, does, **more)  # type: ignore[arg-type]  # one of its words

    def _one(self) -> tuple[list[Order], Send]:
        order = self._order(self._dice.choice(_SINGLE))
        payload = self._payload(order.does)

        async def send() -> list[str]:
            return [_answer((await self._jobs.enqueue(order.queue, payload, id=order.id)).duplicate)]

        return [order], send

    def _later(self) -> tuple[list[Order], Send]:
        order = self._order(self._dice.choice(_SINGLE))
        payload, delay_ms = self._payload(order.does), self._dice.randint(0, 4_000)

        async def send() -> list[str]:
            receipt = await self._jobs.enqueue_in(order.queue, payload, delay_ms, id=order.id)
            return [_answer(receipt.duplicate)]

        return [order], send

    def _many(self) -> tuple[list[Order], Send]:
        queue = self._dice.choice((*_SINGLE, LANES))
        group = self._lanes.group_for(self._dice.choice(tuple(LIMITS))) if queue == LANES else ""
        orders = [self._order(queue, group=group) for _ in range(self._dice.randint(2, 8))]
        items = [New(self._payload(order.does), id=order.id, group=group or None) for order in orders]

        async def send() -> list[str]:
            return [_answer(receipt.duplicate) for receipt in await self._jobs.enqueue_many(queue, items)]

        return orders, send

    def _lane(self) -> tuple[list[Order], Send]:
        group = self._lanes.group_for(self._dice.choice(tuple(LIMITS)))
        order = self._order(LANES, group=group)
        payload = self._payload(order.does)

        async def send() -> list[str]:
            return [_answer((await self._lanes.enqueue(LANES, group, payload, id=order.id)).duplicate)]

        return [order], send

    def _flow(self) -> tuple[list[Order], Send]:
        """A parent with children in its own queue and in another one; now and then a child that dies."""
        root = self._mint.next()
        children: list[Order] = []
        nodes: list[Node] = []
        for _ in range(self._dice.randint(1, 4)):
            queue = self._dice.choice((FLOW, PARTS))
            does = self._dice.choices(("done", "delay_once", "reject"), weights=(90, 4, 6))[0]
            policy: Policy = self._dice.choice(("fp", "id"))
            child = Order(self._mint.next(), queue, does, parent=root, policy=policy)
            children.append(child)
            nodes.append(Node(queue, self._payload(does, child=1), id=child.id, policy=policy))
        parent = Order(root, FLOW, children=tuple(child.id for child in children))
        node = Node(FLOW, self._payload("done", parent=1), nodes, id=root)

        async def send() -> list[str]:
            added = await self._flows.add(node)
            return [_answer(not one.admitted) for one in (added, *added.children)]

        return [parent, *children], send


def _answer(duplicate: bool) -> str:  # noqa: FBT001 - a receipt's own word
    return "duplicate" if duplicate else "admitted"
