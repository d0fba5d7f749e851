"""Snapshots of metrics: they add up over processes, and come through JSON as they went in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.logs import TEXT_LIMIT
from echomq_worker.probes import instruments as i
from echomq_worker.probes.depths import LARGEST_LANES, Lane, write_lanes
from echomq_worker.probes.snapshot import Histogram, Number, Snapshot, added

# Whole numbers: their sum does not depend on the order.
NUMBERS = st.integers(0, 10**9).map(float)
PLAIN = st.tuples(st.sampled_from(["a", "b"]), st.tuples(st.text(max_size=3)), NUMBERS)
BUCKETS = st.tuples(st.just("h"), st.just(()), st.tuples(NUMBERS, NUMBERS, NUMBERS))


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """A few numbers, put in any order."""
    made = Snapshot()
    rows: list[tuple[str, tuple[str, ...], Number]] = draw(st.lists(st.one_of(PLAIN, BUCKETS), max_size=6))
    for name, labels, value in rows:
        made.put(name, value, *labels)
    return made


@given(st.lists(snapshots(), max_size=4))
def test_the_sum_does_not_depend_on_order_or_grouping(several: list[Snapshot]) -> None:
    """Whoever answers first, and whoever has ended before: the fleet's numbers are the same."""
    whole = added(several)
    assert added(reversed(several)).numbers == whole.numbers
    assert added([added(several[:2]), *several[2:]]).numbers == whole.numbers
    assert added([whole, Snapshot()]).numbers == whole.numbers


@given(snapshots())
def test_it_comes_through_json_as_it_went_in(snapshot: Snapshot) -> None:
    """Labels are any text."""
    assert Snapshot.of_rows(json.loads(json.dumps(snapshot.rows))).numbers == snapshot.numbers


@pytest.mark.parametrize("rows", [3, [3], [["a", [], "x"]], [["a", [], None]], [["a", [], [1]], ["a", [], 1]]])
def test_what_is_no_snapshot_is_an_error(rows: object) -> None:
    """A message that is cut or of another release is not half taken."""
    with pytest.raises(ValueError, match=r"snapshot|float|added|shorter|unpack"):
        Snapshot.of_rows(rows)


@given(st.lists(st.floats(0, 100), max_size=30))
def test_a_histogram_counts_each_value_once(values: list[float]) -> None:
    """In the first bucket whose bound is not below it; what is above all bounds too."""
    bounds = (1.0, 5.0, 25.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.add(value)

    *counts, total = histogram.number
    assert sum(counts) == len(values)
    assert total == pytest.approx(sum(values))
    for number, bound in enumerate(bounds):
        assert sum(counts[: number + 1]) == sum(1 for value in values if value <= bound)


def test_adding_what_is_no_histogram_to_one_is_an_error() -> None:
    """It would be a number of neither."""
    made = Snapshot()
    made.put("a", (1.0, 2.0))
    with pytest.raises(ValueError, match="cannot be added"):
        made.put("a", 1.0)


def test_what_a_process_leaves_behind_are_its_counts() -> None:
    """Not what it has now, and nothing that others tell as well."""
    assert {one.kind for one in i.LASTING} == {"counter", "histogram"}
    assert not set(i.LASTING) & set(i.SHARED)
    assert len({one.name for one in i.INSTRUMENTS}) == len(i.INSTRUMENTS)
    assert all(one.name.endswith("_total") == (one.kind == "counter") for one in i.INSTRUMENTS)
    assert all(bool(one.bounds) == (one.kind == "histogram") for one in i.INSTRUMENTS)


def test_ever_so_many_lanes_are_a_bounded_number_of_series() -> None:
    """The largest have their names, the others are one; none of their jobs is missing. Names are made harmless."""
    lanes = [Lane(f"GRP{number:03}", number, 1) for number in range(100)]
    lanes.append(Lane("x\n" * TEXT_LIMIT, 10**6, 0))
    made = Snapshot()
    write_lanes("q", lanes, made)

    found = made.numbers[i.LANE_JOBS.name]
    names = {lane for _, lane, _ in found}
    assert len(names) == LARGEST_LANES + 1
    assert {f"GRP{number:03}" for number in range(81, 100)} < names
    assert sum(count for (_, _, state), count in found.items() if state == "pending") == sum(range(100)) + 10**6  # type: ignore[misc]  # plain numbers
    assert found["q", i.OTHER_LANES, "active"] == 81
    assert made.numbers[i.LANES.name]["q",] == 101
    assert max(map(len, names)) < 300
    assert not any("\n" in name for name in names)
