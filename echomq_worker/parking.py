"""A connection that parks: one BLPOP for all the waits of a process, apart from the commands, and no token lost.

Source: design section 4 (a parked wait needs its own read timeout), protocol section 4 (wake), issue "Faster than every
peer" (one parking connection for all queues of a process).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from echomq_worker.connection import Answer, Link
from echomq_worker.errors import EchoMQError, InvalidArgument, Unavailable, WireError
from echomq_worker.packing import pack
from echomq_worker.seats import Berth, Home, Seat, Token, give_back, post_back

_GIVING_BACK_S = 1.0
# How much longer than its waits a BLPOP stands: twice the lateness of a server with the default hz.
PUNCTUAL_MS = 200
# With the second look of the watchdog a connection that hangs is given up 2 s after the end of its wait.
MARGIN_MS = 1_900
# Who was handed a token claims, and is back within a round trip or two: so long the others' BLPOP waits for it, which
# costs less than one without it that has to be ended again.
_BACK_S = 0.001
# Tokens of different queues so close to each other are a crowd: nobody is waited for, and who is not in the BLPOP is in
# the next one, which comes soon by itself.
_CROWD_S = 0.002
# A token for somebody who is away waits for it; then others may have it: it may have no use for one.
_OWED_S = 0.02
# Where a BLPOP cannot be ended it is short, as long as somebody may come whose keys are not in it.
_BLIND_S = 0.05
# A BLPOP that was not there yet when it was to be ended is asked for again after so long, then ever later.
_AGAIN_S = 0.001
_AGAIN_MOST_S = 0.05
_SENT_ON = "MOVED"


Dial = Callable[[str | bytes, Unavailable | None], Awaitable[Berth]]
"""Makes a berth for a key; the second is why the last one was no good, where its server has sent us on (`MOVED`)."""


class Parking:
    """Waits for readiness tokens on a connection of its own, which is made at the first wait.

    Any number of waits at a time, each on keys of its own; one BLPOP stands for all of them, and it stays when a wait
    ends without a token: it is there for the next one on the same keys. A wait on keys that are not in it has it ended
    on the server (CLIENT UNBLOCK) and made anew. A token for keys on which nobody waits is kept for a moment and then
    given back: a process that cannot use it does not keep it from others. In a cluster the BLPOP stands on the owner of
    its keys' slot, and where the slot is moved it goes on at the new one.
    """

    def __init__(self, dial: Dial, *, margin_ms: int = MARGIN_MS) -> None:
        if margin_ms <= 0:
            raise InvalidArgument(f"margin_ms: {margin_ms}, expected 1 or more")
        self._home: Home | None = None
        self._dial = dial
        self._margin_s = margin_ms / 1000
        self._link: Link | None = None
        self._client_id: int | None = None
        self._opening: asyncio.Task[None] | None = None
        # In the order in which the server looks for tokens: who had one comes last.
        self._seats: dict[tuple[str | bytes, ...], Seat] = {}
        self._by_key: dict[bytes, Seat] = {}
        self._standing: set[Seat] = set()
        self._answer: asyncio.Future[Answer] | None = None
        self._ending = False
        self._sent_on: Unavailable | None = None
        self._looks = False
        self._back: Seat | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._last: tuple[Seat, float] | None = None
        self._crowded = False
        self._joining: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return self._link is not None and not self._link.closed

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed

    async def blpop(
        self,
        keys: Sequence[str | bytes],
        timeout_ms: float,
        *,
        stands_ms: float = PUNCTUAL_MS,
        told: Callable[[], object] | None = None,
    ) -> bytes | None:
        """The key that had a token, or None after `timeout_ms` (more than 0). One wait at a time on the same keys.
        `told` is called as soon as a token comes, a turn of the event loop before this returns.

        A server ends a BLPOP up to a tenth of a second late (its hz), so a wait ends by our own clock, and the BLPOP
        stands `stands_ms` longer at least.

        Raises CommandTimeout when the server is silent for the longest wait and the margin (or twice `stands_ms`, if
        that is more), ConnectionLost when the connection goes, Unavailable for UNBLOCKED, LOADING and the like, and
        what connecting raises: each of them to everybody who waits.
        """
        if timeout_ms <= 0:
            raise InvalidArgument(f"timeout_ms: {timeout_ms}, expected more than 0")
        if not keys:
            raise InvalidArgument("keys: none, expected at least one")
        if self._closed:
            raise EchoMQError("parking: it is closed")
        seat = self._seat(tuple(keys))
        if seat.waiter is not None:
            raise EchoMQError("parking: a wait on these keys is in progress, expected one at a time")
        seat.told = told
        seat.had = None
        seat.had = token = seat.take_owed() or await self._wait(seat, timeout_ms / 1000, stands_ms / 1000)
        return None if token is None else token.key

    def leave(self, keys: Sequence[str | bytes]) -> None:
        """End the wait on these keys, if one is on: it returns None. A token that it was just told of is there for the
        next wait on them, or goes back.
        """
        seat = self._seats.get(tuple(keys))
        if seat is not None and seat.waiter is not None:
            seat.leaving = True
            seat.tell(None)

    def hand_back(self, keys: Sequence[str | bytes]) -> None:
        """The token that the last wait on these keys returned was of no use here: others may have it."""
        seat = self._seats.get(tuple(keys))
        if seat is not None and seat.had is not None:
            self._give_back_soon(seat.had)
            seat.had = None

    def _seat(self, keys: tuple[str | bytes, ...]) -> Seat:
        seat = self._seats.get(keys)
        if seat is None:
            seat = self._seats[keys] = Seat(keys)
        for key in keys:
            self._by_key[key if isinstance(key, bytes) else key.encode()] = seat
        return seat

    async def _wait(self, seat: Seat, timeout_s: float, stands_s: float) -> Token | None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Token | BaseException | None] = loop.create_future()
        seat.waiter = waiter
        seat.until_s, seat.stands_s, seat.listed, seat.leaving = loop.time() + timeout_s, stands_s, True, False
        timer = loop.call_at(seat.until_s, self._expire, seat)
        self._look_soon()
        try:
            told = await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and isinstance(token := waiter.result(), Token):
                self._owe(seat, token)
            raise
        finally:
            timer.cancel()
            seat.waiter = None
            seat.left_s = loop.time()
        if isinstance(told, Token) and seat.leaving:
            self._owe(seat, told)
            return None
        if not isinstance(told, BaseException):
            return told
        try:
            raise told
        finally:
            del told

    def _expire(self, seat: Seat) -> None:
        # While it connects a wait goes on: what became of that is part of it.
        if self._opening is None:
            seat.tell(None)

    def _look_soon(self) -> None:
        """In the next turn of the loop, once for all who begin to wait in this one."""
        if not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """See to it that a BLPOP stands for everybody who waits."""
        self._looks = False
        if self._closed or self._opening is not None:
            return
        if self._back is not None:
            if not self._back.waits:
                return
            self._expect_nobody()
        waiting = [seat for seat in self._seats.values() if seat.waits]
        if not waiting:
            return
        if self._answer is not None:
            if not self._standing.issuperset(waiting):
                self._join()
        elif self._link is None or self._link.closed or self._sent_on is not None:
            self._open(waiting[0].keys[0])
        else:
            self._stand(self._link, waiting)

    def _stand(self, link: Link, waiting: Sequence[Seat]) -> None:
        now = asyncio.get_running_loop().time()
        for seat in self._seats.values():
            seat.listed = seat.belongs(now)
        self._standing = {seat for seat in self._seats.values() if seat.listed}
        keys = [key for seat in self._seats.values() if seat.listed for key in seat.keys]
        wait_s = max(0.001, *(seat.until_s - now for seat in waiting))
        stands_s = max(seat.stands_s for seat in waiting)
        link.unwatch()
        link.timeout_s = wait_s + max(self._margin_s, 2 * stands_s)
        lasts_s = wait_s + stands_s
        if self._client_id is None and len(self._standing) < len(self._seats):
            lasts_s = min(lasts_s, _BLIND_S)
        self._ending = False
        self._answer = link.submit(pack(("BLPOP", *keys, f"{lasts_s:.3f}")), 1, then=self._answered)

    def _join(self) -> None:
        if not self._crowded:
            self._end_standing()
        elif self._joining is None:
            self._joining = asyncio.get_running_loop().call_later(_BACK_S, self._join_after_all)

    def _join_after_all(self) -> None:
        self._joining, self._crowded = None, False
        self._look()

    def _end_standing(self, again_s: float = _AGAIN_S) -> None:
        """Have the server end the BLPOP that stands: its answer, whatever it is, makes the next one."""
        if self._ending or self._home is None or self._client_id is None:
            return
        # Without a connection for it the BLPOP ends by itself, a little later than the longest wait.
        asked = self._home.post([("CLIENT", "UNBLOCK", self._client_id)])
        if asked is not None:
            self._ending = True
            asked.add_done_callback(partial(self._unblocked, self._answer, again_s))

    def _unblocked(
        self, standing: asyncio.Future[Answer] | None, again_s: float, asked: asyncio.Future[Answer]
    ) -> None:
        answer = asked.result()
        if isinstance(answer, list) and isinstance(answer[0], EchoMQError):
            # It may not be asked for that.
            self._client_id = None
        elif isinstance(answer, WireError) or answer[0] == 0:
            # Nobody was blocked: on its connection the BLPOP is on its way still, or its answer is.
            asyncio.get_running_loop().call_later(again_s, self._end_again, standing, 2 * again_s)

    def _end_again(self, standing: asyncio.Future[Answer] | None, again_s: float) -> None:
        if self._answer is not standing or self._closed:
            return
        self._ending = False
        if any(seat.waits and seat not in self._standing for seat in self._seats.values()):
            self._end_standing(min(again_s, _AGAIN_MOST_S))

    def _answered(self, answered: asyncio.Future[Answer]) -> None:
        self._answer = None
        self._standing.clear()
        self._cancel_joining()
        answer = answered.result()
        reply = answer if isinstance(answer, WireError) else answer[0]
        if isinstance(reply, EchoMQError):
            moved = isinstance(reply, Unavailable) and reply.code == _SENT_ON
            self._sent_on = reply if moved and isinstance(reply, Unavailable) else None
            if self._sent_on is None:
                self._fail(reply)
        elif isinstance(reply, list):
            self._hand(Token(reply[0], reply[1]))
        if self._link is not None:
            self._link.unwatch()
        self._look()

    def _hand(self, token: Token) -> None:
        seat = self._by_key[token.key]
        if seat.waits and seat.told is not None:
            seat.told()  # First of all: what it sends is on its way while the rest is done.
        seat.listed = False
        self._seats[seat.keys] = self._seats.pop(seat.keys)
        now = asyncio.get_running_loop().time()
        last, self._last = self._last, (seat, now)
        self._crowded = last is not None and last[0] is not seat and now - last[1] < _CROWD_S
        if not seat.waits:
            self._owe(seat, token)
            return
        seat.tell(token)
        if len(self._seats) > 1 and not self._crowded and not self._closed:
            self._back = seat
            self._patience = asyncio.get_running_loop().call_later(_BACK_S, self._go_on_without)

    def _cancel_joining(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None

    def _go_on_without(self) -> None:
        self._expect_nobody()
        self._look()

    def _expect_nobody(self) -> None:
        self._back = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _owe(self, seat: Seat, token: Token) -> None:
        if seat.owed is not None:
            self._give_back_soon(token)
            return
        seat.owed = token
        if not self._closed:
            seat.going_back = asyncio.get_running_loop().call_later(_OWED_S, self._give_up, seat)

    def _give_up(self, seat: Seat) -> None:
        seat.listed = False
        token = seat.take_owed()
        if token is not None:
            self._give_back_soon(token)

    def _give_back_soon(self, token: Token) -> None:
        if self._home is not None:
            post_back(self._home, token)

    def _fail(self, error: BaseException) -> None:
        for seat in self._seats.values():
            seat.listed = False
            seat.tell(error)

    def _open(self, key: str | bytes) -> None:
        sent_on, self._sent_on = self._sent_on, None
        self._opening = asyncio.create_task(self._connect(key, sent_on), name="parking:open")
        self._opening.add_done_callback(self._opened)

    async def _connect(self, key: str | bytes, sent_on: Unavailable | None) -> None:
        before = self._link
        link, self._home = await self._dial(key, sent_on)
        self._link, self._client_id = link, None
        if before is not None:
            await before.aclose(at_once=True)
        answer = await link.submit(pack(("CLIENT", "ID")), 1)
        if isinstance(answer, WireError):
            raise answer
        # A server that does not tell it makes closing less gentle, and the BLPOPs more: they may not stand long.
        self._client_id = answer[0] if isinstance(answer[0], int) else None

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if opening.cancelled():
            return
        error = opening.exception()
        if error is not None:
            self._fail(error)
            return
        self._look()
        if self._opening is None:
            now = asyncio.get_running_loop().time()
            for seat in self._seats.values():
                if seat.until_s <= now:
                    seat.tell(None)

    def abort(self) -> None:
        """Drop the connection at once."""
        self._closed = True
        if self._link is not None:
            self._link.abort()

    async def aclose(self) -> None:
        """End every wait, give back tokens that nobody took, and close; may be called again."""
        self._closed = True
        self._expect_nobody()
        self._cancel_joining()
        try:
            if self._opening is not None:
                self._opening.cancel()
                await asyncio.wait({self._opening})
            await self._leave()
        finally:
            link, self._link = self._link, None
            for seat in self._seats.values():
                seat.tell(None)
            if link is not None:
                await link.aclose()

    async def _leave(self) -> None:
        """End the standing BLPOP; what it has handed out, and what is owed, goes back to the list it came from."""
        home, answer = self._home, self._answer
        if home is None:
            return
        with suppress(EchoMQError, TimeoutError):
            async with asyncio.timeout(_GIVING_BACK_S):
                if answer is not None and not answer.done() and self._client_id is not None and home.connected:
                    while not answer.done():
                        await home.call("CLIENT", "UNBLOCK", self._client_id)
                        await asyncio.wait({answer}, timeout=_AGAIN_MOST_S)
                    # Its own callback has been called before, and has left the token where it is found now.
                for seat in self._seats.values():
                    token = seat.take_owed()
                    if token is not None and home.connected:
                        await give_back(home, token)
        if answer is not None and not answer.done() and self._link is not None:
            self._link.abort()
