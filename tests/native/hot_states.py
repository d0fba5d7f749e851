"""Random queues as admissions, claims and endings meet them, and random calls of those on them.

Source: protocol sections 4 and 5. What `states` draws, and beside it weights, turns, ceilings, rates, receipts,
expiries and more jobs that wait.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.native.states import JOBS, PARENT, Draw, queues
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, State, job
from tests.support.twin import BASE, Verb

THIRD_GROUP = "GRP00000000003"
GROUPS = [GROUP, OTHER_GROUP, THIRD_GROUP]
NEW = [job(4), job(5), job(6)]
STRANGER = "USR00000000001"
_groups = st.sampled_from(GROUPS)
_tokens = st.sampled_from(["1", "1", "1", "1:ab", "1:ab", "1:ab", "2"])
_LEASES = st.sampled_from([60_000, 3_600_000])


def _meta(draw: Draw) -> dict[str, str]:
    found: dict[str, str] = {}
    choices = {
        "paused": st.just("1"),
        "concurrency": st.integers(0, 4),
        "max": st.integers(0, 4),
        "window_ms": st.sampled_from([0, 60_000, "1e17"]),
        "flat_turn": st.integers(0, 3),
        "lane_turn": st.tuples(_groups, st.integers(0, 2)).map(lambda cut: f"{cut[0]}:{cut[1]}"),
    }
    for name, values in choices.items():
        if draw(st.integers(0, 9)) < (1 if name == "paused" else 3):
            found[name] = str(draw(values))
    return found


def _wait(draw: Draw, state: State) -> None:
    """More jobs, most of them as they should be: in flat pending, or in their lane with the lane on the ring."""
    for id in draw(st.lists(st.sampled_from([*NEW, job(7)]), unique=True, max_size=4)):
        fields = {"state": "pending", "attempts": draw(st.sampled_from(["0", "3"])), "payload": id}
        group = draw(st.sampled_from([None, *GROUPS]))
        state[f"job:{id}"] = fields
        # Put back by somebody who left its lease where it was.
        if draw(st.integers(0, 3)) == 0:
            state.setdefault("active", {})[id] = 1
        if group is None:
            state.setdefault("pending", {})[id] = 0
            continue
        if draw(st.integers(0, 5)):
            fields["group"] = group
        state.setdefault(f"g:{group}:pending", {})[id] = 0
        if draw(st.integers(0, 5)) and group not in state.get("ring", []):
            state.setdefault("ring", []).append(group)


@st.composite
def hot_queues(draw: Draw) -> State:
    """A queue as `put` takes it."""
    state: State = draw(queues())
    _wait(draw, state)
    meta = _meta(draw)
    if meta:
        state["meta"] = meta
    if draw(st.booleans()):
        state["gweight"] = {group: str(draw(st.integers(1, 3))) for group in GROUPS}
    if draw(st.integers(0, 3)) == 0:
        state["limiter"] = str(draw(st.integers(0, 3)))
    if draw(st.integers(0, 2)) == 0:
        words = " ".join(f"{id} {draw(st.sampled_from(['1', '2']))}" for id in JOBS)
        state["claimed:c"] = f"{draw(st.integers(0, 2))} ab {words}"
    for id in JOBS:
        if f"job:{id}" in state and draw(st.integers(0, 5)) == 0:
            state[f"job:{id}"]["expires_at"] = str(draw(st.sampled_from([1, FAR_MS])))
    return state


_ids = st.sampled_from([*JOBS, *NEW, STRANGER])


def _call(name: str, keys: tuple[str, ...], *args: Any) -> st.SearchStrategy[Verb]:
    drawn = [one if isinstance(one, st.SearchStrategy) else st.just(one) for one in args]
    return st.tuples(*drawn).map(lambda words: Verb(name, keys, words))


def _flat(lists: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(word for one in lists for word in one)


_pairs = st.lists(st.tuples(_ids, st.binary(max_size=80)), min_size=1, max_size=4).map(_flat)
_admission = st.tuples(
    _ids,
    st.binary(max_size=3),
    st.sampled_from(["", *GROUPS]),
    *(st.sampled_from(["", "", "in", "at"]), st.integers(-5, 10**12)),
    *(st.sampled_from(["", "k", "other"]), st.sampled_from(["", "60000"])),
    st.sampled_from(["", "", "", "", "in:60000", "at:5", "at:-5", "on:5", "in:1x"]),
)
_admissions = st.lists(_admission, min_size=1, max_size=4).map(_flat)
_OF_PARENT = st.sampled_from([(), (PARENT,), (PARENT, "res"), (PARENT, "res", "xq", "other"), ("", "res")])
_lane = st.sampled_from(["", GROUP, OTHER_GROUP])
_verdict = st.one_of(
    st.tuples(st.just("c"), st.sampled_from(JOBS), _tokens, _lane),
    st.tuples(st.just("v"), st.sampled_from(JOBS), _tokens, _lane, st.just("result")),
    st.tuples(
        st.just("r"), st.sampled_from(JOBS), _tokens, _lane, st.integers(0, 10**12), st.integers(1, 3), st.just("why")
    ),
    st.tuples(
        st.just("d"), st.sampled_from(JOBS), _tokens, _lane, st.sampled_from(["in", "at"]), st.integers(0, 10**12)
    ),
)
_ROW_KEYS = ("g:%:pending", "ring", "paused", "glimit", "gactive", "wake")


def _lane_enqueue(words: tuple[str, bytes, str]) -> Verb:
    id, _, group = words
    return Verb("lane_enqueue", (f"job:{id}", *(key.replace("%", group) for key in _ROW_KEYS)), words)


HOT_CALLS: dict[str, st.SearchStrategy[Verb]] = {
    "enqueue": st.tuples(_ids, st.binary(max_size=80)).map(
        lambda words: Verb("enqueue", (f"job:{words[0]}", "pending"), words)
    ),
    "enqueue_many": _pairs.map(lambda words: Verb("enqueue_many", ("pending",), (BASE, *words))),
    "admit_many": _admissions.map(lambda words: Verb("admit_many", ("pending", "schedule"), (BASE, *words))),
    "admit_traced": _admissions.map(lambda words: Verb("admit_traced", ("pending", "schedule"), (BASE, "{}", *words))),
    "lane_enqueue": st.tuples(_ids, st.binary(max_size=3), _groups).map(_lane_enqueue),
    "claim": _call("claim", ("pending", "active"), f"{BASE}job:", _LEASES),
    "claim_batch": _call("claim_batch", ("pending", "active"), f"{BASE}job:", _LEASES, st.integers(-1, 5)),
    "claim_many": _call(
        "claim_many",
        ("pending", "active", "ring", "meta", "claimed:c"),
        *(
            BASE,
            _LEASES,
            st.sampled_from([0, 1, 2, 3, 4, 7]),
            st.integers(0, 2),
            "zz",
            st.integers(2, 3),
            st.integers(0, 1),
        ),
    ),
    "lane_claim": _call("lane_claim", ("ring", "active"), BASE, _LEASES),
    "lane_claim_weighted": _call("lane_claim_weighted", ("ring", "active"), BASE, _LEASES),
    "complete": st.tuples(st.sampled_from(JOBS), _tokens, _OF_PARENT).map(
        lambda words: Verb("complete", ("active", f"job:{words[0]}"), (words[0], words[1], BASE, *words[2]))
    ),
    "settle": st.lists(_verdict, min_size=1, max_size=5).map(
        lambda verdicts: Verb("settle", ("active", "pending", "schedule", "dead"), (BASE, *_flat(verdicts)))
    ),
}
