"""claim_many and lanes: fair turn with flat pending, weights, limits, and what it makes of the ring.

Source: protocol section 5, section 4 (hollow lanes; the turn is kept in `meta`).
"""

from __future__ import annotations

import pytest

from tests.support.native import SCRIPT_ALONE
from tests.support.own import LEASE_MS, Own, flat, lane, merged
from tests.support.plain import Queue, State, Within, job, row

A, B, C = (f"GRP0000000000{letter}" for letter in "ABC")
# Flat jobs begin at 1, those of lane A at 11, of B at 21.
FLAT, IN_A, IN_B = (1, 2, 3), (11, 12, 13), (21, 22, 23)
TURNS = [job(n) for n in (11, 21, 1, 12, 22, 2, 13, 23, 3)]


def group(number: int) -> str:
    """One of many groups."""
    return f"GRP{number:011d}"


def weights(**weight: int) -> State:
    """`gweight` of A and B."""
    return {"gweight": {{"a": A, "b": B}[name]: str(w) for name, w in weight.items()}}


async def one_at_a_time(own: Own, count: int) -> list[str]:
    """The ids that as many claims of one slot each give."""
    return [id for _ in range(count) for id in (await own.claim_many(1)).ids]


async def test_a_job_of_a_lane(own: Own, queue: Queue) -> None:
    """It comes with its group and takes a slot of it; the lane, emptied, leaves the ring."""
    await queue.put(lane(11, group=A))
    before = await queue.now_ms()

    (taken,) = (await own.claim_many(5)).jobs

    assert (taken.id, taken.token, taken.group) == (job(11), 1, A)
    assert await queue.state() == {
        f"job:{job(11)}": row("active", 1, group=A, held="1:ab"),
        "active": {job(11): Within(before + LEASE_MS, await queue.now_ms() + LEASE_MS)},
        "gactive": {A: "1"},
        "claimed:c": f"1 ab {job(11)} 1",
    }


async def test_flat_is_one_of_the_lanes(own: Own, queue: Queue) -> None:
    """Two lanes and flat pending are served in turn, one job each."""
    await queue.put(merged(flat(*FLAT), lane(*IN_A, group=A), lane(*IN_B, group=B)))

    claim = await own.claim_many(9)

    assert claim.ids == TURNS
    state = await queue.state()
    assert state["gactive"] == {A: "3", B: "3"}
    assert {"ring", "pending", f"g:{A}:pending", f"g:{B}:pending"}.isdisjoint(state)


async def test_the_turn_outlives_the_claim(own: Own, queue: Queue) -> None:
    """Nine claims of one slot give what one claim of nine gives: the turn of flat is kept in `meta.flat_turn`."""
    await queue.put(merged(flat(*FLAT), lane(*IN_A, group=A), lane(*IN_B, group=B)))

    assert await one_at_a_time(own, 2) == TURNS[:2]
    state = await queue.state()
    assert (state["meta"], state["ring"]) == ({"flat_turn": "0"}, [A, B])
    assert (await own.claim_many(1)).ids == TURNS[2:3]
    assert (await queue.state())["meta"] == {"flat_turn": "2"}
    assert [(await own.claim_many(1)).ids[0] for _ in range(3, 9)] == TURNS[3:]


async def test_without_flat_jobs_no_turn_is_kept(own: Own, queue: Queue) -> None:
    """Neither lanes alone nor flat pending alone write `meta`."""
    await queue.put(lane(*IN_A, group=A))
    await own.claim_many(2)
    await own.claim_many(5)
    await queue.put(flat(*FLAT))
    await own.claim_many(2)

    assert "meta" not in await queue.state()


async def test_the_ring_is_rotated(own: Own, queue: Queue) -> None:
    """A lane that was served and has more stands behind those that were not."""
    await queue.put(merged(lane(*IN_A, group=A), lane(*IN_B, group=B), lane(31, 32, group=C)))

    assert (await own.claim_many(1)).ids == [job(11)]
    assert (await queue.state())["ring"] == [B, C, A]
    # Two full rounds and one of the third.
    assert (await own.claim_many(4)).ids == [job(n) for n in (21, 31, 12, 22)]
    assert (await queue.state())["ring"] == [C, A, B]
    assert (await own.claim_many(9)).ids == [job(n) for n in (32, 13, 23)]
    assert "ring" not in await queue.state()


async def test_hollow_lanes_do_not_end_a_claim(own: Own, queue: Queue) -> None:
    """Lanes without members fall off the ring, and the one behind them is served."""
    await queue.put(merged(lane(group=C), lane(group=B), lane(11, 12, group=A)))

    assert (await own.claim_many(1)).ids == [job(11)]

    assert (await queue.state())["ring"] == [A]


