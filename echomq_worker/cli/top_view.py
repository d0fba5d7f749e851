"""What `top` shows: a picture made of two looks at the queues, and how it is drawn. No input; nothing is asked here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from echomq_worker.cli.common import print_table, say, yes_no
from echomq_worker.logs import clean
from echomq_worker.metrics import LaneView, Stats
from echomq_worker.rows import JobView

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# Of one queue, and of all of them.
ACTIVE = 10
DEAD = 5
LANES = 10
# Title, heading, the line below it.
_AROUND = 3
# What a table keeps where there is room.
_FEW = 3
# On a screen, where JSON and pipes have the whole name.
_SHORT = {"scheduled": "sched", "repeats": "rep", "completed per s": "done/s", "failed per s": "failed/s"}


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at one queue: `at_s` on a clock that only goes forth, `now_ms` the server's."""

    queue: str
    at_s: float
    now_ms: int
    stats: Stats
    lanes: Sequence[LaneView]
    active: Sequence[JobView]
    dead: Sequence[JobView]


@dataclass(frozen=True, slots=True)
class Rate:
    """What a queue has done each second since the last look; None at the first one."""

    completed_per_s: float | None
    failed_per_s: float | None


@dataclass(frozen=True, slots=True)
class Section:
    """A table: its name, its columns, a row for each; how many there would be."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    total: int


@dataclass(frozen=True, slots=True)
class Picture:
    """All queues as they were seen, the busiest first, with their rates."""

    seen: Sequence[Seen]
    rates: Mapping[str, Rate]

    def facts(self) -> dict[str, Any]:
        """For JSON: a list for each section, of objects whose keys are the columns' names."""
        return {
            section.name.replace(" ", "_"): [
                {column.replace(" ", "_"): value for column, value in zip(section.columns, row, strict=True)}
                for row in section.rows
            ]
            for section in self.sections()
        }

    def sections(self) -> list[Section]:
        """The tables, in order."""
        return [self._queues(), self._lanes(), self._active(), self._dead()]

    def _queues(self) -> Section:
        columns = (
            *("queue", "ready", "active", "scheduled", "dead", "repeats", "completed per s", "failed per s"),
            *("oldest ms", "expired", "paused"),
        )
        rows = [
            (
                one.queue,
                *(counts.ready, counts.active, counts.scheduled, counts.dead, counts.repeats),
                *(self.rates[one.queue].completed_per_s, self.rates[one.queue].failed_per_s),
                *(one.stats.oldest_pending_age_ms, one.stats.expired_leases, counts.paused),
            )
            for one in self.seen
            for counts in (one.stats.counts,)
        ]
        return Section("queues", columns, rows, len(rows))

    def _lanes(self) -> Section:
        columns = ("queue", "group", "waiting", "active", "limit", "weight", "paused", "served")
        found = sorted(
            ((one.queue, lane) for one in self.seen for lane in one.lanes),
            key=lambda each: (-each[1].depth, -each[1].active),
        )
        rows = [
            (queue, lane.group, lane.depth, lane.active, lane.limit, lane.weight, lane.paused, lane.on_ring)
            for queue, lane in found[:LANES]
        ]
        return Section("lanes", columns, rows, len(found))

    def _active(self) -> Section:
        columns = ("queue", "id", "attempts", "group", "lease left ms", "progress")
        rows = [
            (one.queue, job.id, job.attempts, job.group, _left_ms(job.score, one.now_ms), job.progress)
            for one in self.seen
            for job in one.active
        ]
        # Whoever has had the least of a lease left is looked at first.
        rows.sort(key=lambda row: math.inf if row[4] is None else row[4])
        return Section("active", columns, rows[:ACTIVE], sum(one.stats.counts.active for one in self.seen))

    def _dead(self) -> Section:
        columns = ("queue", "id", "attempts", "last error")
        rows = [(one.queue, job.id, job.attempts, job.last_error) for one in self.seen for job in one.dead]
        rows.sort(key=lambda row: row[1], reverse=True)
        return Section("dead", columns, rows[:DEAD], sum(one.stats.counts.dead for one in self.seen))


def picture_of(seen: Sequence[Seen], before: Mapping[str, Seen]) -> Picture:
    """A picture of what is seen now; rates since `before`."""
    busiest = sorted(seen, key=lambda one: (-one.stats.counts.active - one.stats.counts.ready, one.queue))
    return Picture(busiest, {one.queue: _rate(one, before.get(one.queue)) for one in seen})


def _rate(now: Seen, before: Seen | None) -> Rate:
    if before is None or now.at_s <= before.at_s:
        return Rate(None, None)
    seconds, old, new = now.at_s - before.at_s, before.stats.totals, now.stats.totals
    # A queue that was obliterated meanwhile has begun anew.
    completed, failed = max(0, new.completed - old.completed), max(0, new.failed - old.failed)
    return Rate(round(completed / seconds, 1), round(failed / seconds, 1))


def print_picture(picture: Picture) -> None:
    """As tables, those that are empty left out."""
    for section in picture.sections():
        if section.rows or section.name == "queues":
            say(_title(section))
            print_table(section.columns, [tuple(map(_shown, row)) for row in section.rows])
            say("")


def drawn(picture: Picture, where: str, height: int) -> RenderableType:
    """For a screen of so many lines: the queues get what the others leave, each of those at least one row."""
    from rich.console import Group
    from rich.text import Text

    tables = [_table(section) for section in _fitting(picture.sections(), height - 1)]
    return Group(Text(f"{where}   q ends", style="dim", no_wrap=True, overflow="ellipsis"), *tables)


def trouble(where: str, error: str) -> RenderableType:
    """While the server does not answer."""
    from rich.text import Text

    return Text(f"{where}   q ends\n\n{clean(error)}\ntrying again", style="red")


def _fitting(sections: Sequence[Section], height: int) -> Iterator[Section]:
    """Those that have rows, cut so that all fit."""
    shown = [section for section in sections if section.rows or section.name == "queues"]
    least = _FEW if height >= sum(_AROUND + min(_FEW, len(section.rows)) for section in shown) else 1
    for place, section in enumerate(shown):
        behind = sum(_AROUND + min(least, len(other.rows)) for other in shown[place + 1 :])
        room = max(1, height - behind - _AROUND)
        rows = section.rows[:room]
        height -= _AROUND + len(rows)
        yield Section(section.name, section.columns, rows, section.total)


def _table(section: Section) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, title=_title(section))
    table.title_justify, table.title_style = "left", "bold"
    for column in section.columns:
        table.add_column(Text(_SHORT.get(column, column)), overflow="ellipsis", no_wrap=True)
    for row in section.rows:
        table.add_row(*(Text(clean(_shown(cell))) for cell in row))
    return table


def _left_ms(deadline: float, now_ms: int) -> int | None:
    """Of a lease; None where another client wrote a deadline that never comes."""
    return round(deadline - now_ms) if math.isfinite(deadline) else None


def _title(section: Section) -> str:
    more = section.total - len(section.rows)
    return f"{section.name} ({len(section.rows)} of {section.total})" if more > 0 else section.name


def _shown(cell: object) -> str:
    if cell is None:
        return "-"
    return yes_no(cell) if isinstance(cell, bool) else str(cell)
