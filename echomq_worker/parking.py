"""A connection that parks: one BLPOP at a time, apart from the commands, and no token lost when a wait is cut short.

Source: design section 4 (a parked wait needs its own read timeout), protocol section 4 (wake).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, NamedTuple, Protocol

from echomq_worker.connection import Answer, Link, pack
from echomq_worker.errors import EchoMQError, InvalidArgument, Unavailable, WireError

_GIVING_BACK_S = 1.0
# What a loop that beats asks for: twice the lateness of a server with the default hz.
PUNCTUAL_MS = 200
# With the second look of the watchdog a connection that hangs is given up 2 s after the end of its wait.
MARGIN_MS = 1_900
# As the scripts do it: a list of tokens that a lone token makes anew does not stay for ever.
_TOKENS = 64
_TOKEN_TTL_MS = 60_000
_SENT_ON = "MOVED"


class Home(Protocol):
    """The connector to the server that a wait stands on: tokens that nobody took go back over it."""

    @property
    def connected(self) -> bool:
        """Whether commands can be sent without connecting first."""

    async def call(self, *args: Any) -> Any:
        """Send one command."""


class Berth(NamedTuple):
    """A connection to park on, and the connector to the same server."""

    link: Link
    home: Home


Dial = Callable[[str | bytes, Unavailable | None], Awaitable[Berth]]
"""Makes a berth for a key; the second is why the last one was no good, where its server has sent us on (`MOVED`)."""


class _Parked:
    __slots__ = ("answer", "keys")

    def __init__(self, keys: tuple[str | bytes, ...], answer: asyncio.Future[Answer]) -> None:
        self.keys = keys
        self.answer = answer

    def token(self) -> tuple[bytes, bytes] | None:
        """Key and value, when the server has handed one out."""
        answer = self.answer.result() if self.answer.done() else []
        reply = answer[0] if isinstance(answer, list) and answer else None
        return (reply[0], reply[1]) if isinstance(reply, list) else None

    def sent_on(self) -> Unavailable | None:
        """The reply of a server that has not the slot of the keys any more."""
        answer = self.answer.result() if self.answer.done() else []
        reply = answer[0] if isinstance(answer, list) and answer else None
        return reply if isinstance(reply, Unavailable) and reply.code == _SENT_ON else None


class Parking:
    """Waits for readiness tokens on a connection of its own, which is made at the first wait.

    A wait that is cancelled leaves its BLPOP standing on the server; the next wait on the same keys takes it up, so
    that a token that was popped meanwhile is found. `aclose` gives such a token back. In a cluster it stands on the
    owner of its keys' slot, and where the slot is moved the wait goes on at the new one.
    """

    def __init__(self, dial: Dial, *, margin_ms: int = MARGIN_MS) -> None:
        if margin_ms <= 0:
            raise InvalidArgument(f"margin_ms: {margin_ms}, expected 1 or more")
        self._home: Home | None = None
        self._dial = dial
        self._margin_s = margin_ms / 1000
        self._link: Link | None = None
        self._client_id: int | None = None
        self._parked: _Parked | None = None
        self._busy = False
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return self._link is not None and not self._link.closed

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed

    async def blpop(self, keys: Sequence[str | bytes], timeout_ms: int, *, stands_ms: int = 0) -> bytes | None:
        """The key that had a token, or None after `timeout_ms` (1 or more). One wait at a time.

        A server ends a BLPOP up to a tenth of a second late (its hz). With `stands_ms` the wait ends in time by our own
        clock, and the BLPOP stands that much longer, for the next wait to take up.

        Raises CommandTimeout when the server is silent for the timeout and the margin (or twice `stands_ms`, if that is
        more), ConnectionLost when the connection goes, Unavailable for UNBLOCKED, LOADING and the like, and what
        connecting raises.
        """
        if timeout_ms <= 0:
            raise InvalidArgument(f"timeout_ms: {timeout_ms}, expected 1 or more")
        if not keys:
            raise InvalidArgument("keys: none, expected at least one")
        if self._busy:
            raise EchoMQError("parking: a wait is in progress, expected one at a time")
        self._busy = True
        try:
            return await self._wait(tuple(keys), timeout_ms, stands_ms)
        finally:
            self._busy = False

    async def _wait(self, keys: tuple[str | bytes, ...], timeout_ms: int, stands_ms: int) -> bytes | None:
        until = monotonic() + timeout_ms / 1000
        if self._parked is not None and self._parked.keys != keys:
            await self._unpark()
        taken_up = self._parked is not None
        parked = self._parked or await self._park(keys, timeout_ms, stands_ms)
        if taken_up:
            await asyncio.wait({parked.answer}, timeout=until - monotonic())
            if not parked.answer.done():
                return None
            left_ms = int((until - monotonic()) * 1000)
            if parked.token() is None and left_ms > 0:
                # It ended by its own, earlier timeout, or its connection went while nobody waited.
                parked = await self._park(keys, left_ms, stands_ms)
        await asyncio.wait({parked.answer}, timeout=max(0.0, until - monotonic()) if stands_ms else None)
        if parked.sent_on() is not None:
            left_ms = max(1, int((until - monotonic()) * 1000))
            parked = await self._park(keys, left_ms, stands_ms)
            await asyncio.wait({parked.answer}, timeout=max(0.0, until - monotonic()) if stands_ms else None)
        return self._take(parked) if parked.answer.done() else None

    def _take(self, parked: _Parked) -> bytes | None:
        self._parked = None
        if self._link is not None:
            self._link.unwatch()
        answer = parked.answer.result()
        if isinstance(answer, WireError):
            raise answer
        if isinstance(answer[0], EchoMQError):
            raise answer[0]
        token = parked.token()
        return None if token is None else token[0]

    async def _park(self, keys: tuple[str | bytes, ...], timeout_ms: int, stands_ms: int) -> _Parked:
        before, self._parked = self._parked, None
        packed = pack(("BLPOP", *keys, f"{(timeout_ms + stands_ms) / 1000:.3f}"))
        link = await self._ready(keys[0], None if before is None else before.sent_on())
        link.unwatch()
        link.timeout_s = timeout_ms / 1000 + max(self._margin_s, 2 * stands_ms / 1000)
        self._parked = _Parked(keys, link.submit(packed, 1))
        return self._parked

    async def _ready(self, key: str | bytes, sent_on: Unavailable | None) -> Link:
        if self._closed:
            raise EchoMQError("parking: it is closed")
        before = self._link
        if before is not None and not before.closed and sent_on is None:
            return before
        link, self._home = await self._dial(key, sent_on)
        self._link, self._client_id = link, None
        if before is not None:
            await before.aclose(at_once=True)
        answer = await link.submit(pack(("CLIENT", "ID")), 1)
        if isinstance(answer, WireError):
            raise answer
        # A server that does not tell the id only makes closing less gentle.
        self._client_id = answer[0] if isinstance(answer[0], int) else None
        return link

    async def _unpark(self) -> None:
        """End the standing BLPOP; a token that it has, or gets meanwhile, goes back to the list it came from."""
        parked, self._parked = self._parked, None
        home = self._home
        if parked is None or home is None:
            return
        try:
            async with asyncio.timeout(_GIVING_BACK_S):
                if not parked.answer.done() and self._client_id is not None and home.connected:
                    await home.call("CLIENT", "UNBLOCK", self._client_id)
                    await asyncio.wait({parked.answer})
                token = parked.token()
                if token is not None and home.connected:
                    await _give_back(home, *token)
        except (EchoMQError, TimeoutError):
            pass  # Without it the next beat finds the job.
        if not parked.answer.done() and self._link is not None:
            self._link.abort()

    def abort(self) -> None:
        """Drop the connection at once."""
        self._closed = True
        if self._link is not None:
            self._link.abort()

    async def aclose(self) -> None:
        """Give back a token that nobody took and close; may be called again."""
        self._closed = True
        try:
            await self._unpark()
        finally:
            link, self._link = self._link, None
            if link is not None:
                await link.aclose()


async def _give_back(home: Home, key: bytes, value: bytes) -> None:
    length = await home.call("LPUSH", key, value)
    if length == 1:
        await home.call("PEXPIRE", key, _TOKEN_TTL_MS)
    elif length > _TOKENS:
        await home.call("LTRIM", key, 0, _TOKENS - 1)
