"""The plots of the dashboard: rates of counters, and curves that stay in their frame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.web.plots import History, Sample, plot, rounded_up
from echomq_worker.web.render import amount, moment, path, seen, size, took


def sample(at_ms: int, completed: int = 0, **more: int) -> Sample:
    """A look in which the rest is 0."""
    names = ("ready", "active", "scheduled", "dead", "failed", "wait_ms")
    return Sample(at_ms=at_ms, completed=completed, **{name: more.get(name, 0) for name in names})


def test_rates_are_what_a_counter_grows_a_second() -> None:
    """From look to look; a counter that was reset has grown by nothing, two looks at one moment say nothing."""
    history = History()
    for at, completed in ((0, 10), (2_000, 30), (2_000, 30), (3_000, 5), (7_000, 25)):
        history.add(sample(at, completed))

    assert history.rates("completed") == [(2_000, 10.0), (3_000, 0), (7_000, 5.0)]
    assert history.values("completed")[0] == (0, 10.0)


def test_the_rate_of_late_is_over_ten_seconds() -> None:
    """None before the second look; then over the looks of the last ten seconds, two at the least."""
    history = History()
    assert history.rate("completed") is None
    history.add(sample(0, 0))
    assert history.rate("completed") is None
    history.add(sample(60_000, 600))
    assert history.rate("completed") == 10.0
    history.add(sample(62_000, 640))
    assert history.rate("completed") == 20.0


def test_old_samples_go() -> None:
    """No more are kept than were asked for."""
    history = History(keep=3)
    for at in range(5):
        history.add(sample(at))

    assert [one.at_ms for one in history.samples] == [2, 3, 4]


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 1e12)), max_size=20))
def test_every_point_is_in_the_frame(points: list[tuple[int, float]]) -> None:
    """Whatever the numbers are; the highest is below the top of the axis."""
    points.sort()
    drawn = plot([("one", points)], width=100, height=50)
    (curve,) = drawn.curves

    places = [tuple(map(float, place.split(","))) for place in curve.points.split()]
    assert len(places) == len(points)
    assert all(0 <= x <= 100 and 0 <= y <= 50 for x, y in places)
    assert all(value <= drawn.top * 1.000_001 for _, value in points)
    assert curve.last == (points[-1][1] if points else None)


def test_curves_of_one_plot_share_its_axis() -> None:
    """The same value is at the same height."""
    drawn = plot([("a", [(0, 5.0), (10, 10.0)]), ("b", [(0, 10.0), (10, 5.0)])], width=10, height=106)

    assert drawn.top == 10
    assert [curve.points for curve in drawn.curves] == ["0.0,56.0 10.0,6.0", "0.0,6.0 10.0,56.0"]


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (-1, 1), (0.3, 0.5), (1, 1), (3, 5), (7, 10), (10, 10), (11, 20), (float("inf"), 1)]
)
def test_the_top_of_an_axis_is_a_round_number(value: float, top: float) -> None:
    """One, two or five with noughts."""
    assert rounded_up(value) == pytest.approx(top)


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (None, "–"),  # noqa: RUF001 - the dash that a page shows
        (0, "0 s"),
        (450, "450 ms"),
        (1_000, "1 s"),
        (61_000, "1 min 1 s"),
        (60_000, "1 min"),
        (3_661_000, "1 h 1 min"),
        (90_000_000, "1 d 1 h"),
        (-5_000, "-5 s"),
    ],
)
def test_lengths_of_time(ms: int | None, said: str) -> None:
    """Two units at the most."""
    assert took(ms) == said


def test_numbers_sizes_moments_and_paths() -> None:
    """As a person reads them; a moment that no calendar has is its number."""
    assert [amount(value) for value in (0, 0.44, 12.4, 3_400, 2e6, 3e9)] == ["0", "0.44", "12", "3.4k", "2M", "3G"]
    assert [size(value) for value in (0, 312, 4_301, 5 << 20, 7 << 30)] == [
        "0 B",
        "312 B",
        "4.2 KiB",
        "5.0 MiB",
        "7.0 GiB",
    ]
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(1e20) == "1e+20"
    assert moment(float("inf")) == "inf"
    assert path("/jobs", "q", "a b", error="x&y", empty="", none=None) == "/jobs/q/a%20b?error=x%26y"
    assert seen("a\nb\u202e") == "a\\u000ab\\u202e"
