"""A child's death reaches its parent, by policy and at every level, in the very script that buries it."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import StateRefused
from tests.support.burials import BURIALS, CHILD, Burial, in_hand, pending
from tests.support.flows import UP, FlowVerbs, completion, death, parent_row
from tests.support.own import complete, retry
from tests.support.plain import GROUP, Queue, State, job, row

PARENT, TOP = job(90), job(99)
ROW = f"job:{PARENT}"
WAY = pytest.mark.parametrize("burial", BURIALS.values(), ids=BURIALS)


async def without_a_parent(flow: FlowVerbs, queue: Queue, burial: Burial) -> State:
    """What the burial leaves of a job that is nobody's child."""
    await queue.put(burial.before())
    await burial.call(flow)
    state = await queue.state()
    await queue.raw.flushdb()
    return state


async def with_a_parent(flow: FlowVerbs, queue: Queue, burial: Burial, rest: State, **kin: str) -> State:
    """What it leaves beside `rest`, the child's own part as `without_a_parent` has it."""
    await queue.put(burial.before(parent=PARENT, **kin) | rest)
    await burial.call(flow)
    state = await queue.state()
    child = state.get(f"job:{CHILD}")
    if child is not None:
        assert {name: child.pop(name) for name in ("parent", *kin)} == {"parent": PARENT, **kin}
    return state


def failed(state: State, *parents: str) -> State:
    """More dead jobs, counted."""
    count = int(state.get("metrics:failed", {}).get("count", 0)) + len(parents)
    dead = dict(state.get("dead", {})) | dict.fromkeys(parents, 0)
    return state | {"dead": dead, "metrics:failed": {"count": str(count)}}


@WAY
@pytest.mark.parametrize("kin", [{}, {"parent_policy": "fp"}], ids=["no policy", "fp"])
async def test_policy_fp_fails_the_parent(flow: FlowVerbs, queue: Queue, burial: Burial, kin: dict[str, str]) -> None:
    """Dead, counted, with the reason; the child in `:failed`; the count stays. So it is for a row without policy."""
    base = await without_a_parent(flow, queue, burial)

    state = await with_a_parent(flow, queue, burial, parent_row("awaiting_children", 2), **kin)

    said = f"child {CHILD} died: {burial.reason}"
    assert state == failed(base, PARENT) | parent_row("dead", 2, last_error=said) | {
        f"{ROW}:failed": {CHILD: burial.reason}
    }


@WAY
async def test_policy_id_counts_it_as_done(flow: FlowVerbs, queue: Queue, burial: Burial) -> None:
    """Recorded in `:unsuccessful`, one child less to wait for."""
    base = await without_a_parent(flow, queue, burial)

    state = await with_a_parent(flow, queue, burial, parent_row("awaiting_children", 2), parent_policy="id")

    assert state == base | parent_row("awaiting_children", 1) | {f"{ROW}:unsuccessful": {CHILD: burial.reason}}


@WAY
async def test_the_last_ignored_death_releases_the_parent(flow: FlowVerbs, queue: Queue, burial: Burial) -> None:
    """To pending with a token, also where the claim that buries has found the queue empty and taken the tokens away."""
    base = await without_a_parent(flow, queue, burial)
    rest = parent_row("awaiting_children", 1) | {"ready": ["1"]}

    state = await with_a_parent(flow, queue, burial, rest, parent_policy="id")
    await queue.raw.pexpire(queue.keys.ready, 60_000)

    tokens = state.pop("ready")
    assert 1 <= len(tokens) <= 2
    assert state == base | parent_row("pending", 0) | {
        f"{ROW}:unsuccessful": {CHILD: burial.reason},
        "pending": {PARENT: 0},
    }


@WAY
@pytest.mark.parametrize("policy", ["fp", "id"])
async def test_a_parent_in_another_queue_is_told_by_the_outbox(
    flow: FlowVerbs, queue: Queue, burial: Burial, policy: str
) -> None:
    """One entry, pushed by the script that buries."""
    base = await without_a_parent(flow, queue, burial)

    state = await with_a_parent(flow, queue, burial, {}, parent_policy=policy, parent_queue=UP)

    assert state == base | {"flow:outbox": [death(CHILD, PARENT, burial.reason, policy=policy)]}


@WAY
@pytest.mark.parametrize("policy", ["fp", "id"])
async def test_a_parent_that_is_gone_is_not_made_anew(
    flow: FlowVerbs, queue: Queue, burial: Burial, policy: str
) -> None:
    """Nobody is told, and no key of it appears."""
    base = await without_a_parent(flow, queue, burial)

    assert await with_a_parent(flow, queue, burial, {}, parent_policy=policy) == base