async def test_hollow_lanes_have_no_turn(own: Own, queue: Queue) -> None:
    """Flat pending does not wait for as many turns as there are hollow lanes."""
    hollow = merged(*(lane(group=group(n)) for n in range(50)))
    await queue.put(merged(hollow, lane(*IN_A, group=A), flat(*FLAT)))

    assert (await own.claim_many(6)).ids == [job(n) for n in (11, 1, 12, 2, 13, 3)]


async def test_an_entry_that_stands_twice_counts_once(own: Own, queue: Queue) -> None:
    """A lane does not get two turns a round, and its second entry goes."""
    await queue.put(merged(lane(*IN_A, group=A), {"ring": [A]}, lane(*IN_B, group=B), {"ring": [A]}))

    assert (await own.claim_many(4)).ids == [job(n) for n in (11, 21, 12, 22)]

    assert (await queue.state())["ring"] == [A, B]


async def test_a_limit_holds_back_the_rest_of_the_lane(own: Own, queue: Queue) -> None:
    """With one of two in flight one more is taken; full, the lane leaves the ring and its jobs wait."""
    await queue.put(merged(lane(*IN_A, group=A), {"glimit": {A: "2"}, "gactive": {A: "1"}}))

    assert (await own.claim_many(9)).ids == [job(11)]

    state = await queue.state()
    assert (state["gactive"], state[f"g:{A}:pending"]) == ({A: "2"}, {job(12): 0, job(13): 0})
    assert "ring" not in state


@pytest.mark.parametrize("shut", [{"glimit": {A: "0"}}, {"glimit": {A: "2"}, "gactive": {A: "2"}}, {"paused": {A}}])
async def test_a_lane_that_is_shut_falls_off_the_ring(own: Own, queue: Queue, shut: State) -> None:
    """At its limit or paused: its jobs stay, the other lane is served."""
    await queue.put(merged(lane(*IN_A, group=A), lane(21, group=B), shut))

    assert (await own.claim_many(9)).ids == [job(21)]

    state = await queue.state()
    assert state[f"g:{A}:pending"] == {job(n): 0 for n in IN_A}
    assert "ring" not in state


async def test_a_weight_is_a_share_of_each_turn(own: Own, queue: Queue) -> None:
    """Weight 3 beside weight 1: three heads, then one."""
    await queue.put(merged(lane(*range(11, 18), group=A), lane(*IN_B, group=B), weights(a=3)))

    assert (await own.claim_many(9)).ids == [job(n) for n in (11, 12, 13, 21, 14, 15, 16, 22, 17)]


async def test_a_weight_counts_where_slots_come_free_one_at_a_time(own: Own, queue: Queue) -> None:
    """A turn that had no room to end goes on with the next claim: the order is that of one big claim."""
    await queue.put(merged(lane(*range(11, 18), group=A), lane(*IN_B, group=B), flat(1, 2), weights(a=3)))

    assert await one_at_a_time(own, 1) == [job(11)]
    state = await queue.state()
    assert (state["ring"], state["meta"]) == ([A, B], {"lane_turn": f"{A}:1", "flat_turn": "2"})
    assert [(await own.claim_many(1)).ids[0] for _ in range(1, 12)] == [
        job(n) for n in (12, 13, 21, 1, 14, 15, 16, 22, 2, 17, 23)
    ]
    assert "lane_turn" not in (await queue.state())["meta"]


async def test_a_turn_that_was_cut_is_forgotten_when_somebody_rotates(own: Own, queue: Queue) -> None:
    """A foreign claim has rotated the ring meanwhile: the lane that is the head now has a turn of its own."""
    await queue.put(merged(lane(*range(11, 18), group=A), lane(*range(21, 28), group=B), weights(a=3, b=2)))
    await own.claim_many(1)
    await own.lane_claim()

    assert (await own.claim_many(5)).ids == [job(n) for n in (21, 22, 13, 14, 15)]


async def test_a_turn_that_was_cut_is_over_when_the_weight_is_gone(own: Own, queue: Queue) -> None:
    """Lane A had two of three; without a weight it has had more than its turn."""
    await queue.put(merged(lane(*IN_A, group=A), lane(*IN_B, group=B), {"meta": {"lane_turn": f"{A}:2"}}))

    assert (await own.claim_many(3)).ids == [job(n) for n in (21, 11, 22)]


@pytest.mark.parametrize(("bound", "most"), [({}, 6), ({"glimit": {A: "5"}}, 5)])
async def test_an_odd_job_behind_others_of_its_lane(own: Own, queue: Queue, bound: State, most: int) -> None:
    """One that crashed once stands among jobs that nobody had: all that are taken leave the lane and count."""
    odd = {f"job:{job(13)}": row(group=A, attempts=3, held="3:zz")}
    await queue.put(merged(lane(*range(11, 17), group=A), odd, bound))

    claim = await own.claim_many(9)

    assert claim.ids == [job(n) for n in range(11, 17)][:most]
    assert [one.crashes for one in claim.jobs] == [0, 0, 1, 0, 0, 0][:most]
    state = await queue.state()
    assert state["gactive"] == {A: str(most)}
    assert list(state.get(f"g:{A}:pending", {})) == [job(16)][: 6 - most]


