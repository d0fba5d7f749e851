"""Tracing: a span for each run, linked to that of the producer; nothing of a payload; nothing at all while it is off.

Source: issue "Made for the people who run it" (OpenTelemetry), decision 0040.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from pydantic import BaseModel
from redis.asyncio import Redis

from echomq_worker import Delay, Flows, Job, Jobs, Node, Reject, Retry, Worker, connect
from echomq_worker.connector import Connector
from echomq_worker.identity import group_for
from echomq_worker.tracing import instrument, traced
from tests.support.running import running
from tests.support.stations import Lines
from tests.support.telemetry import Kept, text_of

SECRET = "hunter2-in-a-payload"


class Email(BaseModel):
    """What a payload is not."""

    to: int


async def burst(worker: Worker, url: str, **changes: Any) -> None:
    """Run the worker until nothing is left."""
    async with running(worker, url, options={"burst": True}, **changes) as run:
        await run.task


def linked(span: ReadableSpan) -> list[int]:
    """The spans that one is linked to."""
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    """A span's own."""
    assert span.context is not None
    return int(span.context.span_id)


async def test_a_run_is_a_span_linked_to_that_of_its_producer(url: str, raw: Redis) -> None:
    """In a trace of its own, and current in the handler: what the handler does is below it."""
    kept, worker = Kept(), Worker()

    @worker.handler("emails")
    async def send(job: Job) -> None:
        with kept.tracers.get_tracer("theirs").start_as_current_span("smtp"):
            await asyncio.sleep(0)

    async with connect(url) as connector:
        with kept.tracers.get_tracer("theirs").start_as_current_span("request"):
            receipt = await Jobs(traced(connector, **kept.providers)).enqueue("emails", {"to": SECRET})
        row: Any = await raw.hgetall(f"emq:{{emails}}:job:{receipt.id}")
    await burst(instrument(worker, **kept.providers), url)

    (sent,), (run,) = kept.spans("enqueue emails"), kept.spans("process emails")
    (request,), (smtp,) = kept.spans("request"), kept.spans("smtp")
    assert json.loads(row[b"trace"]).keys() == {"traceparent"}
    assert sent.parent is not None
    assert sent.parent.span_id == id_of(request)
    assert linked(run) == [id_of(sent)]
    assert run.parent is None
    assert smtp.parent is not None
    assert smtp.parent.span_id == id_of(run)
    assert (sent.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert run.status.status_code is StatusCode.UNSET
    assert dict(run.attributes or {}) == {
        "messaging.system": "echomq",
        "messaging.destination.name": "emails",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": receipt.id,
        "echomq.attempt": 1,
        "echomq.failures": 0,
        "echomq.outcome": "completed",
    }
    assert SECRET not in text_of(kept.spans())


async def test_each_run_of_a_retried_job_is_a_span_of_its_own(url: str) -> None:
    """Linked to the same producer; failed ones say what the row says, and where, but not what caused it."""
    kept, worker = Kept(), Worker()

    @worker.handler("q", max_attempts=3)
    async def handler(job: Job) -> None:
        if job.attempts == 3:
            raise Delay(0)
        if job.attempts < 3:
            try:
                int(SECRET)
            except ValueError as cause:
                raise LookupError(f"no luck {job.attempts}") from cause
        raise Reject("never")

    async with connect(url) as connector:
        await Jobs(traced(connector, **kept.providers)).enqueue("q", b"x")
    await burst(instrument(worker, **kept.providers), url)

    (sent,), runs = kept.spans("enqueue q"), kept.spans("process q")
    assert [linked(run) for run in runs] == [[id_of(sent)]] * 4
    assert len({run.context.trace_id for run in runs if run.context is not None}) == 4
    outcomes = [(run.attributes or {})["echomq.outcome"] for run in runs]
    assert outcomes == ["retried", "retried", "delayed", "dead"]
    assert [run.status.status_code for run in runs] == [StatusCode.ERROR] * 2 + [StatusCode.UNSET, StatusCode.ERROR]
    assert [run.status.description for run in runs if run.events] == [
        "LookupError: no luck 1",
        "LookupError: no luck 2",
        "never",
    ]
    (event,) = runs[0].events
    said = dict(event.attributes or {})
    assert (event.name, said["exception.type"]) == ("exception", "LookupError")
    assert "in handler" in str(said["exception.stacktrace"])
    assert SECRET not in text_of(runs)


async def test_a_payload_that_cannot_be_read_is_not_told(url: str) -> None:
    """The span says which field is wrong, as the row does."""
    kept, worker = Kept(), Worker()

    @worker.handler("q")
    async def handler(_job: Job, email: Email) -> None:
        raise AssertionError(email)

    async with connect(url) as connector:
        await Jobs(connector).enqueue("q", {"to": SECRET})
    await burst(instrument(worker, **kept.providers), url)

    (run,) = kept.spans()
    assert (run.status.status_code, linked(run)) == (StatusCode.ERROR, [])
    assert "to" in str(run.status.description)
    assert SECRET not in text_of([run])


async def test_plain_functions_and_decorated_ones_have_the_span_in_their_thread(url: str) -> None:
    """The context goes into the thread, one for each job, many at a time."""
    kept, worker, seen = Kept(), Worker(), dict[str, int]()

    @worker.handler("q", concurrency=8)
    def handler(job: Job) -> None:
        seen[job.id] = trace.get_current_span().get_span_context().span_id

    async with connect(url) as connector:
        await Jobs(traced(connector, **kept.providers)).enqueue_many("q", [b"x"] * 40)
    await burst(instrument(worker, **kept.providers), url)

    runs = kept.spans("process q")
    assert {(run.attributes or {})["messaging.message.id"]: id_of(run) for run in runs} == seen
    assert len(seen) == 40
    (sent,) = kept.spans("enqueue q")
    assert (sent.attributes or {})["messaging.batch.message_count"] == 40
    assert {span for run in runs for span in linked(run)} == {id_of(sent)}


async def test_a_variable_that_a_handler_leaves_does_not_mix_up_spans(url: str) -> None:
    """From then on handlers run in a copy of the context as it was: each still with the span of its own job."""
    kept, worker, seen = Kept(), Worker(), dict[str, int]()
    variable: ContextVar[str] = ContextVar("variable")

    @worker.handler("q", concurrency=2)
    async def handler(job: Job) -> None:
        variable.set(job.id)
        await asyncio.sleep(0)
        seen[job.id] = trace.get_current_span().get_span_context().span_id

    async with connect(url) as connector:
        await Jobs(connector).enqueue_many("q", [b"x"] * 20)
    await burst(instrument(worker, **kept.providers), url)

    assert {(run.attributes or {})["messaging.message.id"]: id_of(run) for run in kept.spans("process q")} == seen


async def test_a_batch_has_a_span_and_each_of_its_jobs_has_one_below(url: str) -> None:
    """The handler sees that of the call; the jobs' end as the handler answered for each, linked to their producers."""
    kept, worker, seen = Kept(), Worker(), list[int]()

    @worker.batch_handler("q", min_size=3, timeout_ms=50, max_attempts=1)
    async def handler(jobs: list[Job]) -> dict[str, Any]:
        seen.append(trace.get_current_span().get_span_context().span_id)
        return {job.id: Retry(reason="later") if job.payload == b"1" else None for job in jobs}

    async with connect(url) as connector:
        wire = traced(connector, **kept.providers)
        receipts = [await Jobs(wire).enqueue("q", b"%d" % number) for number in range(3)]
    await burst(instrument(worker, **kept.providers), url)

    (call,), runs = kept.spans("batch q"), kept.spans("process q")
    assert seen == [id_of(call)]
    assert (call.attributes or {})["messaging.batch.message_count"] == 3
    assert {run.parent.span_id for run in runs if run.parent is not None} == {id_of(call)}
    sent = [id_of(span) for span in kept.spans("enqueue q")]
    by_job = {(run.attributes or {})["messaging.message.id"]: run for run in runs}
    assert [linked(by_job[receipt.id]) for receipt in receipts] == [[one] for one in sent]
    assert [(by_job[one.id].attributes or {})["echomq.outcome"] for one in receipts] == [
        "completed",
        "dead",
        "completed",
    ]


async def test_every_job_of_a_flow_is_linked_to_who_added_it(url: str) -> None:
    """Over queues and levels: a span of the producer for each queue of a level."""
    kept, worker = Kept(), Worker()

    async def handler(_job: Job) -> None:
        await asyncio.sleep(0)

    for queue in ("top", "kids"):
        worker.handler(queue)(handler)
    async with connect(url) as connector:
        below = [Node("kids", b"1", group=group_for("t")), Node("top", b"2", [Node("kids", b"3")])]
        await Flows(traced(connector, **kept.providers)).add(Node("top", b"0", below))
    await burst(instrument(worker, **kept.providers), url)

    sent = {id_of(span) for span in kept.spans() if span.name.startswith("enqueue")}
    runs = [span for span in kept.spans() if span.name.startswith("process")]
    assert len(runs) == 4
    assert all(len(linked(run)) == 1 and linked(run)[0] in sent for run in runs)


async def test_a_job_without_a_span_does_not_run_in_that_of_another(url: str) -> None:
    """In the same slot, after a job that had one: its own could not be made."""
    worker, seen = Worker(), list[bool]()

    class Once(TraceIdRatioBased):
        made = 0

        def should_sample(self, *args: Any, **kwargs: Any) -> Any:
            self.made += 1
            if self.made > 1:
                raise RuntimeError("broken sampler")
            return super().should_sample(*args, **kwargs)

    kept = Kept(sampler=Once(1.0))

    @worker.handler("q", concurrency=1)
    async def handler(_job: Job) -> None:
        seen.append(trace.get_current_span().get_span_context().is_valid)

    async with connect(url) as connector:
        await Jobs(connector).enqueue_many("q", [b"x", b"y"])
    await burst(instrument(worker, **kept.providers), url)

    assert seen == [True, False]


async def test_what_waits_to_be_exported_is_at_the_end_of_a_run(url: str) -> None:
    """A process may be gone right after: the provider is asked for it, and need not be given to the worker again."""
    worker, exporter = Worker(), InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))

    @worker.handler("q")
    async def handler(_job: Job) -> None:
        await asyncio.sleep(0)

    async with connect(url) as connector:
        await Jobs(connector).enqueue("q", b"x")
    await burst(instrument(worker, tracer_provider=provider), url)

    assert [span.name for span in exporter.get_finished_spans()] == ["process q"]
    provider.shutdown()