@pytest.mark.parametrize("policy", ["fp", "id"])
async def test_a_job_that_came_later_under_the_parents_id_hears_nothing(
    flow: FlowVerbs, queue: Queue, policy: str
) -> None:
    """It has no children: nothing hangs on it that its own end would leave behind."""
    burial = BURIALS["retry"]
    base = await without_a_parent(flow, queue, burial)
    later: State = {ROW: row()}

    assert await with_a_parent(flow, queue, burial, later, parent_policy=policy) == base | later


@WAY
async def test_a_death_climbs_within_the_queue(flow: FlowVerbs, queue: Queue, burial: Burial) -> None:
    """The parent's death is told to its own parent at once."""
    base = await without_a_parent(flow, queue, burial)
    top: State = {f"job:{TOP}": row("awaiting_children"), f"job:{TOP}:dependencies": "3"}
    rest = parent_row("awaiting_children", 2, parent=TOP) | top

    state = await with_a_parent(flow, queue, burial, rest)

    said = f"child {CHILD} died: {burial.reason}"
    assert state == failed(base, PARENT, TOP) | parent_row("dead", 2, parent=TOP, last_error=said) | top | {
        f"{ROW}:failed": {CHILD: burial.reason},
        f"job:{TOP}": row("dead", last_error=f"child {PARENT} died: {said}"),
        f"job:{TOP}:failed": {PARENT: said},
    }


@WAY
@pytest.mark.parametrize("policy", ["fp", "id"])
async def test_a_death_climbs_across_queues(flow: FlowVerbs, queue: Queue, burial: Burial, policy: str) -> None:
    """The next level's entry is pushed by the same script: there is no moment at which it could be lost."""
    base = await without_a_parent(flow, queue, burial)
    kin = {"parent": TOP, "parent_queue": UP, "parent_policy": policy}

    state = await with_a_parent(flow, queue, burial, parent_row("awaiting_children", 2, **kin))

    said = f"child {CHILD} died: {burial.reason}"
    assert state == failed(base, PARENT) | parent_row("dead", 2, last_error=said, **kin) | {
        f"{ROW}:failed": {CHILD: burial.reason},
        "flow:outbox": [death(PARENT, TOP, said, policy=policy)],
    }


async def test_a_death_climbs_eight_levels(flow: FlowVerbs, queue: Queue) -> None:
    """And stops where it is ignored: there the parent runs."""
    levels = [CHILD, *(job(90 + n) for n in range(7))]
    rest: State = {}
    for n, id in enumerate(levels[1:], start=1):
        kin: dict[str, Any] = {} if n == 7 else {"parent": levels[n + 1], "parent_policy": "id" if n == 6 else "fp"}
        rest |= {f"job:{id}": row("awaiting_children", **kin), f"job:{id}:dependencies": "1"}
    await queue.put(in_hand(parent=levels[1], parent_policy="fp") | rest)

    await flow.retry(CHILD, 3, max_attempts=1)

    state = await queue.state()
    assert {id: state[f"job:{id}"]["state"] for id in levels} == dict.fromkeys(levels[:7], "dead") | {
        levels[7]: "pending"
    }
    assert set(state["dead"]) == set(levels[:7])
    assert state["metrics:failed"] == {"count": "7"}
    assert state["pending"] == {levels[7]: 0}


@pytest.mark.parametrize("was", ["pending", "active", "dead"])
@pytest.mark.parametrize("policy", ["fp", "id"])
async def test_a_parent_that_does_not_wait_only_hears_of_it(
    flow: FlowVerbs, queue: Queue, was: str, policy: str
) -> None:
    """Recorded; it is not killed while it runs, and not released a second time."""
    await queue.put(in_hand(parent=PARENT, parent_policy=policy) | parent_row(was, 1))

    await flow.retry(CHILD, 3, max_attempts=1)

    state = await queue.state()
    place = "failed" if policy == "fp" else "unsuccessful"
    assert {name: value for name, value in state.items() if name.startswith(ROW)} == parent_row(
        was, 1 if policy == "fp" else 0
    ) | {f"{ROW}:{place}": {CHILD: "boom"}}
    assert (state["dead"], "pending" in state) == ({CHILD: 0}, False)


async def test_a_dead_parent_gives_its_dedup_key_back(flow: FlowVerbs, queue: Queue) -> None:
    """As every job that ends; a key that another job has by now stays."""
    await queue.put(in_hand(parent=PARENT, dedup="child") | parent_row("awaiting_children", 1, dedup="parent"))
    await queue.put({"de:parent": PARENT, "de:child": job(7)})

    await flow.retry(CHILD, 3, max_attempts=1)

    state = await queue.state()
    assert {name: value for name, value in state.items() if name.startswith("de:")} == {"de:child": job(7)}


