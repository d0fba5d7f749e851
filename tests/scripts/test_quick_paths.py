"""Calls that are as most are take a short way through their script: it answers and leaves what the long one does.

Source: protocol section 4 (`claim_many`, `settle`). The long way alone is the same script with its short one cut out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echomq_worker.catalogue import scripts
from tests.support.plain import FAR_MS, GROUP, State, job, row
from tests.support.twin import BASE, Twins, Verb, assert_alike
from tests.support.valkey import ValkeyServer

Draw = Callable[[st.SearchStrategy[Any]], Any]

IDS = [job(1), job(2), job(3)]
PARENT = job(8)
RANDOM = "ab"

# What cuts the short way out of a script, and what shows that a call takes it: text and what stands for it.
LONG = {
    "claim_many": {
        "if alone and #first == 0 then": "if false then",
        "if ring == 0 then take_plain(claim, flat) end": "",
        "if alone and not claim.row then": "if false then",
        "not (claim.lanes or claim.row) and take_plain(claim, flat) or": "",
    },
    "settle": {"local plain, ids, beside = read_plain(prefix, kept)": "local plain, ids, beside"},
}
SHORT = {
    "claim_many": ("if alone and not claim.row then", "return {read + 1"),
    "settle": ("if plain then", "return answers\n"),
}


def long_way(name: str) -> str:
    """The script without its short way."""
    source = scripts()[name].source
    for old, new in LONG[name].items():
        assert source.count(old) == 1, f"{name}: {old!r}, expected once"
        source = source.replace(old, new)
    return source


def short_way(name: str) -> str:
    """The script with an error where its short way ends."""
    source, (begin, end) = scripts()[name].source, SHORT[name]
    at = source.index(end, source.index(begin))
    return f"{source[:at]}do return redis.error_reply('SHORT') end {source[at:]}"


# What tells a row from most, and what stands beside it then.
_FLAWS: list[tuple[dict[str, str], State]] = [
    *(({"failures": "2", "last_error": "boom"}, {}), ({"trace": "{}"}, {}), ({"held": "9:zz", "crashes": "1:9"}, {})),
    *(({"cancel": "why"}, {}), ({"expires_at": "5"}, {}), ({"state": "dead"}, {}), ({"state": "scheduled"}, {})),
    *(({"settled": "1:delayed"}, {}), ({"attempts": "2"}, {}), ({"group": GROUP}, {"gactive": {GROUP: "1"}})),
    ({"parent": PARENT}, {f"job:{PARENT}": row("awaiting_children"), f"job:{PARENT}:dependencies": "2"}),
    ({"dedup": "k"}, {"de:k": job(2)}),
]
_strays = st.sampled_from(["active", "schedule", "dead", "pending"])


def rarely(draw: Draw) -> bool:
    """True once in eight."""
    return bool(draw(st.integers(0, 7)) == 7)


@st.composite
def flat_queues(draw: Draw, place: str, fields: dict[str, str]) -> State:
    """A queue of flat jobs in one set, most of them as they should be: of two queues one has a job with a flaw."""
    state: State = {}
    ids = draw(st.lists(st.sampled_from(IDS), min_size=1, unique=True))
    flawed = ids[0] if draw(st.booleans()) else None
    for id in ids:
        mine, beside = draw(st.sampled_from(_FLAWS)) if id == flawed else ({}, {})
        state |= {f"job:{id}": row() | fields | mine} | beside
        for where in [place, *([draw(_strays)] if rarely(draw) else [])]:
            state.setdefault(where, {})[id] = FAR_MS if where in {"active", "schedule"} else 0
        for part, value in (("logs", ["a line"]), ("lock", "1"), ("dependencies", "1")):
            if rarely(draw):
                # Whoever extends a first claim says that there may be a lock.
                state |= {f"job:{id}:{part}": value} | ({"kept": "1"} if part == "lock" else {})
        if rarely(draw):
            del state[f"job:{id}"]
    extras: State = {"ready": ["1"], "wake": ["1"], "kept": "1", "meta": {"concurrency": "3"}}
    return state | {name: value for name, value in extras.items() if rarely(draw)}


CLAIM = Verb("claim_many", ("pending", "active", "ring", "meta", "claimed:c"), (BASE, 60_000, 2, 0, RANDOM, 3, 1))
SETTLE = Verb("settle", ("active", "pending", "schedule", "dead"), (BASE,))


HELD = {"state": "active", "attempts": "1", "held": f"1:{RANDOM}"}


def done(*ids: str) -> tuple[str, ...]:
    """Verdicts: these are completed."""
    return tuple(word for id in ids for word in ("c", id, HELD["held"], ""))


@st.composite
def claims(draw: Draw) -> tuple[State, Verb]:
    """Jobs that wait, and a claim of some."""
    state = draw(flat_queues("pending", {}))
    return state, CLAIM.with_args(BASE, 60_000, draw(st.integers(1, 5)), 0, RANDOM, 3, 1)


@st.composite
def settles(draw: Draw) -> tuple[State, Verb]:
    """Jobs in hand, and the completions of all of them, or of any, or of one twice."""
    state = draw(flat_queues("active", HELD))
    ids = [id for id in IDS if f"job:{id}" in state]
    if rarely(draw):
        ids = draw(st.lists(st.sampled_from(IDS), max_size=5))
    return state, SETTLE.with_args(BASE, *done(*ids))


CALLS = {"claim_many": claims(), "settle": settles()}


@pytest.fixture
def ways(server: ValkeyServer, url: str) -> Iterator[Twins]:
    """Two databases of the session's server, and the calls on them."""
    pair = Twins(server)
    yield pair
    pair.close()
    server.admin.flushall()


@pytest.mark.parametrize("name", CALLS)
def test_both_ways_are_alike(name: str, ways: Twins) -> None:
    """Whatever is met on the way, and however much of it, the short way answers and leaves what the long one does."""
    long = long_way(name)

    @settings(max_examples=100)
    @given(CALLS[name])
    def example(call: tuple[State, Verb]) -> None:
        state, verb = call
        assert_alike(ways.script(state, verb), ways.script(state, verb, source=long))

    example()


@pytest.mark.parametrize("name", CALLS)
def test_no_flaw_is_missed(name: str, ways: Twins) -> None:
    """Each single thing that tells a row from most has its effect, also where it is the last row that is met."""
    place, fields, verb = (
        ("pending", {}, CLAIM)
        if name == "claim_many"
        else ("active", HELD, SETTLE.with_args(BASE, *done(job(1), job(2))))
    )
    long = long_way(name)
    for mine, beside in _FLAWS:
        rows = {f"job:{job(1)}": row() | fields, f"job:{job(2)}": row() | fields | mine}
        state: State = {**rows, place: {job(1): FAR_MS, job(2): FAR_MS}} | beside
        assert_alike(ways.script(state, verb), ways.script(state, verb, source=long))


PLAIN: dict[str, tuple[State, Verb]] = {
    "claim_many": ({"pending": {job(1): 0}, f"job:{job(1)}": row()}, CLAIM),
    "settle": (
        {"active": {job(1): FAR_MS}, f"job:{job(1)}": row("active", 1, held=f"1:{RANDOM}")},
        SETTLE.with_args(BASE, *done(job(1))),
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_call_takes_the_short_way(name: str, ways: Twins) -> None:
    """A job as most are is claimed and completed on the short way, which is what its time is counted on."""
    state, verb = PLAIN[name]

    assert ways.script(state, verb, source=short_way(name)).reply == "!SHORT"
