"""Blocking: connections for programs without an event loop; the thread that calls waits for its reply.

Source: issue "Made for the people who run it", For handler authors (a synchronous producer). What goes over the wire is
what `single` sends: the same handshake, fence, packing and errors; of its own this has only the socket. Verbs are
coroutines over a Wire. Over this one they never wait for an event loop, so that one step runs them (`finished`).

Any number of threads may call: each takes a connection that idles, or makes one. No lock is held across a call. A
process that was forked off makes connections of its own and leaves those of its parent alone.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from socket import socket
from ssl import SSLWantReadError
from time import monotonic
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import hiredis

from echomq_worker import bounds, identity
from echomq_worker.bounds import checked
from echomq_worker.connection import Answer, Errors
from echomq_worker.endpoint import Endpoint, told
from echomq_worker.errors import CommandTimeout, ConfigError, ConnectionLost, EchoMQError, Unreachable, WireError
from echomq_worker.handshake import confirm, hint, shake_hands
from echomq_worker.packing import pack
from echomq_worker.sentinel import answered, find_primary, question

T = TypeVar("T")

_NOTHING_YET: Final = object()
_READ_BYTES: Final = 1 << 16
# A socket without a time limit would wait for ever; one of zero not at all.
_LEAST_S: Final = 0.001


def finished(verb: Coroutine[Any, Any, T]) -> T:
    """What a coroutine answers that waits for nothing but a blocking wire; raises what it raises."""
    try:
        verb.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    verb.close()
    name = getattr(verb, "__qualname__", "coroutine")
    raise ConfigError(f"{name}: it waits for an event loop, expected a verb over a blocking wire")


class _Known(Generic[T]):
    """An awaitable that is answered already."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self) -> Generator[None, None, T]:
        yield from ()
        return self._value


