"""Jobs: the guards and outcomes of the seeds, and what stands on the server afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.connector import Connector
from echomq_worker.errors import EchoMQError, Gone, InvalidArgument, InvalidId, InvalidQueueName, KindRefused, Stale
from echomq_worker.identity import Mint, is_branded
from echomq_worker.jobs import Jobs
from echomq_worker.rows import Claimed, Receipt
from tests.support.clock import START_MS, ManualClock
from tests.support.plain import FAR_MS, GROUP, QUEUE, Queue, Within, job, row

ROW = f"job:{job(1)}"


@pytest.fixture
def jobs(wire: Connector) -> Jobs:
    """Jobs with a mint of its own."""
    return Jobs(wire, mint=Mint(ManualClock(), 1))


async def test_enqueue_mints_an_id_and_says_so(jobs: Jobs, queue: Queue) -> None:
    """The receipt names the id; a second one is later in byte order."""
    first, second = await jobs.enqueue(QUEUE, b"x"), await jobs.enqueue(QUEUE, b"x")

    assert first.admitted
    assert not first.duplicate
    assert is_branded(first.id)
    assert first.id < second.id
    assert await queue.state() == {
        f"job:{first.id}": row(),
        f"job:{second.id}": row(),
        "pending": {first.id: 0, second.id: 0},
        "ready": ["1", "1"],
    }


async def test_a_duplicate_is_an_outcome(jobs: Jobs, queue: Queue) -> None:
    """The same id again, by any admission: a receipt that says duplicate, and nothing is written."""
    await jobs.enqueue(QUEUE, b"x", id=job(1))
    before = await queue.state()

    receipts = [
        await jobs.enqueue(QUEUE, b"y", id=job(1)),
        await jobs.enqueue_in(QUEUE, b"y", 5, id=job(1)),
        await jobs.enqueue_at(QUEUE, b"y", 5, id=job(1)),
    ]

    assert receipts == [Receipt(job(1), admitted=False)] * 3
    assert all(receipt.duplicate for receipt in receipts)
    assert await queue.state() == before


@pytest.mark.parametrize(
    ("payload", "written"),
    [(b"\x00\xff", "\x00\udcff"), ("grün", "grün"), ({"a": [1, None]}, '{"a":[1,null]}'), (None, "null")],
)
async def test_payloads_are_encoded(jobs: Jobs, queue: Queue, payload: object, written: str) -> None:
    """Bytes as they are, text as UTF-8, the rest as JSON."""
    await jobs.enqueue(QUEUE, payload, id=job(1))

    assert (await queue.state())[ROW]["payload"] == written


async def test_enqueue_in_is_priced_on_the_servers_clock(jobs: Jobs, queue: Queue) -> None:
    """A delay of 0 and of 2 s: scheduled at the server's now plus the delay, though the mint's clock is years off."""
    before = await queue.now_ms()

    await jobs.enqueue_in(QUEUE, b"x", 0, id=job(1))
    await jobs.enqueue_in(QUEUE, b"x", 2_000, id=job(2))

    now = await queue.now_ms()
    assert await queue.state() == {
        ROW: row("scheduled"),
        f"job:{job(2)}": row("scheduled"),
        "schedule": {job(1): Within(before, now), job(2): Within(before + 2_000, now + 2_000)},
    }


@pytest.mark.parametrize("run_at_ms", [0, -5, START_MS, 2**53, -(2**60)])
async def test_enqueue_at_takes_any_integer(jobs: Jobs, queue: Queue, run_at_ms: int) -> None:
    """An absolute run-at is the caller's: past, negative and far ones are admitted."""
    assert (await jobs.enqueue_at(QUEUE, b"x", run_at_ms, id=job(1))).admitted

    assert await queue.state() == {ROW: row("scheduled"), "schedule": {job(1): run_at_ms}}


async def test_a_run_at_beyond_every_number_of_the_server_is_never(jobs: Jobs, queue: Queue) -> None:
    """An integer with more digits than a score holds is infinity, on its side."""
    await jobs.enqueue_at(QUEUE, b"x", 10**5_000, id=job(1))
    await jobs.enqueue_at(QUEUE, b"x", -(10**5_000), id=job(2))

    assert (await queue.state())["schedule"] == {job(1): float("inf"), job(2): float("-inf")}


