"""repeat_cancel: record and place in the registry go together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.plain import Plain, Queue

OTHER = {"repeat": {"other": 7}, "repeat:other": {"every_ms": "1", "template": "t"}}


async def test_removes_both_and_nothing_else(plain: Plain, queue: Queue) -> None:
    """1 for a registration that stood, then 0; other names stay."""
    await queue.put(OTHER)
    await plain.repeat_register("daily", 1000, "report", 5)

    assert await plain.repeat_cancel("daily") == 1
    assert await plain.repeat_cancel("daily") == 0

    assert await queue.state() == OTHER


@pytest.mark.parametrize("half", [{"repeat": {"daily": 5}}, {"repeat:daily": {"every_ms": "1"}}])
async def test_half_a_registration_is_removed_too(plain: Plain, queue: Queue, half: dict[str, Any]) -> None:
    """A dangling member, or a record that is not in the registry."""
    await queue.put(half)

    assert await plain.repeat_cancel("daily") == 1

    assert await queue.state() == {}
