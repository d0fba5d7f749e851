"""settle and everything around the row: sets, slots, rings, tokens, many verdicts at once.

Source: protocol section 4 ("An ending takes the id out of every set that has it", "complete", "wake").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.keyspace import expiring_of
from tests.support.own import Own, complete, delay, flat, lane, merged, retry
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, Queue, State, job, row

ROW, LANE = f"job:{job(1)}", f"g:{GROUP}:pending"
HELD = "3:ab"

Verdict = Callable[..., tuple[Any, ...]]


def dead(id: str, held: str, group: str = "") -> tuple[Any, ...]:
    """A verdict that buries."""
    return retry(id, held, group, max_attempts=1)


VERDICTS: dict[Verdict, str] = {complete: "", retry: "schedule", delay: "schedule", dead: "dead"}
ANY = pytest.mark.parametrize("verdict", VERDICTS)


def in_hand(*numbers: int, **fields: Any) -> State:
    """Jobs of ours with token 3."""
    rows: State = {f"job:{job(n)}": row("active", 3, held=HELD, **fields) for n in numbers}
    return rows | {"active": {job(n): FAR_MS for n in numbers}}


def grouped(*numbers: int, group: str = GROUP) -> State:
    """The same in a lane, each with its slot."""
    return in_hand(*numbers, group=group) | {"gactive": {group: str(len(numbers))}}


def sets_of(state: State, id: str) -> list[str]:
    """The sorted sets that have the id."""
    return [name for name, value in state.items() if isinstance(value, dict) and id in value]


@ANY
@pytest.mark.parametrize("where", ["pending", "schedule", "dead", "active"])
async def test_one_set_or_none(own: Own, queue: Queue, verdict: Verdict, where: str) -> None:
    """Wherever the id stood besides, or instead, it is in the verdict's set only; the others of that set stay."""
    await queue.put({ROW: row("active", 3, held=HELD), where: {job(1): FAR_MS, job(9): 5}})

    await own.settle(verdict(job(1), HELD))

    state = await queue.state()
    assert sets_of(state, job(1)) == [name for name in [VERDICTS[verdict]] if name]
    assert sets_of(state, job(9)) == [where]


@ANY
async def test_reaped_then_settled(own: Own, queue: Queue, verdict: Verdict) -> None:
    """A holder whose lease was lost still has the token: its verdict counts, and takes the job out of pending."""
    await queue.put(merged(in_hand(1), {"active": {job(1): 1}}))
    await own.reap()
    assert sets_of(await queue.state(), job(1)) == ["pending"]

    assert await own.settle(verdict(job(1), HELD)) != ["stale"]

    assert sets_of(await queue.state(), job(1)) == [name for name in [VERDICTS[verdict]] if name]


@ANY
async def test_reaped_then_settled_in_a_lane(own: Own, queue: Queue, verdict: Verdict) -> None:
    """The reap gave the slot back, so the verdict does not; the lane that it empties leaves the ring."""
    await queue.put(merged(grouped(1, 2), {"active": {job(1): 1}}))
    await own.reap()
    assert (await queue.state())["ring"] == [GROUP]

    await own.settle(verdict(job(1), HELD, GROUP))

    state = await queue.state()
    assert sets_of(state, job(1)) == [name for name in [VERDICTS[verdict]] if name]
    assert state["gactive"] == {GROUP: "1"}
    assert {"ring", LANE}.isdisjoint(state)


@ANY
async def test_a_slot_is_given_back_once(own: Own, queue: Queue, verdict: Verdict) -> None:
    """However often the verdict is sent, also in one call; at 0 the counter goes."""
    await queue.put(grouped(1, 2))

    await own.settle(*[verdict(job(1), HELD, GROUP)] * 3)
    await own.settle(verdict(job(1), HELD, GROUP))
    assert (await queue.state())["gactive"] == {GROUP: "1"}
    await own.settle(verdict(job(2), HELD, GROUP))

    assert "gactive" not in await queue.state()


async def test_a_stale_verdict_gives_no_slot_back(own: Own, queue: Queue) -> None:
    """The slot is the present holder's."""
    await queue.put(grouped(1))

    assert await own.settle(complete(job(1), "2:ab", GROUP), retry(job(1), "3:cd", GROUP)) == ["stale", "stale"]

    assert (await queue.state())["gactive"] == {GROUP: "1"}


@ANY
async def test_gone_cleans_active_and_gives_the_slot_back(own: Own, queue: Queue, verdict: Verdict) -> None:
    """The row is gone, so the group that the claim gave frees the slot; once. The lane is on the ring again."""
    await queue.put(merged(lane(2, on_ring=False), {"active": {job(1): FAR_MS}}))
    await queue.put({"gactive": {GROUP: "2"}, "glimit": {GROUP: "2"}})

    assert await own.settle(verdict(job(1), HELD, GROUP)) == ["gone"]

    after = await queue.state()
    assert after == lane(2) | {"gactive": {GROUP: "1"}, "glimit": {GROUP: "2"}, "wake": ["1"]}
    assert await own.settle(verdict(job(1), HELD, GROUP)) == ["gone"]
    assert await queue.state() == after


