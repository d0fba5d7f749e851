"""What a worker looks at before it starts, on each primary: scripts, clock, role, eviction policy.

Source: issue "The five promises" (a managed server that refuses CLIENT, CONFIG, INFO or SCRIPT LOAD is survived, checks
skipped with one line). A command that is refused costs its own check, and nothing else.
"""

from __future__ import annotations

from echomq_worker.connector import Connector
from echomq_worker.errors import AuthenticationFailed, EchoMQError, ServerError, WireError
from echomq_worker.logs import Logger
from echomq_worker.script import preload, scripts

SKEW_WARNING_MS = 1_000
_EXPECTED = "noeviction"
# A script that nobody has: asking for it tells whether scripts may be run at all.
_NO_SCRIPT = "0" * 40


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


async def _scripts(server: Connector, log: Logger) -> None:
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
        log.warning("clock skew", host_minus_server_ms=round(skew_ms), hint="repeats use the host clock")


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
