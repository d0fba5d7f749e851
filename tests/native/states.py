"""Random states of one queue, consistent and not, as foreign clients leave them; and random calls on them.

Source: protocol sections 1 (keys), 4 (verbs). Three jobs and a flow's parent, two lanes; what is a time lies far in the
past or the future, so that only what a call writes comes from the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, State, job
from tests.support.twin import BASE, Verb

JOBS = [job(1), job(2), job(3)]
PARENT = job(8)
Draw = Callable[[st.SearchStrategy[Any]], Any]

_times = st.sampled_from([1, 5, 7, FAR_MS])
_tokens = st.sampled_from(["1", "1", "1", "1", "1", "2"])
_groups = st.sampled_from([GROUP, OTHER_GROUP])


def _sometimes(draw: Draw, fields: dict[str, str], name: str, values: st.SearchStrategy[Any]) -> None:
    if draw(st.sampled_from([False, False, True])):
        fields[name] = str(draw(values))


def _row(draw: Draw, *, lanes: bool, mostly: str) -> dict[str, str]:
    states = [mostly, mostly, mostly, mostly, "active", "pending", "scheduled", "dead"]
    fields = {"state": draw(st.sampled_from(states)), "attempts": draw(_tokens), "payload": "x"}
    if lanes:
        _sometimes(draw, fields, "group", _groups)
    _sometimes(draw, fields, "held", st.sampled_from(["1:ab", "1:ab", "1:ab", "1:cd"]))
    answers = ["0:dead", "0:scheduled", "0:delayed", "1:scheduled", "1:delayed", "1:dead", "1:done"]
    _sometimes(draw, fields, "settled", st.sampled_from(answers))
    _sometimes(draw, fields, "crashes", st.sampled_from(["1:1", "2:1"]))
    _sometimes(draw, fields, "failures", st.integers(0, 3))
    _sometimes(draw, fields, "stalled", st.integers(0, 3))
    _sometimes(draw, fields, "dedup", st.just("k"))
    _sometimes(draw, fields, "cancel", st.just("no"))
    _sometimes(draw, fields, "last_error", st.just("boom"))
    if draw(st.booleans()):
        fields["parent"] = PARENT
        _sometimes(draw, fields, "parent_policy", st.sampled_from(["fp", "id"]))
        _sometimes(draw, fields, "parent_queue", st.sampled_from(["", "other"]))
    return fields


_PLACES = {"active": ["active"], "pending": ["pending"], "scheduled": ["schedule"], "dead": ["dead"]}


def _file(draw: Draw, state: State, id: str, fields: dict[str, str]) -> None:
    """Where its state says, and in one of four cases anywhere else too, or nowhere."""
    places = _PLACES.get(fields["state"], [])
    if draw(st.integers(0, 3)) == 0:
        more = draw(st.lists(st.sampled_from(["active", "pending", "schedule", "dead"]), unique=True, max_size=3))
        places = [*places, *(one for one in more if one not in places)] if more else []
    for place in places:
        if place == "pending" and "group" in fields:
            place = f"g:{fields['group']}:pending"  # noqa: PLW2901 - a grouped job waits in its lane
        timed = place in {"active", "schedule"}
        state.setdefault(place, {})[id] = draw(_times) if timed else 0


def _family(draw: Draw, state: State) -> None:
    """A parent that waits, or did, or is gone."""
    kind = draw(st.sampled_from(["waits", "waits", "dead", "gone"]))
    if kind == "gone":
        return
    fields = {"state": "awaiting_children" if kind == "waits" else "dead", "attempts": "0", "payload": "p"}
    _sometimes(draw, fields, "group", _groups)
    _sometimes(draw, fields, "parent", st.just(job(9)))
    state[f"job:{PARENT}"] = fields
    state[f"job:{PARENT}:dependencies"] = str(draw(st.integers(0, 3)))
    for part in ("processed", "failed", "unsuccessful"):
        told = draw(st.dictionaries(st.sampled_from(JOBS), st.just("r"), max_size=1))
        if told:
            state[f"job:{PARENT}:{part}"] = told
    if draw(st.booleans()):
        state[f"job:{job(9)}"] = {"state": "awaiting_children", "attempts": "0", "payload": "g"}
        state[f"job:{job(9)}:dependencies"] = "1"


def _lanes(draw: Draw, state: State) -> None:
    for name, values in (("glimit", st.integers(1, 2)), ("gactive", st.integers(0, 3))):
        told = draw(st.dictionaries(_groups, values.map(str), max_size=2))
        if told:
            state[name] = told
    for name in ("ring", "paused"):
        groups = draw(st.lists(_groups, max_size=2, unique=True))
        if groups:
            state[name] = groups if name == "ring" else set(groups)
    if draw(st.integers(0, 9)) == 0:
        state["wake"] = ["1"] * draw(st.sampled_from([1, 64]))


@st.composite
def queues(draw: Draw, *, lanes: bool = True, mostly: str = "active") -> State:
    """A queue as `put` takes it, half of its jobs and more in one state."""
    state: State = {}
    for id in JOBS:
        if draw(st.integers(0, 5)) == 0:
            continue
        fields = _row(draw, lanes=lanes, mostly=mostly)
        state[f"job:{id}"] = fields
        _file(draw, state, id, fields)
        for part, value in (("lock", "1"), ("logs", ["line"]), ("dependencies", "2"), ("failed", {job(7): "e"})):
            if draw(st.integers(0, 9)) == 0:
                state[f"job:{id}:{part}"] = value
    _family(draw, state)
    if lanes:
        _lanes(draw, state)
    if draw(st.booleans()):
        state["de:k"] = draw(st.sampled_from(JOBS))
    if draw(st.booleans()):
        state["meta"] = {"concurrency": "2"}
    if draw(st.integers(0, 4)) == 0:
        state["ready"] = ["1"] * draw(st.sampled_from([1, 2, 63, 64]))
    return state


ids = st.sampled_from(JOBS)
tokens = st.sampled_from(["1", "1", "1", "1:ab", "1:ab", "1:ab", "2", "1:zz"])
whole = st.integers(0, 10**12) | st.sampled_from([0, 1, 2**53])


def _called(name: str, keys: tuple[str, ...], *args: st.SearchStrategy[Any] | Any) -> st.SearchStrategy[Verb]:
    """A call of a verb whose keys may have `%` for the id, drawn with the first strategy."""
    drawn = [one if isinstance(one, st.SearchStrategy) else st.just(one) for one in args]
    id = ids
    return st.tuples(id, *drawn).map(
        lambda words: Verb(name, tuple(key.replace("%", words[0]) for key in keys), _with_id(words))
    )


def _with_id(words: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(words[0] if word == "%" else word for word in words[1:])


def _pairs(name: str, *before: Any) -> st.SearchStrategy[Verb]:
    """A verb of many jobs: pairs of id and held behind other arguments, the last held may be missing."""
    drawn = [one if isinstance(one, st.SearchStrategy) else st.just(one) for one in before]
    pairs = st.lists(st.tuples(ids, tokens), max_size=4)
    return st.tuples(st.tuples(*drawn), pairs, st.booleans()).map(
        lambda told: Verb(name, ("active",), (*told[0], *_flat(told[1], cut=told[2])))
    )


def _flat(pairs: list[tuple[str, str]], *, cut: bool) -> tuple[str, ...]:
    words = tuple(word for pair in pairs for word in pair)
    return words[:-1] if cut else words


_MODES = st.sampled_from(["in", "at"])
_TOLD = st.sampled_from(
    [(), ("sq:fp", PARENT), ("sq:id", PARENT), ("xq:fp", "other", PARENT), ("xq:id", "other", PARENT)]
)

CALLS: dict[str, st.SearchStrategy[Verb]] = {
    "schedule": _called("schedule", ("job:%", "schedule"), "%", st.binary(max_size=3), _MODES, whole),
    "promote": _called("promote", ("schedule", "pending"), BASE, st.sampled_from([1, 2, 100, 10**18])),
    "reap": _called("reap", ("active", "pending"), BASE),
    "stalled_check": _called(
        "stalled_check", ("active", "pending", "dead"), BASE, st.integers(1, 3), st.sampled_from([1, 2, 100])
    ),
    "delay": _called("delay", ("job:%", "active", "schedule"), "%", tokens, _MODES, whole),
    "extend_lock": _called("extend_lock", ("active", "job:%"), "%", tokens, st.integers(60_000, 10**9)),
    "retry": st.tuples(
        _called("retry", ("active", "schedule", "dead", "job:%"), "%", tokens, whole, st.integers(1, 3), "why", BASE),
        _TOLD,
    ).map(lambda pair: pair[0].with_args(*pair[0].args, *pair[1])),
    "keep": _pairs("keep", BASE, st.sampled_from([60_000, 90_000.5, 10**9])),
    "disown": _pairs("disown", BASE),
    "look": _called("look", ("pending", "active", "ring", "meta"), BASE, st.sampled_from([-1, 0, 1, 2, 10])),
    "reprocess": st.tuples(
        _called("reprocess", ("job:%", "dead", "pending"), "%"), st.sampled_from([(), ("force",), ("no",)])
    ).map(lambda pair: pair[0].with_args(*pair[0].args, *pair[1])),
}

# Commands that are nobody's twin.
ALONE: dict[str, st.SearchStrategy[Verb]] = {
    "reschedule": _called("reschedule", ("job:%", "schedule"), "%", _MODES, whole),
    "requeue": _called("requeue", ("job:%", "active", "pending"), "%", tokens),
}
