"""flow_add, flow_hold, flow_child: a parent outside every set, children that name it; each call may be made again."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import KindRefused, ServerError, StateRefused
from tests.support.flows import SUBKEYS, FlowVerbs, death
from tests.support.plain import GROUP, Queue, State, job, row

PARENT, A, B = job(90), job(1), job(2)
ROW = f"job:{PARENT}"
HELD: State = {ROW: row("awaiting_children", payload="p"), f"{ROW}:dependencies": "2"}
WAITING: State = {
    f"job:{A}": row(parent=PARENT, parent_policy="fp"),
    f"job:{B}": row(parent=PARENT, parent_policy="fp"),
    "pending": {A: 0, B: 0},
    "ready": ["1", "1"],
}
STALE: State = {f"{ROW}:{name}": {A: "old"} for name in SUBKEYS} | {f"{ROW}:dependencies": "-1"}


@pytest.mark.parametrize("before", [{}, STALE], ids=["nothing", "subkeys without a row"])
async def test_a_whole_flow_at_once(flow: FlowVerbs, queue: Queue, before: State) -> None:
    """The parent waits in no set, its children are pending with a token each; what hung on another life is gone."""
    await queue.put(before)

    assert await flow.flow_add(PARENT, A, b"x", B, b"x") == 2

    assert await queue.state() == HELD | WAITING


async def test_an_empty_set_is_hit_with_its_row_only_after_the_children_are_there(
    flow: FlowVerbs, queue: Queue
) -> None:
    """Payloads are opaque, also as many as a call takes."""
    pairs = [word for n in range(1, 1_001) for word in (job(n), bytes([n % 256]))]

    assert await flow.flow_add(job(5_000), *pairs, payload=b"\x00\xff") == 1_000

    state = await queue.state()
    assert len(state["pending"]) == 1_000
    assert len(state["ready"]) == 64
    assert state[f"job:{job(5_000)}"]["payload"] == b"\x00\xff".decode("utf-8", "surrogateescape")
    assert state[f"job:{job(5_000)}:dependencies"] == "1000"


@pytest.mark.parametrize("standing", [PARENT, A, B])
async def test_a_flow_of_which_a_row_stands_is_left_alone(flow: FlowVerbs, queue: Queue, standing: str) -> None:
    """0, and nothing is written."""
    await queue.put({f"job:{standing}": row("active", 4)})
    before = await queue.state()

    assert await flow.flow_add(PARENT, A, b"x", B, b"x") == 0

    assert await queue.state() == before


@pytest.mark.parametrize(("parent", "child"), [("USR00000000090", A), (PARENT, "USR00000000001")])
async def test_an_id_of_another_kind_is_refused(flow: FlowVerbs, queue: Queue, parent: str, child: str) -> None:
    """EMQKIND of every verb, the parent's and the child's, and nothing is written."""
    with pytest.raises(KindRefused, match=r"^EMQKIND job id must be JOB-namespaced$"):
        await flow.flow_add(parent, B, b"x", child, b"x")
    with pytest.raises(KindRefused, match=r"^EMQKIND job id must be JOB-namespaced$"):
        await (flow.flow_hold(parent) if parent != PARENT else flow.flow_child(child, PARENT))

    assert await queue.state() == {}


@pytest.mark.parametrize("n", [0, 1, 3, "x", ""])
async def test_a_number_that_is_not_that_of_the_children_is_refused(flow: FlowVerbs, queue: Queue, n: Any) -> None:
    """A parent that nothing could release is not made."""
    with pytest.raises(ServerError, match=r"^ERR flow n "):
        await flow.flow_add(PARENT, A, b"x", B, b"x", n=n)

    assert await queue.state() == {}


@pytest.mark.parametrize("before", [{}, STALE], ids=["nothing", "subkeys without a row"])
async def test_a_parent_is_held(flow: FlowVerbs, queue: Queue, before: State) -> None:
    """Row and count; what hung on another life of the id is gone."""
    await queue.put(before)

    assert await flow.flow_hold(PARENT, 2) == 1

    assert await queue.state() == HELD


async def test_a_held_node_names_its_own_parent_from_the_start(flow: FlowVerbs, queue: Queue) -> None:
    """And its lane: the pairs are the row's fields."""
    fields: dict[str, Any] = {"parent": job(99), "parent_policy": "id", "parent_queue": "up", "group": GROUP}

    assert await flow.flow_hold(PARENT, 2, *[word for pair in fields.items() for word in pair]) == 1

    assert await queue.state() == HELD | {ROW: row("awaiting_children", payload="p", **fields)}


@pytest.mark.parametrize("n", [0, -1, 1.5, "", "x", "nan"])
async def test_a_parent_of_no_children_is_refused(flow: FlowVerbs, queue: Queue, n: Any) -> None:
    """It would wait for ever."""
    with pytest.raises(ServerError, match=r"^ERR flow n must be a whole number above 0$"):
        await flow.flow_hold(PARENT, n)

    assert await queue.state() == {}


@pytest.mark.parametrize("state", ["awaiting_children", "pending", "active", "dead"])
async def test_held_again_it_is_left_as_it_is(flow: FlowVerbs, queue: Queue, state: str) -> None:
    """A producer that died half-way adds again: whatever has happened since stands, the count too."""
    kin: dict[str, Any] = {"parent": job(99), "children": '{"q":["x"]}'}
    await queue.put({ROW: row(state, 3, **kin), f"{ROW}:dependencies": "1", f"{ROW}:processed": {A: "1"}})
    before = await queue.state()

    assert await flow.flow_hold(PARENT, 2, "parent", job(99), "children", '{"q":["x"]}') == 0
    # Another client's add does not say which children there are.
    assert await flow.flow_hold(PARENT, 2, "parent", job(99)) == 0

    assert await queue.state() == before


