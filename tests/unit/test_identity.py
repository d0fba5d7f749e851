"""Branded ids: the vectors of the protocol, laws of the codec, and a mint that only ever counts up."""

from __future__ import annotations

import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker import identity
from echomq_worker.clock import SystemClock
from echomq_worker.errors import InvalidArgument, InvalidId
from echomq_worker.identity import EPOCH_MS, MAX_SNOWFLAKE, Mint
from tests.support.clock import ManualClock

ROOT = Path(__file__).parents[2]
HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000
NAMESPACES = st.from_regex(r"[A-Z]{3}", fullmatch=True)
SNOWFLAKES = st.integers(0, identity.MAX_SNOWFLAKE)

MALFORMED = [
    "",
    "JOB",
    "JOB0KHTOWnGLu",
    "JOB0KHTOWnGLuC0",
    "job0KHTOWnGLuC",
    "JO10KHTOWnGLuC",
    "ÄOB0KHTOWnGLuC",
    "JOB0KHTOWnGLu-",
    "JOB0KHTOWnGLu\n",
    "JOB0KHTOWnGLuC\n",
    " JOB0KHTOWnGLuC",
    "JOB0KHTOWnGLu\u0661",
    "JOB0KHTOWnGLu\x00",
    "JOB0KHTOWnGLu}",
    "JOBzzzzzzzzzzz",
    "JOBAzL8n0Y58m8",
    "x" * 100_000,
]


def sequence_of(id: str) -> int:
    """The lowest 12 bits of an id's Snowflake."""
    return identity.decode(id)[1] & 4095


def node_of(id: str) -> int:
    """The node id in an id's Snowflake."""
    return identity.decode(id)[1] >> 12 & 1023


def repr_or_bits(value: object) -> str:
    """A test id for a value that may be too large to print."""
    return f"{value.bit_length()} bits" if isinstance(value, int) else repr(value)


@pytest.mark.parametrize(
    ("namespace", "snowflake", "id"),
    [
        ("USR", 274557032793636864, "USR0KHTOWnGLuC"),
        ("USR", 320636799581945856, "USR0NgWEfAEJfs"),
        ("JOB", 2**63 - 1, "JOBAzL8n0Y58m7"),
        ("JOB", 0, "JOB00000000000"),
        ("JOB", 61, "JOB0000000000z"),
        ("JOB", 62, "JOB00000000010"),
    ],
)
def test_vectors(namespace: str, snowflake: int, id: str) -> None:
    """The vectors of protocol section 2 hold in both directions."""
    assert identity.encode(namespace, snowflake) == id
    assert identity.decode(id) == (namespace, snowflake)


@given(NAMESPACES, SNOWFLAKES)
def test_encode_and_decode_are_inverse(namespace: str, snowflake: int) -> None:
    """Every id decodes to what it was made of, and is well-formed."""
    id = identity.encode(namespace, snowflake)
    assert identity.decode(id) == (namespace, snowflake)
    assert identity.is_branded(id)
    assert identity.check_id(id) is id
    assert len(id.encode("ascii")) == 14


@given(SNOWFLAKES, SNOWFLAKES)
def test_byte_order_is_integer_order(one: int, other: int) -> None:
    """Within a namespace ids sort as their integers do: a sorted set at score 0 is in mint order."""
    first, second = identity.encode("JOB", one).encode(), identity.encode("JOB", other).encode()
    assert (first < second) == (one < other)
    assert (first == second) == (one == other)


