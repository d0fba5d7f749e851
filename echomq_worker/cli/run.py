"""`run`: the daemon.

Source: issue "A worker that runs jobs", Daemon and CLI; user-needs section 4, conventions 1, 4, 6, 8.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from echomq_worker.cli import Exit, only_ours
from echomq_worker.cli.common import Url, WireMode, settings_for
from echomq_worker.cli.crash import say_crash, say_left
from echomq_worker.errors import AuthenticationFailed, ConfigError, LifespanLate, ServerError
from echomq_worker.signals import SIGNALS

if TYPE_CHECKING:
    from pathlib import Path

    from echomq_worker.settings import Settings
    from echomq_worker.worker import Worker

_NODES = 1024
_LEAVE_S = 0.5


Target = Annotated[
    str, typer.Argument(metavar="MODULE:ATTR", help="The Worker to run; the current directory is on the path.")
]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="QUEUE", help="Serve only this queue; repeat for more.", show_default=False),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        metavar="N",
        help="Jobs at a time, where the handler does not say (ECHOMQ_CONCURRENCY).",
        show_default=False,
    ),
]
Burst = Annotated[bool, typer.Option("--burst", help="Work until nothing is left, then exit.")]
Embedded = Annotated[
    bool, typer.Option("--embedded/--no-embedded", help="Start a private Valkey; its data is gone afterwards.")
]
Processes = Annotated[int, typer.Option("--processes", metavar="N", min=1, max=_NODES, help="Worker processes.")]
PumpHere = Annotated[
    bool | None, typer.Option("--pump/--no-pump", help="Fire repeats from here (ECHOMQ_PUMP).", show_default=False)
]
Http = Annotated[
    str | None,
    typer.Option(
        "--http", metavar="HOST:PORT", help="Answer probes and metrics there (ECHOMQ_HTTP).", show_default=False
    ),
]
Reload = Annotated[
    bool, typer.Option("--reload/--no-reload", help="Start again when a Python file below this directory changes.")
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format", metavar="FORMAT", help="auto, console or json (ECHOMQ_LOG_FORMAT).", show_default=False
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level", metavar="LEVEL", help="debug, info, warning or error (ECHOMQ_LOG_LEVEL).", show_default=False
    ),
]


def run(  # noqa: PLR0913 - one parameter per flag, that is how typer reads them
    context: typer.Context,
    target: Target,
    *,
    url: Url = None,
    queue: Queues = None,
    concurrency: Concurrency = None,
    burst: Burst = False,
    embedded: Embedded = False,
    processes: Processes = 1,
    reload: Reload = False,
    pump: PumpHere = None,
    wire: WireMode = None,
    http: Http = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    reports: Annotated[int | None, typer.Option("--reports", hidden=True)] = None,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run the handlers of MODULE:ATTR until a signal comes.

    Signals are SIGTERM and SIGINT; with --burst it ends when nothing is left.
    """
    from echomq_worker.address import Address

    # Before the settings: a wrong target is reported first, whatever else is missing.
    _check_line(target, url, embedded=embedded, reload=reload, processes=processes, burst=burst)
    logs = {"log_format": log_format, "log_level": log_level}
    flags = {"concurrency": concurrency, "pump": pump, "wire": wire, "http": http, **logs}
    settings = settings_for(url, **flags)
    if not embedded:
        # Parsed here, too, not only where it is dialled: a wrong URL is then one line, and no process is started.
        Address.parse(settings.require_url())
    from echomq_worker.embedded import embedded_valkey
    from echomq_worker.logs import configure_logging

    configure_logging(settings.log_format, settings.log_level)
    module = _module(settings) if embedded else None
    with stopped_early_is_fine(), embedded_valkey(module=module) if embedded else nullcontext() as own_url:
        if own_url is not None:
            settings = settings_for(own_url, **flags)
        if not supervised:
            _say_settings(settings)
        if reload or processes > 1:
            supervise = _reload if reload else _supervise
            code = supervise(context.obj, settings, processes=processes, burst=burst, own_url=own_url)
        else:
            code = _work(target, settings, queues=queue or (), burst=burst, supervised=supervised, reports=reports)
    raise typer.Exit(code)


