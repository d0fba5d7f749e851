"""Outbox: what ended in one queue is told to parents in others.

Source: protocol section 6. Who ends a job whose parent is in another queue leaves an entry in its own queue's outbox,
in the same script. It is delivered on the parent's slot and only then removed: after a crash in between it is delivered
again, and delivered twice it counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from echomq_worker.connector import Wire
from echomq_worker.errors import EchoMQError, ServerError
from echomq_worker.identity import check_id
from echomq_worker.keyspace import Keys
from echomq_worker.rows import checked
from echomq_worker.script import Call, evaluate_many

BATCH = 100

Policy = Literal["fp", "id"]
"""What a child's death means to its parent: `fp` fails the parent with it, `id` ignores it and counts it as done."""

_NUL = b"\0"
_DEATH = b"\0fail\0"
# A key of the parent holds a value of another type: to deliver again would not help.
_HOPELESS = "WRONGTYPE"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry: the child's result, or with `death` (the policy) why it died."""

    parent_queue: str
    parent: str
    child: str
    text: bytes
    death: Policy | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of some entries: `told` reached their parents, `aside` were set aside: nobody can deliver them."""

    told: int = 0
    aside: int = 0


def parse_entry(entry: bytes) -> Delivery | None:
    """What an entry says, or None for one that nobody can deliver.

    `queue NUL parent NUL child NUL result`, or `NUL fail NUL queue NUL parent NUL child NUL policy NUL error`; the last
    may hold any bytes.
    """
    death: Policy | None = None
    try:
        if entry.startswith(_DEATH):
            queue, parent, child, policy, text = entry.removeprefix(_DEATH).split(_NUL, 4)
            if policy not in {b"fp", b"id"}:
                return None
            death = "id" if policy == b"id" else "fp"
        else:
            queue, parent, child, text = entry.split(_NUL, 3)
        Keys(queue.decode())
        return Delivery(queue.decode(), check_id(parent.decode()), check_id(child.decode()), text, death)
    # InvalidId and InvalidQueueName are ValueErrors, too.
    except ValueError:
        return None


async def deliver(wire: Wire, keys: Keys, entries: Sequence[bytes]) -> Delivered:
    """Deliver entries of the outbox of `keys` to their parents in order, then remove exactly those.

    Two Pumps may deliver the same ones. One that was slow may so remove an entry that says the same of a flow that was
    added again: of what it has removed it looks whether the parent has heard. An entry that is malformed, or whose
    parent's keys hold what is not the protocol's, is set aside in `flow:outbox:malformed`. Raises WireError,
    ServerError with what was not delivered still in the outbox.
    """
    parsed = [(entry, parse_entry(entry)) for entry in entries]
    good = [(entry, delivery) for entry, delivery in parsed if delivery is not None]
    bad = [entry for entry, delivery in parsed if delivery is None]
    told: list[tuple[bytes, Delivery]] = []
    failures: list[EchoMQError] = []
    replies = await evaluate_many(wire, [telling(one) for _, one in good])
    for (entry, delivery), reply in zip(good, replies, strict=True):
        if not isinstance(reply, EchoMQError):
            told.append((entry, delivery))
        elif isinstance(reply, ServerError) and reply.code == _HOPELESS:
            bad.append(entry)
        else:
            failures.append(reply)
    if told:
        commands: list[tuple[Any, ...]] = [("LREM", keys.outbox, 1, entry) for entry, _ in told]
        removed = checked(await wire.pipeline(commands))
        await _tell_the_deaf(wire, [one for (_, one), count in zip(told, removed, strict=True) if count])
    if bad:
        checked(await evaluate_many(wire, [("flow_set_aside", (keys.outbox, keys.malformed), tuple(bad))]))
    checked(failures)
    return Delivered(len(told), len(bad))


async def _tell_the_deaf(wire: Wire, removed: Sequence[Delivery]) -> None:
    """What nobody will find in the outbox any more is told again to a parent that has not heard it: one made anew."""
    if not removed:
        return
    heard = checked(await wire.pipeline([("HEXISTS", _hears(one), one.child) for one in removed]))
    deaf = [one for one, there in zip(removed, heard, strict=True) if not there]
    if deaf:
        checked(await evaluate_many(wire, [telling(one) for one in deaf]))


def _hears(one: Delivery) -> str:
    keys = Keys(one.parent_queue)
    if one.death is None:
        return keys.processed_children(one.parent)
    return keys.unsuccessful_children(one.parent) if one.death == "id" else keys.failed_children(one.parent)


def telling(one: Delivery) -> Call:
    """The call that tells a parent; told twice it counts once."""
    keys = Keys(one.parent_queue)
    dependencies, row = keys.dependencies(one.parent), keys.job(one.parent)
    if one.death is None:
        names: tuple[str, ...] = (dependencies, keys.processed_children(one.parent), row)
        return "flow_deliver", names, (one.child, one.text, one.parent, keys.base)
    names = (dependencies, keys.failed_children(one.parent), keys.unsuccessful_children(one.parent), row)
    return "flow_deliver_death", names, (one.child, one.text, one.death, keys.base, one.parent)
