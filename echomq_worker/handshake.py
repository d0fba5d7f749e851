"""The handshake of a connection: login, database, name, what kind of server it is, and the fence.

Source: protocol section 3 (the fence, before anything else on every connection).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final, Protocol

from echomq_worker.address import Kind
from echomq_worker.connection import Answer, Hearer, Link
from echomq_worker.endpoint import Endpoint
from echomq_worker.errors import (
    LOGIN_REFUSALS,
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
from echomq_worker.packing import pack
from echomq_worker.patience import within
from echomq_worker.sentinel import Ask, Named, find_primary

# Added to the error of a user who may read the fence but not write it, on a server that has none yet.
_NO_FENCE: Final = "; there is none yet: connect once as an operator"


class Asked(Protocol):
    """The part of a Link that a handshake needs."""

    closed: bool

    @property
    def heard(self) -> bool:
        """Whether the peer has sent anything yet."""
        ...

    def submit(self, packed: bytes, size: int, /) -> Awaitable[Answer]:
        """Send `size` packed commands; awaiting gives the replies, or what became of the connection."""
        ...


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
    of it, the asking of sentinels too. `hearer` hears the messages of a link that subscribes. Without `wire_version`
    the fence is not asked: in a cluster only the owner of its slot can answer.
    """
    named: Named | None = None
    link: Link | None = None
    try:
        async with within(connect_timeout_ms / 1000):
            if endpoint.sentinels:
                named = await find_primary(endpoint, connect_timeout_ms)
            server = endpoint if named is None else named.endpoint
            link = made = Link(server.peer, command_timeout_ms / 1000, hearer=hearer)
            await server.dial(lambda: made)
            await shake_hands(link, server, wire_version, name, cluster=cluster, primary=named is not None)
            if named is not None:
                await confirm(endpoint, named, connect_timeout_ms)
    except TimeoutError as error:
        await _give_up(link, named)
        safe = endpoint.safe if named is None else named.endpoint.safe
        raise Unreachable(f"{safe}: no connection within {connect_timeout_ms} ms{hint(endpoint)}") from error
    except BaseException:
        await _give_up(link, named)
        raise
    return link


async def confirm(endpoint: Endpoint, named: Named, connect_timeout_ms: int, *, ask: Ask | None = None) -> None:
    """Raise Unreachable where the sentinels name another primary by now: one that was frozen may have answered only
    when it was none any more, and nobody has told it yet.
    """
    now = (await find_primary(endpoint, connect_timeout_ms, ask=ask)).endpoint
    if now.peer != named.endpoint.peer:
        raise Unreachable(f"{named.endpoint.safe}: the sentinels name {now.peer} as the primary by now")


async def _give_up(link: Link | None, named: Named | None) -> None:
    if named is not None:
        named.failed()
    if link is not None:
        await link.aclose(at_once=True)


def hint(endpoint: Endpoint) -> str:
    """What may be behind a handshake that takes too long: a server without TLS waits for the end of a line."""
    return "" if endpoint.address.tls is None else " (does this port speak TLS?)"


async def _ask(link: Asked, endpoint: Endpoint, commands: Sequence[Sequence[Any]]) -> list[Any]:
    if link.closed:
        raise Unreachable(f"{endpoint.safe}: the connection was closed during the handshake")
    answer = await link.submit(b"".join(pack(command) for command in commands), len(commands))
    if isinstance(answer, WireError):
        # A server that expects TLS hangs up on a plain command.
        plain = endpoint.address.tls is None and endpoint.address.kind is not Kind.UNIX
        hint = " (is it a port for TLS, expected rediss?)" if plain and not link.heard else ""
        raise Unreachable(f"{endpoint.safe}: during the handshake: {answer}{hint}") from answer
    return answer


async def shake_hands(
    link: Asked, endpoint: Endpoint, wire_version: str | None, name: str, *, cluster: bool, primary: bool
) -> None:
    """Log in, select, name and pass the fence on a link that is open. Raises what `establish` raises, or WireError."""
    commands = _greeting(endpoint, name, primary=primary)
    if wire_version is not None:
        commands.append(("GET", FENCE_KEY))
    replies = await _ask(link, endpoint, commands)
    for (command, *_), reply in zip(commands, replies, strict=True):
        if command == "HELLO":
            _check_mode(reply, endpoint, cluster=cluster)
        elif command == "ROLE":
            _check_role(reply, endpoint)
        if isinstance(reply, Unavailable):
            raise reply
        if isinstance(reply, EchoMQError):
            _refuse_handshake(command, reply, endpoint)
    if wire_version is not None:
        await _pass_fence(link, endpoint, wire_version, replies[-1])


