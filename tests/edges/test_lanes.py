"""Lanes: admission to a group's lane, the plain claims of the ring, and the operator's verbs over lanes."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.connector import Connector
from echomq_worker.errors import EchoMQError, InvalidArgument, InvalidId, InvalidQueueName, KindRefused
from echomq_worker.identity import Mint, check_group, is_branded
from echomq_worker.lanes import Lanes
from echomq_worker.rows import Claimed, Receipt
from tests.support.clock import ManualClock
from tests.support.own import flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, QUEUE, Queue, job, row


@pytest.fixture
def lanes(wire: Connector) -> Lanes:
    """Lanes with a mint of its own."""
    return Lanes(wire, mint=Mint(ManualClock(), 1))


async def test_a_job_of_a_lane_from_admission_to_claim(lanes: Lanes, queue: Queue) -> None:
    """Admitted once, counted in the lane's depth, claimed with its group."""
    receipt = await lanes.enqueue(QUEUE, GROUP, {"a": 1})
    assert receipt.admitted
    assert await lanes.enqueue(QUEUE, GROUP, b"y", id=receipt.id) == Receipt(receipt.id, admitted=False)
    assert await queue.state() == {
        f"job:{receipt.id}": row(payload='{"a":1}', group=GROUP),
        f"g:{GROUP}:pending": {receipt.id: 0},
        "ring": [GROUP],
        "wake": ["1"],
    }
    assert [await lanes.depth(QUEUE, group) for group in (GROUP, OTHER_GROUP)] == [1, 0]

    assert await lanes.claim(QUEUE, 30_000) == Claimed(receipt.id, b'{"a":1}', 1, GROUP)
    assert await lanes.claim(QUEUE, 30_000) is None
    assert await lanes.depth(QUEUE, GROUP) == 0


async def test_lanes_take_turns(lanes: Lanes) -> None:
    """Three of one lane, one of another: the second claim is the other lane's."""
    for number, group in ((1, GROUP), (2, GROUP), (3, GROUP), (4, OTHER_GROUP)):
        await lanes.enqueue(QUEUE, group, b"", id=job(number))

    claimed = [await lanes.claim(QUEUE, 30_000) for _ in range(4)]

    assert [one.id for one in claimed if one] == [job(1), job(4), job(2), job(3)]


def test_any_text_names_a_lane() -> None:
    """The same text gives the same branded id, another text another one."""
    assert Lanes.group_for("customer 7") == Lanes.group_for("customer 7") != Lanes.group_for("customer 8")
    assert is_branded(Lanes.group_for(""))
    with pytest.raises(InvalidId, match=r"^group 'customer 7': .*Lanes\.group_for makes one of any text$"):
        check_group("customer 7")


BAD_CALLS: dict[str, tuple[Any, type[EchoMQError]]] = {
    "malformed group": (lambda lanes: lanes.enqueue(QUEUE, "lane", b"x"), InvalidId),
    "malformed id": (lambda lanes: lanes.enqueue(QUEUE, GROUP, b"x", id="JOB1"), InvalidId),
    "foreign id": (lambda lanes: lanes.enqueue(QUEUE, GROUP, b"x", id=job(1, "USR")), KindRefused),
    "queue": (lambda lanes: lanes.enqueue("emq", GROUP, b"x"), InvalidQueueName),
    "depth": (lambda lanes: lanes.depth(QUEUE, "lane"), InvalidId),
    "lease": (lambda lanes: lanes.claim(QUEUE, 0), InvalidArgument),
}


async def test_pause_and_resume(lanes: Lanes, queue: Queue) -> None:
    """Nobody is served of a paused lane, whatever comes in; then it is again."""
    await lanes.enqueue(QUEUE, GROUP, b"", id=job(1))
    await lanes.pause(QUEUE, GROUP)
    await lanes.enqueue(QUEUE, GROUP, b"", id=job(2))

    assert await lanes.claim(QUEUE, 30_000) is None
    assert await lanes.claim_weighted(QUEUE, 30_000) == []
    await lanes.resume(QUEUE, GROUP)

    claimed = await lanes.claim(QUEUE, 30_000)
    assert claimed is not None
    assert claimed.id == job(1)


async def test_a_limit_over_all_claims(lanes: Lanes, queue: Queue) -> None:
    """Two at a time; 0 holds the lane; None takes the limit away."""
    for number in range(4):
        await lanes.enqueue(QUEUE, GROUP, b"", id=job(number))
    await lanes.limit(QUEUE, GROUP, 2)

    assert [bool(await lanes.claim(QUEUE, 30_000)) for _ in range(3)] == [True, True, False]
    await lanes.limit(QUEUE, GROUP, 0)
    assert await lanes.claim(QUEUE, 30_000) is None
    await lanes.limit(QUEUE, GROUP, None)
    assert await lanes.claim(QUEUE, 30_000) is not None

    assert "glimit" not in await queue.state()


