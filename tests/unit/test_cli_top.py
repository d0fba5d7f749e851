"""`top`: what a picture says of two looks, and how it fits a screen."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from echomq_worker.cli.top_view import ACTIVE, DEAD, LANES, Seen, drawn, picture_of, trouble
from echomq_worker.metrics import LaneView, Limits, Stats
from echomq_worker.rows import Counts, JobView, Totals
from tests.support.plain import GROUP, job


def view(n: int, state: str, score: float = 0, **fields: Any) -> JobView:
    """A row."""
    known: dict[str, Any] = {"payload": b"x", "group": None, "last_error": None, "progress": None}
    return JobView(job(n), state, 1, 0, 0, 0, held=False, score=score, **(known | fields))


def seen(
    queue: str = "q", at_s: float = 0, *, pending: int = 3, completed: int = 0, failed: int = 0, **more: Any
) -> Seen:
    """One look."""
    active, dead = more.get("active", []), more.get("dead", [])
    counts = Counts(pending, len(active), 1, len(dead), 2, paused=False, lanes={})
    stats = Stats(counts, Totals(completed, failed), Limits(None, None, None), 1_500, 0, None)
    return Seen(queue, at_s, 10_000, stats, more.get("lanes", []), active, dead)


def text_of(renderable: Any, *, width: int = 120) -> list[str]:
    """The lines that a console draws."""
    console = Console(file=io.StringIO(), width=width, height=50)
    console.print(renderable)
    written: Any = console.file
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_rates_are_the_difference_of_two_looks() -> None:
    """Per second of the time between them; none at the first look, nor of a queue that is new; nothing below 0."""
    first = picture_of([seen()], {})
    assert first.facts()["queues"][0]["completed_per_s"] is None

    before = {"q": seen(at_s=10, completed=100, failed=7), "again": seen("again", 10, completed=50)}
    now = [seen(at_s=12, completed=125, failed=8), seen("again", 12, completed=3), seen("new", 12, completed=9)]
    queues = {row["queue"]: row for row in picture_of(now, before).facts()["queues"]}

    assert (queues["q"]["completed_per_s"], queues["q"]["failed_per_s"]) == (12.5, 0.5)
    assert queues["again"]["completed_per_s"] == 0
    assert queues["new"]["completed_per_s"] is None


def test_the_busiest_queue_comes_first_and_what_is_late() -> None:
    """Queues by jobs that wait and run, lanes by jobs that wait, jobs in hand by the lease that is left."""
    lanes = [LaneView(f"{GROUP[:-2]}{n:02}", n, 1, None, 1, paused=False, on_ring=True) for n in range(LANES + 3)]
    active = [view(n, "active", score=10_000 + 100 * n) for n in range(1, ACTIVE + 1)]
    never = view(90, "active", score=float("inf"))
    one = seen("quiet", pending=0, lanes=lanes, active=active)
    other = seen(
        "busy", pending=50, active=[view(50, "active", score=9_000), never], dead=[view(7, "dead", last_error="boom")]
    )

    facts = picture_of([one, other], {}).facts()

    assert [row["queue"] for row in facts["queues"]] == ["busy", "quiet"]
    assert [row["waiting"] for row in facts["lanes"]] == list(range(LANES + 2, 2, -1))
    assert [row["lease_left_ms"] for row in facts["active"]] == [-1_000, *range(100, 1_000, 100)]
    assert [(row["id"], row["last_error"]) for row in facts["dead"]] == [(job(7), "boom")]


@pytest.mark.parametrize("height", [10, 24, 40, 60])
def test_a_picture_fits_its_screen(height: int) -> None:
    """However many rows there are; every table keeps its heading and a row, and says how many are left out."""
    lanes = [LaneView(GROUP, n, 1, None, 1, paused=False, on_ring=True) for n in range(40)]
    active = [view(n, "active") for n in range(30)]
    dead = [view(n, "dead", last_error="x") for n in range(DEAD)]
    many = [seen(f"q{n}", lanes=lanes, active=active, dead=dead) for n in range(60)]

    lines = text_of(drawn(picture_of(many, {}), "redis://localhost", height))

    titles = [line for line in lines if line.split(" (")[0] in {"queues", "lanes", "active", "dead"}]
    assert [line.split()[0] for line in titles] == ["queues", "lanes", "active", "dead"]
    assert all(" of " in line for line in titles)
    assert len(lines) <= max(height, 17)


def test_what_anybody_wrote_is_shown_as_text() -> None:
    """No markup, no control characters: an error and a progress are anybody's to write."""
    odd = [view(1, "dead", last_error="[red]no[/red]\x1b[2J\n")]

    text = "\n".join(text_of(drawn(picture_of([seen(dead=odd)], {}), "where", 40)))

    assert "[red]no[/red]" in text
    assert "\x1b" not in text
    assert "\x1b" not in "\n".join(text_of(trouble("where", "\x1b[2Jgone")))


def test_no_queue_is_an_empty_table() -> None:
    """A server without queues has a heading, and nothing else."""
    picture = picture_of([], {})

    assert picture.facts() == {"queues": [], "lanes": [], "active": [], "dead": []}
    assert "queues" in text_of(drawn(picture, "where", 20))[1]
