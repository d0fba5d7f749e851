"""What a worker looks at before it starts, on each primary: scripts, clock, role, eviction policy.

Source: issue "The five promises" (a managed server that refuses CLIENT, CONFIG, INFO or SCRIPT LOAD is survived, checks
skipped with one line). A command that is refused costs its own check, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from echomq_worker.connector import Connector
from echomq_worker.errors import AuthenticationFailed, ConfigError, EchoMQError, NoTwin, ServerError, WireError
from echomq_worker.keyspace import Keys
from echomq_worker.logs import Logger
from echomq_worker.script import preload, scripts
from echomq_worker.twins import TWINS

SKEW_WARNING_MS = 1_000
_EXPECTED = "noeviction"
# The hash of no script: the answer to EVALSHA tells whether scripts may be run at all.
_NO_SCRIPT = "0" * 40
# What a worker cannot do without; the hand-over has EMQ.REQUEUE.
_WORKS = ("claim_many", "settle", "keep", "promote")
_BATCHES = "look"
_PUMPS = "repeat_fire"
_EXPECTED_WIRE = "expected ECHOMQ_WIRE=auto"


async def survey(server: Connector, log: Logger) -> None:
    """Have every script loaded; warn about a skewed clock, a replica, a server that may evict.

    Raises what the wire raises, and AuthenticationFailed where no script may be run.
    """
    for name, check in (("scripts", _scripts), ("clock", _clock), ("role", _role), ("eviction policy", _policy)):
        try:
            await check(server, log)
        except (WireError, AuthenticationFailed):
            raise
        except EchoMQError as error:
            log.info("server check skipped", check=name, reason=str(error))


async def check_wire(
    server: Connector, queues: Sequence[Keys], *, counts_stalled: bool, has_batches: bool, has_pump: bool
) -> None:
    """Whether this worker can do its work by commands alone. Only for wire 6; on another nothing is asked.

    Raises ConfigError that names what it cannot do: a verb that is a script alone, or serving lanes, as a scheduled job
    of a lane would stay where it is; and what the wire raises.
    """
    if server.spoken.has_scripts:
        return
    needed = [*_WORKS, "stalled_check" if counts_stalled else "reap"]
    needed += [_BATCHES] * has_batches + [_PUMPS] * has_pump
    if lacking := [verb for verb in needed if verb not in TWINS]:
        raise NoTwin(", ".join(lacking))
    missing = [TWINS[verb] for verb in needed if TWINS[verb] not in server.spoken.commands]
    if missing and server.spoken.is_known:
        why = server.spoken.lack or f"the server does not have {', '.join(missing)}"
        raise ConfigError(f"wire 6: {server.url_safe}: {why}: {_EXPECTED_WIRE}, or the module loaded (docs/native.md)")
    asked = [("EXISTS", keys.ring, keys.paused, keys.glimit, keys.gactive, keys.gweight) for keys in queues]
    for keys, reply in zip(queues, await server.pipeline(asked), strict=True):
        if isinstance(reply, int) and reply:
            raise ConfigError(
                f"wire 6: queue {keys.queue} has lanes, commands alone do not serve them: {_EXPECTED_WIRE}"
            )


async def _scripts(server: Connector, log: Logger) -> None:
    if not server.spoken.has_scripts:
        return
    try:
        await server.call("EVALSHA", _NO_SCRIPT, 0)
    except ServerError as error:
        if error.code == "NOPERM":
            raise AuthenticationFailed(f"{server.url_safe}: no script can be run: {error}") from None
    if await preload(server) < len(scripts()):
        log.info("server check skipped", check="scripts", reason="SCRIPT LOAD is refused: sent when first called")


async def _clock(server: Connector, log: Logger) -> None:
    skew_ms = await server.skew_ms()
    if abs(skew_ms) > SKEW_WARNING_MS:
        log.warning("clock skew", host_minus_server_ms=skew_ms, hint="repeats use the host clock")


async def _role(server: Connector, log: Logger) -> None:
    reply = await server.call("ROLE")
    role = reply[0].decode("ascii", "replace") if isinstance(reply, list) and isinstance(reply[0], bytes) else ""
    if role not in {"", "master"}:
        log.warning("not a primary", role=role, hint="nothing can be claimed there, expected the primary's address")


async def _policy(server: Connector, log: Logger) -> None:
    try:
        reply = await server.call("CONFIG", "GET", "maxmemory-policy")
        policy = reply[1].decode() if reply else ""
    except ServerError:
        # Managed servers that keep their configuration to themselves tell it here.
        lines = (await server.call("INFO", "memory")).decode("utf-8", "replace").splitlines()
        policy = next((line.partition(":")[2] for line in lines if line.startswith("maxmemory_policy:")), "")
    if policy and policy != _EXPECTED:
        log.warning("eviction policy", policy=policy, expected=_EXPECTED, hint="jobs may vanish")
