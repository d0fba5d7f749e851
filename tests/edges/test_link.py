"""One connection that breaks in the middle of an event-loop turn."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Coroutine

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.connection import Link
from echomq_worker.errors import CommandTimeout, ConnectionLost
from echomq_worker.packing import Packed, pack, pack_publish
from tests.support.waiting import in_time

LARGE = pack(("SET", "key", "x" * 4_000))


async def test_what_is_sent_on_a_connection_that_has_ended_is_lost_at_once() -> None:
    """Nobody waits for the command timeout: it may end between its handshake and the first command."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: Link("peer", 60.0), *server.getsockname())
    await link.aclose(at_once=True)
    end = await asyncio.wait_for(link.submit(pack(("PING",)), 1), 20)
    assert isinstance(end, ConnectionLost)
    assert str(end) == "peer: the connection was closed"


async def test_what_is_sent_in_the_turn_in_which_it_breaks_is_lost_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each large command is a write of its own. Those behind the one that failed are not given to a transport that
    complains of each in the log: an outage is two lines. All end as ConnectionLost, in their order.
    """
    caplog.set_level(logging.DEBUG, "asyncio")
    with socket.create_server(("127.0.0.1", 0)) as server:
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: Link("peer", 5.0), *server.getsockname())
        peer, _ = server.accept()
        # Closed so, it resets.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        answers = [link.submit(LARGE, 1) for _ in range(20)]
        answers.append(link.submit(pack(("PING",)), 1))
        ends = await asyncio.wait_for(asyncio.gather(*answers), 20)
    assert {type(end) for end in ends} == {ConnectionLost}
    assert link.closed
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"])), min_size=1), st.text("q{}:é", max_size=9))
def test_many_publishes_are_packed_as_each_is(texts: list[str], channel: str) -> None:
    """Texts of any characters, ASCII or not."""
    assert pack_publish(channel, texts) == b"".join(pack(("PUBLISH", channel, text)) for text in texts)


@given(st.lists(st.binary(max_size=9), min_size=1), st.lists(st.text("aé", max_size=9)))
def test_arguments_that_are_packed_already_end_a_command_as_all_others_do(first: list[bytes], rest: list[str]) -> None:
    """None of them too: the count at the head of the command is that of all arguments."""
    data = b"".join([b"$%d\r\n%b\r\n" % (len(text.encode()), text.encode()) for text in rest])
    assert pack((*first, Packed(len(rest), data))) == pack((*first, *rest))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("timeout_s", [0.0004, 0.01])
def test_a_silent_peer_is_given_up_on_each_event_loop(
    run: Callable[[Coroutine[None, None, object]], object], timeout_s: float
) -> None:
    """Also where what is left of the time is less than a loop can tell from nothing."""

    async def ask() -> object:
        with socket.create_server(("127.0.0.1", 0)) as server:
            loop = asyncio.get_running_loop()
            _, link = await loop.create_connection(lambda: Link("peer", timeout_s), *server.getsockname())
            try:
                return await link.submit(pack(("PING",)), 1)
            finally:
                await link.aclose(at_once=True)

    assert isinstance(run(in_time(ask())), CommandTimeout)
