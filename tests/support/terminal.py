"""A program on a terminal of its own: what it draws, keys that are pressed there, how it leaves the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any, Self

PROJECT = Path(__file__).resolve().parents[2]
_LIMIT_S = 60.0


class Terminal:
    """`echomq-worker ARGUMENTS` on a pseudo terminal of so many lines and columns; ended at the end of the block."""

    def __init__(self, *arguments: str, env: dict[str, str], lines: int = 40, columns: int = 120) -> None:
        self.shown = ""
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._before = termios.tcgetattr(self._theirs)
        environment = {**os.environ, "TERM": "xterm", **env}
        for name in ("LINES", "COLUMNS", "NO_COLOR"):
            environment.pop(name, None)
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "echomq_worker", *arguments],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env=environment,
            cwd=PROJECT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def pid(self) -> int:
        """The program's."""
        return self._process.pid

    def saw(self, text: str) -> None:
        """Until it has drawn `text`; AssertionError with what it drew where that does not come."""
        until = time.monotonic() + _LIMIT_S
        while text not in self.shown:
            left = until - time.monotonic()
            assert left > 0, f"{text!r} was not drawn, but {self.shown[-2_000:]!r}"
            self._read(min(left, 0.2))

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._ours, keys.encode())

    def forget(self) -> None:
        """What was drawn so far."""
        self.shown = ""

    def ended(self) -> int:
        """Its exit code, when it has ended."""
        until = time.monotonic() + _LIMIT_S
        while self._process.poll() is None:
            assert time.monotonic() < until, f"it has not ended; drawn: {self.shown[-2_000:]!r}"
            self._read(0.05)
        self._read(0.05)
        return int(self._process.returncode)

    @property
    def as_before(self) -> bool:
        """Whether the terminal's modes are those that it had before."""
        now: Any = termios.tcgetattr(self._theirs)
        return bool(now == self._before)

    def _read(self, wait_s: float) -> None:
        while select.select([self._ours], [], [], wait_s)[0]:
            self.shown += os.read(self._ours, 65_536).decode(errors="replace")
            wait_s = 0
