"""One multiplexed connection: many callers, replies in order, a write or two per event-loop turn, one watchdog.

Source: design section 4 (a client call costs 140 microseconds of CPU; whatever is due goes in one flush).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from time import monotonic
from typing import Any, Final, Protocol, cast

import hiredis

from echomq_worker.endpoint import told
from echomq_worker.errors import (
    CommandTimeout,
    ConnectionLost,
    EchoMQError,
    ServerError,
    Unavailable,
    WireError,
    refusal,
)
from echomq_worker.patience import again_s

Answer = list[Any] | WireError
"""The replies of a batch in order, or what became of the connection. A value, so that no future is left unread."""

Then = Callable[[asyncio.Future[Answer]], object]

_NOTHING_YET: Final = object()
# Above this many unsent bytes callers wait before they queue more.
_HIGH_WATER_BYTES: Final = 1 << 20
_CLOSING_S: Final = 1.0
# What is so large takes the server a while: it leaves at once, so that the server works on it while this turn goes on.
_LARGE_BYTES: Final = 1_024
# A connection that has heard something so recently is busy. Loops of an idle process wake together, and share a write.
_BUSY_S: Final = 0.01
_UNAVAILABLE: Final = frozenset(
    {
        "ASK",
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "MOVED",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
        "UNBLOCKED",
    }
)
# How a script ends that needs a key which is on another node now, or a slot that nobody serves; the words before them
# differ between servers.
_STOPPED: Final = ("a non local key in a cluster", "while the cluster is down", "access a slot not served")


# The server behind a name or an address is no primary, or may be none any more, as its replicas have left it: who
# connects anew may find the one that is.
_NO_PRIMARY: Final = frozenset({"MASTERDOWN", "NOREPLICAS", "READONLY", "UNBLOCKED"})


def reply_error(text: str) -> EchoMQError:
    """The error that an error reply stands for: a script's refusal, Unavailable, or ServerError.

    Arguments that the server repeats in its text are cut off: they may be payloads.
    """
    refused = refusal(text)
    if refused is not None:
        return refused
    shown = text.partition(", with args beginning with")[0]
    if shown.split(" ", 1)[0] in _UNAVAILABLE or any(words in shown for words in _STOPPED):
        return Unavailable(shown)
    return ServerError(shown)


class Errors:
    """The error replies of one connection, for a hiredis Reader; `no_primary` once the server has said that it is none.

    An object of its own: the reader has no part in collecting garbage, and must not hold the link that holds it.
    """

    __slots__ = ("no_primary",)

    def __init__(self) -> None:
        self.no_primary = False

    def __call__(self, text: str) -> EchoMQError:
        """The error that stands for a reply."""
        error = reply_error(text)
        if isinstance(error, Unavailable) and error.code in _NO_PRIMARY:
            self.no_primary = True
        return error


class _Write:
    """What leaves in one write, and when it did. A loop that was blocked may write long after a call was queued."""

    __slots__ = ("at", "packed")

    def __init__(self) -> None:
        self.packed: list[bytes] = []
        self.at: float | None = None


class _Batch:
    __slots__ = ("answer", "replies", "size", "then", "write")

    def __init__(self, answer: asyncio.Future[Answer], size: int, write: _Write, then: Then | None) -> None:
        self.answer = answer
        self.size = size
        self.write = write
        self.then = then
        self.replies: list[Any] = []

    def end(self, what: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(what)
        if self.then is not None:
            self.then(self.answer)


class Haste(Enum):
    """How soon a command leaves: with what comes next, as nobody waits for it; with what else this turn of the loop
    brings; or at once, where it is the first of its turn.
    """

    NONE = "none"
    SHARED = "shared"
    OWN = "own"


class Hearer(Protocol):
    """Who hears what a server sends unasked on a connection that has subscribed."""

    def message(self, channel: bytes, data: bytes) -> None:
        """Something was published."""
        ...

    def ended(self, error: WireError) -> None:
        """Nothing comes any more."""
        ...


class Link(asyncio.Protocol):
    """One connection that is open or has been. It never reconnects and never sends anything twice.

    `timeout_s` may be changed while nothing is unanswered. `closed` turns true when nothing more is to be sent: no
    reply can come any more, or the server says that it is no primary; then what is unanswered is answered still.
    `writable` is clear while more than 1 MiB waits to be sent; who queues more has to wait for it first.
    """

    def __init__(self, peer: str, timeout_s: float, *, hearer: Hearer | None = None) -> None:
        self.peer = peer
        self.timeout_s = timeout_s
        self.closed = False
        self._hearer = hearer
        self.writable = asyncio.Event()
        self.writable.set()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._gone = asyncio.Event()
        self._ended = False
        self._errors = Errors()
        self._reader = hiredis.Reader(replyError=self._errors, notEnoughData=_NOTHING_YET)
        self._waiting: deque[_Batch] = deque()
        self._next = _Write()
        self._turning = self._hurries = False
        self._heard_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._looks_at = 0.0
        self._suspect: _Batch | None = None

    @property
    def pending(self) -> int:
        """Batches that are not answered yet."""
        return len(self._waiting)

    @property
    def heard(self) -> bool:
        """Whether the peer has sent anything yet."""
        return self._heard_at > 0

    def submit(
        self, packed: bytes, size: int, *, haste: Haste = Haste.SHARED, then: Then | None = None
    ) -> asyncio.Future[Answer]:
        """Send `size` packed commands. The future never raises; cancelling it disturbs nothing. `then` is called with
        it as soon as it is answered, a turn of the loop before whoever awaits it.

        What a turn of the loop brings leaves in one write at its end. What is large leaves at once, and so does what
        comes first where the connection is busy: turns of a busy loop are long. `haste` says otherwise.

        On a link that has ended nothing is sent, and the answer is ConnectionLost.
        """
        answer: asyncio.Future[Answer] = self._loop.create_future()
        if self._ended:
            answer.set_result(ConnectionLost(f"{self.peer}: the connection was closed"))
            if then is not None:
                answer.add_done_callback(then)
            return answer
        write = self._next
        if not self._turning:
            self._turning = True
            self._hurries = haste is Haste.OWN or monotonic() - self._heard_at < _BUSY_S
            self._loop.call_soon(self._end_turn)
        self._waiting.append(_Batch(answer, size, write, then))
        write.packed.append(packed)
        if haste is not Haste.NONE and (self._hurries or len(packed) >= _LARGE_BYTES):
            self._hurries = False
            self._flush()
        if self._watch is None:
            self._look_in(self.timeout_s)
        return answer

    def unwatch(self) -> None:
        """Forget the running watch, so that the next command starts one with the `timeout_s` of then."""
        if self._watch is not None and not self._waiting:
            self._watch.cancel()
            self._watch = None

    def _end_turn(self) -> None:
        self._turning = self._hurries = False
        if self._next.packed:
            self._flush()

    def _flush(self) -> None:
        write, self._next = self._next, _Write()
        write.at = monotonic()
        transport = self._transport
        # One that has broken in this very turn complains of what it is given, and says so at the end of it.
        if write.packed and transport is not None and not self._ended and not transport.is_closing():
            transport.write(b"".join(write.packed))
        write.packed.clear()

    def _look_in(self, seconds: float) -> None:
        # A handle of uvloop does not tell its time where that is less than a millisecond away.
        self._looks_at = self._loop.time() + seconds
        self._watch = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        late_s = self._loop.time() - self._looks_at
        self._watch = None
        if not self._waiting:
            self._suspect = None
            return
        oldest = self._waiting[0]
        sent_at = oldest.write.at
        silent_s = 0.0 if sent_at is None else monotonic() - max(sent_at, self._heard_at)
        if silent_s < self.timeout_s:
            self._suspect = None
            self._look_in(self.timeout_s - silent_s)
        elif self._suspect is not oldest:
            # Where the loop was blocked replies may lie in the socket unread, or what was asked has just left.
            self._suspect = oldest
            self._look_in(again_s(late_s, self.timeout_s))
        else:
            self._end(CommandTimeout, f"no reply within {self.timeout_s * 1000:.0f} ms")
            self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio's protocol interface."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)

    def pause_writing(self) -> None:
        """Part of asyncio's protocol interface."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """Part of asyncio's protocol interface."""
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's protocol interface: hand out every reply that is complete."""
        if self._ended:
            return
        self._heard_at = monotonic()
        waiting = self._waiting
        gets = self._reader.gets
        try:
            self._reader.feed(data)
            reply = gets()
            while reply is not _NOTHING_YET:
                if self._hearer is not None and _is_message(reply):
                    self._hearer.message(reply[1], reply[2])
                    reply = gets()
                    continue
                if not waiting:
                    self._end(ConnectionLost, f"a reply that nobody asked for{_told(reply)}")
                    self.abort()
                    return
                batch = waiting[0]
                replies = batch.replies
                replies.append(reply)
                if len(replies) == batch.size:
                    waiting.popleft().end(replies)
                reply = gets()
        except hiredis.ProtocolError:
            self._end(ConnectionLost, "the peer does not speak the protocol (is it TLS on one side only?)")
            self.abort()
        if self._errors.no_primary:
            self._retire()

    def _retire(self) -> None:
        self.closed = True
        self.writable.set()
        if not self._waiting:
            self._end(ConnectionLost, "the server is no primary any more")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio's protocol interface."""
        said = _told(self._waiting[0].replies[-1]) if self._waiting and self._waiting[0].replies else ""
        self._end(ConnectionLost, f"{_reason(exc)}{said}")
        self._gone.set()

    def _end(self, kind: type[WireError], why: str) -> None:
        if self._hearer is not None and not self._ended:
            self._hearer.ended(kind(f"{self.peer}: {why}"))
        self.closed = self._ended = True
        self.writable.set()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._suspect = None
        while self._waiting:
            self._waiting.popleft().end(kind(f"{self.peer}: {why}"))

    def abort(self) -> None:
        """Drop the connection at once; what is unanswered ends as ConnectionLost."""
        self._end(ConnectionLost, "the connection was closed")
        if self._transport is not None:
            self._transport.abort()

    async def aclose(self, *, at_once: bool = False) -> None:
        """Send what is queued unless `at_once`, close, and return when the transport is gone, within about a second."""
        if self._transport is None:
            self.closed = True
            return
        try:
            if not at_once and not self.closed:
                self._flush()
                self._end(ConnectionLost, "the connection was closed")
                self._transport.close()
                async with asyncio.timeout(_CLOSING_S):
                    await self._gone.wait()
        except TimeoutError:
            pass  # A peer that does not take our last bytes is not waited for.
        finally:
            self.abort()
        await self._gone.wait()


def _reason(exc: Exception | None) -> str:
    if exc is None:
        return "the server closed the connection"
    return f"the connection broke: {type(exc).__name__}: {told(exc)}"


def _is_message(reply: Any) -> bool:
    return isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message"


def _told(reply: object) -> str:
    return f" ({reply})" if isinstance(reply, EchoMQError) else ""
