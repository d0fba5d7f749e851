"""add_log: a line at the end of a job's log, the newest kept; no log for a row that is gone."""

from __future__ import annotations

import pytest

from echomq_worker.connector import Connector
from echomq_worker.errors import ServerError
from echomq_worker.script import evaluate
from tests.support.plain import Queue, job, row

ROW = f"job:{job(1)}"
LOGS = f"{ROW}:logs"


async def add_log(wire: Connector, queue: Queue, line: str | bytes, keep: int | str = "") -> int:
    """The verb as any host sends it."""
    keys = queue.keys
    reply: int = await evaluate(wire, "add_log", [keys.job(job(1)), keys.logs(job(1))], [line, keep])
    return reply


async def test_lines_are_appended_oldest_first(wire: Connector, queue: Queue) -> None:
    """The count comes back; a line is opaque bytes; the row is untouched."""
    await queue.put({ROW: row("active", 2)})

    assert [await add_log(wire, queue, line) for line in ("first", "", "a\nb")] == [1, 2, 3]

    assert await queue.state() == {ROW: row("active", 2), LOGS: ["first", "", "a\nb"]}


async def test_only_the_newest_are_kept(wire: Connector, queue: Queue) -> None:
    """The count never exceeds what is kept, also when the log was longer before."""
    await queue.put({ROW: row("active", 2), LOGS: ["1", "2", "3", "4", "5"]})

    assert await add_log(wire, queue, "6", 3) == 3
    assert await add_log(wire, queue, "7", 3) == 3
    assert await add_log(wire, queue, "8", 9) == 4

    assert (await queue.state())[LOGS] == ["5", "6", "7", "8"]


@pytest.mark.parametrize("keep", ["", "0", "-1", "many"])
async def test_without_a_number_all_are_kept(wire: Connector, queue: Queue, keep: str) -> None:
    """An empty keep, and one that is no number of lines, keeps everything."""
    await queue.put({ROW: row("active", 2), LOGS: ["1"]})

    assert await add_log(wire, queue, "2", keep) == 2

    assert (await queue.state())[LOGS] == ["1", "2"]


async def test_a_row_that_is_gone_gets_no_log(wire: Connector, queue: Queue) -> None:
    """-1, and no key that nothing would ever remove."""
    assert await add_log(wire, queue, "late") == -1

    assert await queue.state() == {}


@pytest.mark.leaves_keys("a log of a foreign type is what is refused")
async def test_a_log_of_another_type_is_left_alone(wire: Connector, queue: Queue) -> None:
    """The server's error, nothing written."""
    await queue.put({ROW: row("active", 2)})
    await queue.raw.set(queue.keys.logs(job(1)), "text")

    with pytest.raises(ServerError, match="WRONGTYPE"):
        await add_log(wire, queue, "line")

    assert await queue.raw.get(queue.keys.logs(job(1))) == b"text"
