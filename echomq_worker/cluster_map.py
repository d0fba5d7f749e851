"""Which node of a cluster owns which slot, as a value, and what a node says that sends us to another.

Source: the replies of CLUSTER SLOTS and the errors MOVED and ASK of the cluster's specification.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from echomq_worker.address import Host
from echomq_worker.errors import EchoMQError, Unavailable
from echomq_worker.keyspace import SLOTS

# The host that a node gives when it does not know its own address, and for one whose address it does not know.
_NO_HOST = frozenset({"", "?"})


class Redirect(NamedTuple):
    """`MOVED slot host:port`: the slot is there now. `ASK slot host:port`: that key may be there already."""

    kind: Literal["MOVED", "ASK"]
    slot: int
    address: Host


@dataclass(frozen=True, slots=True)
class SlotMap:
    """Ranges of slots and their owners, in order: `owners[i]` has the slots from `starts[i]` on; None has nobody."""

    starts: tuple[int, ...]
    owners: tuple[Host | None, ...]

    @classmethod
    def read(cls, reply: Sequence[Any], asked: Host) -> SlotMap:
        """What CLUSTER SLOTS has answered; a node without an address of its own is the one that was `asked`.

        Raises ValueError, TypeError, IndexError, AttributeError for what is no such reply.
        """
        ranges = sorted((int(low), int(high), _address(primary, asked)) for low, high, primary, *_ in reply)
        table: list[tuple[int, Host | None]] = []
        at = 0
        for low, high, owner in ranges:
            if low > at:
                table.append((at, None))
            table.append((low, owner))
            at = high + 1
        if at < SLOTS:
            table.append((at, None))
        return cls(tuple(start for start, _ in table), tuple(owner for _, owner in table))

    def owner(self, slot: int) -> Host | None:
        """Who owns a slot of 0 to 16383."""
        return self.owners[bisect_right(self.starts, slot) - 1]

    def moved(self, slot: int, to: Host) -> SlotMap:
        """The same with one slot elsewhere."""
        here = bisect_right(self.starts, slot) - 1
        start, owner = self.starts[here], self.owners[here]
        end = self.starts[here + 1] if here + 1 < len(self.starts) else SLOTS
        parts = [(start, owner)] if start < slot else []
        parts.append((slot, to))
        if slot + 1 < end:
            parts.append((slot + 1, owner))
        starts = (*self.starts[:here], *(at for at, _ in parts), *self.starts[here + 1 :])
        owners = (*self.owners[:here], *(who for _, who in parts), *self.owners[here + 1 :])
        return SlotMap(starts, owners)

    @property
    def primaries(self) -> tuple[Host, ...]:
        """Every node that owns a slot, in order of address."""
        return tuple(sorted({owner for owner in self.owners if owner is not None}))


def _address(node: Sequence[Any], asked: Host) -> Host:
    host = "" if node[0] is None else node[0].decode()
    return Host(asked.name if host in _NO_HOST else host, int(node[1]))


def redirect(error: EchoMQError, asked: Host) -> Redirect | None:
    """Where an error reply sends us; None where it does not. `asked` is who has answered it."""
    if not isinstance(error, Unavailable) or error.code not in {"MOVED", "ASK"}:
        return None
    words = str(error).split()
    if len(words) < 3 or not words[1].isdecimal() or int(words[1]) >= SLOTS:
        return None
    host, _, port = words[2].rpartition(":")
    if not port.isdecimal():
        return None
    address = Host(asked.name if host in _NO_HOST else host, int(port))
    return Redirect("MOVED" if error.code == "MOVED" else "ASK", int(words[1]), address)
