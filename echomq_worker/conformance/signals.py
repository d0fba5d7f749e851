"""What is told while it happens: events on the queue's channel, observers in the process, requests to cancel.

Source: protocol section 4 (progress and other events), issue "Every control" (Events, Observers, the worker in hand).
"""

from __future__ import annotations

import asyncio
from typing import Any

from echomq_worker.cancel import Cancel
from echomq_worker.conformance.bench import Bench, row, without
from echomq_worker.conformance.checks import comes, holds, same, until
from echomq_worker.conformance.hands import Hands, done, failed
from echomq_worker.conformance.hearing import hearing
from echomq_worker.conformance.working import taken_by, working
from echomq_worker.events import Event, Events, Stream
from echomq_worker.job import Job
from echomq_worker.observers import Completed, Dead, Failed, Observed, Retried, Started
from echomq_worker.script import evaluate
from echomq_worker.worker import Worker


async def events(bench: Bench) -> None:
    """A worker publishes an event behind each verdict, a JSON object on the queue's channel, unless told not to."""
    q, worker = bench.queue(), Worker()
    rows: dict[str, Any] = {}

    @worker.handler(q.name, max_attempts=2)
    async def work(job: Job) -> None:
        taken_by(q, job)
        if job.payload == b"fails":
            raise ValueError("broke")

    async with hearing(bench, q.keys.events) as heard:
        async with working(bench, worker):
            good, bad = await q.add(b"works"), await q.add(b"fails")
            told = []
            for _ in range(3):
                event = await heard.next()
                told.append(event)
                rows[f"{event['job']} {event['event']}"] = await q.read(f"job:{event['job']}")
            await heard.nothing()
        kinds = sorted((event["job"], event["event"]) for event in told)
        same(kinds, sorted([(good, "completed"), (bad, "scheduled"), (bad, "dead")]), "the events, one for a verdict")
        holds(all(isinstance(word, str) for event in told for word in event.values()), "every value is a JSON string")
        same(rows[f"{good} completed"], None, "the row of a completed job, when its event has come")
        same(rows[f"{bad} dead"]["state"], "dead", "the row of a dead one")
        async with working(bench, worker, events=False):
            await q.add(b"works")

            async def two() -> bool:
                return bool((await q.read("metrics:completed") or {}).get("count") == "2")

            await until(two, "the completion of another job, without events")
        await heard.nothing()


async def resubscribe(bench: Bench) -> None:
    """A stream of events whose connection is cut subscribes again, and says that it may have missed some."""
    q = bench.queue()
    id = await q.add()
    async with bench.connector() as connector, Events(connector).subscribe(q.name) as stream:
        await q.jobs.update_progress(q.name, id, "before")
        same(await _next(stream), Event(q.name, "progress", id, {"progress": "before"}), "an event")
        same(stream.gaps, 0, "gaps")
        before = await _listeners(bench, q.keys.events)
        same(before, 1, "connections that hear the channel")
        clients = (await _asked(bench, q.keys.events, "CLIENT", "LIST", "TYPE", "pubsub")).decode().splitlines()
        name = f"name={bench.tag}:events"
        ids = [line.split()[0].removeprefix("id=") for line in clients if name in line.split()]
        same(len(ids), 1, "connections of that name")
        waits = asyncio.create_task(_next(stream))
        await _asked(bench, q.keys.events, "CLIENT", "KILL", "ID", ids[0])

        async def again() -> bool:
            return stream.gaps == 1 and await _listeners(bench, q.keys.events) == 1

        await until(again, "the stream's next connection")
        await q.jobs.update_progress(q.name, id, "after")
        same(await waits, Event(q.name, "progress", id, {"progress": "after"}), "an event on the next connection")