async def test_a_weight_is_served_in_one_claim(lanes: Lanes, queue: Queue) -> None:
    """Three heads of the heavy lane with their group, one of the other."""
    for number, group in ((1, GROUP), (2, GROUP), (3, GROUP), (4, GROUP), (5, OTHER_GROUP)):
        await lanes.enqueue(QUEUE, group, b"x", id=job(number))
    await lanes.weight(QUEUE, GROUP, 3)

    claims = [[one.id for one in await lanes.claim_weighted(QUEUE, 30_000)] for _ in range(4)]

    assert claims == [[job(1), job(2), job(3)], [job(5)], [job(4)], []]
    await lanes.weight(QUEUE, GROUP, 1)
    assert "gweight" not in await queue.state()


async def test_reassign_says_what_became_of_it(lanes: Lanes, queue: Queue) -> None:
    """Reassigned, noop, not_found, not_pending."""
    await queue.put(merged(lane(1), {f"job:{job(2)}": row("active", 1), "active": {job(2): FAR_MS}}))

    answers = [await lanes.reassign(QUEUE, job(n), OTHER_GROUP) for n in (1, 1, 7, 2)]

    assert answers == ["reassigned", "noop", "not_found", "not_pending"]
    assert await lanes.depths(QUEUE, [GROUP, OTHER_GROUP]) == {GROUP: 0, OTHER_GROUP: 1}


async def test_drain_takes_one_lane(lanes: Lanes, queue: Queue) -> None:
    """All of it, in as many calls as it takes, and nothing of another; progress is told."""
    stays = merged(lane(9_001, group=OTHER_GROUP), flat(9_002))
    await queue.put(merged(lane(*range(400)), stays))
    told: list[tuple[int, int]] = []

    assert await lanes.drain(QUEUE, GROUP, progress=lambda done, total: told.append((done, total))) == 400
    assert await lanes.drain(QUEUE, GROUP) == 0

    assert await queue.state() == stays
    assert told == [(200, 400), (400, 400), (400, 400)]


async def test_reap_group(lanes: Lanes, queue: Queue) -> None:
    """Expired leases of that lane come back, at most `limit`."""
    await queue.put({f"job:{job(n)}": row("active", 1, group=GROUP) for n in (1, 2, 3)})
    await queue.put({"active": {job(n): n for n in (1, 2, 3)}, "gactive": {GROUP: "3"}})

    assert [await lanes.reap_group(QUEUE, group) for group in (OTHER_GROUP,)] == [0]
    assert [await lanes.reap_group(QUEUE, GROUP, 2), await lanes.reap_group(QUEUE, GROUP)] == [2, 1]

    assert await lanes.depth(QUEUE, GROUP) == 3


BAD_CALLS |= {
    "pause": (lambda lanes: lanes.pause(QUEUE, "lane"), InvalidId),
    "resume": (lambda lanes: lanes.resume(QUEUE, "lane"), InvalidId),
    "limit": (lambda lanes: lanes.limit(QUEUE, GROUP, -1), InvalidArgument),
    "limit true": (lambda lanes: lanes.limit(QUEUE, GROUP, True), InvalidArgument),
    "limit group": (lambda lanes: lanes.limit(QUEUE, "lane", 1), InvalidId),
    "weight": (lambda lanes: lanes.weight(QUEUE, GROUP, 0), InvalidArgument),
    "weight group": (lambda lanes: lanes.weight(QUEUE, "lane", 2), InvalidId),
    "weighted lease": (lambda lanes: lanes.claim_weighted(QUEUE, 0), InvalidArgument),
    "reassign id": (lambda lanes: lanes.reassign(QUEUE, "JOB1", GROUP), InvalidId),
    "reassign group": (lambda lanes: lanes.reassign(QUEUE, job(1), "lane"), InvalidId),
    "drain": (lambda lanes: lanes.drain(QUEUE, "lane"), InvalidId),
    "reap": (lambda lanes: lanes.reap_group(QUEUE, GROUP, 0), InvalidArgument),
    "reap group": (lambda lanes: lanes.reap_group(QUEUE, "lane"), InvalidId),
    "depths": (lambda lanes: lanes.depths(QUEUE, ["lane"]), InvalidId),
}


@pytest.mark.parametrize("case", BAD_CALLS)
async def test_what_is_refused_writes_nothing(lanes: Lanes, queue: Queue, case: str) -> None:
    """Each guard with its class; the server is as empty as before."""
    call, refused = BAD_CALLS[case]

    with pytest.raises(refused) as caught:
        await call(lanes)

    assert type(caught.value) is refused
    assert await queue.state() == {}