async def test_a_retry_that_is_not_the_last_tells_nobody(flow: FlowVerbs, queue: Queue) -> None:
    """The child is scheduled and will report later."""
    await queue.put(in_hand(parent=PARENT) | parent_row("awaiting_children", 1))

    assert await flow.settle(retry(CHILD, 3)) == ["scheduled"]

    state = await queue.state()
    assert {name: value for name, value in state.items() if name.startswith(ROW)} == parent_row("awaiting_children", 1)


@pytest.mark.parametrize("policy", ["fp", "id"])
async def test_a_death_is_told_once(flow: FlowVerbs, queue: Queue, policy: str) -> None:
    """A verdict that is sent again, and a late retry of a dead job, tell nobody anything."""
    await queue.put(in_hand(parent=PARENT, parent_policy=policy, parent_queue=UP))
    verdict = retry(CHILD, 3, max_attempts=1)

    assert await flow.settle(verdict, verdict) == ["dead", "dead"]
    assert await flow.settle(verdict) == ["dead"]
    assert await flow.retry(CHILD, 3, max_attempts=1) == "dead"
    await queue.raw.hdel(f"{queue.keys.base}job:{CHILD}", "settled")
    assert await flow.retry(CHILD, 3, max_attempts=1) == "dead"
    assert await flow.settle(verdict) == ["dead"]

    assert (await queue.state())["flow:outbox"] == [death(CHILD, PARENT, "boom", policy=policy)]


@pytest.mark.parametrize("how", ["complete", "settle"])
@pytest.mark.parametrize(("policy", "place"), [("fp", "failed"), ("id", "unsuccessful")])
async def test_a_completion_behind_the_death_counts_once(
    flow: FlowVerbs, queue: Queue, how: str, policy: str, place: str
) -> None:
    """The work was done after all: recorded, one decrement whichever hash it is in, and nobody is brought to life."""
    await queue.put(in_hand(parent=PARENT, parent_policy=policy) | parent_row("awaiting_children", 2))
    await flow.stalled_check(1)
    await queue.put({"active": {CHILD: 1}})
    await flow.stalled_check(1)

    assert await (flow.complete(CHILD, 3) if how == "complete" else flow.settle(complete(CHILD, 3))) in (1, ["done"])

    state = await queue.state()
    parent = state[ROW]
    assert parent["state"] == ("dead" if policy == "fp" else "awaiting_children")
    assert {name: value for name, value in state.items() if name.startswith(f"{ROW}:")} == {
        f"{ROW}:dependencies": "1",
        f"{ROW}:{place}": {CHILD: "stalled"},
        f"{ROW}:processed": {CHILD: CHILD},
    }
    assert f"job:{CHILD}" not in state
    assert CHILD not in state.get("dead", {})


async def test_across_queues_a_completion_behind_the_death_follows_it(flow: FlowVerbs, queue: Queue) -> None:
    """Both entries, in the order in which it happened."""
    await queue.put(in_hand(parent=PARENT, parent_queue=UP) | {"active": {CHILD: 1}})
    await flow.stalled_check(1)

    assert await flow.settle(("v", CHILD, 3, "", "7")) == ["done"]

    assert (await queue.state())["flow:outbox"] == [
        death(CHILD, PARENT, "stalled"),
        completion(CHILD, PARENT, "7"),
    ]


async def test_both_verdicts_in_one_call(flow: FlowVerbs, queue: Queue) -> None:
    """A death and the completion behind it: told in that order."""
    await queue.put(in_hand(parent=PARENT, parent_queue=UP))

    assert await flow.settle(retry(CHILD, 3, max_attempts=1), complete(CHILD, 3)) == ["dead", "done"]

    assert [entry[:5] for entry in (await queue.state())["flow:outbox"]] == ["\0fail", f"{UP}\0JO"]


@pytest.mark.parametrize("policy", ["fp", "id"])
@pytest.mark.parametrize("where", ["sq", "xq"])
async def test_the_caller_of_a_plain_retry_names_what_the_row_does_not(
    flow: FlowVerbs, queue: Queue, policy: str, where: str
) -> None:
    """Another client's call as the protocol has it, for a row without parent, and for one without policy."""
    declared = (flow.keys.active, flow.keys.schedule, flow.keys.dead, flow.row_key(CHILD), flow.keys.outbox)
    told = (f"{where}:{policy}", *((UP,) if where == "xq" else ()), PARENT)
    named = {"parent": PARENT} | ({"parent_queue": UP} if where == "xq" else {})
    found = []
    for kin in ({}, named):
        await queue.put(in_hand(**kin) | parent_row("awaiting_children", 2))
        assert await flow.run("retry", declared, CHILD, 3, 0, 1, "boom", flow.keys.base, *told) == "dead"
        found.append(await queue.state())
        await queue.raw.flushdb()

    for state in found:
        if where == "xq":
            assert state["flow:outbox"] == [death(CHILD, PARENT, "boom", policy=policy)]
        else:
            assert state[f"{ROW}:{'failed' if policy == 'fp' else 'unsuccessful'}"] == {CHILD: "boom"}


