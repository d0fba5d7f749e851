"""Links of the spans of jobs that other clients have named.

Source: issue "Made for the people who run it" (OpenTelemetry), decision 0040; protocol section 2, ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from echomq_worker import Job
from echomq_worker.job import JobContext
from echomq_worker.keyspace import Keys
from echomq_worker.spans import Spans
from echomq_worker.telemetry import Telemetry
from echomq_worker.verdict import Complete
from tests.support.stations import Lines
from tests.support.telemetry import Kept


async def test_an_id_that_is_none_of_ours_costs_no_other_its_link() -> None:
    """A claim may bring what another client has named otherwise: its row is asked like the others'."""
    kept, asked = Kept(), list[Any]()
    carrier = f'{{"traceparent":"00-{"a" * 32}-{"b" * 16}-01"}}'.encode()

    class Rows:
        async def call(self, *_args: Any) -> Any:
            raise AssertionError

        async def pipeline(self, commands: Sequence[Any]) -> list[Any]:
            asked.extend(commands)
            return [carrier] * len(commands)

    async def execute(_job: Job, _runner: Any = None, /) -> Complete:
        return Complete()

    context = JobContext(Keys("q"), Rows(), max_attempts=3)
    jobs = [Job(context, id, b"x", 1) for id in ("of another client", "JOB0KHTOWnGLuC")]
    spans = Spans(Telemetry.of(kept.tracers, kept.meters), Keys("q"), Rows(), Lines())
    spans.claimed(jobs)
    for job in jobs:
        await spans.around(execute)(job)

    assert [[link.context.span_id for link in span.links] for span in kept.spans()] == [[int("b" * 16, 16)]] * 2
    assert [command[1] for command in asked] == [f"emq:{{q}}:job:{job.id}" for job in jobs]
