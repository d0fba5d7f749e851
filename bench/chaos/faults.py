"""Faults of the plan, done: each waits for its moment, happens, is undone, and is noted with the times that it took.

One fault at a time happens to the server, and one that lasts to the connections of one target: what is planned closer
together waits its turn. A fault that found nothing to happen to (a worker that was just starting, a command that did
not come) is counted as missed and explains nothing.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import redis

from bench.chaos.evidence import Happened
from bench.chaos.fleet import Kept, Place
from bench.chaos.notes import Book, now_ms
from bench.chaos.plan import ANSWERS, PRODUCERS, Fault, scope_of
from echomq_worker.script import scripts
from echomq_worker.twins import TWINS
from tests.support.proxy import Proxy, Rule, Then
from tests.support.valkey import ValkeyServer

# How long a rule of a proxy waits for its command.
_PATIENCE_S = 8.0
_LOOK_S = 0.05
_FLAT = {"BLPOP": b"BLPOP"}

Act = Callable[[Fault], Awaitable[Happened | None]]


class Faults:
    """Carries out a plan. `happened` is what took place, `missed` counts by kind what did not."""

    def __init__(
        self,
        server: ValkeyServer,
        workers: Sequence[Kept],
        producers: Proxy,
        *,
        place: Place,
        book: Book,
        twins: bool = False,
    ) -> None:
        """`twins`: workers and producers call commands in place of scripts where there are any."""
        self.happened: list[Happened] = []
        self.missed: Counter[str] = Counter()
        self._server = server
        self._workers = workers
        self._producers = producers
        self._place = place
        self._book = book
        self._twins = twins
        self._turn: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._acts: dict[str, Act] = {
            "kill": self._kill,
            "deploy": self._deploy,
            "freeze_short": self._freeze,
            "freeze_long": self._freeze,
            "clock_step": self._step,
            "delay": self._delay,
            "blackhole": self._blackhole,
            "refuse": self._refuse,
            "reset": self._reset,
            "close": self._close,
            "cut": self._cut,
            "lose_reply": self._lose,
            "lose_reply_hang": self._lose,
            **dict.fromkeys(ANSWERS, self._answer),
            "server_restart": self._restart,
            "server_kill": self._server_kill,
            "server_freeze": self._server_freeze,
            "server_forget": self._restart,
            "script_flush": self._flush,
            "client_kill_normal": self._client_kill,
            "client_kill_pubsub": self._client_kill,
            "client_pause": self._client_pause,
        }

    async def run(self, plan: Sequence[Fault]) -> None:
        """Carry out the whole plan from now on; returns when the last fault is over."""
        begun = now_ms()
        async with asyncio.TaskGroup() as group:
            for fault in plan:
                await asyncio.sleep(max(0.0, begun + fault.at_ms - now_ms()) / 1000)
                group.create_task(self._one(fault))

    async def _one(self, fault: Fault) -> None:
        if scope_of(fault.kind) == "server":
            async with self._turn["server"]:
                happened = await self._acts[fault.kind](fault)
        else:
            happened = await self._acts[fault.kind](fault)
        if happened is None:
            self.missed[fault.kind] += 1
            return
        self.happened.append(happened)
        self._book.note("fault", str(happened))

    # ------------------------------------------------------------------------------------------- processes

    def _worker(self, fault: Fault) -> Kept | None:
        worker = self._workers[int(fault.target)]
        return worker if worker.running else None

    def _some_pid(self, worker: Kept, fault: Fault) -> tuple[int | None, frozenset[int] | None]:
        """Which process: of a worker of several now and then its supervisor (None: all of them are in it)."""
        pids = worker.pids()
        if worker.role.processes == 1 or not pids or fault.pick < 0.3:
            return None, None
        pid = pids[int(fault.pick * 1_000) % len(pids)]
        return pid, frozenset({pid})

    async def _kill(self, fault: Fault) -> Happened | None:
        if (worker := self._worker(fault)) is None:
            return None
        pid, pids = self._some_pid(worker, fault)
        worker.fated = worker.fated or pid is None
        at = now_ms()
        worker.send(signal.SIGKILL, pid)
        return Happened("kill", fault.target, at, at, pids, "the supervisor" if worker.role.processes > 1 else "")

    async def _deploy(self, fault: Fault) -> Happened | None:
        if (worker := self._worker(fault)) is None:
            return None
        at, pids = now_ms(), frozenset(worker.pids())
        worker.terminate()
        await worker.ended()
        return Happened("deploy", fault.target, at, now_ms(), pids or None)

    async def _freeze(self, fault: Fault) -> Happened | None:
        if (worker := self._worker(fault)) is None or not (pids := worker.pids()):
            return None
        pid = pids[int(fault.pick * 1_000) % len(pids)]
        at = now_ms()
        worker.send(signal.SIGSTOP, pid)
        try:
            await asyncio.sleep(fault.for_ms / 1000)
        finally:
            worker.send(signal.SIGCONT, pid)
        return Happened(fault.kind, fault.target, at, now_ms(), frozenset({pid}))

    async def _step(self, fault: Fault) -> Happened | None:
        at = now_ms()
        path = self._place.clock(fault.target)
        step = path.with_suffix(".new")
        # Never half-written for who reads it.
        step.write_text(str(fault.amount))
        step.replace(path)
        return Happened("clock_step", fault.target, at, at, detail=f"{fault.amount} ms off")

    # ------------------------------------------------------------------------------------------ connections

    def _proxy(self, fault: Fault) -> Proxy:
        return self._producers if fault.target == PRODUCERS else self._workers[int(fault.target)].proxy

    async def _lasting(
        self, fault: Fault, begin: Callable[[Proxy], None], end: Callable[[Proxy], None], detail: str = ""
    ) -> Happened:
        proxy = self._proxy(fault)
        async with self._turn[f"link {fault.target}"]:
            at = now_ms()
            begin(proxy)
            try:
                await asyncio.sleep(fault.for_ms / 1000)
            finally:
                end(proxy)
        return Happened(fault.kind, fault.target, at, now_ms(), detail=detail)

    async def _delay(self, fault: Fault) -> Happened:
        return await self._lasting(
            fault,
            lambda proxy: proxy.delay(fault.amount),
            lambda proxy: proxy.delay(0),
            f"{fault.amount} ms a reply",
        )

    async def _blackhole(self, fault: Fault) -> Happened:
        return await self._lasting(fault, Proxy.stall, Proxy.flow)

    async def _refuse(self, fault: Fault) -> Happened:
        proxy = self._proxy(fault)
        async with self._turn[f"link {fault.target}"]:
            at = now_ms()
            await proxy.refuse()
            proxy.reset()
            try:
                await asyncio.sleep(fault.for_ms / 1000)
            finally:
                await proxy.accept()
        return Happened(fault.kind, fault.target, at, now_ms())

    async def _reset(self, fault: Fault) -> Happened:
        at = now_ms()
        self._proxy(fault).reset()
        return Happened("reset", fault.target, at, at)

    async def _close(self, fault: Fault) -> Happened:
        at = now_ms()
        self._proxy(fault).close_all()
        return Happened("close", fault.target, at, at)

    async def _cut(self, fault: Fault) -> Happened | None:
        proxy, at = self._proxy(fault), now_ms()
        proxy.cut_after(fault.amount)
        if await self._came(lambda: proxy.reply_budget is None):
            return Happened("cut", fault.target, at, now_ms(), detail=f"after {fault.amount} bytes")
        proxy.reply_budget = None
        return None

    async def _lose(self, fault: Fault) -> Happened | None:
        then: Then = "hang" if fault.kind == "lose_reply_hang" else "reset"
        rule = self._proxy(fault).swallow_reply(self._pattern(fault), fault.nth, then=then)
        return await self._ruled(fault, rule)

    async def _answer(self, fault: Fault) -> Happened | None:
        line = ANSWERS[fault.kind]
        return await self._ruled(fault, self._proxy(fault).answer(line, self._pattern(fault), fault.nth))

    async def _ruled(self, fault: Fault, rule: Rule) -> Happened | None:
        came = await self._came(lambda: rule.done)
        self._proxy(fault).rules.remove(rule)
        # The moment at which it was seen, and a look before.
        return (
            Happened(fault.kind, fault.target, now_ms() - 2 * _LOOK_S * 1000, now_ms(), detail=fault.script)
            if came
            else None
        )

    @staticmethod
    async def _came(happened: Callable[[], bool]) -> bool:
        until = now_ms() + _PATIENCE_S * 1000
        while not happened():
            if now_ms() > until:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    # ----------------------------------------------------------------------------------------------- server

    async def _restart(self, fault: Fault) -> Happened:
        at = now_ms()
        await asyncio.to_thread(self._server.restart)
        return Happened(fault.kind, fault.target, at, now_ms())

    async def _server_kill(self, fault: Fault) -> Happened:
        at = now_ms()
        await asyncio.to_thread(self._server.kill)
        try:
            await asyncio.sleep(fault.for_ms / 1000)
        finally:
            await asyncio.to_thread(self._server.start)
        return Happened("server_kill", fault.target, at, now_ms())

    async def _server_freeze(self, fault: Fault) -> Happened:
        at = now_ms()
        self._server.pause()
        try:
            await asyncio.sleep(fault.for_ms / 1000)
        finally:
            self._server.resume()
        return Happened("server_freeze", fault.target, at, now_ms())

    async def _flush(self, fault: Fault) -> Happened | None:
        return await self._asked(fault, 0, "SCRIPT", "FLUSH")

    async def _client_kill(self, fault: Fault) -> Happened | None:
        return await self._asked(fault, 0, "CLIENT", "KILL", "TYPE", fault.kind.removeprefix("client_kill_"))

    async def _client_pause(self, fault: Fault) -> Happened | None:
        return await self._asked(fault, fault.for_ms, "CLIENT", "PAUSE", fault.for_ms, "ALL")

    def _pattern(self, fault: Fault) -> bytes:
        if self._twins and fault.script in TWINS:
            # With what ends it: EMQ.CLAIM is not EMQ.CLAIM.MANY.
            return f"{TWINS[fault.script]}\r\n".encode()
        return _FLAT.get(fault.script) or scripts()[fault.script].sha.encode()

    async def _asked(self, fault: Fault, for_ms: int, *command: str | int) -> Happened | None:
        at = now_ms()
        with suppress(redis.RedisError):
            await asyncio.to_thread(self._server.admin.execute_command, *command)
            await asyncio.sleep(for_ms / 1000)
            return Happened(fault.kind, fault.target, at, now_ms())
        return None
