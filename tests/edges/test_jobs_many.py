"""Jobs: many admissions in one round trip, and reading without an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from echomq_worker.connector import Connector
from echomq_worker.errors import EchoMQError, InvalidArgument, InvalidId, ServerError
from echomq_worker.identity import minted_at_ms
from echomq_worker.jobs import Jobs, New
from echomq_worker.rows import Counts, Totals
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, QUEUE, Plain, Queue, Within, job, row


class Counting:
    """A wire that counts its round trips and can answer in the place of the server."""

    def __init__(self, wire: Connector) -> None:
        self.wire = wire
        self.trips: list[int] = []
        self.answer: Any = None

    async def call(self, *args: Any) -> Any:
        """One command, one round trip."""
        self.trips.append(1)
        return await self.wire.call(*args)

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Many commands, one round trip."""
        self.trips.append(len(commands))
        if self.answer is not None:
            return [self.answer for _ in commands]
        return await self.wire.pipeline(commands)


@pytest.fixture
def counting(wire: Connector) -> Counting:
    """The session's server behind a counter."""
    return Counting(wire)


async def warm(jobs: Jobs, queue: Queue) -> None:
    """Both scripts are known to the server, so that counts do not hold their loading."""
    await jobs.enqueue_many(QUEUE, [b"x"])
    await jobs.enqueue_many(QUEUE, [New(b"x", in_ms=1)])
    await queue.raw.flushdb()


async def test_mixed_items_in_one_round_trip(counting: Counting, queue: Queue) -> None:
    """Flat, grouped, scheduled and duplicate items: one trip, verdicts in input order, each where it belongs."""
    jobs = Jobs(counting)
    await warm(jobs, queue)
    counting.trips.clear()
    before = await queue.now_ms()

    receipts = await jobs.enqueue_many(
        QUEUE,
        [
            New("a", id=job(1)),
            New({"b": 1}, id=job(2), group=GROUP),
            New(b"c", id=job(3), in_ms=2_000),
            New(b"d", id=job(4), group=OTHER_GROUP, at_ms=-7),
            New(b"e", id=job(1)),
            New(b"f", id=job(5, "USR")),
        ],
    )

    assert [receipt.id for receipt in receipts] == [job(1), job(2), job(3), job(4), job(1), job(5, "USR")]
    assert [receipt.admitted for receipt in receipts] == [True, True, True, True, False, False]
    assert [receipt.duplicate for receipt in receipts] == [False, False, False, False, True, False]
    assert [receipt.refused for receipt in receipts] == [False, False, False, False, False, True]
    assert counting.trips == [1]
    assert await queue.state() == {
        f"job:{job(1)}": row(payload="a"),
        f"job:{job(2)}": row(payload='{"b":1}', group=GROUP),
        f"job:{job(3)}": row("scheduled", payload="c"),
        f"job:{job(4)}": row("scheduled", payload="d", group=OTHER_GROUP),
        "pending": {job(1): 0},
        f"g:{GROUP}:pending": {job(2): 0},
        "schedule": {job(3): Within(before + 2_000, await queue.now_ms() + 2_000), job(4): -7},
        "ring": [GROUP],
        "wake": ["1"],
        "ready": ["1"],
    }


async def test_a_thousand_payloads_are_three_calls_of_one_trip(counting: Counting, queue: Queue) -> None:
    """400 to a script call, all in one pipeline; ids in the order of the payloads; the same payloads are other jobs."""
    jobs = Jobs(counting)
    await warm(jobs, queue)
    counting.trips.clear()

    receipts = await jobs.enqueue_many(QUEUE, (str(n) for n in range(1_000)))

    assert counting.trips == [3]
    ids = [receipt.id for receipt in receipts]
    assert ids == sorted(set(ids))
    assert list((await queue.state())["pending"]) == ids
    assert [view.payload for view in await jobs.browse(QUEUE, limit=2)] == [b"999", b"998"]


async def test_a_long_list_is_several_trips(counting: Counting, queue: Queue) -> None:
    """Ten thousand: 16 calls, then the other 9, so that no reply waits behind all of them."""
    jobs = Jobs(counting)
    await warm(jobs, queue)
    counting.trips.clear()

    receipts = await jobs.enqueue_many(QUEUE, [b""] * 10_000)

    assert counting.trips == [16, 9]
    assert all(receipt.admitted for receipt in receipts)
    assert await queue.raw.zcard(queue.keys.pending) == 10_000


async def test_big_payloads_go_out_in_more_calls(counting: Counting, queue: Queue) -> None:
    """Five of 1.5 MB: two to a call, so that no script holds the server with hundreds of megabytes."""
    jobs = Jobs(counting)
    await warm(jobs, queue)
    counting.trips.clear()

    receipts = await jobs.enqueue_many(QUEUE, [b"x" * 1_500_000] * 5)

    assert counting.trips == [3]
    assert len({receipt.id for receipt in receipts if receipt.admitted}) == 5


async def test_an_empty_list_is_no_trip(counting: Counting) -> None:
    """Nothing to admit, nothing to send."""
    assert await Jobs(counting).enqueue_many(QUEUE, []) == []
    assert counting.trips == []


