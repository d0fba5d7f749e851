"""Lanes: admission to a group's lane and the plain claim of the ring."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.connector import Connector
from echomq_worker.errors import EchoMQError, InvalidArgument, InvalidId, InvalidQueueName, KindRefused
from echomq_worker.identity import Mint, is_branded
from echomq_worker.lanes import Lanes
from echomq_worker.rows import Claimed, Receipt
from tests.support.clock import ManualClock
from tests.support.plain import GROUP, OTHER_GROUP, QUEUE, Queue, job, row


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


BAD_CALLS: dict[str, tuple[Any, type[EchoMQError]]] = {
    "malformed group": (lambda lanes: lanes.enqueue(QUEUE, "lane", b"x"), InvalidId),
    "malformed id": (lambda lanes: lanes.enqueue(QUEUE, GROUP, b"x", id="JOB1"), InvalidId),
    "foreign id": (lambda lanes: lanes.enqueue(QUEUE, GROUP, b"x", id=job(1, "USR")), KindRefused),
    "queue": (lambda lanes: lanes.enqueue("emq", GROUP, b"x"), InvalidQueueName),
    "depth": (lambda lanes: lanes.depth(QUEUE, "lane"), InvalidId),
    "lease": (lambda lanes: lanes.claim(QUEUE, 0), InvalidArgument),
}


@pytest.mark.parametrize("case", BAD_CALLS)
async def test_what_is_refused_writes_nothing(lanes: Lanes, queue: Queue, case: str) -> None:
    """Each guard with its class; the server is as empty as before."""
    call, refused = BAD_CALLS[case]

    with pytest.raises(refused) as caught:
        await call(lanes)

    assert type(caught.value) is refused
    assert await queue.state() == {}
