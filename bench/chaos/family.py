"""The account of flows: a parent runs when its children have ended, and not where the death of one is its own."""

from __future__ import annotations

from collections.abc import Iterator

from bench.chaos.evidence import DEADLY, Evidence, Order, Run
from bench.chaos.finding import Finding


def doomed(seen: Evidence, order: Order) -> bool:
    """Whether a parent dies without a run: a child that dies, with the policy that takes it along."""
    children = [seen.orders[id] for id in order.children if id in seen.orders]
    return any(child.policy == "fp" and (child.does in DEADLY or doomed(seen, child)) for child in children)


def check(seen: Evidence) -> tuple[int, list[Finding]]:
    """How many flows there are, and what is wrong with them."""
    parents = [order for order in seen.orders.values() if order.children]
    return len(parents), [finding for parent in parents for finding in _parent(seen, parent)]


def _parent(seen: Evidence, parent: Order) -> Iterator[Finding]:
    runs = seen.runs.get(parent.id, ())
    if not runs:
        return
    if doomed(seen, parent):
        yield Finding("parent ran", parent.id, "a child of it died with policy fp, expected no run")
        return
    children = [seen.orders[id] for id in parent.children if id in seen.orders]
    for child in children:
        ended = _ended_ms(seen, child)
        if seen.forgotten_ms is None and (ended is None or ended > runs[0].start_ms):
            yield Finding("parent too early", parent.id, f"its first run began before its child {child.id} had ended")
    expected = _expected(seen, children)
    for run in runs:
        if run.read is not None and run.read != expected and seen.forgotten_ms is None:
            sentence = f"it read {run.read[0]} values and {run.read[1]} ignored deaths, expected {expected}"
            yield Finding("parent read wrong", parent.id, sentence)


def _ended_ms(seen: Evidence, child: Order) -> float | None:
    """When the first run of a child ended in the way that its order says; None where none did."""
    outcome = "failed" if child.does in DEADLY else "done"
    ends = [run.end_ms for run in seen.runs.get(child.id, ()) if run.outcome == outcome and run.end_ms is not None]
    return min(ends, default=None)


def _expected(seen: Evidence, children: list[Order]) -> tuple[int, int]:
    dead = sum(1 for child in children if _is_dead(seen, child))
    return len(children) - dead, dead


def _is_dead(seen: Evidence, child: Order) -> bool:
    runs: tuple[Run, ...] = tuple(seen.runs.get(child.id, ()))
    return child.does in DEADLY or (seen.places.get(child.id, ("", ""))[0] == "dead" and bool(runs))
