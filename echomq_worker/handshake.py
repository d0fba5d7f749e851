"""The handshake of a connection: login, database, name, what kind of server it is, and the fence.

Source: protocol section 3 (the fence, before anything else on every connection).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from echomq_worker.connection import Hearer, Link, pack
from echomq_worker.endpoint import Endpoint
from echomq_worker.errors import (
    AuthenticationFailed,
    ConfigError,
    EchoMQError,
    FenceRefused,
    ServerError,
    Unavailable,
    Unreachable,
    WireError,
)
from echomq_worker.keyspace import FENCE_KEY

_CREDENTIALS: Final = frozenset({"NOAUTH", "NOPERM", "WRONGPASS"})


async def establish(
    endpoint: Endpoint,
    *,
    wire_version: str | None,
    connect_timeout_ms: int,
    command_timeout_ms: int,
    name: str,
    hearer: Hearer | None = None,
    cluster: bool = False,
) -> Link:
    """Connect, authenticate, select, name, and pass the fence: the link that is returned is ready for any command.

    Raises Unreachable, AuthenticationFailed, FenceRefused, Unavailable (the server is loading, say), ConfigError (no
    such database, a node of a cluster where `cluster` is false, none where it is true). `connect_timeout_ms` covers all
    of it. `hearer` hears the messages of a link that subscribes. Without `wire_version` the fence is not asked: in a
    cluster only the owner of its slot can answer.
    """
    link = Link(endpoint.peer, command_timeout_ms / 1000, hearer=hearer)
    try:
        async with asyncio.timeout(connect_timeout_ms / 1000):
            await endpoint.dial(lambda: link)
            await _shake_hands(link, endpoint, wire_version, name, cluster=cluster)
    except TimeoutError as error:
        await link.aclose(at_once=True)
        raise Unreachable(f"{endpoint.safe}: no connection within {connect_timeout_ms} ms") from error
    except BaseException:
        await link.aclose(at_once=True)
        raise
    return link


async def _ask(link: Link, endpoint: Endpoint, commands: Sequence[Sequence[Any]]) -> list[Any]:
    if link.closed:
        raise Unreachable(f"{endpoint.safe}: the connection was closed during the handshake")
    answer = await link.submit(b"".join(pack(command) for command in commands), len(commands))
    if isinstance(answer, WireError):
        raise Unreachable(f"{endpoint.safe}: during the handshake: {answer}") from answer
    return answer


async def _shake_hands(link: Link, endpoint: Endpoint, wire_version: str | None, name: str, *, cluster: bool) -> None:
    commands: list[tuple[Any, ...]] = []
    if endpoint.username:
        commands.append(("AUTH", endpoint.username, endpoint.password))
    elif endpoint.password:
        commands.append(("AUTH", endpoint.password))
    commands.append(("HELLO", 2))
    if endpoint.db:
        commands.append(("SELECT", endpoint.db))
    commands.append(("CLIENT", "SETNAME", name))
    if wire_version is not None:
        commands.append(("GET", FENCE_KEY))
    replies = await _ask(link, endpoint, commands)
    for command, reply in zip(commands, replies, strict=True):
        if command[0] == "HELLO":
            _check_mode(reply, endpoint, cluster=cluster)
        if isinstance(reply, Unavailable):
            raise reply
        if isinstance(reply, EchoMQError):
            _refuse_handshake(command[0], reply, endpoint)
    if wire_version is not None:
        await _pass_fence(link, endpoint, wire_version, replies[-1])


async def _pass_fence(link: Link, endpoint: Endpoint, wire_version: str, reply: object) -> None:
    found = fence_value(reply, endpoint.safe, wire_version)
    if found is None:
        written, again = await _ask(link, endpoint, [("SET", FENCE_KEY, wire_version, "NX"), ("GET", FENCE_KEY)])
        if isinstance(written, EchoMQError):
            fence_value(written, endpoint.safe, wire_version)
        found = fence_value(again, endpoint.safe, wire_version)
    if found != wire_version:
        raise FenceRefused(wire_version, found or "nothing")


def _check_mode(reply: object, endpoint: Endpoint, *, cluster: bool) -> None:
    """Whether the server is what the URL says. One that refuses HELLO, or does not tell, is taken at the URL's word."""
    told = dict(zip(reply[::2], reply[1::2], strict=False)) if isinstance(reply, list) else {}
    mode = told.get(b"mode")
    if mode == b"cluster" and not cluster:
        raise ConfigError(f"{endpoint.safe}: this is a node of a cluster, expected a URL of redis+cluster:// for it")
    if mode == b"standalone" and cluster:
        raise ConfigError(f"{endpoint.safe}: this is not a node of a cluster, expected a URL of redis:// for it")


def _refuse_handshake(command: str, reply: EchoMQError, endpoint: Endpoint) -> None:
    if command == "AUTH":
        # The server's text is left out: some servers repeat the arguments in it.
        code = reply.code if isinstance(reply, ServerError) else ""
        hint = " (is a password set on the server for this user?)" if code == "ERR" else ""
        raise AuthenticationFailed(f"{endpoint.safe}: the server refused the credentials: {code}{hint}") from None
    if command == "SELECT" and isinstance(reply, ServerError) and reply.code not in _CREDENTIALS:
        raise ConfigError(f"{endpoint.safe}: database {endpoint.db} cannot be selected: {reply}") from None


def fence_value(reply: object, safe: str, wire_version: str) -> str | None:
    """What a reply to GET of the fence says: the deployment's version, None where it has none yet.

    Raises Unavailable, AuthenticationFailed, FenceRefused, Unreachable.
    """
    if isinstance(reply, Unavailable):
        raise reply
    if isinstance(reply, ServerError):
        if reply.code in _CREDENTIALS:
            raise AuthenticationFailed(f"{safe}: {FENCE_KEY} cannot be read or claimed: {reply}")
        if reply.code == "WRONGTYPE":
            raise FenceRefused(wire_version, "a key that is not a string")
        raise Unreachable(f"{safe}: {reply}")
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "backslashreplace")
    return None