BAD_CALLS: dict[str, tuple[Any, type[EchoMQError]]] = {
    "negative delay": (lambda jobs: jobs.enqueue_in(QUEUE, b"x", -1), InvalidArgument),
    "bool delay": (lambda jobs: jobs.enqueue_in(QUEUE, b"x", True), InvalidArgument),
    "float delay": (lambda jobs: jobs.enqueue_in(QUEUE, b"x", 1.5), InvalidArgument),
    "bool run-at": (lambda jobs: jobs.enqueue_at(QUEUE, b"x", True), InvalidArgument),
    "text run-at": (lambda jobs: jobs.enqueue_at(QUEUE, b"x", "5"), InvalidArgument),
    "13 bytes": (lambda jobs: jobs.enqueue(QUEUE, b"x", id=job(1)[:-1]), InvalidId),
    "15 bytes": (lambda jobs: jobs.enqueue(QUEUE, b"x", id=job(1) + "0"), InvalidId),
    "empty id": (lambda jobs: jobs.enqueue(QUEUE, b"x", id=""), InvalidId),
    "too large": (lambda jobs: jobs.enqueue_in(QUEUE, b"x", 1, id="JOBzzzzzzzzzzz"), InvalidId),
    "lower case": (lambda jobs: jobs.enqueue_at(QUEUE, b"x", 1, id="job00000000001"), InvalidId),
    "queue emq": (lambda jobs: jobs.enqueue("emq", b"x"), InvalidQueueName),
    "queue braces": (lambda jobs: jobs.enqueue("a}b", b"x"), InvalidQueueName),
    "NaN": (lambda jobs: jobs.enqueue(QUEUE, float("nan")), InvalidArgument),
    "foreign id": (lambda jobs: jobs.enqueue(QUEUE, b"x", id=job(1, "USR")), KindRefused),
    "foreign in": (lambda jobs: jobs.enqueue_in(QUEUE, b"x", 1, id=job(1, "USR")), KindRefused),
    "foreign at": (lambda jobs: jobs.enqueue_at(QUEUE, b"x", 1, id=job(1, "USR")), KindRefused),
    "foreign delay": (lambda jobs: jobs.delay(QUEUE, job(1, "USR"), 1, 5), KindRefused),
    "delay gone": (lambda jobs: jobs.delay(QUEUE, job(1), 1, 5), Gone),
    "delay float": (lambda jobs: jobs.delay(QUEUE, job(1), 1, 0.5), InvalidArgument),
    "delay bool token": (lambda jobs: jobs.delay(QUEUE, job(1), True, 5), InvalidArgument),
    "delay bad token": (lambda jobs: jobs.delay(QUEUE, job(1), "1:", 5), InvalidArgument),
    "delay bad mode": (lambda jobs: jobs.delay(QUEUE, job(1), 1, 5, mode="on"), InvalidArgument),
    "retry gone": (lambda jobs: jobs.retry(QUEUE, job(1), 1), Gone),
    "retry negative": (lambda jobs: jobs.retry(QUEUE, job(1), 1, delay_ms=-1), InvalidArgument),
    "retry no attempt": (lambda jobs: jobs.retry(QUEUE, job(1), 1, max_attempts=0), InvalidArgument),
    "batch 0": (lambda jobs: jobs.promote(QUEUE, 0), InvalidArgument),
    "batch bool": (lambda jobs: jobs.promote(QUEUE, True), InvalidArgument),
    "lease 0": (lambda jobs: jobs.claim(QUEUE, 0), InvalidArgument),
    "size 0": (lambda jobs: jobs.claim_batch(QUEUE, 5, 0), InvalidArgument),
    "extend id": (lambda jobs: jobs.extend_locks(QUEUE, 5, [("x", 1)]), InvalidId),
    "browse state": (lambda jobs: jobs.browse(QUEUE, "done"), InvalidArgument),
    "browse limit": (lambda jobs: jobs.browse(QUEUE, limit=0), InvalidArgument),
    "browse lane": (lambda jobs: jobs.browse(QUEUE, "dead", group=GROUP), InvalidArgument),
    "get id": (lambda jobs: jobs.get(QUEUE, "x"), InvalidId),
}


@pytest.mark.parametrize("case", BAD_CALLS)
async def test_what_is_refused_writes_nothing(jobs: Jobs, queue: Queue, case: str) -> None:
    """Each guard with its class and one line of text; the server is as empty as before."""
    call, refused = BAD_CALLS[case]

    with pytest.raises(refused) as caught:
        await call(jobs)

    assert type(caught.value) is refused
    assert "\n" not in str(caught.value)
    assert await queue.state() == {}


def test_refusals_before_the_wire_are_value_errors() -> None:
    """Whoever catches ValueError catches a malformed id, queue name or number."""
    assert all(issubclass(refused, ValueError) for refused in (InvalidId, InvalidQueueName, InvalidArgument))


