"""Flows as they are read: what children have returned, how they stand, and the whole tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from echomq_worker.children import Branch, read, written
from echomq_worker.connector import Connector
from echomq_worker.errors import InvalidArgument, InvalidId, ServerError
from echomq_worker.flows import Dependencies, Flows
from tests.support.flows import LEAF, LEFT, RIGHT, ROOT, FlowVerbs, pump, tree
from tests.support.plain import OTHER_GROUP, QUEUE, Queue, job, row


@pytest.mark.parametrize(
    ("value", "stored", "got"),
    [
        (None, None, None),
        ({"a": [1, None]}, b'{"a":[1,null]}', {"a": [1, None]}),
        ("5", b'"5"', "5"),
        ("zoë", '"zoë"'.encode(), "zoë"),
        (5, b"5", 5),
        (False, b"false", False),
        (b"5", b"5", 5),
        (b"plain text", b"plain text", "plain text"),
        (b"\xff\x00", b"\xff\x00", b"\xff\x00"),
        (b"[" * 100_000, b"[" * 100_000, "[" * 100_000),
        ("", b'""', ""),
    ],
)
def test_what_a_handler_returns_and_what_the_parent_reads(value: object, stored: bytes | None, got: object) -> None:
    """JSON there and back; bytes as they are; nothing for None."""
    assert written(value) == stored
    if stored is not None:
        assert read(stored) == got


@pytest.mark.parametrize("value", [object(), float("nan"), "\ud800", {"a": {1, 2}, "b": object()}])
def test_a_result_without_a_form_is_refused_by_type(value: object) -> None:
    """One line that does not show it."""
    with pytest.raises(InvalidArgument, match=r"^result of type \w+: cannot be written"):
        written(value)


async def test_what_a_parent_reads(wire: Connector, queue: Queue) -> None:
    """Values by child, how they stand, and why ignored ones died; of no parent there is nothing."""
    await queue.put(
        {
            f"job:{ROOT}:dependencies": "2",
            f"job:{ROOT}:processed": {LEFT: '{"n":1}', RIGHT: RIGHT},
            f"job:{ROOT}:failed": {LEAF: "boom"},
            f"job:{ROOT}:unsuccessful": {job(9): "bang"},
        }
    )
    flows = Flows(wire)

    assert await flows.children_values(QUEUE, ROOT) == {LEFT: {"n": 1}, RIGHT: RIGHT}
    assert await flows.ignored_failures(QUEUE, ROOT) == {job(9): "bang"}
    assert await flows.dependencies(QUEUE, ROOT) == Dependencies(2, [LEFT, RIGHT], [LEAF], [job(9)])
    assert await flows.children_values(QUEUE, LEAF) == await flows.ignored_failures(QUEUE, LEAF) == {}
    assert await flows.dependencies(QUEUE, LEAF) == Dependencies(0, [], [], [])
    for ask in (flows.children_values, flows.ignored_failures, flows.dependencies, flows.tree):
        read_one: Callable[..., Any] = ask
        with pytest.raises(InvalidId):
            await read_one(QUEUE, "JOB1")


async def test_names_that_are_no_text_hide_no_others(wire: Connector, queue: Queue) -> None:
    """Another client may have filed anything among a parent's children."""
    odd = {b"\xff": b"1", LEFT.encode(): b"2"}
    await queue.put({f"job:{ROOT}:{name}": odd for name in ("processed", "failed", "unsuccessful")})
    flows, text = Flows(wire), "\N{REPLACEMENT CHARACTER}"

    assert await flows.children_values(QUEUE, ROOT) == {text: 1, LEFT: 2}
    assert await flows.ignored_failures(QUEUE, ROOT) == {text: "1", LEFT: "2"}
    standing = await flows.dependencies(QUEUE, ROOT)
    assert {text, LEFT} == set(standing.processed) == set(standing.failed) == set(standing.ignored)


@pytest.mark.parametrize("count", ["-2", "many", ""])
async def test_a_count_that_is_none_is_over(wire: Connector, queue: Queue, count: str) -> None:
    """Whatever another client has left there."""
    await queue.put({f"job:{ROOT}": row("pending"), f"job:{ROOT}:dependencies": count})

    assert (await Flows(wire).dependencies(QUEUE, ROOT)).out == 0
    assert await Flows(wire).tree(QUEUE, ROOT) == Branch(QUEUE, ROOT, "pending", out=0)


async def test_an_error_of_the_server_is_raised(wire: Connector, queue: Queue) -> None:
    """A key of another type is no answer."""
    await queue.put({f"job:{ROOT}:failed": ["x"]})
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await Flows(wire).dependencies(QUEUE, ROOT)
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await Flows(wire).tree(QUEUE, ROOT)
    await queue.raw.delete(f"{queue.keys.base}job:{ROOT}:failed")


async def test_the_tree_as_it_stands(wire: Connector, queue: Queue) -> None:
    """Every node with its state, across queues: what is out by its row, what has reported by its report."""
    await Flows(wire).add(tree())
    await FlowVerbs(wire).claim_batch(1)
    assert await Flows(wire).tree(QUEUE, ROOT) == Branch(
        QUEUE,
        ROOT,
        "awaiting_children",
        out=2,
        children=[
            Branch("mid", LEFT, "awaiting_children", out=1, children=[Branch("low", LEAF, "pending")]),
            Branch(QUEUE, RIGHT, "active"),
        ],
    )

    await FlowVerbs(wire, "low").lane_drain(OTHER_GROUP)
    await FlowVerbs(wire).complete(RIGHT, 1)
    seen = await Flows(wire).tree(QUEUE, ROOT)
    assert seen is not None
    assert seen.children == [
        Branch("mid", LEFT, "awaiting_children", out=1, children=[Branch("low", LEAF, "gone")]),
        Branch(QUEUE, RIGHT, "done", RIGHT),
    ]

    await pump(wire, "low")
    seen = await Flows(wire).tree("mid", LEFT)
    assert seen == Branch("mid", LEFT, "pending", out=0, children=[Branch("low", LEAF, "ignored", "drained")])
    assert await Flows(wire).tree(QUEUE, job(77)) is None


async def test_the_tree_of_another_clients_flow_and_of_a_broken_one(wire: Connector, queue: Queue) -> None:
    """Without names only those that have reported; many are cut; what nobody could have written is passed over."""
    await queue.put(
        {
            f"job:{ROOT}": row("dead", last_error="child x died"),
            f"job:{ROOT}:dependencies": "1",
            f"job:{ROOT}:processed": {job(n): "1" for n in range(10, 25)},
            f"job:{ROOT}:failed": {LEAF: "boom", "no id": "boom", job(10): "late"},
        }
    )
    for kin in (None, "[]", "7", '{"bad queue":["x"]}', '{"q":5}', '{"q":["x"]}', "[" * 100_000):
        if kin is not None:
            await queue.put({f"job:{ROOT}": {"children": kin}})
        seen = await Flows(wire).tree(QUEUE, ROOT, limit=5)
        assert seen is not None
        assert (seen.said, seen.out, seen.hidden) == ("child x died", 1, 12)
        assert [(child.id, child.state) for child in seen.children] == [
            (LEAF, "dead"),
            *((job(n), "done") for n in range(10, 14)),
        ]
