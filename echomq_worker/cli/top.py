"""`top`: the queues of a server, live: how much waits and runs, how fast it goes, lanes, jobs in hand, the last dead.

Source: issue "Made for the people who run it" (In the terminal). Rates are the difference of two looks at what a queue
has counted, so the first picture has none.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from echomq_worker.cli.bar import progress_bar
from echomq_worker.cli.common import AsJson, Url, connected, prepared, print_json, run_async
from echomq_worker.errors import ConfigError, ServerError, WireError

if TYPE_CHECKING:
    from rich.live import Live

    from echomq_worker.cli.top_view import Picture, Seen
    from echomq_worker.connector import Connector
    from echomq_worker.settings import Settings

# To find all queues every key of the server is looked at.
_FIND_EVERY_S = 30.0


def top(
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="QUEUE", help="Only these; without: all.", show_default=False)
    ] = None,
    *,
    interval_ms: Annotated[
        int, typer.Option("--interval-ms", metavar="MS", min=100, max=3_600_000, help="Look this often.")
    ] = 1_000,
    once: Annotated[bool, typer.Option("--once", help="Print one picture, after an interval, and end.")] = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Watch queues live.

    Depths, rates, lanes, jobs in hand, the last dead; q ends it.

    With --json a line for each look.
    """
    settings = prepared(url, *(queues or ()))
    if not (once or as_json or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise ConfigError("no terminal to draw on: expected --once or --json")
    run_async(_watch(settings, queues or (), interval_ms / 1000, once=once, as_json=as_json))


async def _watch(settings: Settings, queues: Sequence[str], interval_s: float, *, once: bool, as_json: bool) -> None:
    async with connected(settings) as connector:
        looker = Looker(connector, queues)
        await looker.look()
        if not (once or as_json):
            await _live(looker, connector.url_safe, interval_s)
            return
        while True:
            await asyncio.sleep(interval_s)
            picture = await looker.look()
            if as_json:
                print_json(picture.facts())
                sys.stdout.flush()
            else:
                from echomq_worker.cli.top_view import print_picture

                print_picture(picture)
            if once:
                return


class Looker:
    """Looks at queues, and remembers what it saw the last time."""

    def __init__(self, connector: Connector, queues: Sequence[str]) -> None:
        self._connector = connector
        self._only = tuple(queues)
        self._found: Sequence[str] = ()
        self._find_at_s = 0.0
        self._before: dict[str, Seen] = {}

    async def look(self) -> Picture:
        """One picture of all queues. Raises WireError, ServerError."""
        from echomq_worker.cli.top_view import picture_of

        seen = await asyncio.gather(*(self._seen(queue) for queue in await self._queues()))
        picture = picture_of(seen, self._before)
        self._before = {one.queue: one for one in seen}
        return picture

    async def _queues(self) -> Sequence[str]:
        if self._only:
            return self._only
        if time.monotonic() >= self._find_at_s:
            from echomq_worker.metrics import Metrics

            if self._found:
                self._found = await Metrics(self._connector).queues()
            else:
                with progress_bar("keys") as bar:
                    self._found = await Metrics(self._connector).queues(progress=bar)
            self._find_at_s = time.monotonic() + _FIND_EVERY_S
        return self._found

    async def _seen(self, queue: str) -> Seen:
        from echomq_worker.cli.top_view import ACTIVE, DEAD, Seen
        from echomq_worker.keyspace import Keys
        from echomq_worker.metrics import Metrics
        from echomq_worker.rows import now_ms

        metrics = Metrics(self._connector)
        stats, lanes, active, dead, now = await asyncio.gather(
            metrics.stats(queue),
            metrics.lanes(queue),
            metrics.browse(queue, "active", limit=ACTIVE),
            metrics.browse(queue, "dead", limit=DEAD),
            now_ms(self._connector, Keys(queue)),
        )
        return Seen(queue, time.monotonic(), now, stats, lanes, active, dead)


async def _live(looker: Looker, where: str, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from echomq_worker.signals import heard

    ended = asyncio.Event()
    console = Console()
    # A signal ends it as q does, so that the terminal is left as it was.
    with heard(lambda _: ended.set()), _keys(ended.set), Live(console=console, screen=True, auto_refresh=False) as live:
        while not ended.is_set():
            await _draw(looker, live, where)
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), interval_s)


async def _draw(looker: Looker, live: Live, where: str) -> None:
    from echomq_worker.cli.top_view import drawn, trouble

    try:
        picture = await looker.look()
    except (WireError, ServerError) as error:
        live.update(trouble(where, str(error)), refresh=True)
        return
    live.update(drawn(picture, where, live.console.size.height), refresh=True)


@contextmanager
def _keys(end: Callable[[], None]) -> Iterator[None]:
    """Keys come as they are pressed, and are not shown; q ends it."""
    import os
    import termios
    import tty

    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)

    def pressed() -> None:
        keys = os.read(descriptor, 64)
        # Nothing: the terminal has gone.
        if not keys or b"q" in keys.lower():
            end()

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, pressed)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