def _greeting(endpoint: Endpoint, name: str, *, primary: bool) -> list[tuple[Any, ...]]:
    commands: list[tuple[Any, ...]] = []
    if endpoint.username:
        commands.append(("AUTH", endpoint.username, endpoint.password))
    elif endpoint.password:
        commands.append(("AUTH", endpoint.password))
    commands.append(("HELLO", 2))
    if endpoint.db:
        commands.append(("SELECT", endpoint.db))
    commands.append(("CLIENT", "SETNAME", name))
    if primary:
        commands.append(("ROLE",))
    return commands


async def _pass_fence(link: Asked, endpoint: Endpoint, wire_version: str, reply: object) -> None:
    found = fence_value(reply, endpoint.safe, wire_version)
    if found is None:
        written, again = await _ask(link, endpoint, [("SET", FENCE_KEY, wire_version, "NX"), ("GET", FENCE_KEY)])
        if isinstance(written, EchoMQError):
            fence_value(written, endpoint.safe, wire_version, also=_NO_FENCE)
        found = fence_value(again, endpoint.safe, wire_version)
    if found != wire_version:
        raise FenceRefused(wire_version, found or "nothing")


def _check_mode(reply: object, endpoint: Endpoint, *, cluster: bool) -> None:
    """Whether the server is what the URL says. One that refuses HELLO, or does not tell, is taken at the URL's word."""
    told = dict(zip(reply[::2], reply[1::2], strict=False)) if isinstance(reply, list) else {}
    mode = told.get(b"mode")
    if mode == b"cluster" and not cluster:
        raise ConfigError(f"{endpoint.safe}: this is a node of a cluster, expected a URL of redis+cluster:// for it")
    if mode == b"sentinel":
        raise ConfigError(f"{endpoint.safe}: this is a sentinel, expected redis+sentinel://{endpoint.peer}/<service>")
    if mode == b"standalone" and cluster:
        raise ConfigError(f"{endpoint.safe}: this is not a node of a cluster, expected a URL of redis:// for it")


def _check_role(reply: object, endpoint: Endpoint) -> None:
    """Whether what sentinels name says so itself. One that refuses to tell refuses writes where it is no primary."""
    role = reply[0] if isinstance(reply, list) and reply else b"master"
    if role != b"master":
        said = role.decode("ascii", "replace") if isinstance(role, bytes) else role
        raise Unreachable(f"{endpoint.safe}: a sentinel names it as the primary, its role is {said} (a failover?)")


def _refuse_handshake(command: str, reply: EchoMQError, endpoint: Endpoint) -> None:
    if command == "AUTH":
        # The server's text is left out: some servers repeat the arguments in it.
        code = reply.code if isinstance(reply, ServerError) else ""
        hint = " (is a password set on the server for this user?)" if code == "ERR" else ""
        raise AuthenticationFailed(f"{endpoint.safe}: the server refused the credentials: {code}{hint}") from None
    if command == "SELECT" and isinstance(reply, ServerError) and reply.code not in LOGIN_REFUSALS:
        raise ConfigError(f"{endpoint.safe}: database {endpoint.db} cannot be selected: {reply}") from None


def fence_value(reply: object, safe: str, wire_version: str, *, also: str = "") -> str | None:
    """What a reply to GET of the fence says: the deployment's version, None where it has none yet. `also` is added to
    what a user without the rights is told.

    Raises Unavailable, AuthenticationFailed, FenceRefused, Unreachable.
    """
    if isinstance(reply, Unavailable):
        raise reply
    if isinstance(reply, ServerError):
        if reply.code in LOGIN_REFUSALS:
            raise AuthenticationFailed(f"{safe}: {FENCE_KEY} cannot be read or claimed: {reply}{also}")
        if reply.code == "WRONGTYPE":
            raise FenceRefused(wire_version, "a key that is not a string")
        raise Unreachable(f"{safe}: {reply}")
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "backslashreplace")
    return None
