"""Seats: who waits for readiness tokens on which keys, and tokens that go back to their lists.

Source: protocol section 4 (wake); `parking` has the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from echomq_worker.connection import Answer, Link

# A waiter that has left to make a pass of its loop comes back: its keys stay in a BLPOP that is made in between.
_AWAY_S = 0.05
# As the scripts do it: a list of tokens that a lone token makes anew does not stay for ever.
_TOKENS = 64
_TOKEN_TTL_MS = 60_000


class Home(Protocol):
    """The connector to the server that a wait stands on: tokens that nobody took go back over it."""

    @property
    def connected(self) -> bool:
        """Whether commands can be sent without connecting first."""

    async def call(self, *args: Any) -> Any:
        """Send one command."""

    def post(self, commands: Sequence[Sequence[Any]]) -> asyncio.Future[Answer] | None:
        """Send commands and wait for nothing; None without a connection."""


class Berth(NamedTuple):
    """A connection to park on, and the connector to the same server."""

    link: Link
    home: Home


class Token(NamedTuple):
    """What the server has handed out, and where it goes back to."""

    key: bytes
    value: bytes


class Seat:
    """A set of keys, and whoever waits for a token on them. `listed`: they belong in the next BLPOP."""

    __slots__ = (
        "going_back",
        "had",
        "keys",
        "leaving",
        "left_s",
        "listed",
        "owed",
        "stands_s",
        "told",
        "until_s",
        "waiter",
    )

    def __init__(self, keys: tuple[str | bytes, ...]) -> None:
        self.keys = keys
        self.waiter: asyncio.Future[Token | BaseException | None] | None = None
        # Called with a token, before whoever waits for it goes on.
        self.told: Callable[[], object] | None = None
        self.until_s = 0.0
        self.stands_s = 0.0
        self.left_s = 0.0
        self.leaving = False
        self.listed = False
        self.owed: Token | None = None
        # The token that the last wait returned.
        self.had: Token | None = None
        self.going_back: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether somebody waits who has not been told anything yet."""
        return self.waiter is not None and not self.waiter.done()

    def belongs(self, now_s: float) -> bool:
        """Whether its keys go into a BLPOP that is made now."""
        return self.waits or (self.listed and self.owed is None and now_s - self.left_s < _AWAY_S)

    def tell(self, what: Token | BaseException | None) -> None:
        """End the wait, if one is on."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(what)

    def take_owed(self) -> Token | None:
        """The token that came while nobody waited."""
        owed, self.owed = self.owed, None
        if self.going_back is not None:
            self.going_back.cancel()
            self.going_back = None
        return owed


async def give_back(home: Home, token: Token) -> None:
    """Push a token back on its list, and wait until the server has it, or the connection is gone."""
    posted = home.post(_pushed_back(token))
    if posted is not None:
        await posted


def post_back(home: Home, token: Token) -> None:
    """The same without waiting for it; without a connection nothing is sent, and the next beat finds the job."""
    home.post(_pushed_back(token))


def _pushed_back(token: Token) -> list[tuple[str | bytes | int, ...]]:
    # In one write: a list that a connection's end left without its expiry would stay for ever.
    key = token.key
    return [("LPUSH", key, token.value), ("PEXPIRE", key, _TOKEN_TTL_MS, "NX"), ("LTRIM", key, 0, _TOKENS - 1)]
