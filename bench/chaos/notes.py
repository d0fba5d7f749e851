"""What happened, line by line: each process appends to a file of its own, in one write per line, so that a line is
there whole though the process was killed right behind it.

A line is fields between tabs: a word, ms on the machine's monotonic clock (one clock for all processes of a machine,
which no step of the host's clock touches), and what belongs to the word.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from echomq_worker import Job

RUN_WORDS = frozenset({"start", "done", "failed", "delayed", "cancelled", "read"})


def now_ms() -> float:
    """Milliseconds of the machine's monotonic clock."""
    return time.monotonic_ns() / 1_000_000


def host_minus_ms() -> float:
    """The host's wall clock less the monotonic one."""
    return time.time_ns() / 1_000_000 - now_ms()


class Book:
    """One file of notes, opened for appending and kept open."""

    __slots__ = ("_fd", "_worker")

    def __init__(self, path: Path, worker: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._worker = worker

    def note(self, word: str, *fields: object) -> None:
        """Append one line."""
        line = "\t".join((word, f"{now_ms():.1f}", self._worker, str(os.getpid()), *map(str, fields)))
        os.write(self._fd, f"{line}\n".encode())

    def run(self, word: str, job: Job, *fields: object) -> None:
        """Append a line about a run: `held` names the claim, and with it the run."""
        self.note(word, job.queue, job.id, job.attempts, job.held, job.group or "-", *fields)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def lines(folder: Path, prefix: str) -> Iterator[list[str]]:
    """The fields of every line of the files of `folder` whose name begins with `prefix`."""
    for path in sorted(folder.glob(f"{prefix}*")):
        for line in path.read_text().splitlines():
            yield line.split("\t")


def first_lines(folder: Path, prefix: str) -> Iterator[list[str]]:
    """The fields of the first line of each of these files; of those that have one."""
    for path in sorted(folder.glob(f"{prefix}*")):
        with path.open() as file:
            if line := file.readline():
                yield line.rstrip("\n").split("\t")
