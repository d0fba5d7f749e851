"""Applications that were moved here: the programs of docs/coming-from.md, and the results of docs/producing.md, run.

Source: issue "Made for the people who run it" (moving a small arq application over).
"""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from echomq_worker.repeat import Repeat
from echomq_worker.testing import run_until_idle
from tests.support.running import running

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [text for spoken, text in found if spoken == language]


def program(page: str, name: str) -> dict[str, Any]:
    """What the program that a page calls `name` defines."""
    (source,) = [block for block in blocks(page, "python") if block.startswith(f"# {name}\n")]
    module: dict[str, Any] = {"__name__": name.removesuffix(".py")}
    exec(compile(source, name, "exec", dont_inherit=True), module)  # noqa: S102 - the page is ours
    return module


def test_each_program_stands_beside_what_it_was() -> None:
    """A pair for each of the four, and what stands on the left is Python too."""
    before = blocks("coming-from.md", "")

    assert len(before) == len(blocks("coming-from.md", "python")) == 4
    for source in before:
        ast.parse(source)


async def test_from_arq(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A mail, what it enqueues, the digest and its calendar; delays that grow; a job that is cancelled."""
    moved = program("coming-from.md", "mails.py")

    await moved["produce"](url)
    assert capsys.readouterr().out == "scheduled\n"
    async with connect(url) as connector:
        assert (await Jobs(connector).counts("mails")).scheduled == 0
        for to in ("ada@example.com", "busy@example.com"):
            await Jobs(connector).enqueue("mails", {"to": to})
        await Jobs(connector).enqueue("digests", {})
        report = await run_until_idle(moved["worker"], url=url, due_now=True, timeout_ms=60_000)
        registered = [(record.name, record.cron) for record in await Repeat(connector).list("digests")]

    assert (report.completed, report.retried, report.dead) == (3, 4, 1)
    assert registered == [("daily", "0 6 * * *")]
    assert "smtp.example.com: Hello to ada@example.com" in capsys.readouterr().out


async def test_from_celery(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A delayed task, one of the schedule, a chord and a chain."""
    moved = program("coming-from.md", "tasks.py")

    await asyncio.to_thread(moved["produce"], url, ["one", "three"])
    report = await run_until_idle(moved["worker"], url=url, due_now=True, timeout_ms=60_000)

    assert (report.completed, report.retried, report.dead) == (8, 0, 0)
    assert sorted(capsys.readouterr().out.splitlines()) == ["total 13", "total 8"]


async def test_from_rq(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that waits for another, one that is unique and later, and the callback of one that is given up."""
    moved = program("coming-from.md", "exports.py")

    for _ in range(2):
        await asyncio.to_thread(moved["produce"], url)
    async with connect(url) as connector:
        await Jobs(connector).enqueue("exports", "no number")
    report = await run_until_idle(moved["worker"], url=url, due_now=True, timeout_ms=60_000)

    assert (report.completed, report.dead) == (5, 1)
    said = capsys.readouterr().out
    assert said.count("3 rows for ada@example.com\n") == 2
    assert "is dead: Unreadable" in said


async def test_from_dramatiq(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages now and later, one that is not to be retried, and what looks on."""
    moved = program("coming-from.md", "actors.py")

    await asyncio.to_thread(moved["produce"], url)
    async with connect(url) as connector:
        await Jobs(connector).enqueue("mails", "nobody")
    report = await run_until_idle(moved["worker"], url=url, due_now=True, timeout_ms=60_000)

    assert (report.completed, report.retried, report.dead) == (2, 0, 1)
    assert sorted(capsys.readouterr().out.splitlines()) == ["mails done", "mails done", "mails failed"]


@pytest.mark.blocks("the recipe reads its database in the test's own loop")
async def test_results_are_waited_for(url: str, tmp_path: Path) -> None:
    """Whoever asks gets what the handler has stored, or why the job is dead, or a TimeoutError."""
    shop = program("producing.md", "quotes.py")
    shop["DATABASE"] = str(tmp_path / "shop.db")

    async with connect(url) as connector:
        async with running(shop["worker"], url):
            assert await shop["ask"](connector, ["a book", "a pen"]) == 25.0
            bad = await Jobs(connector).enqueue("quotes", 1)
            assert (await shop["ended"](connector, "quotes", bad.id, 10)).startswith("Unreadable")
        waiting = await Jobs(connector).enqueue("quotes", ["a book"])
        with pytest.raises(TimeoutError):
            await shop["ended"](connector, "quotes", waiting.id, 0.05)
