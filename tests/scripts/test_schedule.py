"""schedule: a job is admitted now and fenced out of pending by its run-at, as the seeds' script does it."""

from __future__ import annotations

import pytest

from echomq_worker.errors import KindRefused, ServerError
from tests.support.plain import Plain, Queue, Within, job, row


async def test_in_is_priced_on_the_servers_clock(plain: Plain, queue: Queue) -> None:
    """Mode `in`: the row is scheduled at the server's now plus the delay; pending and tokens are untouched."""
    assert await queue.state() == {}
    before = await queue.now_ms()

    assert await plain.schedule(job(1), mode="in", value=2_000) == 1

    due = Within(before + 2_000, await queue.now_ms() + 2_000)
    assert await queue.state() == {f"job:{job(1)}": row("scheduled"), "schedule": {job(1): due}}


@pytest.mark.parametrize("value", [0, 1, -5, 1_764_468_000_123, -(10**15)])
async def test_at_is_the_literal_value(plain: Plain, queue: Queue, value: int) -> None:
    """Mode `at`: the score is the value itself, a past and a negative one too (the seeds admit them)."""
    assert await plain.schedule(job(1), mode="at", value=value) == 1

    assert await queue.state() == {f"job:{job(1)}": row("scheduled"), "schedule": {job(1): value}}


async def test_any_other_mode_is_absolute(plain: Plain, queue: Queue) -> None:
    """The seeds' script prices every mode but `in` as absolute; so does ours."""
    assert await plain.schedule(job(1), mode="whenever", value=7) == 1

    assert (await queue.state())["schedule"] == {job(1): 7}


async def test_a_negative_delay_reaches_the_script(plain: Plain, queue: Queue) -> None:
    """The guard on a delay is the caller's: the script itself takes a negative one, due already."""
    before = await queue.now_ms()

    assert await plain.schedule(job(1), mode="in", value=-500) == 1

    assert (await queue.state())["schedule"] == {job(1): Within(before - 500, await queue.now_ms() - 500)}


async def test_a_duplicate_writes_nothing(plain: Plain, queue: Queue) -> None:
    """An id that has a row answers 0, whatever set it is in."""
    await queue.put({f"job:{job(1)}": row(), "pending": {job(1): 0}})
    before = await queue.state()

    assert await plain.schedule(job(1), b"new", value=9) == 0

    assert await queue.state() == before


async def test_a_foreign_namespace_is_refused(plain: Plain, queue: Queue) -> None:
    """EMQKIND with the protocol's text, nothing written."""
    with pytest.raises(KindRefused, match=r"^EMQKIND job id must be JOB-namespaced$"):
        await plain.schedule(job(1, "USR"))

    assert await queue.state() == {}


@pytest.mark.parametrize("value", ["soon", "", "nan"])
@pytest.mark.parametrize("mode", ["in", "at"])
async def test_what_is_no_number_is_refused_before_the_row(plain: Plain, queue: Queue, mode: str, value: str) -> None:
    """A value that no sorted set takes is refused with nothing written: no row without a member is left behind."""
    with pytest.raises(ServerError, match="schedule value must be a number of milliseconds"):
        await plain.schedule(job(1), mode=mode, value=value)

    assert await queue.state() == {}
