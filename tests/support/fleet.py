"""Worker processes of `tests.support.app` on one server, with the notes of all of them in one file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.app import Note, read_notes
from tests.support.process import WorkerProcess

BEAT_MS = 200
LEASE_MS = 3_000


class Fleet:
    """Starts workers with a beat of 200 ms and a lease of 3 s; `settings` are names of settings without the prefix."""

    def __init__(self, url: str, notes: Path, stack: ExitStack, settings: dict[str, object]) -> None:
        self._url = url
        self._stack = stack
        self._settings = settings
        self.notes_path = notes
        self.workers: list[WorkerProcess] = []

    def start(self, *options: str, concurrency: int = 20, many: int = 0, **settings: object) -> WorkerProcess:
        """One more worker process; `options` are those of `run`. With `many` it has so many queues more (`many-<n>`).

        Does not wait until it works.
        """
        numbers: dict[str, object] = {"beat_ms": BEAT_MS, "lease_ms": LEASE_MS, "tick_ms": BEAT_MS, "grace_ms": 1_000}
        numbers |= {"log_format": "json", "log_level": "info", **self._settings, **settings}
        env = {f"ECHOMQ_{name.upper()}": str(value) for name, value in numbers.items()}
        env |= {"ECHOMQ_URL": self._url, "TEST_NOTES": str(self.notes_path), "TEST_CONCURRENCY": str(concurrency)}
        env["TEST_MANY"] = str(many)
        process = WorkerProcess("run", "tests.support.app:worker", *options, env=env)
        self.workers.append(self._stack.enter_context(process))
        return process

    def notes(self, what: str | None = None) -> list[Note]:
        """What the handlers of all workers have noted so far."""
        return read_notes(self.notes_path, what)

    def started(self) -> set[str]:
        """Ids that a handler has begun."""
        return {note.id for note in self.notes("start")}

    def ended(self) -> set[str]:
        """Ids that a handler has finished."""
        return {note.id for note in self.notes("end")}


@contextmanager
def fleet(url: str, **settings: object) -> Iterator[Fleet]:
    """A fleet without workers yet; whatever still runs at the end is killed."""
    with tempfile.TemporaryDirectory(prefix="emq-fleet-") as directory, ExitStack() as stack:
        yield Fleet(url, Path(directory) / "notes", stack, settings)
