"""A child's completion reaches its parent in the script that ends it; the last one releases the parent, once."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import Stale
from tests.support.burials import in_hand
from tests.support.flows import UP, FlowVerbs, completion, of, parent_row
from tests.support.own import complete
from tests.support.plain import FAR_MS, GROUP, Queue, State, job, row

PARENT, CHILD, OTHER = job(90), job(1), job(2)
ROW = f"job:{PARENT}"
DONE: State = {"metrics:completed": {"count": "1"}}
HOW = pytest.mark.parametrize("how", ["complete", "settle c", "settle v"])


async def end(flow: FlowVerbs, how: str, id: str = CHILD, result: str = "7") -> Any:
    """Complete a job with token 3; only `v` has a result."""
    if how == "complete":
        return await flow.complete(id, 3)
    return await flow.settle(("v", id, 3, "", result) if how == "settle v" else complete(id, 3))


@HOW
async def test_a_completion_is_recorded_and_counts_down(flow: FlowVerbs, queue: Queue, how: str) -> None:
    """The result in `:processed`, the child's id where it has none; one child less to wait for."""
    await queue.put(in_hand(parent=PARENT, parent_policy="fp") | parent_row("awaiting_children", 2))

    assert await end(flow, how) in (1, ["done"])

    result = "7" if how == "settle v" else CHILD
    assert await queue.state() == DONE | parent_row("awaiting_children", 1) | {f"{ROW}:processed": {CHILD: result}}


@HOW
async def test_the_last_one_releases_the_parent(flow: FlowVerbs, queue: Queue, how: str) -> None:
    """To pending, with one token."""
    await queue.put(in_hand(parent=PARENT) | parent_row("awaiting_children", 1))

    await end(flow, how)

    state = await queue.state()
    assert state.pop(f"{ROW}:processed")
    assert state == DONE | parent_row("pending", 0) | {"pending": {PARENT: 0}, "ready": ["1"]}


@HOW
async def test_a_grouped_parent_is_released_to_its_lane(flow: FlowVerbs, queue: Queue, how: str) -> None:
    """On the ring, with a lane's token."""
    await queue.put(in_hand(parent=PARENT) | parent_row("awaiting_children", 1, group=GROUP))

    await end(flow, how)

    state = await queue.state()
    assert state.pop(f"{ROW}:processed")
    assert state == DONE | parent_row("pending", 0, group=GROUP) | {
        f"g:{GROUP}:pending": {PARENT: 0},
        "ring": [GROUP],
        "wake": ["1"],
    }


@HOW
async def test_a_parent_elsewhere_is_told_by_the_outbox(flow: FlowVerbs, queue: Queue, how: str) -> None:
    """One entry, pushed by the script that ends the child."""
    await queue.put(in_hand(parent=PARENT, parent_queue=UP))

    await end(flow, how)

    result = "7" if how == "settle v" else CHILD
    assert await queue.state() == DONE | {"flow:outbox": [completion(CHILD, PARENT, result)]}


@HOW
async def test_a_parent_that_is_gone_is_not_made_anew(flow: FlowVerbs, queue: Queue, how: str) -> None:
    """No key of it appears."""
    await queue.put(in_hand(parent=PARENT))

    await end(flow, how)

    assert await queue.state() == DONE


@HOW
async def test_a_job_that_came_later_under_the_parents_id_hears_nothing(
    flow: FlowVerbs, queue: Queue, how: str
) -> None:
    """It has no children: nothing hangs on it that its own end would leave behind."""
    await queue.put(in_hand(parent=PARENT) | {ROW: row()})

    await end(flow, how)

    assert await queue.state() == DONE | {ROW: row()}


@HOW
@pytest.mark.parametrize("was", ["pending", "active", "dead"])
async def test_a_parent_that_does_not_wait_only_hears_of_it(flow: FlowVerbs, queue: Queue, how: str, was: str) -> None:
    """It is released from `awaiting_children` only, so once, and never while it is active."""
    await queue.put(in_hand(parent=PARENT) | parent_row(was, 1))

    await end(flow, how)

    state = await queue.state()
    assert of(state, PARENT) == parent_row(was, 0) | {f"{ROW}:processed": of(state, PARENT)[f"{ROW}:processed"]}
    assert "pending" not in state


async def test_the_last_two_children_in_one_call(flow: FlowVerbs, queue: Queue) -> None:
    """Each is decided on fresh values: the count is exact, the parent is released once, with one token."""
    await queue.put(in_hand(parent=PARENT) | parent_row("awaiting_children", 2))
    await queue.put({f"job:{OTHER}": row("active", 3, parent=PARENT), "active": {OTHER: FAR_MS}})

    assert await flow.settle(complete(CHILD, 3), ("v", OTHER, 3, "", "[]")) == ["done", "done"]

    assert await queue.state() == {"metrics:completed": {"count": "2"}} | parent_row("pending", 0) | {
        f"{ROW}:processed": {CHILD: CHILD, OTHER: "[]"},
        "pending": {PARENT: 0},
        "ready": ["1"],
    }


@HOW
async def test_sent_again_it_counts_once(flow: FlowVerbs, queue: Queue, how: str) -> None:
    """The row is gone: 0, and nobody is told."""
    await queue.put(in_hand(parent=PARENT) | parent_row("awaiting_children", 2))
    await end(flow, how)
    before = await queue.state()

    assert await end(flow, how) in (0, ["gone"])

    assert await queue.state() == before


