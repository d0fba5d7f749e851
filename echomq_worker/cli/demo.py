"""`demo`: the worker of `demo_app` beside a private Valkey, watched live, with the fate of every job at the end.

Source: issue "A worker that runs jobs", The newcomer's two commands. What is shown is what the worker logs: the lines
of its own journal, read by a structlog processor instead of being printed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from echomq_worker.cli import Exit
from echomq_worker.cli.common import print_table, say

if TYPE_CHECKING:
    from rich.table import Table

LIMIT_S = 15.0
RECURRENCES = 3
_REPEAT_QUEUE, _REPEAT_NAME = "heartbeats", "every-1.5-s"
_LOOK_S = 0.05
_PACE = {"beat_ms": 200, "tick_ms": 200, "log_level": "debug"}
_COLUMNS = ("queue", "job", "what it is", "attempts", "fate", "last error")
_STYLES = {"completed": "green", "dead": "red", "running": "cyan", "failed, waits": "yellow"}
_FATES = {
    "job started": "running",
    "job completed": "completed",
    "job retried": "failed, waits",
    "job dead": "dead",
    "job delayed": "waits",
}


@dataclass(slots=True)
class Row:
    """One job on the board."""

    queue: str
    id: str
    what: str = "recurs every 1.5 s"
    fate: str = "waits"
    attempts: int = 0
    error: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.fate in {"completed", "dead"}

    @property
    def as_meant(self) -> bool:
        """Whether it ended as it should."""
        return self.fate == ("dead" if "dead" in self.what else "completed")


class Board:
    """What has become of every job, fed by the worker's log lines. `told` is called with each line worth printing."""

    def __init__(self, told: Callable[[Row], None]) -> None:
        self.rows: dict[str, Row] = {}
        self._expected: set[str] = set()
        self._told = told

    def expect(self, made: Mapping[str, tuple[str, str]]) -> None:
        """These jobs were enqueued: id -> queue and what it is. Some may have started before this is said."""
        self._expected.update(made)
        for id, (queue, what) in made.items():
            self.rows.setdefault(id, Row(queue, id)).what = what

    @property
    def over(self) -> bool:
        """Whether every job that was enqueued has its fate, and the recurring one has run a few times."""
        ended = sum(row.over for row in self.rows.values() if row.queue == _REPEAT_QUEUE)
        settled = all(self.rows[id].over for id in self._expected)
        return bool(self._expected) and settled and ended >= RECURRENCES

    def processor(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> NoReturn:
        """A structlog processor that prints nothing."""
        import structlog

        fate = _FATES.get(str(event.get("event")))
        if fate is not None and "id" in event:
            self._move(event, fate)
        raise structlog.DropEvent

    def _move(self, event: Mapping[str, Any], fate: str) -> None:
        id, queue = str(event["id"]), str(event.get("queue"))
        row = self.rows.setdefault(id, Row(queue, id))
        row.fate = fate
        row.attempts = int(event.get("attempt") or row.attempts)
        row.error = str(event.get("error") or row.error)
        self._told(row)


def run_demo() -> int:
    """Run the demo to its end and return the exit code: 0 when every job met the fate that it should."""
    from echomq_worker.embedded import embedded_valkey

    live = sys.stdout.isatty()
    started = time.monotonic()

    def told(row: Row) -> None:
        if not live:
            why = f": {row.error}" if row.fate in {"failed, waits", "dead"} else ""
            say(f"{time.monotonic() - started:6.2f} s  {row.queue:<11} {row.id}  {row.fate}{why}")
            sys.stdout.flush()

    board = Board(told)
    with embedded_valkey() as url, _watched(board):
        say("a private Valkey, one worker, five queues; all of it is gone afterwards")
        with _screen(board, live=live) as draw:
            asyncio.run(_play(url, board, draw))
    good = board.over and all(row.as_meant for row in board.rows.values())
    if not live:
        print_table(_COLUMNS, _cells(board))
    say(
        f"{len(board.rows)} jobs in {time.monotonic() - started:.1f} s"
        + (
            "; copy its source: examples/demo.py, installed as echomq_worker/demo_app.py"
            if good
            else ", and not all ended as they should"
        )
    )
    return Exit.OK if good else Exit.FAILED


async def _play(url: str, board: Board, draw: Callable[[], None]) -> None:
    from echomq_worker.connector import connect
    from echomq_worker.demo_app import produce, worker
    from echomq_worker.repeat import Repeat
    from echomq_worker.settings import Settings, load_settings

    # The environment is for real work: a wire version or a node id of it has no business here.
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    settings = load_settings({**defaults, "url": url, **_PACE})

    async def watch() -> None:
        board.expect(await produce(url))
        deadline = time.monotonic() + LIMIT_S
        while not board.over and time.monotonic() < deadline:
            draw()
            await asyncio.sleep(_LOOK_S)
        async with connect(url) as connector:
            await Repeat(connector).cancel(_REPEAT_QUEUE, _REPEAT_NAME)
        worker.stop()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run(settings, signals=False), name="worker")
        tasks.create_task(watch(), name="watch")
    draw()


@contextmanager
def _watched(board: Board) -> Iterator[None]:
    """Inside, every log line of the worker goes to the board."""
    import structlog

    structlog.configure(
        processors=[board.processor],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    try:
        yield
    finally:
        structlog.reset_defaults()


@contextmanager
def _screen(board: Board, *, live: bool) -> Iterator[Callable[[], None]]:
    """A table that is drawn anew by each call of what is yielded; without a terminal nothing is drawn."""
    if not live:
        yield lambda: None
        return
    from rich.live import Live

    with Live(_table(board), refresh_per_second=20, vertical_overflow="visible") as shown:
        yield lambda: shown.update(_table(board))


def _table(board: Board) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(*_COLUMNS)
    for cells in _cells(board):
        style = _STYLES.get(cells[4], "")
        table.add_row(*(escape(cell) for cell in cells), style=style)
    return table


def _cells(board: Board) -> list[tuple[str, ...]]:
    from echomq_worker.logs import clean

    rows = sorted(board.rows.values(), key=lambda row: (row.queue, row.id))
    return [(row.queue, row.id, row.what, str(row.attempts or ""), row.fate, clean(row.error)) for row in rows]
