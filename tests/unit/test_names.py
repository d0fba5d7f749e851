"""Names that users give are checked before anything is sent, whatever the verb.

Source: issue "The five promises", Security ("queue names, groups, names of repeats and dedup keys are validated before
the wire"); user-needs 84.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker import (
    Admin,
    Audit,
    Cancel,
    Events,
    Flows,
    Jobs,
    Lanes,
    Metrics,
    New,
    Node,
    Repeat,
    Stalled,
    codec,
    guards,
)
from echomq_worker.codec import encode
from echomq_worker.errors import InvalidArgument, InvalidId, InvalidQueueName
from echomq_worker.guards import progress_text, utf8
from echomq_worker.keyspace import NAME_BYTES, Keys, check_name, slot
from tests.support.plain import job

ID = job(1)
QUEUE = "q"
Verb = Callable[[Any, Any], Awaitable[object]]

HOSTILE = st.one_of(
    st.text(st.characters(categories=["Cc", "Zl", "Zp", "Cs"]), min_size=1, max_size=5),
    st.text(max_size=5).map(lambda text: text + "\r\n"),
    st.text(min_size=1, max_size=3).map(lambda text: text * (NAME_BYTES + 1)),
    st.sampled_from(["", "\x00", "a\nb", "\x1b[2J", "a\u2028b", "\u202eb", "x" * (NAME_BYTES + 1), "é" * NAME_BYTES]),
)
NO_TEXT = st.sampled_from([None, 7, b"bytes", ["x"], 1.5, object()])
BRACED = st.sampled_from(["{", "}", "{q}", "a{b", "emq:{x}:", "}{"])

# Each verb of the public classes that names a queue.
OF_A_QUEUE: dict[str, Verb] = {
    "enqueue": lambda wire, name: Jobs(wire).enqueue(name, b""),
    "enqueue_at": lambda wire, name: Jobs(wire).enqueue_at(name, b"", 1),
    "enqueue_in": lambda wire, name: Jobs(wire).enqueue_in(name, b"", 1),
    "enqueue_many": lambda wire, name: Jobs(wire).enqueue_many(name, [b""]),
    "claim": lambda wire, name: Jobs(wire).claim(name, 1),
    "counts": lambda wire, name: Jobs(wire).counts(name),
    "get": lambda wire, name: Jobs(wire).get(name, ID),
    "remove_job": lambda wire, name: Jobs(wire).remove_job(name, ID),
    "lanes.enqueue": lambda wire, name: Lanes(wire).enqueue(name, ID, b""),
    "lanes.pause": lambda wire, name: Lanes(wire).pause(name, ID),
    "flow": lambda wire, name: Flows(wire).add(Node(QUEUE, b"", [Node(name, b"")])),
    "register": lambda wire, name: Repeat(wire).register(name, "n", 1, b""),
    "cancel": lambda wire, name: Cancel(wire).request(name, ID, "why"),
    "stalled": lambda wire, name: Stalled(wire).check(name),
    "pause": lambda wire, name: Admin(wire).pause(name),
    "drain": lambda wire, name: Admin(wire).drain(name),
    "obliterate": lambda wire, name: Admin(wire).obliterate(name),
    "stats": lambda wire, name: Metrics(wire).stats(name),
    "audit": lambda wire, name: Audit(wire).audit(name),
}
# Each that gives a lane.
OF_A_GROUP: dict[str, Verb] = {
    "enqueue": lambda wire, name: Lanes(wire).enqueue(QUEUE, name, b""),
    "claim": lambda wire, name: Jobs(wire).enqueue_many(QUEUE, [New(b"", group=name)]),
    "pause": lambda wire, name: Lanes(wire).pause(QUEUE, name),
    "resume": lambda wire, name: Lanes(wire).resume(QUEUE, name),
    "limit": lambda wire, name: Lanes(wire).limit(QUEUE, name, 1),
    "weight": lambda wire, name: Lanes(wire).weight(QUEUE, name, 1),
    "reassign": lambda wire, name: Lanes(wire).reassign(QUEUE, ID, name),
    "drain": lambda wire, name: Lanes(wire).drain(QUEUE, name),
    "reap": lambda wire, name: Lanes(wire).reap_group(QUEUE, name),
    "flow": lambda wire, name: Flows(wire).add(Node(QUEUE, b"", [Node(QUEUE, b"", group=name)])),
}
# Each that writes a name of the user's own.
OF_A_NAME: dict[str, Verb] = {
    "register": lambda wire, name: Repeat(wire).register(QUEUE, name, 1, b""),
    "dedup": lambda wire, name: Jobs(wire).enqueue_many(QUEUE, [New(b"", dedup=name)]),
}


class Silent:
    """A wire on which nothing may be sent."""

    def __getattr__(self, verb: str) -> Any:
        async def sent(*arguments: object, **_: object) -> Sequence[Any]:
            raise AssertionError(f"{verb} was called")

        return sent


def _refused(verb: Verb, name: object) -> Exception:
    async def call() -> None:
        await verb(Silent(), name)

    with pytest.raises((InvalidQueueName, InvalidId, InvalidArgument)) as refused:
        asyncio.run(call())
    return refused.value


def _is_one_short_line(error: Exception) -> bool:
    return str(error).isprintable() and str(error).isascii() and len(str(error)) < 200


@pytest.mark.parametrize("verb", OF_A_QUEUE)
@given(name=st.one_of(HOSTILE, BRACED, NO_TEXT))
def test_no_verb_takes_another_queue_name(verb: str, name: object) -> None:
    """Nothing is sent, and the refusal is one short line of plain ASCII."""
    assert _is_one_short_line(_refused(OF_A_QUEUE[verb], name))


@pytest.mark.parametrize("verb", OF_A_GROUP)
@given(name=st.one_of(HOSTILE, BRACED, st.sampled_from([7, b"GRP00000000001", ["x"]])))
def test_no_verb_takes_another_group(verb: str, name: object) -> None:
    """Likewise: a group is a branded id."""
    assert _is_one_short_line(_refused(OF_A_GROUP[verb], name))


@pytest.mark.parametrize("verb", OF_A_NAME)
@given(name=st.one_of(HOSTILE, st.sampled_from([7, b"bytes", ["x"]])))
def test_no_verb_writes_a_name_with_controls_or_of_any_length(verb: str, name: object) -> None:
    """Likewise: names of repeats and dedup keys are 1 to 512 bytes without controls."""
    assert _is_one_short_line(_refused(OF_A_NAME[verb], name))


@given(st.one_of(BRACED, st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=40)))
def test_a_name_with_braces_stays_in_its_queue(name: str) -> None:
    """A brace in a name moves its key to no other slot: the queue's are the first."""
    assert check_name("name", name) == name
    keys = Keys(QUEUE)
    assert slot(keys.dedup(name)) == slot(keys.repeat_record(name)) == slot(keys.pending)


