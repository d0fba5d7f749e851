"""`check`: would it run? The settings, the handlers, and what the server says of itself.

Source: issue "A worker that runs jobs", Daemon and CLI; user-needs 78 (skew), 85 (eviction), 115 (defaults shown).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echomq_worker.cli.common import (
    AsJson,
    Url,
    WireMode,
    connected,
    note,
    print_json,
    print_table,
    run_async,
    say,
    settings_for,
)

if TYPE_CHECKING:
    from echomq_worker.connector import Connector
    from echomq_worker.handlers import Bound
    from echomq_worker.settings import Settings

SKEW_LIMIT_MS = 1_000
_SAFE_POLICY = "noeviction"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says: None where it does not tell; `skew_ms` is this host's clock minus its. `wire`: what is
    spoken with it.
    """

    url: str
    version: str
    fence: str
    skew_ms: int
    policy: str | None
    append_only: bool | None
    wire: str = "4 (scripts)"


def check(
    target: Annotated[str, typer.Argument(metavar="MODULE:ATTR", help="The Worker to look at; nothing is run.")],
    *,
    url: Url = None,
    wire: WireMode = None,
    as_json: AsJson = False,
) -> None:
    """Check settings, handlers and server; say what would run.

    Of the server: wire version, clock skew, eviction policy, whether it writes a file. Nothing is run.
    """
    from echomq_worker.cli.load import load_worker, split_target
    from echomq_worker.settings import effective, unknown_variables

    split_target(target)
    settings = settings_for(url, wire=wire)
    settings.require_url()
    worker = load_worker(target)
    worker.check_state()
    bounds = list(worker.handlers)
    handlers = [_handler_row(bound, settings) for bound in bounds]
    facts = run_async(_ask(settings, bounds))
    warnings = [*unknown_variables(), *complaints(facts)]
    if as_json:
        print_json(
            {"settings": effective(settings), "handlers": handlers, "server": asdict(facts), "warnings": warnings}
        )
        return
    say("settings")
    print_table(("  name", "value"), [(f"  {name}", value) for name, value in effective(settings).items()])
    say("server")
    print_table(("  fact", "value"), [(f"  {name}", value) for name, value in asdict(facts).items()])
    say(f"{target} would run")
    headers = tuple(handlers[0])
    print_table((f"  {headers[0]}", *headers[1:]), [(f"  {row['queue']}", *list(row.values())[1:]) for row in handlers])
    for warning in warnings:
        note(f"warning: {warning}")
    say("ok" if not warnings else f"ok, with {len(warnings)} to look at")


def complaints(facts: ServerFacts) -> list[str]:
    """A sentence for everything about the server that can cost jobs or time."""
    found = []
    if abs(facts.skew_ms) > SKEW_LIMIT_MS:
        found.append(f"this host's clock is {facts.skew_ms} ms off the server's: repeats fire by the host's")
    if facts.policy is not None and facts.policy != _SAFE_POLICY:
        found.append(f"maxmemory-policy is {facts.policy}: the server may delete jobs, expected {_SAFE_POLICY}")
    if facts.append_only is False:
        found.append("append-only file is off: what the server holds is gone after a restart")
    return found


async def _ask(settings: Settings, bounds: Sequence[Bound]) -> ServerFacts:
    from echomq_worker.keyspace import FENCE_KEY, Keys
    from echomq_worker.survey import check_wire

    async with connected(settings) as connector:
        # In a cluster the worst answer of all primaries counts.
        servers = await connector.nodes()
        infos = [await _info(server) for server in servers]
        policies = [await _policy(server, info) for server, info in zip(servers, infos, strict=True)]
        known = [policy for policy in policies if policy is not None]
        append_only = [info["aof_enabled"] == "1" for info in infos if "aof_enabled" in info]
        versions = {info.get("valkey_version") or info.get("redis_version") or "unknown" for info in infos}
        fence = await connector.call("GET", FENCE_KEY)
        await check_wire(
            connector,
            [Keys(bound.options.queue) for bound in bounds],
            counts_stalled=settings.stalled is not None,
            has_batches=any(bound.options.is_batch for bound in bounds),
            has_pump=settings.pump and "pump" in settings.model_fields_set,
        )
        return ServerFacts(
            url=connector.url_safe,
            version=", ".join(sorted(versions)),
            fence=(fence or b"").decode("utf-8", "backslashreplace"),
            skew_ms=await connector.skew_ms(),
            policy=next((policy for policy in known if policy != _SAFE_POLICY), known[0] if known else None),
            append_only=all(append_only) if append_only else None,
            wire=str(connector.spoken),
        )


async def _info(server: Connector) -> dict[str, str]:
    from echomq_worker.errors import EchoMQError

    try:
        return _read_info(await server.call("INFO"))
    except EchoMQError:
        # A managed server may refuse it.
        return {}


async def _policy(connector: Connector, info: dict[str, str]) -> str | None:
    from echomq_worker.errors import EchoMQError

    if "maxmemory_policy" in info:
        return info["maxmemory_policy"]
    try:
        answer = await connector.call("CONFIG", "GET", "maxmemory-policy")
    except EchoMQError:
        return None
    return answer[1].decode() if answer else None


def _read_info(reply: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}


def _handler_row(bound: Bound, settings: Settings) -> dict[str, Any]:
    limits = settings.limits_of(bound.options)
    kind = "batch" if bound.options.is_batch else "async" if bound.is_async else "thread"
    return {"queue": bound.options.queue, "handler": bound.name, "kind": kind, **asdict(limits), "retry": limits.retry}
