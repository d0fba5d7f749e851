"""flow_deliver, flow_deliver_death, flow_set_aside: reports from other queues; delivered twice they count once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.flows import UP, FlowVerbs, death, of, parent_row
from tests.support.plain import GROUP, Queue, State, job, row

PARENT, CHILD, TOP = job(90), job(1), job(99)
ROW = f"job:{PARENT}"


async def test_a_completion_is_recorded_and_counts_down_once(flow: FlowVerbs, queue: Queue) -> None:
    """However often it is delivered; the first result stands."""
    await queue.put(parent_row("awaiting_children", 2))

    for result in ("1", "1", "2"):
        assert await flow.deliver(PARENT, CHILD, result) == 1

    assert await queue.state() == parent_row("awaiting_children", 1) | {f"{ROW}:processed": {CHILD: "1"}}


@pytest.mark.parametrize("group", [None, GROUP])
async def test_the_last_one_releases_the_parent_once(flow: FlowVerbs, queue: Queue, group: str | None) -> None:
    """To pending or its lane, with one token, however often it is delivered."""
    fields = {} if group is None else {"group": group}
    await queue.put(parent_row("awaiting_children", 1, **fields))

    for _ in range(3):
        await flow.deliver(PARENT, CHILD)

    place: State = {"pending": {PARENT: 0}, "ready": ["1"]}
    if group:
        place = {f"g:{GROUP}:pending": {PARENT: 0}, "ring": [GROUP], "wake": ["1"]}
    assert await queue.state() == parent_row("pending", 0, **fields) | place | {f"{ROW}:processed": {CHILD: "r"}}


async def test_a_parent_that_is_gone_is_not_made_anew(flow: FlowVerbs, queue: Queue) -> None:
    """The report is dropped, no key appears."""
    assert await flow.deliver(PARENT, CHILD) == 1
    assert await flow.deliver_death(PARENT, CHILD, "fp") == 1
    assert await flow.deliver_death(PARENT, CHILD, "id") == 1

    assert await queue.state() == {}


@pytest.mark.parametrize("was", ["pending", "active", "dead"])
async def test_a_parent_that_does_not_wait_only_hears_of_it(flow: FlowVerbs, queue: Queue, was: str) -> None:
    """Neither killed nor released."""
    await queue.put(parent_row(was, 3))

    await flow.deliver(PARENT, job(1))
    await flow.deliver_death(PARENT, job(2), "fp")
    await flow.deliver_death(PARENT, job(3), "id")

    assert await queue.state() == parent_row(was, 1) | {
        f"{ROW}:processed": {job(1): "r"},
        f"{ROW}:failed": {job(2): "boom"},
        f"{ROW}:unsuccessful": {job(3): "boom"},
    }


async def test_policy_fp_fails_the_parent_once(flow: FlowVerbs, queue: Queue) -> None:
    """Dead and counted once, the first reason stands, the count stays."""
    await queue.put(parent_row("awaiting_children", 2))

    for error in ("boom", "boom", "bang"):
        assert await flow.deliver_death(PARENT, CHILD, "fp", error) == 1

    assert await queue.state() == parent_row("dead", 2, last_error=f"child {CHILD} died: boom") | {
        f"{ROW}:failed": {CHILD: "boom"},
        "dead": {PARENT: 0},
        "metrics:failed": {"count": "1"},
    }


async def test_policy_id_counts_it_as_done_once(flow: FlowVerbs, queue: Queue) -> None:
    """And releases the parent when it was the last."""
    await queue.put(parent_row("awaiting_children", 2))

    for _ in range(2):
        await flow.deliver_death(PARENT, CHILD, "id")
    assert of(await queue.state(), PARENT) == parent_row("awaiting_children", 1) | {
        f"{ROW}:unsuccessful": {CHILD: "boom"}
    }

    await flow.deliver_death(PARENT, job(2), "id")
    state = await queue.state()
    assert (state[ROW]["state"], state["pending"], state["ready"]) == ("pending", {PARENT: 0}, ["1"])


async def test_a_death_goes_on_to_the_next_level_at_once(flow: FlowVerbs, queue: Queue) -> None:
    """Here, where the parent's own parent is, or by this queue's outbox, in the script that delivers; and only once."""
    await queue.put(parent_row("awaiting_children", 2, parent=TOP))
    await queue.put({f"job:{TOP}": row("awaiting_children", parent=job(100), parent_queue=UP, parent_policy="id")})
    await queue.put({f"job:{TOP}:dependencies": "1"})

    for _ in range(2):
        await flow.deliver_death(PARENT, CHILD)

    said = f"child {CHILD} died: boom"
    state = await queue.state()
    assert {state[f"job:{id}"]["state"] for id in (PARENT, TOP)} == {"dead"}
    assert state[f"job:{TOP}:failed"] == {PARENT: said}
    assert state["flow:outbox"] == [death(TOP, job(100), f"child {PARENT} died: {said}", policy="id")]
    assert state["metrics:failed"] == {"count": "2"}


@pytest.mark.parametrize("policy", ["fp", "id"])
async def test_completion_and_death_of_one_child_count_once_in_either_order(
    flow: FlowVerbs, queue: Queue, policy: str
) -> None:
    """Two Pumps may be behind each other. The work that is done is not undone by a death that is told late."""
    await queue.put(parent_row("awaiting_children", 2))
    await flow.deliver(PARENT, CHILD)
    await flow.deliver_death(PARENT, CHILD, policy)
    late = await queue.state()
    await queue.raw.flushdb()
    await queue.put(parent_row("awaiting_children", 2))
    await flow.deliver_death(PARENT, CHILD, policy)
    await flow.deliver(PARENT, CHILD)
    early = await queue.state()

    assert (late[ROW]["state"], late[f"{ROW}:dependencies"]) == ("awaiting_children", "1")
    assert early[f"{ROW}:dependencies"] == "1"
    assert early[ROW]["state"] == ("dead" if policy == "fp" else "awaiting_children")


async def test_entries_are_set_aside_once(flow: FlowVerbs, queue: Queue) -> None:
    """Those that are there; the others, which another Pump has moved, are not there twice."""
    await queue.put({"flow:outbox": ["a", "b", "a", "c"]})

    assert await flow.set_aside("a", "b", "x") == 2
    assert await flow.set_aside("b") == 0

    assert await queue.state() == {"flow:outbox": ["a", "c"], "flow:outbox:malformed": ["a", "b"]}


reports = st.tuples(st.integers(1, 4), st.sampled_from(["done", "fp", "id"]))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=60
)
@given(told=st.lists(reports, max_size=14))
async def test_law_of_counting(flow: FlowVerbs, queue: Queue, told: list[tuple[int, str]]) -> None:
    """Whatever is told of four children, how often and in which order: one decrement per child that is done or ignored,
    released once when all are, dead from the first death that counts while it waits.
    """
    await queue.raw.flushdb()
    await queue.put(parent_row("awaiting_children", 4))
    state, counted, released = "awaiting_children", set[int](), 0
    done: set[int] = set()
    for number, what in told:
        if what == "done":
            await flow.deliver(PARENT, job(number))
            done.add(number)
        else:
            await flow.deliver_death(PARENT, job(number), what)
        if what == "fp" and number not in done and state == "awaiting_children":
            state = "dead"
        if what != "fp":
            counted.add(number)
        if len(counted) == 4 and state == "awaiting_children":
            state, released = "pending", released + 1

    found = await queue.state()
    assert found[ROW]["state"] == state
    assert found[f"{ROW}:dependencies"] == str(4 - len(counted))
    assert len(found.get("ready", [])) == released
    assert ("pending" in found, "dead" in found) == (state == "pending", state == "dead")
