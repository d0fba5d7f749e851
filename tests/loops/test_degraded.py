"""Degraded beats: how long a loop waits, when it gives up, and the two lines of an outage."""

from __future__ import annotations

from functools import partial

import pytest

from echomq_worker.degraded import CAP_MS, SCRIPT_ERRORS, Degraded, Outage
from echomq_worker.errors import ConnectionLost, ServerError, Unreachable
from tests.support.clock import ManualClock
from tests.support.stations import Lines

LOST = ConnectionLost("127.0.0.1:6379: the server closed the connection")
BROKEN = ServerError("WRONGTYPE Operation against a key holding the wrong kind of value")


def outage() -> tuple[Outage, ManualClock, Lines]:
    """An outage that has not begun, its clock and its lines."""
    clock, lines = ManualClock(), Lines()
    return Outage(clock=clock, log=lines), clock, lines


def test_the_wait_doubles_from_the_beat_up_to_the_cap() -> None:
    """Exponential over the beat, indexed by the streak, at most 30 s (seed: degraded_sleep)."""
    loop = Degraded("a", outage=outage()[0], beat_ms=1_000)
    assert [loop.fail(LOST) for _ in range(7)] == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
    assert loop.streak == 7


def test_a_beat_above_the_cap_is_the_cap() -> None:
    """The wait is never shorter than the beat: cap = max(30,000, beat)."""
    loop = Degraded("a", outage=outage()[0], beat_ms=CAP_MS * 2)
    assert [loop.fail(LOST) for _ in range(3)] == [CAP_MS * 2] * 3


def test_the_first_good_beat_starts_the_curve_anew() -> None:
    """One good beat is enough."""
    loop = Degraded("a", outage=outage()[0], beat_ms=10)
    assert [loop.fail(LOST) for _ in range(3)] == [10, 20, 40]
    loop.good()
    assert loop.streak == 0
    assert loop.fail(LOST) == 10


def test_several_loops_have_one_line_at_the_start_and_one_at_the_end() -> None:
    """The line says what broke first; the end comes with the last loop's first good beat, and tells the downtime."""
    shared, clock, lines = outage()
    one, other = (Degraded(name, outage=shared, beat_ms=10) for name in ("consumer:a", "settle:a"))
    one.good()
    for _ in range(5):
        one.fail(LOST)
        clock.advance(100)
        other.fail(Unreachable("127.0.0.1:6379: refused"))
    assert shared.degraded
    one.good()
    one.good()
    assert shared.degraded
    clock.advance(7)
    other.good()
    assert not shared.degraded
    assert lines.kept == [
        ("warning", "degraded", {"loop": "consumer:a", "error": f"ConnectionLost: {LOST}"}),
        ("info", "recovered", {"downtime_ms": 507}),
    ]


def test_an_outage_after_an_outage_has_lines_of_its_own() -> None:
    """Two lines each."""
    shared, clock, lines = outage()
    loop = Degraded("a", outage=shared, beat_ms=10)
    for _ in range(2):
        loop.fail(LOST)
        clock.advance(20)
        loop.good()
    assert lines.events == ["degraded", "recovered"] * 2
    assert [fields["downtime_ms"] for fields in lines.of("recovered")] == [20, 20]


def test_a_script_that_keeps_failing_raises_its_error() -> None:
    """Ten script errors in a row are a bug or a broken key: the loop ends with the error, nine are survived."""
    loop = Degraded("a", outage=outage()[0], beat_ms=10)
    for _ in range(SCRIPT_ERRORS - 1):
        loop.fail(BROKEN)
    with pytest.raises(ServerError, match="WRONGTYPE"):
        loop.fail(BROKEN)


@pytest.mark.parametrize("between", ["wire error", "good beat"])
def test_only_script_errors_in_a_row_count(between: str) -> None:
    """A good beat, or an outage in between, starts the count anew; an outage of any length ends nothing."""
    loop = Degraded("a", outage=outage()[0], beat_ms=10)
    for _ in range(3):
        for _ in range(SCRIPT_ERRORS - 1):
            loop.fail(BROKEN)
        if between == "wire error":
            for _ in range(SCRIPT_ERRORS * 2):
                loop.fail(LOST)
        else:
            loop.good()


async def test_a_loop_that_gets_through_wakes_the_others() -> None:
    """After an outage nobody waits out a long step of its own curve while another loop has reached the server."""
    clock = ManualClock()
    woken: list[str] = []
    outage = Outage(clock=clock, log=Lines())
    loops = {name: Degraded(name, outage=outage, beat_ms=1_000) for name in ("consumer:a", "settle:a", "pump:a")}
    for name, one in loops.items():
        one.fail(Unreachable("no server"), partial(woken.append, name))
    loops["settle:a"].worked()
    assert woken == ["consumer:a", "pump:a"]
    loops["settle:a"].worked()
    loops["consumer:a"].good()
    assert woken == ["consumer:a", "pump:a"]
    assert outage.degraded
