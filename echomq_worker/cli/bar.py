"""A bar on stderr for what takes over a second; nothing where that is no terminal.

Source: issue "Made for the people who run it" (In the terminal). A timer shows it, so that somebody who waits for a
server, a compiler or one long script sees it too, with nothing counted yet.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

# What is over sooner shows none.
_AFTER_S = 1.0


class Bar:
    """Called with how many are done, of how many (0: nobody knows). `counted`: whether it will be called at all."""

    def __init__(self, label: str, *, counted: bool = True) -> None:
        self._label = label
        self._counted = counted
        self._state = (0, 0)
        self._lock = threading.Lock()
        self._shown: tuple[Progress, TaskID] | None = None
        self._closed = False
        self._timer: threading.Timer | None = None
        if sys.stderr.isatty():
            self._timer = threading.Timer(_AFTER_S, self._show)
            self._timer.daemon = True
            self._timer.start()

    def __call__(self, done: int, total: int) -> None:
        """So far."""
        if self._timer is None:
            return
        with self._lock:
            self._state = (done, total)
            self._draw()

    def close(self) -> None:
        """Take it off the screen."""
        if self._timer is None:
            return
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._shown is not None:
                self._shown[0].stop()
        self._timer.join()

    def _draw(self) -> None:
        if self._shown is not None:
            progress, task = self._shown
            done, total = self._state
            progress.update(task, completed=done, total=total or None)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        with self._lock:
            if self._closed:
                return
            # Lines that are printed meanwhile come above it, but only where they go to the same terminal.
            progress = Progress(
                *_columns(counted=self._counted),
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._shown = (progress, progress.add_task(self._label, total=None))
            progress.start()
            self._draw()


@contextmanager
def progress_bar(label: str, *, counted: bool = True) -> Iterator[Bar]:
    """A bar for what is done inside."""
    bar = Bar(label, counted=counted)
    try:
        yield bar
    finally:
        bar.close()


def _columns(*, counted: bool) -> tuple[ProgressColumn, ...]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    known = (MofNCompleteColumn(), TimeRemainingColumn()) if counted else (TimeElapsedColumn(),)
    # The name of a queue must not be read as markup.
    return (TextColumn("{task.description}", markup=False), BarColumn(), *known)