async def telemetry(bench: Bench) -> None:
    """Observers of a worker are told each start and each verdict of a job once, in order, as typed values."""
    q, worker = bench.queue(), Worker()
    told: list[Observed] = []
    worker.observe(told.append)

    @worker.handler(q.name, max_attempts=2)
    async def work(job: Job) -> None:
        taken_by(q, job)
        if job.payload == b"fails":
            raise ValueError("broke")

    async with working(bench, worker):
        good, bad = await q.add(b"works"), await q.add(b"fails")

        async def over() -> bool:
            return any(isinstance(one, Dead) for one in told)

        await until(over, "the end of both jobs")
    of_good = [one for one in told if getattr(one, "id", "") == good]
    same([type(one) for one in of_good], [Started, Completed], "what is told of a job that works")
    of_bad = [one for one in told if getattr(one, "id", "") == bad]
    same([type(one) for one in of_bad], [Started, Failed, Retried, Started, Failed, Dead], "of one that fails twice")
    said = [(one.attempt, one.failures, one.error) for one in of_bad if isinstance(one, Failed)]
    same(said, [(1, 1, "ValueError: broke"), (2, 2, "ValueError: broke")], "attempt, failures, error")
    same({getattr(one, "queue", None) for one in (*of_good, *of_bad)}, {q.name}, "the queue that they name")


async def cancel(bench: Bench) -> None:
    """A request removes a job that waits and asks one in hand, which then dies of it instead of being retried."""
    q, request, hands = bench.queue(), Cancel(bench.wire).request, Hands(bench.queue())
    for id in (await q.add(), await q.add_to_lane(), (await q.jobs.enqueue_in(q.name, b"x", 60_000)).id):
        same(await request(q.name, id, "not needed"), "removed", "of a job that waits")
        same(await request(q.name, id, "not needed"), "gone", "of the same again")
    same(await q.state(), {}, "the keys that are left")
    await q.add()
    await q.add()
    held, other = (await hands.claim()).jobs
    async with hearing(bench, q.keys.cancel) as heard:
        for job in (held, other):
            same(await request(q.name, job.id, "not needed"), "asked", "of a job in hand")
            same(await heard.next(), {"id": job.id, "reason": "not needed"}, "the message on the cancel channel")
    same((await q.read(f"job:{held.id}"))["cancel"], "not needed", "the request on its row")
    same(await hands.keep(held), {held.id: "cancel:not needed"}, "who missed it is told with the next extension")
    same(await hands.settle(failed(held), done(other)), ["dead", "done"], "a failure is its end, a completion counts")
    died = row("dead", 1, failures=1, cancel="not needed", last_error="cancelled: not needed", settled="1:dead")
    expected = {
        f"job:{held.id}": died,
        "dead": {held.id: 0.0},
        "metrics:failed": {"count": "1"},
        "metrics:completed": {"count": "1"},
    }
    same(await q.state(), expected, "the queue: no retry")
    same(await request(q.name, held.id, "again"), "ended", "of a job that is dead")
    await q.add()
    (crashed,) = (await hands.claim()).jobs
    await request(q.name, crashed.id, "too late")
    await q.lose_lease(crashed.id)
    await evaluate(q.wire, "reap", (q.keys.active, q.keys.pending), (q.keys.base,))
    claim = await hands.claim()
    same((claim.ids, claim.buried), ([], {crashed.id: "cancelled: too late"}), "a claim of one whose worker is gone")
    same(set(without(await q.state(), *expected)), {f"job:{crashed.id}"}, "its row is left, in the dead set")


async def _next(stream: Stream) -> Event:
    return await comes(anext(stream), "an event of the stream")


async def _asked(bench: Bench, channel: str, *command: str) -> Any:
    """The reply of the server that tells of a channel: in a cluster a command without a key goes along with another."""
    _, reply = await bench.wire.pipeline([("PUBSUB", "NUMSUB", channel), command])
    return reply


async def _listeners(bench: Bench, channel: str) -> int:
    return int((await bench.wire.call("PUBSUB", "NUMSUB", channel))[1])


SCENARIOS = (resubscribe, events, telemetry, cancel)
