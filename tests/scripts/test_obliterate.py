"""obliterate: a paused queue goes whole, in bounded calls; what it promises to flows and to a host that breaks off."""

from __future__ import annotations

import random
from typing import Any

import pytest

from echomq_worker.errors import ServerError, StateRefused
from tests.support.control import CHILD, PARENT, REPEATS, Control, child, waiting
from tests.support.own import flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, Queue, State, job, row

PAUSED: State = {"meta": {"paused": "1"}}
ROW = f"job:{CHILD}"
BEHIND = ("logs", "lock", "dependencies", "processed", "failed", "unsuccessful")


def group(number: int) -> str:
    """One of many groups."""
    return f"GRP{number:011d}"


def everything(count: int = 4) -> State:
    """Jobs of every kind, from number 0 on, with all that a queue can have."""
    groups = [group(n) for n in range(5)]
    states: list[State] = []
    for n in range(count):
        a, b, c, d, e, f = (job(10 * n + place) for place in range(6))
        one = groups[n % 5]
        states.append(
            {
                f"job:{a}": row(dedup=f"k{n}"),
                "pending": {a: 0},
                f"de:k{n}": a,
                f"job:{b}": row("scheduled", group=one),
                "schedule": {b: FAR_MS},
                f"job:{c}": row("dead", last_error="boom"),
                "dead": {c: 0},
                f"job:{c}:logs": ["line"],
                f"job:{d}": row("active", 1, group=one, held="1:ab"),
                "active": {d: FAR_MS},
                "gactive": {one: str((count + 4 - n % 5) // 5)},
                f"job:{e}": row(group=one),
                f"g:{one}:pending": {e: 0},
                f"job:{f}": row("awaiting_children"),
                f"job:{f}:dependencies": "2",
                f"job:{f}:processed": {job(5): "1"},
            }
        )
    rest: State = {
        "ring": groups[:2],
        "wake": ["1"],
        "paused": {groups[2]},
        "glimit": {groups[3]: "1", group(77): "4"},
        "gweight": {groups[0]: "3", group(78): "2"},
        "metrics:completed": {"count": "7"},
        "metrics:failed": {"count": "3"},
        "meta": {"paused": "1", "concurrency": "5", "max": "10", "window_ms": "1000", "flat_turn": "1"},
    }
    return merged(*states, rest, REPEATS)


async def until_done(control: Control, *, budget: int = 100, force: bool = True) -> int:
    """Call until it answers 0; how many calls that took."""
    calls = 1
    while await control.obliterate(force=force, budget=budget):
        calls += 1
        assert calls < 10_000, "it never ends"
    return calls


@pytest.mark.parametrize("budget", [1, 7, 1_000])
async def test_all_that_a_set_or_a_lane_names_goes(control: Control, queue: Queue, budget: int) -> None:
    """Whatever the budget: rows, logs, lanes, counters, limits, repeats, dedup keys, metrics, and the pause last. What
    nothing names is left for the host: here the parents that wait, which stand in no set.
    """
    await queue.put(everything())
    for name in ("ready", "limiter", "kept"):
        await queue.put({name: ["1"] if name == "ready" else "3"})
        await queue.raw.expire(queue.keys.base + name, 60)

    await until_done(control, budget=budget)

    parents = [job(10 * n + 5) for n in range(4)]
    assert set(await queue.state()) == {
        f"job:{id}{part}" for id in parents for part in ("", ":dependencies", ":processed")
    }


async def test_ids_that_nothing_names(control: Control, queue: Queue) -> None:
    """Given by the host: waiting parents, subkeys without a row, strays with a lane that nothing names."""
    lost = merged(lane(4, 5, on_ring=False), {f"job:{job(6)}": row()})
    await queue.put(merged(PAUSED, waiting(2), lost, {f"job:{job(7)}:{part}": "1" for part in BEHIND[1:2]}))
    await queue.raw.expire(f"{queue.keys.base}job:{job(7)}:lock", 60)

    assert await control.obliterate("keep", PARENT, *(job(n) for n in (4, 5, 6, 7))) == 0

    assert await queue.state() == PAUSED
    assert await control.obliterate() == 0

    assert await queue.state() == {}


async def test_keep_leaves_the_pause(control: Control, queue: Queue) -> None:
    """0 with all gone but `meta`, so that the host can look for what nothing names while nobody claims."""
    await queue.put(everything(1))
    answers = [await control.obliterate("keep", force=True) for _ in range(9)]

    assert answers[-1] == 0
    assert (await queue.state())["meta"]["paused"] == "1"
    assert await control.obliterate() == 0

    assert "meta" not in await queue.state()


@pytest.mark.parametrize("force", [False, True])
async def test_a_queue_that_is_not_paused_is_refused(control: Control, queue: Queue, force: bool) -> None:
    """EMQSTATE, forced or not, and nothing is written; an empty queue likewise."""
    with pytest.raises(StateRefused, match="EMQSTATE not paused"):
        await control.obliterate(force=force)
    state = everything() | {"meta": {"concurrency": "5"}}
    await queue.put(state)

    with pytest.raises(StateRefused, match="EMQSTATE not paused"):
        await control.obliterate(force=force)

    assert await queue.state() == state


async def test_jobs_in_hand_are_refused(control: Control, queue: Queue) -> None:
    """EMQSTATE unless forced, also one whose lease is over; nothing is written."""
    state = merged(PAUSED, flat(2), {ROW: row("active", 1), "active": {CHILD: 1}})
    await queue.put(state)

    with pytest.raises(StateRefused, match="EMQSTATE active jobs present"):
        await control.obliterate()
    assert await queue.state() == state
    await until_done(control)

    assert await queue.state() == {}


@pytest.mark.parametrize("budget", [0, -1, "", "some"])
async def test_a_budget_is_a_number_above_0(control: Control, queue: Queue, budget: Any) -> None:
    """Nothing is written."""
    await queue.put(merged(PAUSED, flat(1)))

    with pytest.raises(ServerError, match="budget"):
        await control.obliterate(budget=budget)

    assert await queue.state() == merged(PAUSED, flat(1))


async def test_a_call_takes_no_more_than_its_budget(control: Control, queue: Queue) -> None:
    """Of sets, of lanes, and of lanes without members; a lane that is begun stays on the ring with the rest."""
    await queue.put(
        merged(PAUSED, flat(*range(10)), lane(*range(10, 20)), {"gweight": {group(n): "2" for n in range(30)}})
    )

    assert await control.obliterate(budget=4) == 1
    assert await queue.state() == merged(
        PAUSED, flat(*range(4, 10)), lane(*range(10, 20)), {"gweight": {group(n): "2" for n in range(30)}}
    )
    assert await control.obliterate(budget=9) == 1
    state = await queue.state()
    assert (state["ring"], state[f"g:{GROUP}:pending"]) == ([GROUP], {job(n): 0 for n in range(13, 20)})
    assert {name for name in state if name.startswith("job:")} == {f"job:{job(n)}" for n in range(13, 20)}
    assert await control.obliterate(budget=9) == 1
    state = await queue.state()
    assert "ring" not in state
    # Seven members and the lane itself, then one of the weights.
    assert len(state["gweight"]) in {28, 29, 30}


async def test_the_call_that_finds_the_last_is_the_last(control: Control, queue: Queue) -> None:
    """Whoever enqueues between any two calls does not keep it from ending: sets and pause go in one call."""
    await queue.put(merged(PAUSED, flat(1), lane(2), REPEATS))

    assert await control.obliterate(budget=50) == 0

    assert await queue.state() == {}


async def test_slots_are_given_back_on_the_way(control: Control, queue: Queue) -> None:
    """Broken off in the middle, what is left agrees: the counter is that of the jobs still in hand."""
    rows = {f"job:{job(n)}": row("active", 1, group=GROUP) for n in range(5)}
    await queue.put(merged(PAUSED, rows, {"active": {job(n): n + 1 for n in range(5)}, "gactive": {GROUP: "5"}}))

    await control.obliterate(force=True, budget=3)

    state = await queue.state()
    assert (state["gactive"], set(state["active"])) == ({GROUP: "2"}, {job(3), job(4)})


async def test_a_dedup_key_of_another_job_stays(control: Control, queue: Queue) -> None:
    """A key is released where it holds the id; one that holds another is left to the scan."""
    await queue.put(merged(PAUSED, {ROW: row(dedup="k"), "pending": {CHILD: 0}, "de:k": job(7)}))

    await until_done(control)

    assert await queue.state() == {"de:k": job(7)}


@pytest.mark.parametrize("policy", ["fp", "id"])
async def test_a_child_counts_as_dead_in_its_own_queue(control: Control, queue: Queue, policy: str) -> None:
    """Its parent fails with it or is released, is found in its set by the next call, and goes too; so does whoever
    waits for that parent.
    """
    await queue.put(merged(PAUSED, {ROW: child(policy), "pending": {CHILD: 0}}))
    await queue.put(waiting(1, parent=job(91), parent_policy="id"))
    await queue.put({f"job:{job(91)}": row("awaiting_children", group=GROUP), f"job:{job(91)}:dependencies": "1"})

    assert await until_done(control, force=False) > 1

    # A foreign caller needs no scan for these.
    assert await queue.state() == {}


async def test_parents_in_other_queues_hear_of_it(control: Control, queue: Queue) -> None:
    """By entries in the outbox, which are left for a Pump to deliver; a dead child has reported, a completion that is
    on its way stays.
    """
    underway = f"other\0{PARENT}\0{job(5)}\0result"
    await queue.put(merged(PAUSED, {ROW: child("id", queue="other"), "pending": {CHILD: 0}, "flow:outbox": [underway]}))
    await queue.put({f"job:{job(2)}": child("fp", state="dead", queue="other"), "dead": {job(2): 0}})

    await until_done(control, force=False)

    death = f"\0fail\0other\0{PARENT}\0{CHILD}\0id\0obliterated"
    assert await queue.state() == {"flow:outbox": [underway, death]}


async def test_a_child_and_its_parent_in_one_call(control: Control, queue: Queue) -> None:
    """The parent goes in the same call: it is not made anew, and its own parent elsewhere hears of it once."""
    await queue.put(merged(PAUSED, {ROW: child(), "pending": {CHILD: 0}}))
    await queue.put(waiting(1, parent=job(91), parent_queue="other", parent_policy="fp"))

    assert await control.obliterate("keep", PARENT) == 1

    entry = f"\0fail\0other\0{job(91)}\0{PARENT}\0fp\0obliterated"
    assert await queue.state() == merged(PAUSED, {"flow:outbox": [entry]})


async def test_ring_entries_that_are_wrong(control: Control, queue: Queue) -> None:
    """Hollow ones, doubled ones, one that is on the ring and in every hash: all go."""
    await queue.put(
        merged(
            PAUSED,
            lane(1, on_ring=False),
            {"ring": [OTHER_GROUP, GROUP, OTHER_GROUP, GROUP], "paused": {GROUP}, "glimit": {GROUP: "1"}},
        )
    )

    await until_done(control, budget=2)

    assert await queue.state() == {}


@pytest.mark.parametrize("seed", range(3))
async def test_ids_in_several_places(control: Control, queue: Queue, seed: int) -> None:
    """What foreign clients leave, ids in two sets and in lanes of other groups, with rows and without: all goes."""
    dice = random.Random(seed)
    places = ["pending", "active", "schedule", "dead", f"g:{GROUP}:pending", f"g:{OTHER_GROUP}:pending"]
    state: State = {"ring": [GROUP], "paused": {OTHER_GROUP}}
    for n in range(60):
        for place in dice.sample(places, dice.randint(1, 3)):
            state = merged(state, {place: {job(n): dice.choice([0, 1, FAR_MS])}})
        if dice.random() < 0.8:
            fields: dict[str, str] = dice.choice([{}, {"group": GROUP}, {"group": OTHER_GROUP}])
            state = merged(state, {f"job:{job(n)}": row(dice.choice(["pending", "active", "dead"])) | fields})
    await queue.put(merged(PAUSED, state))

    await until_done(control, budget=dice.choice([3, 11, 200]))

    assert await queue.state() == {}