async def test_events_are_heard_of_queues_only() -> None:
    """A channel is made of a queue's name, which is checked before anything is subscribed to."""
    silent: Any = Silent()
    with pytest.raises(InvalidQueueName):
        Events(silent).subscribe("q\r\n")


def test_a_payload_is_refused_above_a_stated_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit it is taken; one byte more is a line that says both numbers, as bytes, as text and as JSON.

    Report 84 (taskforcesh/bullmq#2397).
    """
    assert codec.PAYLOAD_BYTES == 64 * 1024 * 1024
    monkeypatch.setattr(codec, "PAYLOAD_BYTES", 10)
    assert encode(b"x" * 10) == b"x" * 10
    for value in (b"x" * 11, "é" * 6, list(range(10))):
        with pytest.raises(InvalidArgument, match=r"payload of \d\d bytes: expected at most 10$"):
            encode(value)


def test_log_lines_and_progress_are_refused_above_a_mebibyte() -> None:
    """A handler that writes without end fills no row."""
    long = "x" * guards.TEXT_BYTES
    assert len(utf8("log line", long)) == len(progress_text(long)) == guards.TEXT_BYTES
    writes: list[Callable[[], bytes]] = [
        lambda: utf8("log line", long + "x"),
        lambda: progress_text(long + "x"),
        lambda: progress_text([long]),
    ]
    for write in writes:
        with pytest.raises(InvalidArgument, match=r" of 10485\d\d bytes: expected at most 1048576"):
            write()
