"""repeat_advance: a name's next run is set; a name that was cancelled meanwhile is dropped."""

from __future__ import annotations

import pytest

from echomq_worker.errors import ServerError
from tests.support.plain import Plain, Queue

RECORD = {"every_ms": "1000", "template": "report"}


async def test_sets_the_next_run(plain: Plain, queue: Queue) -> None:
    """The score alone changes."""
    await queue.put({"repeat": {"daily": 5, "other": 6}, "repeat:daily": RECORD})

    assert await plain.repeat_advance("daily", 1_005) == 1

    assert await queue.state() == {"repeat": {"daily": 1_005, "other": 6}, "repeat:daily": RECORD}


async def test_a_cancelled_name_is_dropped(plain: Plain, queue: Queue) -> None:
    """The record went mid-sweep: absent, the dangling member goes, other names stay."""
    await queue.put({"repeat": {"daily": 5, "other": 6}})

    assert await plain.repeat_advance("daily", 1_005) == 0
    assert await plain.repeat_advance("never", 1_005) == 0

    assert await queue.state() == {"repeat": {"other": 6}}


async def test_what_is_no_number_is_refused(plain: Plain, queue: Queue) -> None:
    """Nothing is written, the dangling member included."""
    await queue.put({"repeat": {"daily": 5}})

    with pytest.raises(ServerError, match="next_at must be a number"):
        await plain.repeat_advance("daily", "soon")

    assert await queue.state() == {"repeat": {"daily": 5}}
