"""keep: the leases of all that a worker holds, extended in one call.

Source: protocol section 4 (extend), section 8 (the lock marker).
"""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.connector import connect
from echomq_worker.errors import ServerError
from tests.support.keyspace import expiring_of
from tests.support.own import LEASE_MS, Own
from tests.support.plain import FAR_MS, Queue, State, Within, job, row
from tests.support.valkey import OwnServer, raw_client

ROW = f"job:{job(1)}"
HELD = "3:ab"


def in_hand(*numbers: int, lease: float = 1) -> State:
    """Jobs of ours with token 3, their leases about to end."""
    rows: State = {f"job:{job(n)}": row("active", 3, held=HELD) for n in numbers}
    return rows | {"active": {job(n): lease for n in numbers}}


async def test_every_lease_begins_anew(own: Own, queue: Queue) -> None:
    """On the server's clock; the rows stay; each job has its keeper's mark, for twice the lease."""
    await queue.put(in_hand(1, 2, 3))
    before, began = await queue.state(), await queue.now_ms()

    assert await own.keep(job(1), HELD, job(2), HELD) == []

    deadline = Within(began + LEASE_MS, await queue.now_ms() + LEASE_MS)
    marks: State = {f"job:{job(n)}:lock": "3" for n in (1, 2)}
    assert await queue.state() == before | marks | {"active": {job(1): deadline, job(2): deadline, job(3): 1}}
    assert list((await expiring_of(queue.raw)).values()) == [Within(2 * LEASE_MS - 10_000, 2 * LEASE_MS)] * 2


async def test_a_first_claim_is_noted(own: Own, queue: Queue) -> None:
    """For as long as its lock stands, the longest of all: who settles then looks for locks. A later claim is not, nor
    is a job that was disowned.
    """
    rows: State = {ROW: row("active", 1, held="1:ab"), f"job:{job(2)}": row("active", 1)}
    await queue.put(rows | {f"job:{job(3)}": row("active", 2, held="2:ab"), "active": {job(n): 1 for n in (1, 2, 3)}})
    noted = f"{queue.keys.base}kept"

    assert await own.keep(job(2), "1:ab", job(3), "2:ab") == []
    assert await queue.raw.exists(noted) == 0

    for lease_ms, lasts in ((5_000, 10_000), (LEASE_MS, 2 * LEASE_MS), (5_000, 2 * LEASE_MS)):
        assert await own.keep(job(3), "2:ab", job(1), "1:ab", lease_ms=lease_ms) == []
        assert await queue.raw.pttl(noted) == Within(lasts - 4_000, lasts)


async def test_never_shortens(own: Own, queue: Queue) -> None:
    """A handler's own, longer extension stands."""
    await queue.put(in_hand(1, lease=FAR_MS))

    assert await own.keep(job(1), HELD) == []

    assert (await queue.state())["active"] == {job(1): FAR_MS}


REFUSED: dict[str, tuple[State, str, str]] = {
    "another token": (in_hand(1), "2:ab", "stale"),
    "another random": (in_hand(1), "3:cd", "stale"),
    "no row": ({"active": {job(1): 1}}, HELD, "gone"),
    "reaped": ({ROW: row("pending", 3, held=HELD), "pending": {job(1): 0}}, HELD, "not_active"),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_what_is_lost_is_named_and_not_revived(own: Own, queue: Queue, why: str) -> None:
    """With the reason; nothing is written for it, and the others of the call are extended."""
    state, held, reason = REFUSED[why]
    await queue.put(state)
    before = await queue.state()

    assert await own.keep(job(1), held) == [job(1), reason]
    assert await queue.state() == before

    await queue.put(in_hand(2))
    assert await own.keep(job(1), held, job(2), HELD) == [job(1), reason]
    assert await queue.raw.zscore(queue.keys.active, job(2)) == Within(LEASE_MS, FAR_MS)


async def test_a_disowned_job_is_not_lost(own: Own, queue: Queue) -> None:
    """The process that disowned it may still keep it until it ends."""
    await queue.put(in_hand(1))
    await own.disown(job(1), HELD)

    assert await own.keep(job(1), HELD) == []


async def test_a_full_server_takes_it(own_server: OwnServer) -> None:
    """Reap is never refused for want of memory: leases that could not be kept would be started again elsewhere."""
    server = own_server()
    async with connect(server.url) as wire, raw_client(server.url) as raw:
        queue = Queue(raw)
        await queue.put(in_hand(1))
        server.admin.config_set("maxmemory", 1)

        assert await Own(wire).keep(job(1), HELD) == []
        token = HELD.partition(":")[0]
        assert await Own(wire).extend_lock(job(1), token) == 1
        assert await Own(wire).extend_locks(job(1), token) == []

        assert await raw.zscore(queue.keys.active, job(1)) == Within(LEASE_MS, FAR_MS)


async def test_three_thousand(own: Own, queue: Queue) -> None:
    """More than a single command takes."""
    await queue.put(in_hand(*range(3_000)))
    began = await queue.now_ms()

    assert await own.keep(*(word for n in range(3_000) for word in (job(n), HELD))) == []

    assert (await queue.state())["active"] == dict.fromkeys(map(job, range(3_000)), Within(began, FAR_MS))


@pytest.mark.parametrize("lease_ms", [0, -5, "soon"])
async def test_a_lease_that_is_none_is_refused(own: Own, queue: Queue, lease_ms: Any) -> None:
    """Before anything is written."""
    await queue.put(in_hand(1))
    before = await queue.state()

    with pytest.raises(ServerError, match="lease_ms"):
        await own.keep(job(1), HELD, lease_ms=lease_ms)

    assert await queue.state() == before