def _module(settings: Settings) -> Path | None:
    """What the embedded server has to load: on wire 6 the module, built first where it is not; on auto where it is.

    Raises ConfigError where it cannot be built.
    """
    if settings.wire == "4":
        return None
    from echomq_worker.module import build, built

    return built() or (build() if settings.wire == "6" else None)


class StoppedEarly(KeyboardInterrupt):
    """A signal came before anything was begun. Of this base, so that neither a module nor an event loop catches it."""


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise StoppedEarly


@contextmanager
def stopped_early_is_fine() -> Iterator[None]:
    """Inside, SIGTERM and SIGINT end the process with 0 as long as nobody else listens: nothing is claimed by then.

    Without this the first process of a container would not even be ended: for it such a signal has no effect.
    """
    for number in SIGNALS:
        signal.signal(number, _leave)
    try:
        yield
    except StoppedEarly:
        raise typer.Exit(Exit.OK) from None
    finally:
        # The work is over: a signal that comes late does not change the exit code.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _say_settings(settings: Settings) -> None:
    from echomq_worker.logs import get_logger
    from echomq_worker.settings import effective, unknown_variables

    log = get_logger(__name__)
    for text in unknown_variables():
        log.warning(text)
    log.info("settings", **effective(settings))


def _work(
    target: str, settings: Settings, *, queues: Sequence[str], burst: bool, supervised: bool, reports: int | None
) -> int:
    from echomq_worker.cli.load import load_worker
    from echomq_worker.supervisor import stop_with_parent

    worker = load_worker(target)
    _check_queues(queues, target, worker)
    if supervised:
        stop_with_parent()
    # What has been imported stays: a full collection that goes through all of it again holds up every handler, for 40
    # ms and more with the size of the app.
    gc.collect()
    gc.freeze()

    left: set[asyncio.Task[object]] = set()
    given_up: list[LifespanLate] = []
    runner = asyncio.Runner(loop_factory=loop_factory())
    loop = runner.get_loop()

    def give_up(error: LifespanLate) -> None:
        given_up.append(error)
        loop.stop()

    async def main() -> int:
        _have_signals_stop(worker)
        try:
            report = await worker.run(settings, queues=tuple(queues), burst=burst, reports=reports, give_up=give_up)
        finally:
            left.update(await _left_behind())
        return report.exit_code

    try:
        return _to_the_end(loop, main())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if given_up:
            # The loop was stopped, and what ran on it stays as it is.
            return say_left(given_up[0])
        ours = only_ours(error)
        # An exception group comes from a loop: the server was there at the start, so this is no exit code 3.
        in_a_loop = isinstance(error, BaseExceptionGroup) and isinstance(ours, (ServerError, AuthenticationFailed))
        if ours is None or in_a_loop:
            return say_crash(error)
        raise
    finally:
        # `asyncio.run` would wait here for tasks that do not let themselves be cancelled.
        if not left and not given_up:
            runner.close()


def _check_queues(queues: Sequence[str], target: str, worker: Worker) -> None:
    served = [bound.options.queue for bound in worker.handlers]
    unknown = [name for name in queues if name not in served]
    if unknown:
        raise ConfigError(f"--queue={unknown[0]!r}: {target} has no such handler, expected one of {', '.join(served)}")


