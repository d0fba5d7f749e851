"""A listing on a terminal: a table where it fits, else a record for each row; what may be copied stays whole.

Source: issue "Made for the people who run it" (In the terminal).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

# What is longer is prose, such as an error: it may be folded, down to the second number.
_PROSE, _LEAST = 26, 18
# Between two columns.
_GAP = 3
_NUMBER = re.compile(r"-|[\d.,]+( ms)?")


@dataclass(frozen=True, slots=True)
class _Column:
    header: str
    cells: tuple[str, ...]
    folds: bool

    @property
    def width(self) -> int:
        """Of its longest cell, or the least that it can be folded to."""
        longest = max(map(len, (self.header, *self.cells)))
        return min(longest, max(_LEAST, len(self.header))) if self.folds else longest

    @property
    def is_numbers(self) -> bool:
        return all(map(_NUMBER.fullmatch, self.cells))


def draw(headers: Sequence[str], rows: Sequence[Sequence[str]], *, nothing: str) -> None:
    """Print the rows on standard output, a terminal. A column in which every row has `nothing` is left out."""
    console = Console(soft_wrap=False)
    columns = [
        _Column(header, cells, folds=place > 0 and max(map(len, cells), default=0) > _PROSE)
        for place, header in enumerate(headers)
        if not (cells := tuple(row[place] for row in rows)) or place == 0 or any(cell != nothing for cell in cells)
    ]
    if sum(column.width + _GAP for column in columns) <= console.width:
        console.print(_table(columns))
        return
    for number in range(len(rows)):
        _record(console, columns, number)


def _table(columns: Sequence[_Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        justify = "right" if column.cells and column.is_numbers else "left"
        table.add_column(
            Text(column.header),
            justify=justify,  # type: ignore[arg-type]  # one of two literals
            overflow="fold",
            no_wrap=not column.folds,
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table


def _record(console: Console, columns: Sequence[_Column], number: int) -> None:
    """One row: its first cell as a heading, a line for each other."""
    name = columns[0].cells[number].strip()
    console.print(Text(f"{name} ", style="bold").append("─" * max(2, console.width - len(name) - 1), style="dim"))
    record = Table.grid(padding=(0, 2))
    record.add_column(no_wrap=True, style="dim")
    record.add_column(overflow="fold")
    for column in columns[1:]:
        record.add_row(Text(f"  {column.header}"), Text(column.cells[number]))
    console.print(record)