async def test_the_instruments_agree_with_what_was_done(url: str) -> None:
    """Sent and begun by queue, ended by outcome, a wait for each."""
    kept, worker = Kept(), Worker()

    @worker.handler("q", max_attempts=1)
    async def handler(job: Job) -> None:
        if job.payload == b"bad":
            raise ValueError("no")

    async with connect(url) as connector:
        await Jobs(traced(connector, **kept.providers)).enqueue_many("q", [b"good"] * 5 + [b"bad"] * 2)
    await burst(instrument(worker, **kept.providers), url)

    assert [count for _, count in kept.points("messaging.client.sent.messages")] == [7]
    assert [count for _, count in kept.points("messaging.client.consumed.messages")] == [7]
    assert [count for _, count in kept.points("echomq.queue.wait")] == [7]
    ended = {
        one["echomq.outcome"]: (count, one.get("error.type"))
        for one, count in kept.points("messaging.process.duration")
    }
    assert ended == {"completed": (5, None), "dead": (2, "ValueError")}


async def test_rows_are_asked_once_per_claim(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred jobs that are claimed together are one more round trip, not a hundred."""
    kept, worker, asked = Kept(), Worker(), list[int]()
    pipeline = Connector.pipeline

    @worker.handler("q", concurrency=200)
    async def handler(_job: Job) -> None:
        await asyncio.sleep(0)

    async def counted(self: Connector, commands: Sequence[Any]) -> list[Any]:
        rows = sum(command[0] == "HGET" for command in commands)
        if rows:
            asked.append(rows)
        return await pipeline(self, commands)

    async with connect(url) as connector:
        await Jobs(connector).enqueue_many("q", [b"x"] * 100)
    monkeypatch.setattr(Connector, "pipeline", counted)
    await burst(instrument(worker, **kept.providers), url)

    assert (len(asked), sum(asked)) == (1, 100)
    asked.clear()
    plain = Worker()
    plain.handler("q")(handler)
    async with connect(url) as connector:
        await Jobs(connector).enqueue_many("q", [b"x"] * 10)
    await burst(plain, url)
    assert asked == [], "nobody asks where nobody traces"


@pytest.mark.parametrize(
    "told",
    [b"", b"{", b"[]", b"7", b'{"traceparent": 5}', b'{"traceparent": "00-zz-1-1"}', b"\xff", b'"' + b"x" * 9_000],
)
async def test_a_row_that_says_nonsense_links_to_nobody(url: str, raw: Redis, told: bytes) -> None:
    """The field is anybody's to write."""
    kept, worker, done = Kept(), Worker(), list[str]()

    @worker.handler("q")
    async def handler(job: Job) -> None:
        done.append(job.id)

    async with connect(url) as connector:
        receipt = await Jobs(connector).enqueue("q", b"x")
    await raw.hset(f"emq:{{q}}:job:{receipt.id}", "trace", told)
    await burst(instrument(worker, **kept.providers), url)

    assert done == [receipt.id]
    assert [linked(span) for span in kept.spans()] == [[]]


async def test_a_tracer_that_raises_harms_no_job(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a sampler of the user's does: the jobs are done, and it is logged once."""
    worker, done, lines = Worker(), list[str](), Lines()

    class Broken:
        def should_sample(self, *_args: Any, **_kwargs: Any) -> Any:
            raise RuntimeError("broken sampler")

    kept = Kept(sampler=Broken())
    monkeypatch.setattr("echomq_worker.run.get_logger", lambda _name: lines)

    @worker.handler("q")
    async def handler(job: Job) -> None:
        done.append(job.id)

    async with connect(url) as connector:
        await Jobs(connector).enqueue_many("q", [b"x"] * 5)
    await burst(instrument(worker, **kept.providers), url)

    assert len(done) == 5
    assert lines.events.count("tracing failed") == 1