@pytest.mark.parametrize("bound", [{"glimit": {A: "2"}}, {"glimit": {A: "3"}, "gactive": {A: "1"}}])
async def test_a_weight_ends_at_the_limit(own: Own, queue: Queue, bound: State) -> None:
    """min(weight, depth, room under the limit)."""
    await queue.put(merged(lane(*IN_A, group=A), lane(*IN_B, group=B), weights(a=9), bound))

    assert (await own.claim_many(4)).ids == [job(n) for n in (11, 12, 21, 22)]


async def test_a_weight_without_measure(own: Own, queue: Queue) -> None:
    """A weight above what one call can carry takes what fits into the claim."""
    await queue.put(merged(lane(*range(1_500), group=A), lane(2_001, group=B), weights(a=10**12)))

    assert len((await own.claim_many(1_000)).ids) == 1_000
    assert (await own.claim_many(1_000)).ids == [*(job(n) for n in range(1_000, 1_500)), job(2_001)]


async def test_three_thousand_lanes(own: Own, queue: Queue) -> None:
    """A thousand a call, each lane once, in the order of the ring, and each with its slot."""
    await queue.put(merged(*(lane(n, group=group(n)) for n in range(3_000))))

    claims = [await own.claim_many(1_000) for _ in range(4)]

    assert [id for claim in claims for id in claim.ids] == [job(n) for n in range(3_000)]
    state = await queue.state()
    assert state["gactive"] == {group(n): "1" for n in range(3_000)}
    assert "ring" not in state


async def test_many_lanes_with_many_jobs(own: Own, queue: Queue) -> None:
    """Two hundred lanes of ten: a thousand slots take the five oldest of each, and the ring is where it was."""
    lanes = (lane(*range(10 * n, 10 * n + 10), group=group(n)) for n in range(200))
    await queue.put(merged(*lanes))

    claim = await own.claim_many(1_000)

    assert claim.ids == [job(10 * n + turn) for turn in range(5) for n in range(200)]
    state = await queue.state()
    assert state["ring"] == [group(n) for n in range(200)]
    assert state["gactive"] == {group(n): "5" for n in range(200)}


@SCRIPT_ALONE
@pytest.mark.parametrize(("lanes", "encoding"), [(32, b"listpack"), (100, b"hashtable")])
async def test_the_counters_of_many_lanes_are_looked_up(own: Own, queue: Queue, lanes: int, encoding: bytes) -> None:
    """A server searches a small hash for every field; of what makes it look them up nothing is left."""
    await queue.put(merged(*(lane(n, group=group(n)) for n in range(lanes))))

    assert len((await own.claim_many(lanes)).ids) == lanes

    assert (await queue.state())["gactive"] == {group(n): "1" for n in range(lanes)}
    assert await queue.raw.object("ENCODING", f"{queue.keys.base}gactive") == encoding


@pytest.mark.parametrize("counted", [True, False])
async def test_a_lane_by_the_name_that_makes_the_counters_looked_up(own: Own, queue: Queue, counted: bool) -> None:
    """Whatever a foreign client calls a lane, it keeps its counter, among many others too."""
    odd = "-" * 65
    await queue.put(merged(*(lane(n, group=group(n)) for n in range(100, 150)), lane(1, group=odd)))
    if counted:
        await queue.raw.hset(f"{queue.keys.base}gactive", odd, 4)
    assert len((await own.claim_many(100)).ids) == 51
    assert (await queue.state())["gactive"] == {
        **{group(n): "1" for n in range(100, 150)},
        odd: "5" if counted else "1",
    }


async def test_one_slot_behind_three_thousand_hollow_lanes(own: Own, queue: Queue) -> None:
    """The claim goes on until it finds somebody to serve; the ring is clean then."""
    await queue.put(merged(*(lane(group=group(n)) for n in range(3_000)), lane(11, 12, group=A)))

    assert (await own.claim_many(1)).ids == [job(11)]

    assert (await queue.state())["ring"] == [A]


async def test_lanes_and_the_ceiling(own: Own, queue: Queue) -> None:
    """`meta.concurrency` counts jobs of lanes and flat ones alike."""
    await queue.put(merged(lane(*IN_A, group=A), flat(*FLAT), {"meta": {"concurrency": "2"}}))

    assert (await own.claim_many(9)).ids == [job(11), job(1)]
    assert (await own.claim_many(9)).why == "ceiling"