@given(st.text(max_size=20) | st.from_regex(r"[A-Z]{3}[0-9A-Za-z]{11}", fullmatch=True))
def test_what_is_branded_decodes_and_what_is_not_raises(text: str) -> None:
    """is_branded, check_id and decode agree on every text, and what decodes encodes to itself."""
    if identity.is_branded(text):
        assert identity.encode(*identity.decode(text)) == text
    else:
        for refused in (identity.check_id, identity.decode, identity.minted_at_ms):
            with pytest.raises(InvalidId):
                refused(text)


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_ids_are_refused_in_one_short_line(text: str) -> None:
    """A malformed id is a ValueError that says what was expected, printable and short whatever the id was."""
    assert not identity.is_branded(text)
    with pytest.raises(ValueError, match=r"^id .*: expected three letters A-Z and 11 base62 characters") as caught:
        identity.check_id(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize("value", [None, b"JOB0KHTOWnGLuC", 7, ["JOB0KHTOWnGLuC"]])
def test_an_id_is_text(value: Any) -> None:
    """Anything but text is no id, and the refusal is the same class as for a malformed one."""
    assert not identity.is_branded(value)
    with pytest.raises(InvalidId, match=r"^id "):
        identity.check_id(value)


@pytest.mark.parametrize("namespace", ["", "jo", "JO", "JOBS", "job", "J0B", "JOB\n", "ÄÖÜ", "\ud800AB"])
def test_a_bad_namespace_is_refused(namespace: str) -> None:
    """A namespace is three letters A-Z, for encoding and for minting."""
    with pytest.raises(InvalidId, match=r"^namespace .*: expected three letters A-Z$"):
        identity.encode(namespace, 1)
    with pytest.raises(InvalidId, match=r"^namespace "):
        Mint(ManualClock(NOW_MS)).next(namespace)


@pytest.mark.parametrize("snowflake", [-1, 2**63, 1 << 50_000, 1.5, "1", None], ids=repr_or_bits)
def test_a_bad_snowflake_is_refused(snowflake: int) -> None:
    """Only integers of 0..2^63-1 have an id; the refusal is a short line also for a huge integer."""
    with pytest.raises(InvalidId, match=r"^snowflake .{1,60}: expected an integer of 0\.\.2\^63-1$"):
        identity.encode("JOB", snowflake)


def test_an_id_says_when_it_was_minted() -> None:
    """minted_at_ms is the maker's wall clock at the mint, in ms since 1970."""
    assert identity.minted_at_ms(Mint(ManualClock(NOW_MS)).next()) == NOW_MS
    assert identity.minted_at_ms("JOB00000000000") == EPOCH_MS == 1704067200000


@given(st.integers(0, MAX_SNOWFLAKE), st.text(alphabet="A0a-", max_size=14))
def test_the_quick_reading_is_at_most_a_millisecond_early(snowflake: int, text: str) -> None:
    """Never late, and nothing for what is no id."""
    id = identity.encode("JOB", snowflake)
    assert identity.minted_at_ms(id) - 1 <= (identity.minted_near_ms(id) or 0) <= identity.minted_at_ms(id)
    assert len(text) >= 11 or identity.minted_near_ms(text) is None


def test_a_minted_id_is_made_of_time_node_and_sequence() -> None:
    """The Snowflake is ms since the epoch << 22, node << 12, sequence, which begins at 0 for an operator's node id."""
    mint = Mint(ManualClock(EPOCH_MS + 5), node_id=1023)
    assert identity.decode(mint.next()) == ("JOB", 5 << 22 | 1023 << 12 | 0)
    assert identity.decode(mint.next("USR")) == ("USR", 5 << 22 | 1023 << 12 | 1)
    assert mint.node_id == 1023


@pytest.mark.parametrize("node_id", [-1, 1024, 1 << 50_000, 1.5, "7"], ids=repr_or_bits)
def test_a_node_id_outside_ten_bits_is_refused(node_id: int) -> None:
    """A node id is an integer of 0..1023."""
    with pytest.raises(InvalidArgument, match=r"^node_id .{1,60}: expected 0\.\.1023$"):
        Mint(ManualClock(NOW_MS), node_id=node_id)


@pytest.mark.parametrize("node_id", [None, 0])
def test_more_ids_than_the_sequence_holds_keep_counting(node_id: int | None) -> None:
    """In a millisecond that does not end, 20,000 ids strictly increase and keep their node."""
    mint = Mint(ManualClock(NOW_MS), node_id=node_id)
    ids = [mint.next() for _ in range(20_000)]
    assert all(before < after for before, after in pairwise(ids))
    assert {node_of(id) for id in ids} == {mint.node_id}
    assert identity.minted_at_ms(ids[0]) == NOW_MS
    assert NOW_MS + 4 <= identity.minted_at_ms(ids[-1]) <= NOW_MS + 10


def test_the_sequence_is_used_up_before_the_next_millisecond_is_taken() -> None:
    """With an operator's node id exactly 4096 ids share a millisecond, without a gap."""
    mint = Mint(ManualClock(NOW_MS), node_id=7)
    numbers = [identity.decode(mint.next())[1] for _ in range(4097)]
    start = (NOW_MS - EPOCH_MS) << 22 | 7 << 12
    assert numbers == [*range(start, start + 4096), start + (1 << 22)]


def test_a_million_mints_increase_also_when_the_clock_steps_back_an_hour() -> None:
    """1,000,000 ids of one process strictly increase; half-way the clock steps back an hour and stays there."""
    clock = ManualClock(NOW_MS)
    mint = Mint(clock)
    ids = []
    for now_ms in (NOW_MS, NOW_MS + 1, NOW_MS + 1 - HOUR_MS, NOW_MS - HOUR_MS + 2):
        clock.set(now_ms)
        ids += [mint.next() for _ in range(250_000)]
    assert len(ids) == 1_000_000
    assert all(before < after for before, after in pairwise(ids))


def test_after_a_step_back_the_mint_follows_the_clock_again_once_it_has_caught_up() -> None:
    """The mint runs ahead only until the clock passes the last id's millisecond."""
    clock = ManualClock(NOW_MS)
    mint = Mint(clock, node_id=1)
    mint.next()
    clock.set(NOW_MS - HOUR_MS)
    assert identity.minted_at_ms(mint.next()) == NOW_MS
    clock.set(NOW_MS + 1)
    assert identity.minted_at_ms(mint.next()) == NOW_MS + 1


@given(st.lists(st.integers(EPOCH_MS - 10, EPOCH_MS + 10), max_size=50), st.none() | st.integers(0, 1023))
def test_any_walk_of_the_clock_gives_increasing_ids(walk: list[int], node_id: int | None) -> None:
    """However the clock moves, also before the epoch, ids strictly increase and keep their node."""
    clock = ManualClock(NOW_MS)
    mint = Mint(clock, node_id=node_id)
    ids = []
    for now_ms in walk:
        clock.set(now_ms)
        ids += [mint.next() for _ in range(3)]
    assert all(before < after for before, after in pairwise(ids))
    assert all(node_of(id) == mint.node_id for id in ids)


def test_a_clock_past_the_last_millisecond_is_refused_and_does_no_harm() -> None:
    """Past 2^41 ms an id would not fit: refused, and the mint goes on when the clock is right again."""
    clock = ManualClock(NOW_MS)
    mint = Mint(clock, node_id=0)
    before = mint.next()
    clock.set(EPOCH_MS + 2**41)
    with pytest.raises(InvalidArgument, match=r"^clock: expected a time before 2093"):
        mint.next()
    clock.set(NOW_MS + 1)
    assert mint.next() > before
    clock.set(EPOCH_MS + 2**41 - 1)
    assert identity.decode(mint.next())[1] == (2**41 - 1) << 22


def test_threads_share_a_mint() -> None:
    """Eight threads get distinct ids, each thread an increasing run of them."""
    mint = Mint(SystemClock())
    runs: list[list[str]] = [[] for _ in range(8)]

    def work(run: list[str]) -> None:
        run += [mint.next() for _ in range(5_000)]

    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(run == sorted(run) for run in runs)
    assert len({id for run in runs for id in run}) == 40_000


def test_the_default_node_id_is_drawn_at_random() -> None:
    """Processes that are told nothing are unlikely to share a node id, and the draw stays in ten bits."""
    drawn = {identity.default_node_id() for _ in range(500)}
    assert drawn <= set(range(1024))
    assert len(drawn) > 200


def test_mints_with_the_same_drawn_node_id_rarely_begin_alike() -> None:
    """Two containers that drew the same node id begin a millisecond at different places of the sequence."""
    first = {sequence_of(Mint(ManualClock(NOW_MS)).next()) for _ in range(200)}
    assert len(first) > 100
    assert max(first) < 2048


def test_the_default_mint_is_shared() -> None:
    """Everybody in a process who needs no mint of their own shares one, and so its order."""
    assert identity.default_mint() is identity.default_mint()
    assert identity.default_mint().next() < identity.default_mint().next()


FORK = """
import os
from echomq_worker.clock import SystemClock
from echomq_worker.identity import Mint, decode
drawn, told = Mint(SystemClock()), Mint(SystemClock(), 7)
last, node = drawn.next(), drawn.node_id
told._lock.acquire()
nodes = set()
for _ in range(8):
    read, write = os.pipe()
    if os.fork() == 0:
        told.next()
        os.write(write, f"{drawn.next()} {drawn.next()} {drawn.node_id} {told.node_id}".encode())
        os._exit(0)
    os.wait()
    first, second, child_node, child_told = os.read(read, 1000).decode().split()
    assert last < first < second, (last, first, second)
    assert decode(first)[1] >> 12 & 1023 == int(child_node), (first, child_node)
    assert child_told == "7", child_told
    nodes.add(int(child_node))
assert len(nodes | {node}) > 3, nodes
assert drawn.node_id == node and drawn.next() > last
print("ok")
"""


def test_a_forked_process_does_not_mint_what_its_parent_mints() -> None:
    """A child draws its own node id, counts on from the parent's last id, and is not held up by a lock of the parent.

    Only what the operator set is kept: their promise covers the children too.
    """
    done = subprocess.run(
        [sys.executable, "-c", FORK], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.stdout, done.stderr) == ("ok\n", "")


@pytest.mark.parametrize("node_id", [None, 9])
def test_a_mint_counts_on_after_a_fork(node_id: int | None) -> None:
    """What a child does first, seen from inside: still increasing, with the node id that the mint says it has."""
    mint = Mint(ManualClock(NOW_MS), node_id=node_id)
    ids = []
    for _ in range(5):
        ids += [mint.next(), mint.next()]
        identity._forks().add()
        ids.append(mint.next())
        assert node_of(ids[-1]) == mint.node_id
    assert all(before < after for before, after in pairwise(ids))
    assert node_id is None or {node_of(id) for id in ids} == {node_id}


def test_a_group_id_is_stable_and_branded() -> None:
    """A lane's id is the same in every process and release: GRP and 63 bits of the SHA-256 of the text."""
    assert identity.group_for("") == identity.encode("GRP", 0xE3B0C44298FC1C14 >> 1)
    assert identity.group_for("tenant-42") == "GRPAbgrWLosNBE"
    assert identity.group_for("tenant-42") != identity.group_for("tenant-43")


@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_every_text_has_a_group_id(text: str) -> None:
    """Any text names a lane, also one that has no UTF-8 form."""
    assert identity.is_branded(identity.group_for(text))