def _have_signals_stop(worker: Worker) -> None:
    """Until the worker listens itself, and after that: an exception of `_leave` has no place in an event loop, and once
    the worker has ended a signal changes nothing.
    """
    loop = asyncio.get_running_loop()

    def stop(*_: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(worker.stop)

    for number in SIGNALS:
        signal.signal(number, stop)


def _to_the_end(loop: asyncio.AbstractEventLoop, work: Coroutine[object, object, int]) -> int:
    """What `work` returns. A task that raises SystemExit or KeyboardInterrupt stops an event loop: one that a handler
    has made does not end the worker. Whoever awaits the task gets the exception as well.
    """
    from echomq_worker.logs import get_logger
    from echomq_worker.raised import say
    from echomq_worker.verdict import describe

    task = loop.create_task(work)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            # While the loop listens for SIGINT a KeyboardInterrupt is nobody's but the task's.
            if task.done() or signal.getsignal(signal.SIGINT) in {signal.default_int_handler, _leave}:
                raise
            say(get_logger(__name__).error, "task raised", error, error=describe(error))


async def _left_behind() -> set[asyncio.Task[object]]:
    """The tasks of handlers that do not end when they are cancelled; their threads are not waited for either.

    Both have been told, and their jobs are handed over: they keep no process.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    # The loop waits for the threads of its executor as it is closed: for those of this one, which has none.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    return (await asyncio.wait(tasks, timeout=_LEAVE_S))[1] if tasks else set()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The one of uvloop when the extra `fast` is installed, else None: asyncio's own."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


def child_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command of one child, and what stands behind its options: our own arguments as they were given, so that every
    flag reaches it.

    What is added comes last among the options and wins: one process, no server of its own, an eye on the parent.
    """
    added = ["--processes", "1", "--no-embedded", "--no-reload", "--supervised"]
    cut = list(arguments).index("--") if "--" in arguments else len(arguments)
    return [sys.executable, "-m", "echomq_worker", *arguments[:cut], *added], list(arguments[cut:])


def child_environments(settings: Settings, processes: int, *, own_url: str | None) -> list[dict[str, str]]:
    """What each child's environment has beside ours: the embedded server's URL, and a node id of its own."""
    from echomq_worker.settings import variable

    shared = {} if own_url is None else {variable("url"): own_url}
    if settings.node_id is None:
        return [shared] * processes
    return [{**shared, variable("node_id"): str((settings.node_id + index) % _NODES)} for index in range(processes)]


def _supervise(
    arguments: Sequence[str], settings: Settings, *, processes: int, burst: bool, own_url: str | None
) -> int:
    from echomq_worker.supervisor import Plan, Supervisor

    command, tail = child_command(arguments)
    plan = Plan(
        command=command,
        tail=tail,
        environments=child_environments(settings, processes, own_url=own_url),
        grace_ms=settings.grace_ms,
        burst=burst,
    )

    async def main() -> int:
        if settings.http is None:
            return await Supervisor(plan).run()
        from echomq_worker import __version__
        from echomq_worker.probes.fleet import Fleet
        from echomq_worker.probes.http import serving

        fleet = Fleet(processes, about={"version": __version__, "wire_version": settings.wire_version})
        async with serving(settings.http, fleet):
            return await Supervisor(plan, fleet=fleet).run()

    return asyncio.run(main())


def _check_line(target: str, url: str | None, *, embedded: bool, reload: bool, processes: int, burst: bool) -> None:
    """Raise ConfigError for a target of another form, for flags that do not go together, and where there is nothing to
    watch files with.
    """
    from echomq_worker.cli.load import split_target

    split_target(target)
    if embedded and url is not None:
        raise ConfigError("--embedded and --url: expected one of them")
    if not reload:
        return
    if processes > 1 or burst:
        raise ConfigError(f"--reload and {'--burst' if burst else '--processes'}: expected one of them")
    from echomq_worker.reloader import watchfiles

    watchfiles()


def _reload(arguments: Sequence[str], settings: Settings, *, processes: int, burst: bool, own_url: str | None) -> int:
    """As `_supervise`, for the one process of --reload."""
    from echomq_worker.cli.load import here
    from echomq_worker.reloader import Reloader
    from echomq_worker.supervisor import Plan

    folder = here()
    command, tail = child_command(arguments)
    environments = child_environments(settings, processes, own_url=own_url)
    plan = Plan(command=command, tail=tail, environments=environments, grace_ms=settings.grace_ms, burst=burst)

    async def main() -> int:
        return await Reloader(plan, folder).run()

    return asyncio.run(main())
