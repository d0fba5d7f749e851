"""What a worker process says that ends with exit code 1: the last line, and what the log has of it.

Source: issue "A worker that runs jobs", Daemon and CLI; docs/running.md (Stop, Crash).
"""

from __future__ import annotations

from collections.abc import Iterator

from echomq_worker.cli import Exit, say_error
from echomq_worker.errors import LifespanLate


def say_crash(error: BaseException) -> int:
    """A loop has died of a bug: its trace is a line of the log like any other, its cause is the last one."""
    from echomq_worker.logs import get_logger

    leaves = list(_leaves(error))
    cause = f"{type(leaves[0]).__name__}: {leaves[0]}" + (f" (and {len(leaves) - 1} more)" if leaves[1:] else "")
    get_logger("echomq_worker.cli.run").error("worker crashed", error=cause, exc_info=error)
    say_error(f"the worker has crashed: {cause}")
    return Exit.FAILED


def say_left(late: LifespanLate) -> int:
    """A lifespan does not end, whatever is done: it is named, after what had ended the run."""
    if late.__cause__ is not None:
        say_crash(late.__cause__)
    say_error(str(late))
    return Exit.FAILED


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