@pytest.mark.parametrize(
    ("bad", "refused"),
    [
        (New(b"x", id=job(1)[:-1]), InvalidId),
        (New(b"x", group="lane"), InvalidId),
        (New(b"x", in_ms=-1), InvalidArgument),
        (New(b"x", in_ms=True), InvalidArgument),
        (New(b"x", at_ms=1.5), InvalidArgument),  # type: ignore[arg-type]  # what a caller without a checker sends
        (New(b"x", in_ms=1, at_ms=1), InvalidArgument),
        (float("nan"), InvalidArgument),
    ],
)
async def test_one_bad_item_sends_nothing(
    counting: Counting, queue: Queue, bad: object, refused: type[EchoMQError]
) -> None:
    """All items are checked before the first is sent."""
    with pytest.raises(refused):
        await Jobs(counting).enqueue_many(QUEUE, [b"good", bad])

    assert counting.trips == []
    assert await queue.state() == {}


async def test_an_error_in_the_place_of_a_reply_raises(counting: Counting) -> None:
    """Nothing is taken for admitted that the server has not answered."""
    counting.answer = ServerError("ERR no")

    with pytest.raises(ServerError, match="ERR no"):
        await Jobs(counting).enqueue_many(QUEUE, [b"x"])


async def test_browse_pages_newest_first(counting: Counting, queue: Queue) -> None:
    """Pages from the end of the set, rows in one pipeline, no key beside the sets."""
    jobs = Jobs(counting)
    await jobs.enqueue_many(QUEUE, [New(str(n), id=job(n)) for n in range(5)])
    before = await queue.state()
    counting.trips.clear()

    pages = [[view.id for view in await jobs.browse(QUEUE, limit=2, offset=offset)] for offset in (0, 2, 4, 6)]

    assert pages == [[job(4), job(3)], [job(2), job(1)], [job(0)], []]
    assert counting.trips[:2] == [1, 2]
    assert await queue.state() == before


async def test_browse_every_state(counting: Counting, queue: Queue) -> None:
    """Each set by its own order; a lane; a ghost is shown as gone; names that are no ids are shown too."""
    await queue.put(
        {
            f"job:{job(1)}": row("active", 2, held="2:ab", crashes="1:2", progress="50"),
            f"job:{job(2)}": row("scheduled", 1, failures=1, last_error="boom"),
            f"job:{job(3)}": row("dead", 3, stalled=1, last_error="stalled"),
            f"job:{job(4)}": row(group=GROUP),
            "active": {job(1): FAR_MS},
            "schedule": {job(2): 7, job(9): 9},
            "dead": {job(3): 0},
            f"g:{GROUP}:pending": {job(4): 0},
            "pending": {"what": 0},
        }
    )
    jobs = Jobs(counting)

    (active,) = await jobs.browse(QUEUE, "active")
    assert (active.id, active.attempts, active.held, active.crashes) == (job(1), 2, True, 1)
    assert (active.progress, active.score) == ("50", FAR_MS)
    assert active.minted_at == minted_at_ms(job(1))
    ghost, scheduled = await jobs.browse(QUEUE, "scheduled")
    assert (ghost.id, ghost.state, ghost.payload, ghost.score) == (job(9), "gone", None, 9)
    assert (scheduled.failures, scheduled.last_error, scheduled.score) == (1, "boom", 7)
    assert [(view.state, view.stalled) for view in await jobs.browse(QUEUE, "dead")] == [("dead", 1)]
    assert [(view.id, view.group) for view in await jobs.browse(QUEUE, group=GROUP)] == [(job(4), GROUP)]
    assert [(view.id, view.state) for view in await jobs.browse(QUEUE)] == [("what", "gone")]
    await queue.raw.flushdb()


async def test_get(counting: Counting, queue: Queue) -> None:
    """One row, or nothing; a row that somebody has left without a state is shown as unknown."""
    jobs = Jobs(counting)
    await queue.put({f"job:{job(1)}": {"attempts": "1"}})

    assert await jobs.get(QUEUE, job(2)) is None
    view = await jobs.get(QUEUE, job(1))
    assert view is not None
    assert (view.state, view.payload, view.failures, view.group, view.held) == ("unknown", None, 0, None, False)


async def test_counts_equal_a_hand_count(counting: Counting, plain: Plain, queue: Queue) -> None:
    """Flat, lanes (on the ring, paused, full), active, scheduled, dead, repeats; hollow lanes are none.

    Report 127 (python-arq/arq#297).
    """
    jobs = Jobs(counting)
    assert await jobs.counts(QUEUE) == Counts(0, 0, 0, 0, 0, paused=False, lanes={})
    groups = [f"GRP0000000000{n}" for n in range(1, 5)]
    for number, group in enumerate((groups[0], groups[0], groups[1], groups[2])):
        await plain.lane_enqueue(job(number), group)
    await queue.put({"paused": {groups[1]}, "glimit": {groups[2]: "1"}, "gactive": {groups[2]: "1"}})
    await queue.raw.delete(queue.keys.ring)
    await queue.put({"ring": [groups[0], groups[3]], "meta": {"paused": "1"}})
    await queue.put({"pending": {job(8): 0}, "active": {job(7): 5, job(6): 5}, "dead": {job(5): 0}})
    await queue.put({"schedule": {job(n): 9 for n in (20, 21, 22)}, "repeat": {"daily": 5}})
    await queue.put({"metrics:completed": {"count": "12"}})

    counts = await jobs.counts(QUEUE)

    lanes = {groups[0]: 2, groups[1]: 1, groups[2]: 1}
    assert counts == Counts(1, 2, 3, 1, 1, paused=True, lanes=lanes)
    assert counts.ready == 5
    assert await jobs.metrics(QUEUE) == Totals(completed=12, failed=0)
