"""Journal: one line per end of a job, when the server has answered, and a count of each."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from echomq_worker.connector import connect
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.journal import Journal
from echomq_worker.logs import current_job
from echomq_worker.verdict import Bury, Complete, DelayTo, RetryLater, Verdict
from echomq_worker.worker import Worker
from tests.support.clock import ManualClock
from tests.support.running import quick
from tests.support.stations import QUEUE, Lines, job_of
from tests.support.waiting import works_for


def journal(level: str = "debug") -> tuple[Journal, ManualClock, Lines]:
    """A journal, its clock (not at 0) and its lines."""
    clock, lines = ManualClock(), Lines()
    clock.advance(5_000)
    return Journal(QUEUE, log=lines, clock=clock, level=level), clock, lines


def ran(made: Journal, clock: ManualClock, job: Job, ms: int) -> None:
    """A job that ran for `ms`."""
    made.started(job)
    clock.advance(ms)
    made.ended(job)
    # The time until the server has answered is none of the handler's.
    clock.advance(1_000)


def failed_handler() -> None:
    """What a handler calls."""
    raise ValueError("boom")


def failed() -> Exception:
    """An exception with a trace, as a handler raises it."""
    try:
        int("boom")
    except ValueError as error:
        return error
    raise AssertionError


CASES: list[tuple[Verdict, str, str, str, dict[str, Any]]] = [
    (Complete(), "done", "info", "job completed", {}),
    (DelayTo("in", 5), "delayed", "info", "job delayed", {}),
    (RetryLater(5, "E: x"), "scheduled", "warning", "job retried", {"failures": 2, "error": "E: x"}),
    (RetryLater(5, "E: x"), "dead", "error", "job dead", {"failures": 2, "error": "E: x"}),
    (Bury("no"), "dead", "error", "job dead", {"failures": 2, "error": "no"}),
    (Complete(), "stale", "warning", "verdict refused", {"answer": "stale"}),
    (RetryLater(5, "E: x"), "gone", "warning", "verdict refused", {"answer": "gone", "error": "E: x"}),
    (Complete(), "unknown", "warning", "verdict refused", {"answer": "unknown"}),
]


@pytest.mark.parametrize(("verdict", "answer", "level", "event", "fields"), CASES)
async def test_each_answer_has_its_line_and_its_count(
    verdict: Verdict, answer: str, level: str, event: str, fields: dict[str, Any]
) -> None:
    """With queue, id, attempt and how long the handler ran; what is refused is not silent.

    Report 90 (Bogdanp/dramatiq#63). Report 117 (Bogdanp/dramatiq#220).
    """
    made, clock, lines = journal()
    job = job_of(attempts=3, failures=1, payload=b"secret")
    ran(made, clock, job, 12)
    made.settled([(job, verdict, answer)])
    found_level, found_event, found = lines.kept[-1]
    found.pop("exc_info", None)
    assert (found_level, found_event) == (level, event)
    assert found == {"queue": QUEUE, "id": job.id, "attempt": 3, "duration_ms": 12, **fields}
    assert made.counts == {answer: 1}
    assert "secret" not in str(lines.kept)


async def test_a_start_is_told_at_debug_and_the_handlers_own_lines_know_their_job() -> None:
    """The job is bound in the context in which its handler runs."""
    made, _, lines = journal()
    job = job_of(attempts=2)
    made.started(job)
    assert lines.kept == [("debug", "job started", {"queue": QUEUE, "id": job.id, "attempt": 2})]
    assert current_job.get() is job


@pytest.mark.parametrize(("answer", "event"), [("scheduled", "job retried"), ("dead", "job dead")])
async def test_a_failure_has_the_trace_of_its_handler_and_does_not_keep_it(answer: str, event: str) -> None:
    """The trace refers to the frames of the handler and they to the job: it is let go when its line is written."""
    made, clock, lines = journal()
    job, error = job_of(), failed()
    ran(made, clock, job, 1)
    job.exception = error
    made.settled([(job, RetryLater(5, "ValueError: boom"), answer)])
    assert lines.of(event)[0]["exc_info"] is error
    assert job.exception is None


async def test_a_trace_begins_with_the_handler(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not with the frames that called it: at once, after a pause, in a thread."""
    worker = Worker()

    @worker.handler("at-once", max_attempts=1)
    async def at_once() -> None:
        failed_handler()

    @worker.handler("later", max_attempts=1)
    async def later() -> None:
        await works_for(10)
        failed_handler()

    @worker.handler("thread", max_attempts=1)
    def thread() -> None:
        failed_handler()

    queues = ("at-once", "later", "thread")
    async with connect(url) as connector:
        for queue in queues:
            await Jobs(connector).enqueue(queue, b"")
    await worker.run(quick(url), burst=True, signals=False)

    traces = [record.exc_info[2] for record in caplog.records if record.exc_info]
    frames = [[frame.name for frame in traceback.extract_tb(trace)] for trace in traces]
    assert sorted(frames) == [["at_once", "failed_handler"], ["later", "failed_handler"], ["thread", "failed_handler"]]


@pytest.mark.parametrize("level", ["warning", "error"])
async def test_where_completions_are_not_logged_nothing_is_timed(level: str) -> None:
    """What the level hides costs no time stamp; failures are told all the same, without a duration."""
    made, clock, lines = journal(level)
    job = job_of()
    ran(made, clock, job, 7)
    made.settled([(job, Complete(), "done")])
    assert lines.kept == []
    made.settled([(job, Bury("no"), "dead")])
    (line,) = lines.of("job dead")
    assert "duration_ms" not in line
    assert made.counts == {"done": 1, "dead": 1}


async def test_when_a_job_began_and_how_long_it_ran_are_two_numbers() -> None:
    """Neither takes the other's place as the handler ends; a job that no handler saw has neither."""
    made, clock, _ = journal()
    job, unseen = job_of(), job_of()
    assert job.ran_ms == 0
    began_ms = clock.monotonic_ms()
    ran(made, clock, job, 7)
    made.ended(unseen)
    assert (job.started_ms, job.ran_ms, unseen.ran_ms) == (began_ms, 7, 0)
    assert not hasattr(unseen, "started_ms")


async def test_a_job_that_no_handler_saw_took_no_time() -> None:
    """One without a payload is dead at once: its line does not say how long the process is up."""
    made, _, lines = journal()
    job = job_of(payload=None)
    made.ended(job)
    made.settled([(job, Bury("no payload"), "dead")])
    assert lines.of("job dead")[0]["duration_ms"] == 0


async def test_what_is_buried_lost_or_handed_over_is_told_and_counted() -> None:
    """A hand-over of nothing has no line."""
    made, _, lines = journal()
    made.buried("JOB00000000001", "crashed: 5 claims in a row never ended")
    made.lost(job_of(attempts=4), "stale")
    made.handed_over("released", ["a", "b"])
    made.handed_over("disowned", [])
    made.handed_over("left", ["c"])
    assert lines.kept == [
        (
            "error",
            "job dead",
            {"queue": QUEUE, "id": "JOB00000000001", "error": "crashed: 5 claims in a row never ended"},
        ),
        ("warning", "lease lost", {"queue": QUEUE, "id": "JOB00000000001", "attempt": 4, "reason": "stale"}),
        ("warning", "jobs released", {"queue": QUEUE, "ids": ["a", "b"]}),
        ("warning", "jobs left", {"queue": QUEUE, "ids": ["c"]}),
    ]
    assert made.counts == {"buried": 1, "lost": 1, "released": 2, "left": 1}