class BlockingLink:
    """One connection that is open or has been; one caller at a time. It never reconnects, never sends anything twice.

    `timeout_s` is how long the peer may be silent while it is waited for.
    """

    __slots__ = ("_errors", "_reader", "_socket", "closed", "heard", "peer", "timeout_s")

    def __init__(self, opened: socket, peer: str, timeout_s: float) -> None:
        self.peer = peer
        self.timeout_s = timeout_s
        self.closed = False
        self.heard = False
        self._socket = opened
        self._errors = Errors()
        self._reader = hiredis.Reader(replyError=self._errors, notEnoughData=_NOTHING_YET)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close this process's end of it; may be called again."""
        self.closed = True
        self._socket.close()

    def stands(self) -> bool:
        """Whether it can take a command, as far as can be seen: the peer has not hung up, and said nothing unasked."""
        if self.closed or self._errors.no_primary:
            return False
        try:
            self._socket.setblocking(False)
            self._socket.recv(1)
        except (BlockingIOError, SSLWantReadError):
            return True
        except OSError:
            return False
        # The end, or something that nobody asked for.
        return False

    async def aclose(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - as a Link has it
        """As `close`, for those who await."""
        self.close()

    def submit(self, packed: bytes, size: int, /) -> _Known[Answer]:
        """As `exchange`, for those who await."""
        return _Known(self.exchange(packed, size))

    def exchange(self, packed: bytes, size: int) -> Answer:
        """Send `size` packed commands and wait for their replies; or what became of the connection, as a value."""
        replies: list[Any] = []
        try:
            self._exchange(packed, size, replies)
        except TimeoutError:
            return self._lost(CommandTimeout, f"no reply within {self.timeout_s * 1000:.0f} ms")
        except OSError as error:
            return self._lost(ConnectionLost, f"the connection broke: {type(error).__name__}: {told(error)}")
        except EOFError:
            said = f" ({replies[-1]})" if replies and isinstance(replies[-1], EchoMQError) else ""
            return self._lost(ConnectionLost, f"the server closed the connection{said}")
        except hiredis.ProtocolError:
            return self._lost(ConnectionLost, "the peer does not speak the protocol (is it TLS on one side only?)")
        except BaseException:
            # The reply to this must not be taken for the next one's.
            self.close()
            raise
        return replies

    def _exchange(self, packed: bytes, size: int, replies: list[Any]) -> None:
        self._socket.settimeout(max(_LEAST_S, self.timeout_s))
        rest = memoryview(packed)
        while rest:
            rest = rest[self._socket.send(rest) :]
        gets = self._reader.gets
        while len(replies) < size:
            reply = gets()
            if reply is not _NOTHING_YET:
                replies.append(reply)
                continue
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise EOFError
            self.heard = True
            self._reader.feed(data)

    def _lost(self, kind: type[WireError], why: str) -> WireError:
        self.close()
        return kind(f"{self.peer}: {why}")


class _Here:
    """The connections of one process: all that are open, and those that nobody uses."""

    __slots__ = ("idle", "links", "opening")

    def __init__(self) -> None:
        self.idle: deque[BlockingLink] = deque()
        self.links: set[BlockingLink] = set()
        # Around the asking of sentinels, whose order it changes.
        self.opening = threading.Lock()


class BlockingServer:
    """Commands to one server for the threads of a process, over as many connections as threads call at the same time.

    Making one opens nothing: the first call connects, in its own process and thread. A connection that
    the server has closed meanwhile is replaced before anything is sent; nothing is ever sent twice.
    """

    def __init__(
        self,
        url: str | Endpoint,
        *,
        wire_version: str = "echomq:3.0.0",
        connect_timeout_ms: int = 5000,
        command_timeout_ms: int = 5000,
        name: str = "echomq",
    ) -> None:
        """Raise ConfigError for a URL or timeout that cannot be used."""
        checked("connect_timeout_ms", connect_timeout_ms, bounds.ANSWER_MS)
        checked("command_timeout_ms", command_timeout_ms, bounds.ANSWER_MS)
        self._endpoint = url if isinstance(url, Endpoint) else Endpoint.parse(url)
        self._wire_version = wire_version
        self._connect_timeout_ms = connect_timeout_ms
        self._command_timeout_s = command_timeout_ms / 1000
        self._name = name
        self._processes: dict[int, _Here] = {}
        self._closed = False
        # What the verbs go through that are made from now on: `tracing.traced`.
        self.around: Callable[[BlockingWire], Any] | None = None

    @property
    def url_safe(self) -> str:
        """The URL with its secrets masked."""
        return self._endpoint.safe

    @property
    def connections(self) -> int:
        """How many are open in this process, as far as is known."""
        return len(self.here().links)

    def open(self) -> None:
        """Connect now; raises Unreachable, AuthenticationFailed, FenceRefused, Unavailable or ConfigError."""
        here = self.here()
        here.idle.append(self._usable(here))

    def call(self, *args: Any) -> Any:
        """Send one command and return its reply, text as bytes.

        Raises what the server answers (Refused, Unavailable, ServerError), ConnectionLost or CommandTimeout when the
        reply is unknown, Unreachable and what `open` raises when nothing was sent, InvalidArgument for arguments that
        are not bytes, text, int or float.
        """
        reply = self._exchange(pack(args), 1)[0]
        if isinstance(reply, EchoMQError):
            raise reply
        return reply

    def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands in one go and return the replies in order; error replies stand in place as exceptions."""
        return self._exchange(b"".join([pack(command) for command in commands]), len(commands)) if commands else []

    def close(self) -> None:
        """Close the connections of this process, those that are in use when their call is answered."""
        self._closed = True
        here = self.here()
        while here.idle:
            with suppress(IndexError):
                link = here.idle.pop()
                here.links.discard(link)
                link.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def here(self) -> _Here:
        """What this process has. The first call after a fork draws another node for ids, and lets go of the parent's
        connections: its end of them stays open.
        """
        pid = os.getpid()
        here = self._processes.get(pid)
        if here is not None:
            return here
        for parents in [one for number, one in tuple(self._processes.items()) if number != pid]:
            identity.forked()
            for link in tuple(parents.links):
                link.close()
        here = self._processes.setdefault(pid, _Here())
        for number in tuple(self._processes):
            if number != pid:
                self._processes.pop(number, None)
        return here

    def _exchange(self, packed: bytes, size: int) -> list[Any]:
        here = self.here()
        link = self._usable(here)
        try:
            answer = link.exchange(packed, size)
        finally:
            self._give_back(here, link)
        if isinstance(answer, WireError):
            raise answer
        return answer

    def _usable(self, here: _Here) -> BlockingLink:
        while not self._closed:
            try:
                link = here.idle.pop()
            except IndexError:
                made = self._connect(here)
                here.links.add(made)
                return made
            if link.stands():
                return link
            here.links.discard(link)
            link.close()
        raise EchoMQError(f"connector {self.url_safe}: it is closed")

    def _give_back(self, here: _Here, link: BlockingLink) -> None:
        if link.closed or self._closed:
            here.links.discard(link)
            link.close()
        else:
            here.idle.append(link)

    def dial(self, wire_version: str | None, *, cluster: bool = False) -> BlockingLink:
        """A connection of its own to the server of the URL, greeted; the fence is asked where `wire_version` says what
        it has to hold. Raises what `open` raises.
        """
        until = monotonic() + self._connect_timeout_ms / 1000
        return self._dial(self._endpoint, until, wire_version, cluster=cluster)

    def _connect(self, here: _Here) -> BlockingLink:
        if not self._endpoint.sentinels:
            return self.dial(self._wire_version)
        until = monotonic() + self._connect_timeout_ms / 1000
        with here.opening:
            named = finished(find_primary(self._endpoint, self._connect_timeout_ms, ask=_ask))
            link: BlockingLink | None = None
            try:
                link = self._dial(named.endpoint, until, self._wire_version, primary=True)
                finished(confirm(self._endpoint, named, self._connect_timeout_ms, ask=_ask))
            except BaseException:
                named.failed()
                if link is not None:
                    link.close()
                raise
            return link

    def _dial(
        self, server: Endpoint, until: float, wire_version: str | None, *, primary: bool = False, cluster: bool = False
    ) -> BlockingLink:
        late = f"{server.safe}: no connection within {self._connect_timeout_ms} ms"
        try:
            opened = server.open_socket(max(_LEAST_S, until - monotonic()))
        except Unreachable as error:
            if isinstance(error.__cause__, TimeoutError):
                raise Unreachable(f"{late}{hint(self._endpoint)}") from error
            raise
        link = BlockingLink(opened, server.peer, until - monotonic())
        try:
            finished(shake_hands(link, server, wire_version, self._name, cluster=cluster, primary=primary))
        except Unreachable as error:
            link.close()
            if isinstance(error.__cause__, CommandTimeout):
                raise Unreachable(f"{late}{hint(self._endpoint)}") from error
            raise
        except BaseException:
            link.close()
            raise
        link.timeout_s = self._command_timeout_s
        return link


class BlockingWire:
    """A connector as the Wire of verbs. What is awaited is there at once: it needs no event loop, and blocks one."""

    __slots__ = ("_connector",)

    def __init__(self, connector: BlockingServer) -> None:
        self._connector = connector

    async def call(self, *args: Any) -> Any:
        """As `BlockingServer.call`."""
        return self._connector.call(*args)

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """As `BlockingServer.pipeline`."""
        return self._connector.pipeline(commands)


async def _ask(sentinel: Endpoint, service: str, patience_s: float) -> tuple[str, int]:
    link = BlockingLink(sentinel.open_socket(patience_s), sentinel.peer, patience_s)
    try:
        return answered(link.exchange(*question(sentinel, service)), sentinel, service)
    finally:
        with suppress(OSError):
            link.close()
