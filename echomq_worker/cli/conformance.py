"""`conformance`: the protocol's scenarios against a server, a line each and a tally.

Source: issue "Every control" (the conformance runner).
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from echomq_worker.cli import Exit
from echomq_worker.cli.bar import Bar, progress_bar
from echomq_worker.cli.common import AsJson, Url, WireMode, print_json, run_async, say, settings_for

if TYPE_CHECKING:
    from echomq_worker.conformance import Outcome, Scenario, Target


def conformance(
    *,
    url: Url = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Run this scenario; may be repeated.")
    ] = None,
    wire: WireMode = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print each scenario's contract too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Try the protocol's scenarios on a server.

    They have queues of their own with random names; exit code 1 when one fails. What they
    make is deleted again; nothing else of the server is touched, so it may be one that is in use.
    """
    from echomq_worker.conformance import Target, chosen

    settings = settings_for(url, wire=wire)
    some = chosen(only or ())
    target = Target(
        settings.require_url(),
        settings.wire_version,
        settings.connect_timeout_ms,
        settings.command_timeout_ms,
        settings.wire,
    )
    with _quiet(), progress_bar("conformance") as bar:
        tally = run_async(_run(target, some, verbose=verbose, as_json=as_json, bar=bar))
    if tally["FAILED"]:
        raise typer.Exit(Exit.FAILED)


@contextmanager
def _quiet() -> Iterator[None]:
    """The workers of some scenarios have jobs that fail, as they should: their lines would only alarm somebody."""
    logger = logging.getLogger("echomq_worker")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


async def _run(target: Target, some: list[Scenario], *, verbose: bool, as_json: bool, bar: Bar) -> Counter[str]:
    from echomq_worker.conformance import run

    tally, spent_ms = Counter[str](), 0
    width = max(len(scenario.name) for scenario in some)
    async with aclosing(run(target, some)) as outcomes:
        async for outcome in outcomes:
            bar(tally.total() + 1, len(some))
            tally[outcome.result] += 1
            spent_ms += outcome.ms
            if as_json:
                print_json(asdict(outcome))
            else:
                _show(outcome, width, verbose=verbose)
            # Whoever watches sees how far it is.
            sys.stdout.flush()
    counts = {result: tally[result] for result in ("ok", "FAILED", "not applicable")}
    if as_json:
        print_json({**{result.lower().replace(" ", "_"): count for result, count in counts.items()}, "ms": spent_ms})
    else:
        say(", ".join(f"{count} {result}" for result, count in counts.items()) + f", {spent_ms} ms")
    return tally


def _show(outcome: Outcome, width: int, *, verbose: bool) -> None:
    line = f"{outcome.name:{width}}  {outcome.result:14}  {outcome.ms:5} ms"
    say(f"{line}  {outcome.said}".rstrip())
    if verbose:
        say(f"    {outcome.contract}")
