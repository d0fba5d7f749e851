"""The command line: `echomq-worker`. This module maps what can go wrong to exit codes and one line on stderr.

Source: issue "A worker that runs jobs", Daemon and CLI; user-needs 57, 92 to 95. Each command imports what it needs
when it runs; `ping` and `health` need next to nothing, for they are run every few seconds in every container.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum

from echomq_worker.errors import (
    AuthenticationFailed,
    ConfigError,
    EchoMQError,
    FenceRefused,
    InvalidArgument,
    InvalidId,
    InvalidQueueName,
    KindRefused,
    ServerError,
    WireError,
)

# What threads that are left get to end, before the process goes without them.
_LEAVE_S = 0.5


class Exit(IntEnum):
    """What the process's exit code says."""

    OK = 0
    FAILED = 1
    USAGE = 2
    SERVER = 3
    FENCE = 4
    INTERRUPTED = 130

    @property
    def means(self) -> str:
        """In words, for the help and for docs/cli.md."""
        return _MEANS[self.value]


_MEANS = {
    0: "done, or stopped as asked",
    1: "not there, refused, or found wrong, as a line says; or a bug, with its trace",
    2: "a wrong argument, setting or handler module; an extra that is missing",
    3: "the server cannot be reached, refuses the login, or answers with an error",
    4: "the deployment is of another wire version",
    130: "interrupted",
}


class HandlersFailed(ConfigError):
    """The user's module raised while it was imported; the cause is what it raised."""


_CODES: tuple[tuple[type[EchoMQError], Exit], ...] = (
    (FenceRefused, Exit.FENCE),
    (ConfigError, Exit.USAGE),
    (InvalidArgument, Exit.USAGE),
    (InvalidId, Exit.USAGE),
    (InvalidQueueName, Exit.USAGE),
    (KindRefused, Exit.USAGE),
    (AuthenticationFailed, Exit.SERVER),
    (WireError, Exit.SERVER),
    (ServerError, Exit.SERVER),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return the exit code: see `Exit`."""
    if argv is not None:
        return _run(argv)
    _open_closed_streams()
    code = _run(sys.argv[1:])
    _leave_soon(code)
    return code


def _open_closed_streams() -> None:
    """Whoever starts us may have closed standard streams: a socket must not get their numbers, nor a child be without.

    Input is opened for writing, so that reading it is an error and not an empty payload.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        with suppress(OSError):
            os.close(number)
        # The lowest number that is free.
        opened = os.open(os.devnull, os.O_WRONLY)
        os.set_inheritable(opened, True)
        setattr(sys, name, open(opened, "w" if number else "r", closefd=False))  # noqa: SIM115 - to the end


def _leave_soon(code: int) -> None:
    """The process ends with `code`, whatever a handler's own threads, which cannot be stopped, are still doing."""
    if threading.active_count() == 1:
        return

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(_LEAVE_S, leave)
    timer.daemon = True
    timer.start()


def _run(argv: Sequence[str]) -> int:
    arguments = list(argv)
    try:
        return _dispatch(arguments)
    except BrokenPipeError:
        # The reader of our output has gone; without this the interpreter's last flush would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except OSError as error:
        # A full disk behind our output is no bug of ours; any other one keeps its trace.
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EIO}:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say_error(f"standard output: {error.strerror}")
        return Exit.FAILED
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except EchoMQError as error:
        return _told(error)
    except BaseExceptionGroup as group:
        known = only_ours(group)
        if known is None:
            raise
        return _told(known)


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["ping"]:
        from echomq_worker.cli.ping import quick_ping

        answered = quick_ping(arguments[1:])
        if answered is not None:
            return answered
    if arguments[:1] == ["health"]:
        from echomq_worker.cli.health import quick_health

        code = quick_health(arguments[1:])
        if code is not None:
            return code
    if arguments[:1] == ["run"]:
        from echomq_worker.cli.shape import add_run, bare_app, carry_out

        daemon = bare_app()
        add_run(daemon)
        return carry_out(daemon, arguments)
    from echomq_worker.cli.app import run_app

    return run_app(arguments)


def _told(error: EchoMQError) -> int:
    if isinstance(error, HandlersFailed) and error.__cause__ is not None:
        import traceback

        traceback.print_exception(error.__cause__)
    from echomq_worker.cli.hints import next_step

    say_error(f"{error}{next_step(error)}")
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.FAILED)


def say_error(text: str) -> None:
    """One line on stderr; line breaks and control characters of a server or a user's module do not get through."""
    line = "".join(character if character.isprintable() else " " for character in text)
    sys.stderr.write(f"echomq-worker: {line}\n")


def only_ours(failure: BaseException) -> EchoMQError | None:
    """An error of ours, or the first of a group that holds nothing else: what a task group makes of one failure."""
    if not isinstance(failure, BaseExceptionGroup):
        return failure if isinstance(failure, EchoMQError) else None
    ours, rest = failure.split(EchoMQError)
    error: BaseException | None = ours if rest is None else None
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, EchoMQError) else None