async def test_an_id_is_admitted_again_once_its_job_is_done(jobs: Jobs) -> None:
    """While the row is there it is a duplicate, in hand too; with the completion the row goes, and the id is free.

    Report 120 (python-arq/arq#432).
    """
    assert not (await jobs.enqueue(QUEUE, b"x", id=job(1))).duplicate
    assert await jobs.claim(QUEUE, FAR_MS)
    assert (await jobs.enqueue(QUEUE, b"x", id=job(1))).duplicate
    assert await jobs.complete(QUEUE, job(1), 1)

    assert not (await jobs.enqueue(QUEUE, b"x", id=job(1))).duplicate


async def test_claim_and_complete(jobs: Jobs, queue: Queue) -> None:
    """One job through the plain verbs: claimed once, completed once, then gone."""
    await jobs.enqueue(QUEUE, b"x", id=job(1))

    assert await jobs.claim(QUEUE, 30_000) == Claimed(job(1), b"x", 1)
    assert await jobs.claim(QUEUE, 30_000) is None
    with pytest.raises(Stale):
        await jobs.complete(QUEUE, job(1), 2)
    assert await jobs.complete(QUEUE, job(1), 1)
    assert not await jobs.complete(QUEUE, job(1), 1)

    assert (await jobs.metrics(QUEUE)).completed == 1
    assert set(await queue.state()) == {"metrics:completed", "ready"}


async def test_claim_batch_and_a_ghost(jobs: Jobs, queue: Queue) -> None:
    """Oldest first; a member without a row is claimed without a payload."""
    await jobs.enqueue(QUEUE, b"x", id=job(2))
    await queue.put({"pending": {job(1): 0}})

    assert await jobs.claim_batch(QUEUE, 30_000, 5) == [Claimed(job(1), None, 1), Claimed(job(2), b"x", 1)]
    assert await jobs.claim_batch(QUEUE, 30_000, 5) == []


async def test_retry_until_dead(jobs: Jobs, queue: Queue) -> None:
    """Two failures of two: scheduled, then dead with the last reason; sent again, the same answer."""
    await queue.put({ROW: row("active", 1), "active": {job(1): FAR_MS}})
    assert await jobs.retry(QUEUE, job(1), 1, delay_ms=0, max_attempts=2, error="first") == "scheduled"
    assert await jobs.promote(QUEUE) == 1
    claimed = await jobs.claim(QUEUE, 30_000)
    assert claimed is not None

    answers = [await jobs.retry(QUEUE, job(1), claimed.token, max_attempts=2, error="second \ud800") for _ in range(2)]

    assert answers == ["dead", "dead"]
    view = await jobs.get(QUEUE, job(1))
    assert view is not None
    assert (view.state, view.attempts, view.failures, view.last_error) == ("dead", 2, 2, "second ?")
    assert (await jobs.metrics(QUEUE)).failed == 1


async def test_delay_in_and_at(jobs: Jobs, queue: Queue) -> None:
    """A job in hand waits for its run-at, relative on the server's clock or absolute; a negative one is admitted."""
    await queue.put({ROW: row("active", 1), f"job:{job(2)}": row("active", 1, held="1:ab")})
    await queue.put({"active": {job(1): FAR_MS, job(2): FAR_MS}})
    before = await queue.now_ms()

    await jobs.delay(QUEUE, job(1), 1, 5_000)
    await jobs.delay(QUEUE, job(2), "1:ab", -7, mode="at")

    due = Within(before + 5_000, await queue.now_ms() + 5_000)
    state = await queue.state()
    assert state["schedule"] == {job(1): due, job(2): -7}
    assert "active" not in state


async def test_reap_and_extend(jobs: Jobs, queue: Queue) -> None:
    """A lease that is extended is not reaped; one that was reaped is not extended."""
    await queue.put({f"job:{job(n)}": row("active", 1) for n in (1, 2)} | {"active": {job(1): 1, job(2): 1}})

    assert await jobs.extend_lock(QUEUE, job(1), 1, 30_000) == "extended"
    assert await jobs.reap(QUEUE) == 1
    assert await jobs.extend_lock(QUEUE, job(2), 1, 30_000) == "not_active"
    assert await jobs.extend_lock(QUEUE, job(3), 1, 30_000) == "gone"
    with pytest.raises(Stale):
        await jobs.extend_lock(QUEUE, job(1), 9, 30_000)
    assert await jobs.extend_locks(QUEUE, 60_000, [(job(1), 1), (job(2), 1), (job(3), "1:ab")]) == [job(2), job(3)]

    assert set((await queue.state())["active"]) == {job(1)}
