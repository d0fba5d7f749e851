"""retry: a failed run is scheduled again, or dead once its failures reach the limit; however often it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import Gone, ServerError, Stale
from tests.support.plain import FAR_MS, GROUP, Plain, Queue, Within, job, row

LANE = f"g:{GROUP}:pending"
ROW = f"job:{job(1)}"
MISMATCH = r"^EMQSTALE retry token mismatch$"


def active(**fields: Any) -> dict[str, Any]:
    """Job 1 in hand with token 3."""
    return {ROW: row("active", 3, **fields), "active": {job(1): FAR_MS}}


def scheduled(failures: int = 1, **fields: Any) -> dict[str, str]:
    """Its row after a retry."""
    return row("scheduled", 3, failures=failures, last_error="boom", settled="3:scheduled", **fields)


def buried(failures: int, **fields: Any) -> dict[str, str]:
    """Its row after the last one."""
    return row("dead", 3, failures=failures, last_error="boom", settled="3:dead", **fields)


async def test_a_failure_waits_on_the_servers_clock(plain: Plain, queue: Queue) -> None:
    """Failures 1 of 3: scheduled at now + delay with its reason; held, crashes and the lock are gone."""
    await queue.put(active(held="3:ab", crashes="1:3") | {f"{ROW}:lock": "3"})
    before = await queue.now_ms()

    assert await plain.retry(job(1), 3, delay_ms=5_000) == "scheduled"

    due = Within(before + 5_000, await queue.now_ms() + 5_000)
    assert await queue.state() == {ROW: scheduled(), "schedule": {job(1): due}}


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
async def test_dead_after_exactly_max_attempts_failures(plain: Plain, queue: Queue, max_attempts: int) -> None:
    """Not the claims count but the failures: with n attempts the nth failure is the last, also after 3 claims."""
    await queue.put(active() | ({ROW: row("active", 3, failures=max_attempts - 1)} if max_attempts > 1 else {}))

    assert await plain.retry(job(1), 3, max_attempts=max_attempts) == "dead"

    assert await queue.state() == {
        ROW: buried(max_attempts),
        "dead": {job(1): 0},
        "metrics:failed": {"count": "1"},
    }


async def test_claims_that_were_no_failures_do_not_count(plain: Plain, queue: Queue) -> None:
    """Ninety claims, one failure, max_attempts 3: scheduled."""
    await queue.put({ROW: row("active", 90), "active": {job(1): FAR_MS}})

    assert await plain.retry(job(1), 90, max_attempts=3) == "scheduled"


async def test_sent_three_times_counts_once(plain: Plain, queue: Queue) -> None:
    """A retry whose reply was lost: the recorded answer, and nothing is written."""
    await queue.put(active(held="3:ab"))
    assert await plain.retry(job(1), "3:ab") == "scheduled"
    before = await queue.state()

    assert [await plain.retry(job(1), token, delay_ms=9) for token in ("3:ab", 3)] == ["scheduled"] * 2

    assert await queue.state() == before


async def test_a_death_sent_three_times_counts_once(plain: Plain, queue: Queue) -> None:
    """The same for the last failure: one failure, one in metrics:failed."""
    await queue.put(active(failures=2))
    assert await plain.retry(job(1), 3) == "dead"
    before = await queue.state()

    assert [await plain.retry(job(1), 3) for _ in range(2)] == ["dead"] * 2

    assert await queue.state() == before
    assert before["metrics:failed"] == {"count": "1"}


async def test_sent_again_after_promotion_and_after_reprocess(plain: Plain, queue: Queue) -> None:
    """The record stands until the next claim: a job that is pending again is not scheduled a second time."""
    await queue.put({ROW: scheduled() | {"state": "pending"}, "pending": {job(1): 0}})
    before = await queue.state()
    assert await plain.retry(job(1), 3) == "scheduled"
    assert await queue.state() == before

    await queue.raw.hset(queue.keys.job(job(1)), "settled", "3:dead")
    before = await queue.state()
    assert await plain.retry(job(1), 3) == "dead"
    assert await queue.state() == before


async def test_the_next_claim_settles_anew(plain: Plain, queue: Queue) -> None:
    """Token 4 finds the record of token 3 and is not taken for it; the late token 3 is stale."""
    await queue.put({ROW: scheduled() | {"state": "active", "attempts": "4"}, "active": {job(1): FAR_MS}})

    with pytest.raises(Stale, match=MISMATCH):
        await plain.retry(job(1), 3)
    assert await plain.retry(job(1), 4) == "scheduled"

    assert (await queue.state())[ROW] == scheduled(2) | {"attempts": "4", "settled": "4:scheduled"}


@pytest.mark.parametrize(
    ("fields", "token"),
    [({}, 2), ({}, "03"), ({"held": "3:new"}, "3:old"), ({"settled": "3:delayed"}, 3)],
    ids=["another token", "another text", "another claim", "delayed already"],
)
async def test_a_stale_holder_writes_nothing(plain: Plain, queue: Queue, fields: dict[str, str], token: Any) -> None:
    """Another's token, another claim under the same token, or a claim that has ended by delay."""
    await queue.put(active(**fields))
    before = await queue.state()

    with pytest.raises(Stale, match=MISMATCH) as caught:
        await plain.retry(job(1), token)

    assert not isinstance(caught.value, Gone)
    assert await queue.state() == before


