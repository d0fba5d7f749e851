"""What a death that climbs a deep flow says on each level."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.support.burials import CHILD, in_hand
from tests.support.flows import FlowVerbs
from tests.support.own import retry
from tests.support.plain import Queue, job, row


@pytest.mark.parametrize("letter", ["x", "ë", "漢", "😀"])
async def test_a_death_that_climbs_keeps_within_the_limit(flow: FlowVerbs, queue: Queue, letter: str) -> None:
    """Each level says who died, in front; at most 1,000 characters, cut between two and never within one."""
    levels = [CHILD, *(job(n) for n in range(91, 98))]
    for below, above in zip(levels[1:], [*levels[2:], None], strict=True):
        kin: dict[str, Any] = {"parent": above} if above else {}
        await queue.put({f"job:{below}": row("awaiting_children", **kin), f"job:{below}:dependencies": "1"})
    await queue.put(in_hand(parent=levels[1]))

    await flow.settle(retry(CHILD, 3, max_attempts=1, error=letter * 1_000))

    state = await queue.state()
    said = letter * 1_000
    for below, above in pairwise(levels):
        said = f"child {below} died: {said}"[:1_000]
        assert state[f"job:{above}"]["last_error"] == said
    assert len(said) == 1_000