async def test_gone_takes_a_skeleton_row_with_it(own: Own, queue: Queue) -> None:
    """What promote made of an id without a row has no token: it would block its id and run nothing."""
    await queue.put({ROW: {"state": "pending"}, "pending": {job(1): 0}})

    assert await own.settle(complete(job(1), HELD)) == ["gone"]

    assert await queue.state() == {}


@ANY
async def test_a_lane_that_was_full_is_on_the_ring_again(own: Own, queue: Queue, verdict: Verdict) -> None:
    """Below its limit, not paused, not empty, not there yet: at the tail, with one token."""
    await queue.put(merged(grouped(1), lane(2, on_ring=False), {"glimit": {GROUP: "1"}, "ring": [OTHER_GROUP]}))

    await own.settle(verdict(job(1), HELD, GROUP))

    state = await queue.state()
    assert (state["ring"], state["wake"]) == ([OTHER_GROUP, GROUP], ["1"])


STAYS_OFF: dict[str, State] = {
    "paused": {"paused": {GROUP}},
    "still full": {"glimit": {GROUP: "1"}, "gactive": {GROUP: "2"}},
}


@pytest.mark.parametrize("why", STAYS_OFF)
async def test_a_lane_that_is_shut_stays_off(own: Own, queue: Queue, why: str) -> None:
    """Paused, or at its limit also without this job: no entry, no token."""
    await queue.put(merged(grouped(1), lane(2, on_ring=False), STAYS_OFF[why]))

    await own.settle(complete(job(1), HELD, GROUP))

    assert {"ring", "wake"}.isdisjoint(await queue.state())


async def test_an_empty_lane_stays_off(own: Own, queue: Queue) -> None:
    """Nothing to serve: no entry, no token."""
    await queue.put(grouped(1))

    await own.settle(complete(job(1), HELD, GROUP))

    assert await queue.state() == {"metrics:completed": {"count": "1"}}


async def test_a_lane_on_the_ring_gets_no_token(own: Own, queue: Queue) -> None:
    """It could be served all along, so nobody parked for it."""
    await queue.put(merged(grouped(1), lane(2)))

    await own.settle(complete(job(1), HELD, GROUP))

    state = await queue.state()
    assert state["ring"] == [GROUP]
    assert "wake" not in state


async def test_two_jobs_of_one_lane(own: Own, queue: Queue) -> None:
    """Decided on fresh values: two slots, one entry, one token."""
    await queue.put(merged(grouped(1, 2), lane(3, 4, on_ring=False), {"glimit": {GROUP: "2"}}))

    await own.settle(complete(job(1), HELD, GROUP), retry(job(2), HELD, GROUP))

    state = await queue.state()
    assert (state["ring"], state["wake"]) == ([GROUP], ["1"])
    assert "gactive" not in state


async def test_the_rows_group_is_the_one(own: Own, queue: Queue) -> None:
    """Where the row has a group the caller's word for it does not count."""
    await queue.put(merged(grouped(1), {"gactive": {OTHER_GROUP: "1"}}))

    await own.settle(complete(job(1), HELD, OTHER_GROUP))

    assert (await queue.state())["gactive"] == {OTHER_GROUP: "1"}


CEILING: State = {"meta": {"concurrency": "2"}}


@ANY
@pytest.mark.parametrize("waiting", [flat(8), lane(8)])
async def test_a_ceiling_that_opens_wakes_somebody(own: Own, queue: Queue, verdict: Verdict, waiting: State) -> None:
    """One `ready` token per lease that ended, when there is something to claim, flat or in a lane; it expires."""
    await queue.put(merged(in_hand(1, 2), waiting, CEILING))

    await own.settle(verdict(job(1), HELD), verdict(job(2), HELD))

    assert (await queue.state())["ready"] == ["1", "1"]
    assert queue.keys.ready in await expiring_of(queue.raw)


NO_TOKEN: dict[str, State] = {
    "no ceiling": merged(in_hand(1), flat(8)),
    "nothing waits": merged(in_hand(1), CEILING),
    "the lease was not there": merged({ROW: row("pending", 3, held=HELD)}, flat(8), CEILING),
}


@pytest.mark.parametrize("why", NO_TOKEN)
async def test_no_token_where_none_is_needed(own: Own, queue: Queue, why: str) -> None:
    """Without a ceiling, without work, and where the verdict freed no place."""
    await queue.put(NO_TOKEN[why])

    assert await own.settle(complete(job(1), HELD)) == ["done"]

    assert "ready" not in await queue.state()


