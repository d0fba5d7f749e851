"""One small adapter per peer. Runs in that peer's own virtual environment, so it imports nothing of ours.

`adapters.py worker` serves until it is killed; `adapters.py enqueue one|concurrent|bulk|paced KIND COUNT` enqueues and
prints `{"jobs", "seconds"}`. By environment: PEER, PEER_URL, PEER_CONCURRENCY, PEER_JOBS (the run after which the
second mark is written) and PEER_MARKS (the file that handlers write to). Payloads are a dict of 64 bytes as JSON,
serialised as each peer does by default. Settings are the peer's own unless a line here says otherwise.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

Handler = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]

NAME = os.environ.get("PEER", "")
URL = os.environ.get("PEER_URL", "")
CONCURRENCY = int(os.environ.get("PEER_CONCURRENCY", "10"))
JOBS = int(os.environ.get("PEER_JOBS", "0"))
COROUTINES = 100
_MARKS = os.open(os.environ.get("PEER_MARKS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_RUNS = itertools.count(1)


def mark(*words: object) -> None:
    """Append one line to the marks."""
    os.write(_MARKS, (" ".join(map(str, words)) + "\n").encode())


async def noop(payload: dict[str, Any]) -> None:
    """Mark the first and the last run."""
    run = next(_RUNS)
    if run in {1, JOBS}:
        mark("run", run, time.time())


async def stamp(payload: dict[str, Any]) -> None:
    """Mark when it was sent and when it is here."""
    mark("stamp", payload["t"], time.time())


async def sleep(payload: dict[str, Any]) -> None:
    """Mark begin and end of a tenth of a second."""
    mark("begin", payload["i"], time.time())
    await asyncio.sleep(0.1)
    mark("end", payload["i"], time.time())


HANDLERS: dict[str, Handler] = {"noop": noop, "stamp": stamp, "sleep": sleep}


def payload_of(number: int) -> dict[str, Any]:
    """64 bytes as JSON, with the time of its making."""
    made: dict[str, Any] = {"i": number, "t": round(time.time(), 6), "p": ""}
    made["p"] = "x" * max(0, 64 - len(json.dumps(made, separators=(",", ":"))))
    return made


class Peer:
    """What an adapter does: one job, many jobs by the peer's own means, and a worker."""

    chunk = COROUTINES

    async def open(self) -> None:
        """Connect."""

    async def one(self, kind: str, payload: dict[str, Any]) -> None:
        """Enqueue one job."""
        raise NotImplementedError

    async def many(self, kind: str, payloads: list[dict[str, Any]]) -> None:
        """Enqueue `chunk` jobs; where the peer has no call for it, as many calls at a time."""
        await asyncio.gather(*(self.one(kind, payload) for payload in payloads))

    def work(self) -> None:
        """Serve until killed."""
        raise NotImplementedError


class Arq(Peer):
    def __init__(self) -> None:
        from arq.connections import RedisSettings

        self.settings = RedisSettings.from_dsn(URL)

    async def open(self) -> None:
        from arq import create_pool

        self.pool = await create_pool(self.settings)

    async def one(self, kind: str, payload: dict[str, Any]) -> None:
        await self.pool.enqueue_job(kind, payload)

    def work(self) -> None:
        from arq.worker import Worker, func

        functions = [func(_after_context(handler), name=kind) for kind, handler in HANDLERS.items()]
        asyncio.set_event_loop(asyncio.new_event_loop())
        Worker(functions=functions, redis_settings=self.settings, max_jobs=CONCURRENCY).run()


class Saq(Peer):
    async def open(self) -> None:
        from saq import Queue

        self.queue = Queue.from_url(URL)
        await self.queue.connect()

    async def one(self, kind: str, payload: dict[str, Any]) -> None:
        await self.queue.enqueue(kind, payload=payload)

    def work(self) -> None:
        from saq import Worker

        async def serve() -> None:
            await self.open()
            functions = [(kind, _after_context(handler)) for kind, handler in HANDLERS.items()]
            await Worker(self.queue, functions=functions, concurrency=CONCURRENCY).start()

        asyncio.run(serve())


class Streaq(Peer):
    chunk = 500

    def __init__(self) -> None:
        from streaq import Worker

        self.worker = Worker(redis_url=URL, concurrency=CONCURRENCY)
        self.tasks = {kind: self.worker.task()(handler) for kind, handler in HANDLERS.items()}

    async def open(self) -> None:
        await self.worker.__aenter__()

    async def one(self, kind: str, payload: dict[str, Any]) -> None:
        await self.tasks[kind].enqueue(payload)

    async def many(self, kind: str, payloads: list[dict[str, Any]]) -> None:
        await self.worker.enqueue_many([self.tasks[kind].enqueue(payload) for payload in payloads])

    def work(self) -> None:
        self.worker.run_sync()


class Taskiq(Peer):
    def __init__(self) -> None:
        from taskiq_redis import RedisStreamBroker

        self.broker = RedisStreamBroker(URL)
        self.tasks = {kind: self.broker.task(task_name=kind)(handler) for kind, handler in HANDLERS.items()}

    async def open(self) -> None:
        await self.broker.startup()

    async def one(self, kind: str, payload: dict[str, Any]) -> None:
        await self.tasks[kind].kiq(payload)


