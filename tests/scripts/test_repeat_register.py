"""repeat_register: a registration is a record and a place in the registry; a live name is left alone unless asked."""

from __future__ import annotations

import pytest

from echomq_worker.errors import ServerError
from tests.support.plain import Plain, Queue

RECORD = {"every_ms": "1000", "template": "report"}
DAILY = {"repeat": {"daily": 5}, "repeat:daily": RECORD}


async def test_registers_once(plain: Plain, queue: Queue) -> None:
    """The seeds' record and score; a second registration answers exists and writes nothing, whatever it says."""
    assert await plain.repeat_register("daily", 1000, "report", 5) == 1
    assert await queue.state() == DAILY

    assert await plain.repeat_register("daily", 1000, "report", 99) == 0
    assert await plain.repeat_register("daily", 2000, "other", 99, "fixed") == 0
    assert await queue.state() == DAILY


async def test_fixed_rate_stands_on_the_record(plain: Plain, queue: Queue) -> None:
    """The flag of the firing that keeps the grid."""
    assert await plain.repeat_register("daily", 1000, "report", 5, "fixed") == 1

    assert (await queue.state())["repeat:daily"] == RECORD | {"fixed_rate": "1"}


async def test_an_update_that_changes_nothing_writes_nothing(plain: Plain, queue: Queue) -> None:
    """So a deployment may register with `update` at each start."""
    await queue.put(DAILY)

    assert await plain.repeat_register("daily", 1000, "report", 99, "update") == 0

    assert await queue.state() == DAILY


async def test_an_update_of_the_template_keeps_the_next_run(plain: Plain, queue: Queue) -> None:
    """Only a new period moves the next run: deployments do not put it off for ever."""
    await queue.put(DAILY)

    assert await plain.repeat_register("daily", 1000, "better", 99, "fixed", "update") == 2

    record = {"every_ms": "1000", "template": "better", "fixed_rate": "1"}
    assert await queue.state() == {"repeat": {"daily": 5}, "repeat:daily": record}


async def test_an_update_of_the_period_moves_the_next_run(plain: Plain, queue: Queue) -> None:
    """The new period counts from the first run that was asked for; what is not asked for any more goes."""
    await queue.put(DAILY)
    await queue.put({"repeat:daily": {"fixed_rate": "1"}})

    assert await plain.repeat_register("daily", 2000, "report", 99, "update") == 2

    assert await queue.state() == {"repeat": {"daily": 99}, "repeat:daily": {"every_ms": "2000", "template": "report"}}


async def test_an_update_of_an_unknown_name_registers(plain: Plain, queue: Queue) -> None:
    """There is nothing to replace."""
    assert await plain.repeat_register("daily", 1000, "report", 5, "update") == 1

    assert await queue.state() == DAILY


async def test_a_member_without_a_record_is_registered_anew(plain: Plain, queue: Queue) -> None:
    """The record says whether a name lives, as in the seeds."""
    await queue.put({"repeat": {"daily": 77}})

    assert await plain.repeat_register("daily", 1000, "report", 5) == 1

    assert await queue.state() == DAILY


async def test_what_is_no_number_is_refused_before_the_record(plain: Plain, queue: Queue) -> None:
    """No record without a place in the registry is left behind."""
    with pytest.raises(ServerError, match="first_at must be a number"):
        await plain.repeat_register("daily", 1000, "report", "soon")

    assert await queue.state() == {}