@pytest.mark.parametrize(
    ("stored", "said", "why"),
    [
        ({}, {"parent": job(99)}, "names another parent"),
        ({"parent": job(98)}, {"parent": job(99)}, "names another parent"),
        ({"parent": job(99)}, {}, "names another parent"),
        ({"parent": job(99), "parent_queue": "up"}, {"parent": job(99)}, "names another parent"),
        ({"children": "[1]"}, {"children": "[1,2]"}, "has other children"),
    ],
)
async def test_held_again_as_another_it_is_refused(
    flow: FlowVerbs, queue: Queue, stored: dict[str, Any], said: dict[str, str], why: str
) -> None:
    """A row that names another parent, or other children, is not this one."""
    await queue.put({ROW: row("awaiting_children", **stored), f"{ROW}:dependencies": "1"})
    before = await queue.state()

    with pytest.raises(StateRefused, match=f"^EMQSTATE flow row {why}$"):
        await flow.flow_hold(PARENT, 2, *[word for pair in said.items() for word in pair])

    assert await queue.state() == before


async def test_a_child_is_admitted(flow: FlowVerbs, queue: Queue) -> None:
    """Pending with a token, naming its parent, which need not be there; the policy is fp unless said."""
    assert await flow.flow_child(A, PARENT) == 1
    assert await flow.flow_child(B, PARENT, "id", "", queue="up") == 1

    assert await queue.state() == {
        f"job:{A}": row(parent=PARENT, parent_policy="fp"),
        f"job:{B}": row(parent=PARENT, parent_policy="id", parent_queue="up"),
        "pending": {A: 0, B: 0},
        "ready": ["1", "1"],
    }


async def test_a_child_of_a_group_goes_to_its_lane(flow: FlowVerbs, queue: Queue) -> None:
    """On the ring, with a lane's token."""
    assert await flow.flow_child(A, PARENT, "fp", GROUP) == 1

    assert await queue.state() == {
        f"job:{A}": row(parent=PARENT, parent_policy="fp", group=GROUP),
        f"g:{GROUP}:pending": {A: 0},
        "ring": [GROUP],
        "wake": ["1"],
    }


@pytest.mark.parametrize("state", ["pending", "active", "scheduled", "dead"])
async def test_admitted_again_it_is_left_as_it_is(flow: FlowVerbs, queue: Queue, state: str) -> None:
    """Wherever it is."""
    await queue.put({f"job:{A}": row(state, 2, parent=PARENT, parent_policy="fp")})
    before = await queue.state()

    assert await flow.flow_child(A, PARENT, payload=b"another") == 0

    assert await queue.state() == before


@pytest.mark.parametrize("here", [True, False], ids=["in this queue", "in another"])
async def test_a_dead_child_that_is_admitted_again_tells_its_parent(flow: FlowVerbs, queue: Queue, here: bool) -> None:
    """A parent that was made anew has not heard of it, and would wait for ever. It is not run again."""
    kin: dict[str, Any] = {"parent": PARENT, "parent_policy": "fp"} | ({} if here else {"parent_queue": "up"})
    dead: State = {f"job:{A}": row("dead", 2, last_error="boom", **kin), "dead": {A: 0}}
    await queue.put(HELD | dead)

    assert await flow.flow_child(A, PARENT, queue="" if here else "up") == 0

    said = f"child {A} died: boom"
    assert await queue.state() == (
        HELD
        | {ROW: row("dead", payload="p", last_error=said), f"{ROW}:failed": {A: "boom"}, "dead": {A: 0, PARENT: 0}}
        | {"metrics:failed": {"count": "1"}, f"job:{A}": dead[f"job:{A}"]}
        if here
        else HELD | dead | {"flow:outbox": [death(A, PARENT, "boom")]}
    )


async def test_a_dead_node_that_is_held_again_tells_its_parent(flow: FlowVerbs, queue: Queue) -> None:
    """As a dead child does."""
    kin: dict[str, Any] = {"parent": job(99), "parent_policy": "id"}
    dead: State = {f"job:{A}": row("dead", last_error="boom", **kin), f"job:{A}:dependencies": "1", "dead": {A: 0}}
    top: State = {f"job:{job(99)}": row("awaiting_children"), f"job:{job(99)}:dependencies": "1"}
    await queue.put(dead | top)

    assert await flow.flow_hold(A, 1, "parent", job(99), "parent_policy", "id") == 0

    told = {f"job:{job(99)}:dependencies": "0", f"job:{job(99)}:unsuccessful": {A: "boom"}}
    assert await queue.state() == dead | told | {
        f"job:{job(99)}": row("pending"),
        "pending": {job(99): 0},
        "ready": ["1"],
    }


@pytest.mark.parametrize("stored", [{}, {"parent": job(91)}, {"parent": PARENT, "parent_queue": "up"}])
async def test_a_row_of_another_parent_is_refused(flow: FlowVerbs, queue: Queue, stored: dict[str, Any]) -> None:
    """Also the row of a job that has none."""
    await queue.put({f"job:{A}": row("active", 2, **stored)})
    before = await queue.state()

    with pytest.raises(StateRefused, match=r"^EMQSTATE flow row names another parent$"):
        await flow.flow_child(A, PARENT)

    assert await queue.state() == before