class Dramatiq(Peer):
    chunk = 1

    def __init__(self) -> None:
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker
        from dramatiq.middleware import AsyncIO

        self.broker = RedisBroker(url=URL)
        self.broker.add_middleware(AsyncIO())
        dramatiq.set_broker(self.broker)
        self.actors = {kind: dramatiq.actor(handler) for kind, handler in HANDLERS.items()}

    async def one(self, kind: str, payload: dict[str, Any]) -> None:
        self.actors[kind].send(payload)


class Celery(Peer):
    def __init__(self) -> None:
        from celery import Celery as App

        self.app = App("peers", broker=URL)
        # Its workers run plain functions.
        plain = {kind: _plain(handler) for kind, handler in HANDLERS.items()}
        self.tasks = {kind: self.app.task(name=kind)(function) for kind, function in plain.items()}

    async def one(self, kind: str, payload: dict[str, Any]) -> None:
        self.tasks[kind].delay(payload)

    async def many(self, kind: str, payloads: list[dict[str, Any]]) -> None:
        from celery import group

        group(self.tasks[kind].s(payload) for payload in payloads).apply_async()


class Ardiq(Peer):
    chunk = 500

    def __init__(self) -> None:
        from ardiq import Ardiq as App

        self.app = App(redis_url=URL, concurrency=CONCURRENCY)
        self.tasks = {kind: self.app.task()(handler) for kind, handler in HANDLERS.items()}

    async def one(self, kind: str, payload: dict[str, Any]) -> None:
        await self.tasks[kind].enqueue(payload)

    async def many(self, kind: str, payloads: list[dict[str, Any]]) -> None:
        await self.app.enqueue_many([self.tasks[kind].prepare(payload) for payload in payloads])

    def work(self) -> None:
        asyncio.run(self.app.run())


class Bullmq(Peer):
    chunk = 500

    async def open(self) -> None:
        from bullmq import Queue

        self.queue = Queue("bench", {"connection": URL})

    async def one(self, kind: str, payload: dict[str, Any]) -> None:
        await self.queue.add(kind, payload)

    async def many(self, kind: str, payloads: list[dict[str, Any]]) -> None:
        await self.queue.addBulk([{"name": kind, "data": payload} for payload in payloads])

    def work(self) -> None:
        from bullmq import Worker

        async def handle(job: Any, _token: str) -> None:
            await HANDLERS[job.name](job.data)

        async def serve() -> None:
            _worker = Worker("bench", handle, {"connection": URL, "concurrency": CONCURRENCY})
            await asyncio.Event().wait()

        asyncio.run(serve())


class Repid(Peer):
    def __init__(self) -> None:
        from repid import RedisServer, Router
        from repid import Repid as App

        self.app = App(title="bench", version="1")
        server = RedisServer(URL, batch_size=min(CONCURRENCY, 100))
        self.app.servers.register_server("default", server, is_default=True)
        router = Router()
        for handler in HANDLERS.values():
            router.actor(handler)
        self.app.include_router(router)

    async def open(self) -> None:
        await self.app.servers.default.connect()

    async def one(self, kind: str, payload: dict[str, Any]) -> None:
        await self.app.send_message_json(channel="default", payload={"payload": payload}, headers={"topic": kind})

    def work(self) -> None:
        async def serve() -> None:
            async with self.app.servers.default.connection():
                await self.app.run_worker(tasks_limit=CONCURRENCY)

        asyncio.run(serve())


def _after_context(
    handler: Handler,
) -> Callable[..., Coroutine[Any, Any, None]]:
    async def function(_context: Any, payload: dict[str, Any]) -> None:
        await handler(payload)

    function.__name__ = function.__qualname__ = handler.__name__
    return function


def _plain(handler: Handler) -> Callable[[dict[str, Any]], None]:
    def function(payload: dict[str, Any]) -> None:
        asyncio.run(handler(payload))

    def quick(payload: dict[str, Any]) -> None:
        run = next(_RUNS)
        if run in {1, JOBS}:
            mark("run", run, time.time())

    return quick if handler is noop else function


ADAPTERS: dict[str, type[Peer]] = {
    "arq": Arq,
    "saq": Saq,
    "streaq": Streaq,
    "taskiq": Taskiq,
    "dramatiq": Dramatiq,
    "celery": Celery,
    "ardiq": Ardiq,
    "bullmq": Bullmq,
    "repid": Repid,
}
peer: Peer = ADAPTERS[NAME]() if NAME in ADAPTERS else Peer()
# What the command lines of taskiq and celery are told to load.
broker = getattr(peer, "broker", None)
app = getattr(peer, "app", None)


async def enqueue(way: str, kind: str, count: int) -> None:
    """Enqueue and print how long it took; `paced` sends one every 50 ms."""
    await peer.open()
    payloads = [payload_of(number) for number in range(count)]
    if way == "paced":
        await peer.one("noop", payload_of(0))
    started = time.perf_counter()
    if way == "one":
        for payload in payloads:
            await peer.one(kind, payload)
    elif way == "concurrent":
        for at in range(0, count, COROUTINES):
            await asyncio.gather(*(peer.one(kind, payload) for payload in payloads[at : at + COROUTINES]))
    elif way == "bulk":
        for at in range(0, count, peer.chunk):
            await peer.many(kind, payloads[at : at + peer.chunk])
    else:
        for number in range(count):
            await asyncio.sleep(0.05)
            await peer.one(kind, payload_of(number))
    print(json.dumps({"jobs": count, "seconds": time.perf_counter() - started}), flush=True)
    # Some of them keep threads that never end.
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        peer.work()
    else:
        asyncio.run(enqueue(sys.argv[2], sys.argv[3], int(sys.argv[4])))