async def test_a_child_that_has_died_and_lives_again_reports_no_more(flow: FlowVerbs, queue: Queue) -> None:
    """It has reported; only its own work is done again."""
    await queue.put(in_hand(parent=PARENT, parent_policy="id", parent_queue=UP))
    await flow.retry(CHILD, 3, max_attempts=1)

    assert await flow.reprocess(CHILD) == 1

    state = await queue.state()
    assert not {"parent", "parent_policy", "parent_queue"} & set(state[f"job:{CHILD}"])
    await flow.claim_many()
    await flow.settle(retry(CHILD, 4, max_attempts=1))
    assert (await queue.state())["flow:outbox"] == [death(CHILD, PARENT, "boom", policy="id")]


@pytest.mark.parametrize(
    ("out", "failed", "processed", "refused"),
    [
        (1, [1], [], False),
        (2, [1], [], True),
        (2, [1, 2], [], False),
        (1, [1], [1], True),
        (0, [1], [1], False),
        (1, [], [], True),
    ],
    ids=["it alone", "another is out", "both dead", "another is out, it was late", "it was late", "id"],
)
async def test_a_dead_parent_lives_again_when_no_child_is_out(
    flow: FlowVerbs, queue: Queue, out: int, failed: list[int], processed: list[int], *, refused: bool
) -> None:
    """A dead child is not out, though it has not counted down; one that completed all the same has. Or by force."""
    told: State = {f"{ROW}:failed": {job(n): "boom" for n in failed}} if failed else {}
    told |= {f"{ROW}:processed": {job(n): "1" for n in processed}} if processed else {}
    await queue.put(parent_row("dead", out, last_error="x", parent=TOP) | told | {"dead": {PARENT: 0}})
    before = await queue.state()

    if refused:
        with pytest.raises(StateRefused, match=r"^EMQSTATE children still out$"):
            await flow.reprocess(PARENT)
        assert await queue.state() == before
    assert await flow.reprocess(PARENT, *(["force"] if refused else [])) == 1

    # What it has heard of its children stays; as a child it has reported its death.
    assert await queue.state() == parent_row("pending", out) | told | {"pending": {PARENT: 0}, "ready": ["1"]}


async def test_obliterate_counts_as_the_death_of_a_child(flow: FlowVerbs, queue: Queue) -> None:
    """The report outlives the queue."""
    kin = {"parent": PARENT, "parent_queue": UP, "parent_policy": "id"}
    await queue.put(pending(**kin) | {"meta": {"paused": "1"}})

    while await flow.obliterate():
        pass

    assert await queue.state() == {"flow:outbox": [death(CHILD, PARENT, "obliterated", policy="id")]}


async def test_a_parent_that_is_taken_away_takes_its_subkeys_along_and_counts_as_dead(
    flow: FlowVerbs, queue: Queue
) -> None:
    """Removed or cancelled while it waits; what its children report then is dropped."""
    kin = {"parent": TOP, "parent_queue": UP}
    sets = (flow.keys.pending, flow.keys.active, flow.keys.schedule)
    for name in ("removed", "cancelled: why"):
        await queue.put(parent_row("awaiting_children", 2, **kin) | {f"{ROW}:processed": {job(5): "1"}})
        await queue.put(in_hand(parent=PARENT))
        if name == "removed":
            await flow.remove_job(PARENT, "force")
        else:
            await flow.run("cancel", (flow.keys.job(PARENT), *sets), PARENT, "why", flow.keys.base)
        assert await flow.settle(complete(CHILD, 3)) == ["done"]
        assert await queue.state() == {
            "flow:outbox": [death(PARENT, TOP, name)],
            "metrics:completed": {"count": "1"},
        }
        await queue.raw.flushdb()


async def test_a_grouped_parent_is_released_to_its_lane(flow: FlowVerbs, queue: Queue) -> None:
    """On the ring, with a lane's token, at the last ignored death as at the last completion."""
    await queue.put(in_hand(parent=PARENT, parent_policy="id") | parent_row("awaiting_children", 1, group=GROUP))

    await flow.retry(CHILD, 3, max_attempts=1)

    state = await queue.state()
    assert state[f"g:{GROUP}:pending"] == {PARENT: 0}
    assert (state["ring"], state["wake"], "pending" in state) == ([GROUP], ["1"], False)
