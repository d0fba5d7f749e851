"""Verdicts as the arguments of a call."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.job import Job, JobContext
from echomq_worker.outcome import COMPLETE
from echomq_worker.packing import pack
from echomq_worker.settle import arguments
from echomq_worker.verdict import Bury, Complete

NAMES = st.text("aé\r\n", max_size=3)


@given(st.lists(st.tuples(NAMES, st.none() | NAMES), min_size=1))
def test_plain_completions_leave_as_any_verdicts_do(named: list[tuple[str, str | None]]) -> None:
    """Packed at once, or each word by itself where it must be: whatever ids and lanes a foreign client has made."""
    jobs = [Job(cast("JobContext", None), id, b"", 1, 0, group, "1:x") for id, group in named]
    words = [word for job in jobs for word in ("c", job.id, job.held, job.group or "")]
    assert arguments([(job, Complete()) for job in jobs]) == words
    assert pack(("EVALSHA", *arguments([(job, COMPLETE) for job in jobs]))) == pack(("EVALSHA", *words))
    buried = ("r", *words[1:4], 0, 1, "no")
    assert arguments([(job, COMPLETE) for job in jobs] + [(jobs[0], Bury("no"))]) == [*words, *buried]