def mixed(number: int) -> tuple[tuple[Any, ...], str]:
    """A verdict by number, and its answer."""
    id, group = job(number), GROUP if number % 2 else ""
    return [
        (complete(id, HELD, group), "done"),
        (retry(id, HELD, group), "scheduled"),
        (retry(id, HELD, group, max_attempts=1), "dead"),
        (delay(id, HELD, group, mode="at", value=77), "delayed"),
        (complete(id, "2:ab", group), "stale"),
    ][number % 5]


async def test_five_hundred_of_every_kind(own: Own, queue: Queue) -> None:
    """One answer each, in order; the sets agree; ids that were not named are as they were."""
    numbers, bystanders = range(500), range(900, 910)
    odd, even = [n for n in numbers if n % 2], [n for n in numbers if not n % 2]
    await queue.put(merged(in_hand(*even), grouped(*odd), in_hand(*bystanders)))
    before = await queue.state()

    answers = await own.settle(*(mixed(n)[0] for n in numbers))

    assert answers == [mixed(n)[1] for n in numbers]
    state = await queue.state()
    by_answer = {answer: {job(n) for n in numbers if mixed(n)[1] == answer} for answer in set(answers)}
    assert set(state["schedule"]) == by_answer["scheduled"] | by_answer["delayed"]
    assert set(state["dead"]) == by_answer["dead"]
    assert set(state["active"]) == by_answer["stale"] | {job(n) for n in bystanders}
    assert state["metrics:completed"] == state["metrics:failed"] == {"count": "100"}
    assert state["gactive"] == {GROUP: str(sum(n % 2 for n in numbers if mixed(n)[1] == "stale"))}
    rows = {name.removeprefix("job:") for name in state if name.startswith("job:")}
    assert rows == {job(n) for n in (*numbers, *bystanders)} - by_answer["done"]
    for untouched in by_answer["stale"] | {job(n) for n in bystanders}:
        assert state[f"job:{untouched}"] == before[f"job:{untouched}"]


async def test_two_thousand_in_one_call(own: Own, queue: Queue) -> None:
    """More than a single command takes: in chunks, all the same."""
    await queue.put(in_hand(*range(2_000)))

    assert await own.settle(*(complete(job(n), HELD) for n in range(2_000))) == ["done"] * 2_000

    assert await queue.state() == {"metrics:completed": {"count": "2000"}}


async def test_lanes_by_the_hundred(own: Own, queue: Queue) -> None:
    """Five hundred jobs of five hundred lanes, each full: every lane is on the ring again, tokens up to 64."""
    groups = [f"GRP{n:011d}" for n in range(500)]
    states = [
        merged(
            {f"job:{job(n)}": row("active", 3, held=HELD, group=group), "active": {job(n): FAR_MS}},
            lane(n + 500, group=group, on_ring=False),
            {"glimit": {group: "1"}, "gactive": {group: "1"}},
        )
        for n, group in enumerate(groups)
    ]
    await queue.put(merged(*states))

    await own.settle(*(complete(job(n), HELD, group) for n, group in enumerate(groups)))

    state = await queue.state()
    assert sorted(state["ring"]) == groups
    assert state["wake"] == ["1"] * 64
    assert "gactive" not in state


async def kept(own: Own, queue: Queue, verb: str) -> None:
    """A keeper's extension of the job that is in hand by its first claim."""
    held = "1:ab"
    if verb == "keep":
        await own.keep(job(1), held)
    elif verb == "extend_lock":
        await own.extend_lock(job(1), held)
    else:
        await own.extend_locks(job(1), held)
    assert await queue.raw.exists(queue.keys.lock(job(1)), f"{queue.keys.base}kept") == 2


@pytest.mark.parametrize("verb", ["keep", "extend_lock", "extend_locks"])
async def test_the_lock_of_a_first_claim_goes(own: Own, queue: Queue, verb: str) -> None:
    """Whoever has extended it; what says that there may be one stands on until its time is over."""
    await queue.put(flat(1, 2))
    await own.claim_many(2)
    await kept(own, queue, verb)

    assert await own.settle(complete(job(2), "1:ab"), complete(job(1), "1:ab")) == ["done", "done"]

    assert set(await queue.state()) == {"kept", "claimed:c", "metrics:completed"}


async def test_the_lock_of_a_holder_before_goes(own: Own, queue: Queue) -> None:
    """A foreign keeper's lock, whose lease was lost, beside a job in hand by its second claim."""
    await queue.put(flat(1, attempts=1) | {f"{ROW}:lock": "1"})
    await own.claim_many(1)

    assert await own.settle(complete(job(1), "2:ab")) == ["done"]

    assert set(await queue.state()) == {"claimed:c", "metrics:completed"}
