"""A worker's memory after an outage, and beside a full schedule; `python -m bench.memory` runs both at full length."""

from __future__ import annotations

from bench.memory import LIMIT_MB, outage, scheduled

# So many failed beats of its loops a worker has in ten minutes: a beat, two, four, eight, sixteen, then every 30 s.
TRIES_IN_TEN_MINUTES = 4 * 25


async def test_an_outage_leaves_the_memory_where_it_was() -> None:
    """With jobs that end while the server is away, and more tries than in ten minutes: the curve is cut short here.

    Report 87 (celery/celery#3436).
    """
    figures = await outage(2.0, cap_ms=20, beat_ms=20, warm=3_000)
    assert figures.tries >= TRIES_IN_TEN_MINUTES
    assert figures.grown_mb <= LIMIT_MB


async def test_a_full_schedule_leaves_the_memory_where_it_was() -> None:
    """100,000 scheduled jobs, and a worker that beats and promotes beside them.

    Report 88 (celery/celery#9849).
    """
    figures = await scheduled(100_000, beats=20, beat_ms=50, warm=3_000)
    assert figures.grown_mb <= LIMIT_MB
