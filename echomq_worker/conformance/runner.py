"""The runner: scenarios one after the other against a server, an outcome each, and nothing is left behind them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import cleandoc
from time import perf_counter
from typing import Literal

import anyio

from echomq_worker.conformance import (
    admission,
    basics,
    batches,
    claims,
    flows,
    lanes,
    leases,
    operating,
    reading,
    signals,
    times,
)
from echomq_worker.conformance.bench import Bench, Target
from echomq_worker.conformance.checks import Broken, NotApplicable
from echomq_worker.connector import Wire, connect
from echomq_worker.errors import ConfigError, EchoMQError, LaneNotServed, NoTwin, WireError
from echomq_worker.scan import keys_like

Result = Literal["ok", "FAILED", "not applicable"]

# What a scenario runs into when a value that it reads has another shape than expected, or is missing.
_ODD = (LookupError, TypeError, ValueError, AttributeError)

_THEMES = (basics, lanes, times, admission, reading, operating, leases, claims, batches, flows, signals)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One promise of the protocol, and the steps that show it."""

    name: str
    contract: str
    run: Callable[[Bench], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario: `said` is what was found instead, or what the server lacks; '' where it is ok."""

    name: str
    contract: str
    result: Result
    ms: int
    said: str = ""


def scenarios() -> dict[str, Scenario]:
    """Every scenario by name."""
    functions = [function for theme in _THEMES for function in theme.SCENARIOS]
    return {one.__name__: Scenario(one.__name__, _contract(one), one) for one in functions}


def chosen(names: Sequence[str]) -> list[Scenario]:
    """The scenarios of these names, all without any. Raises ConfigError for a name that there is not."""
    known = scenarios()
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"scenario {name[:60]!r}: there is none of that name{hint}")
    return [known[name] for name in dict.fromkeys(names)] if names else list(known.values())


async def run(
    target: Target, some: Sequence[Scenario], *, wrapped: Callable[[Wire], Wire] | None = None
) -> AsyncGenerator[Outcome, None]:
    """Run scenarios against a server. Their verbs go over one connection, or over what `wrapped` makes of it.

    Raises what connecting raises, and WireError where the server goes away.
    """
    run_tag = f"conformance.{secrets.token_hex(5)}"
    async with connect(
        target.url,
        wire_version=target.wire_version,
        wire=target.wire,
        connect_timeout_ms=target.connect_timeout_ms,
        command_timeout_ms=target.command_timeout_ms,
        name="conformance",
    ) as connector:
        for scenario in some:
            bench = Bench(target, wrapped(connector) if wrapped else connector, f"{run_tag}.{scenario.name}")
            try:
                outcome = await _outcome(scenario, bench)
            finally:
                with anyio.CancelScope(shield=True):
                    await bench.purge()
            if outcome.result == "FAILED":
                await _purge_the_rest(connector, bench.tag)
            yield outcome


async def _outcome(scenario: Scenario, bench: Bench) -> Outcome:
    result: Result = "ok"
    said, started = "", perf_counter()
    try:
        await scenario.run(bench)
    except (NotApplicable, NoTwin, LaneNotServed) as lacking:
        result, said = "not applicable", str(lacking)
    except Broken as found:
        result, said = "FAILED", str(found)
    except WireError:
        raise
    except (EchoMQError, *_ODD) as error:
        result, said = "FAILED", f"{type(error).__name__}: {error}"
    return Outcome(scenario.name, scenario.contract, result, round((perf_counter() - started) * 1000), said)


async def _purge_the_rest(wire: Wire, tag: str) -> None:
    """A verb that is wrong may have written where no verb does."""
    async for page in keys_like(wire, f"emq:{{{tag}.*"):
        # One command for each key: in a cluster they may be in different slots.
        await wire.pipeline([("UNLINK", key) for key in page])


def _contract(function: Callable[[Bench], Awaitable[None]]) -> str:
    return " ".join(cleandoc(function.__doc__ or "").split())