async def test_a_stale_verdict_tells_nobody(flow: FlowVerbs, queue: Queue) -> None:
    """Another claim has the job."""
    await queue.put({**in_hand(parent=PARENT), f"job:{CHILD}": row("active", 4, parent=PARENT)})
    await queue.put(parent_row("awaiting_children", 1))
    before = await queue.state()

    assert await flow.settle(complete(CHILD, 3)) == ["stale"]
    with pytest.raises(Stale):
        await flow.complete(CHILD, 3)

    assert await queue.state() == before


@HOW
async def test_a_reaped_child_reports_all_the_same(flow: FlowVerbs, queue: Queue, how: str) -> None:
    """Its lease was over, its work is done."""
    await queue.put({f"job:{CHILD}": row("pending", 3, parent=PARENT), "pending": {CHILD: 0}})
    await queue.put(parent_row("awaiting_children", 2))

    await end(flow, how)

    state = await queue.state()
    assert state[f"{ROW}:dependencies"] == "1"
    assert "pending" not in state


@HOW
async def test_a_completed_parent_leaves_none_of_its_subkeys(flow: FlowVerbs, queue: Queue, how: str) -> None:
    """Its row, its count and what it has heard of its children."""
    told = {f"{ROW}:{name}": {OTHER: "1"} for name in ("processed", "failed", "unsuccessful")}
    await queue.put(parent_row("active", 0) | told | {"active": {PARENT: FAR_MS}, ROW: row("active", 3)})

    await end(flow, how, PARENT)

    assert await queue.state() == DONE


@pytest.mark.parametrize("count", [None, "0", "-3", "many"])
async def test_a_count_that_is_none_holds_nobody(flow: FlowVerbs, queue: Queue, count: str | None) -> None:
    """Evicted, or written by somebody else: the parent runs rather than wait for ever."""
    await queue.put(in_hand(parent=PARENT) | {ROW: row("awaiting_children")})
    if count is not None:
        await queue.put({f"{ROW}:dependencies": count})

    await flow.complete(CHILD, 3)

    assert (await queue.state())["pending"] == {PARENT: 0}


async def test_result_bytes_are_opaque(flow: FlowVerbs, queue: Queue) -> None:
    """Any bytes, the separator of the outbox among them, and none at all."""
    every = bytes(range(256)).decode("utf-8", "surrogateescape")
    await queue.put(in_hand(parent=PARENT, parent_queue=UP))
    await flow.run(
        "settle",
        (flow.keys.active, flow.keys.pending, flow.keys.schedule, flow.keys.dead),
        *(flow.keys.base, "v", CHILD, 3, "", bytes(range(256))),
    )
    assert (await queue.state())["flow:outbox"] == [completion(CHILD, PARENT, every)]

    await queue.put(in_hand(parent=PARENT) | parent_row("awaiting_children", 2))
    await end(flow, "settle v", result="")
    assert (await queue.state())[f"{ROW}:processed"] == {CHILD: ""}


@pytest.mark.parametrize("named", [True, False], ids=["row names the parent", "only the caller does"])
@pytest.mark.parametrize("where", ["same", "other"])
async def test_the_caller_of_a_plain_complete_may_name_the_parent(
    flow: FlowVerbs, queue: Queue, where: str, *, named: bool
) -> None:
    """Another client's call as the protocol has it, with the parent's keys or the outbox, and a result."""
    here = where == "same"
    kin: dict[str, Any] = {"parent": PARENT} | ({} if here else {"parent_queue": UP}) if named else {}
    key = flow.row_key(PARENT)
    keys = (f"{key}:dependencies", f"{key}:processed", key) if here else (flow.keys.outbox,)
    await queue.put(in_hand(**kin) | parent_row("awaiting_children", 2))

    told = (PARENT, "9") if here else (PARENT, "9", "xq", UP)
    declared = (flow.keys.active, flow.row_key(CHILD), *keys)
    assert await flow.run("complete", declared, CHILD, 3, flow.keys.base, *told) == 1

    state = await queue.state()
    if here:
        assert (state[f"{ROW}:processed"], state[f"{ROW}:dependencies"]) == ({CHILD: "9"}, "1")
    else:
        assert state["flow:outbox"] == [completion(CHILD, PARENT, "9")]


async def test_a_claim_says_which_jobs_are_children(flow: FlowVerbs, queue: Queue) -> None:
    """Read for the first time or again: only their results are sent."""
    await queue.put({f"job:{CHILD}": row(parent=PARENT), f"job:{OTHER}": row(), "pending": {CHILD: 0, OTHER: 0}})
    names = (flow.keys.pending, flow.keys.active, flow.keys.ring, flow.keys.meta, flow.keys.receipt("c"))

    first = await flow.run("claim_many", names, flow.keys.base, 30_000, 10, 0, "ab", 5, 1)
    again = await flow.run("claim_many", names, flow.keys.base, 30_000, 10, 0, "cd", 5, 1)

    assert (first[1], first[5]) == ("ok", [CHILD])
    assert (again[1], again[5]) == ("replayed", [CHILD])