async def test_a_row_that_is_gone_is_refused(plain: Plain, queue: Queue) -> None:
    """EMQSTALE job gone; no row is made anew, nothing is written."""
    await queue.put({"active": {job(1): FAR_MS}})

    with pytest.raises(Gone, match=r"^EMQSTALE job gone$"):
        await plain.retry(job(1), 3)

    assert await queue.state() == {"active": {job(1): FAR_MS}}


async def test_a_late_retry_on_a_dead_row_counts_its_failure(plain: Plain, queue: Queue) -> None:
    """Buried by the sweep meanwhile: answers dead each time, keeps the reason, is no second death."""
    await queue.put({ROW: row("dead", 3, failures=1, last_error="stalled"), "dead": {job(1): 0}})

    assert [await plain.retry(job(1), 3, max_attempts=9) for _ in range(3)] == ["dead"] * 3

    assert await queue.state() == {
        ROW: row("dead", 3, failures=2, last_error="stalled", settled="3:dead"),
        "dead": {job(1): 0},
    }


async def test_a_late_retry_takes_the_job_out_of_pending(plain: Plain, queue: Queue) -> None:
    """Reaped meanwhile: the id is in the schedule alone, not in pending too."""
    await queue.put({ROW: row("pending", 3), "pending": {job(1): 0}, "schedule": {job(1): 7}})

    assert await plain.retry(job(1), 3) == "scheduled"

    state = await queue.state()
    assert state == {ROW: scheduled(), "schedule": state["schedule"]}
    assert state["schedule"][job(1)] > 7


async def test_a_grouped_job_frees_its_slot(plain: Plain, queue: Queue) -> None:
    """The slot is free, the lane is on the ring again with one token, the job keeps its group for the promotion."""
    await queue.put(active(group=GROUP) | {LANE: {job(2): 0}, "gactive": {GROUP: "2"}, "glimit": {GROUP: "2"}})

    assert await plain.retry(job(1), 3) == "scheduled"

    state = await queue.state()
    assert state == {
        ROW: scheduled(group=GROUP),
        LANE: {job(2): 0},
        "schedule": state["schedule"],
        "gactive": {GROUP: "1"},
        "glimit": {GROUP: "2"},
        "ring": [GROUP],
        "wake": ["1"],
    }


async def test_a_slot_that_recovery_freed_is_not_freed_again(plain: Plain, queue: Queue) -> None:
    """A reaped job of a lane: it leaves the lane, the hollow lane leaves the ring, the counter stays."""
    await queue.put({ROW: row("pending", 3, group=GROUP), LANE: {job(1): 0}, "ring": [GROUP], "gactive": {GROUP: "1"}})

    assert await plain.retry(job(1), 3, max_attempts=1) == "dead"

    assert await queue.state() == {
        ROW: buried(1, group=GROUP),
        "dead": {job(1): 0},
        "gactive": {GROUP: "1"},
        "metrics:failed": {"count": "1"},
    }


@pytest.mark.parametrize("numbers", [{"delay_ms": "soon"}, {"max_attempts": "few"}])
async def test_what_is_no_number_is_refused_before_anything_is_written(
    plain: Plain, queue: Queue, numbers: dict[str, str]
) -> None:
    """A caller's mistake leaves the job in hand."""
    await queue.put(active())
    before = await queue.state()

    with pytest.raises(ServerError, match="retry takes numbers"):
        await plain.retry(job(1), 3, **numbers)

    assert await queue.state() == before
