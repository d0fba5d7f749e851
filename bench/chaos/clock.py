"""A host clock that can be set: nobody can set the real one for one process alone."""

from __future__ import annotations

from pathlib import Path

from echomq_worker.clock import SystemClock


class SteppedClock(SystemClock):
    """The host's clock, off by the ms that a file says; a file that is not there says none."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def now_ms(self) -> int:
        """The wall clock, stepped."""
        try:
            text = self._path.read_text()
        except OSError:
            return super().now_ms()
        return super().now_ms() + int(text or 0)
