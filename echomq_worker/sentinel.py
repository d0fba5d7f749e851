"""Which server is the primary now: asked of the sentinels, one after the other, at every connection that is made.

Source: issue "The five promises", Topologies (Sentinel). A sentinel that has not heard yet, or is cut off from the
others, may name a server that is the primary no more: what it names is used only if it says itself that it is the
primary (`ROLE`), and who named a wrong one is asked last the next time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from echomq_worker.connection import Answer, Link
from echomq_worker.endpoint import Endpoint
from echomq_worker.errors import LOGIN_REFUSALS, AuthenticationFailed, EchoMQError, ServerError, Unreachable, WireError
from echomq_worker.packing import pack
from echomq_worker.patience import within

Ask: TypeAlias = Callable[[Endpoint, str, float], Awaitable[tuple[str, int]]]
"""Asks one sentinel, within so many seconds, where the primary of a service is."""

# What one sentinel gets to answer, before the next one is asked.
PATIENCE_S: Final = 1.0


class Named:
    """The server that a sentinel named as the primary. `failed` has that sentinel asked last the next time."""

    __slots__ = ("_sentinel", "_sentinels", "endpoint")

    def __init__(self, endpoint: Endpoint, sentinels: list[Endpoint], sentinel: Endpoint) -> None:
        self.endpoint = endpoint
        self._sentinels = sentinels
        self._sentinel = sentinel

    def failed(self) -> None:
        """The server cannot be reached, or is no primary."""
        if self._sentinel in self._sentinels:
            self._sentinels.remove(self._sentinel)
            self._sentinels.append(self._sentinel)


async def find_primary(endpoint: Endpoint, connect_timeout_ms: int, *, ask: Ask | None = None) -> Named:
    """Ask the sentinels of an endpoint, the one that answered last time first; `ask` is how, by default over a Link.

    Raises Unreachable with what became of each; AuthenticationFailed where all of them refuse the login.
    """
    refusals: list[EchoMQError] = []
    patience_s = min(PATIENCE_S, connect_timeout_ms / 1000 / (len(endpoint.sentinels) + 1))
    for sentinel in tuple(endpoint.sentinels):
        try:
            found = await (ask or _ask_one)(sentinel, endpoint.address.service, patience_s)
        except EchoMQError as error:
            refusals.append(error)
            continue
        if sentinel in endpoint.sentinels:
            endpoint.sentinels.remove(sentinel)
            endpoint.sentinels.insert(0, sentinel)
        return Named(endpoint.at(*found), endpoint.sentinels, sentinel)
    said = "; ".join(str(error).removeprefix(f"{endpoint.safe}: ") for error in refusals)
    kind = AuthenticationFailed if all(isinstance(one, AuthenticationFailed) for one in refusals) else Unreachable
    raise kind(f"{endpoint.safe}: no sentinel names a primary: {said}")


async def _ask_one(sentinel: Endpoint, service: str, patience_s: float) -> tuple[str, int]:
    link = Link(sentinel.peer, patience_s)
    packed, size = question(sentinel, service)
    try:
        async with within(patience_s):
            await sentinel.dial(lambda: link)
            answer = await link.submit(packed, size)
    except TimeoutError:
        raise Unreachable(f"{sentinel.safe}: no answer within {patience_s * 1000:.0f} ms") from None
    finally:
        await link.aclose(at_once=True)
    return answered(answer, sentinel, service)


def question(sentinel: Endpoint, service: str) -> tuple[bytes, int]:
    """What a sentinel is asked, packed, and how many replies there will be."""
    commands: list[Sequence[Any]] = []
    if sentinel.username or sentinel.password:
        user = (sentinel.username,) if sentinel.username else ()
        commands.append(("AUTH", *user, sentinel.password))
    commands.append(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service))
    return b"".join(map(pack, commands)), len(commands)


def answered(replies: Answer, sentinel: Endpoint, service: str) -> tuple[str, int]:
    """Host and port that a sentinel has named. Raises Unreachable, AuthenticationFailed."""
    if isinstance(replies, WireError):
        raise Unreachable(f"{sentinel.safe}: {str(replies).removeprefix(f'{sentinel.peer}: ')}")
    for reply in replies:
        if isinstance(reply, ServerError) and reply.code in LOGIN_REFUSALS:
            raise AuthenticationFailed(f"{sentinel.safe}: the sentinel refuses the login: {reply.code}")
    named = replies[-1]
    if len(replies) > 1 and isinstance(replies[0], EchoMQError):
        # Its text is left out: some servers repeat the arguments in it.
        raise AuthenticationFailed(f"{sentinel.safe}: the sentinel refuses the login")
    if named is None:
        raise Unreachable(f"{sentinel.safe}: it knows no service {service!r}")
    if isinstance(named, EchoMQError):
        hint = " (is it a server, and no sentinel?)" if "unknown command" in str(named) else ""
        raise Unreachable(f"{sentinel.safe}: {named}{hint}")
    return named[0].decode(), int(named[1])
