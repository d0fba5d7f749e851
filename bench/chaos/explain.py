"""Why a job ran again: the fault that can have caused it, or none. Values.

Source: issue "The five promises" (duplicate runs and the fault that explains each). What a fault can do is derived
from design.md, section 3: a lease is extended when a third of it is over, half at the latest, and a keeper's call is
given up after a quarter. So a single fault shorter than 0.4 leases loses no lease, and a connection that is lost, or a
reply, explains nothing by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.chaos.evidence import Happened, Run, Terms, Try
from bench.chaos.plan import SERVER

LOSES = 0.4
"""Leases that one fault has to last, to lose one."""

CHAIN = 0.1
"""Leases that several faults, each within the recovery from the one before, have to last together."""

# A keeper's call is given up after a quarter of a lease, and it looks six times per lease.
_RECOVERY = 1 / 4 + 1 / 6
_SLACK_MS = 500
# A verdict is sent in the turn in which the handler ends: a kill much later did not keep it from leaving.
_UNSENT_MS = 2_000
_HARMLESS = frozenset({"clock_step", "script_flush", "client_kill_pubsub"})
# These last, but nothing is cut off meanwhile.
_NO_CUT = frozenset({"delay", "deploy"})
KILLS = frozenset({"kill"})


@dataclass(frozen=True, slots=True)
class Why:
    """Why a run followed another: `ordinary` (the job asked for it), `admitted again`, or the kind of a fault; '' where
    nothing explains it.
    """

    reason: str
    fault: Happened | None = None

    @property
    def duplicate(self) -> bool:
        """Whether nobody asked for it."""
        return self.reason not in {"ordinary", "admitted again"}


def why_again(first: Run, again: Run, *, tries: Sequence[Try], faults: Sequence[Happened], terms: Terms) -> Why:
    """Why `again` followed `first`, the run of the same id that began before it."""
    ended = first.end_ms is not None and first.end_ms <= again.start_ms
    if ended and first.outcome in {"failed", "delayed"}:
        return Why("ordinary")
    if again.attempts <= first.attempts:
        # Another life of the id: the producer enqueued it again, not knowing that it had been admitted.
        if admitted_again(tries, again.start_ms):
            return Why("admitted again")
        return _late_start(again, tries, faults, terms)
    touching = [fault for fault in faults if fault.touches(first.worker, first.pid)]
    for fault in touching:
        if fault.kind in KILLS and first.start_ms <= fault.begin_ms <= again.start_ms and _unsent(first, fault):
            return Why(fault.kind, fault)
        # Given back; or a plain function that was left to its lease when its process ended.
        if fault.kind == "deploy" and _within(fault, first, again) and first.outcome in {"cancelled", ""}:
            return Why(fault.kind, fault)
    lost = lost_lease(touching, first.start_ms, again.start_ms, terms)
    return Why("", None) if lost is None else Why(lost.kind, lost)


def _late_start(late: Run, tries: Sequence[Try], faults: Sequence[Happened], terms: Terms) -> Why:
    """A claim that lost its lease before its run began: its holder was held up between the two."""
    touching = [fault for fault in faults if fault.touches(late.worker, late.pid)]
    lost = lost_lease(touching, min((one.sent_ms for one in tries), default=late.start_ms), late.start_ms, terms)
    return Why("") if lost is None else Why(lost.kind, lost)


def admitted_again(tries: Sequence[Try], before_ms: float) -> bool:
    """Whether the id may have been admitted more than once by then: one attempt without an answer, and another."""
    sent = [one for one in tries if one.sent_ms <= before_ms]
    return len(sent) > 1 and any(one.answer == "unsure" for one in sent)


def lost_lease(faults: Sequence[Happened], from_ms: float, until_ms: float, terms: Terms) -> Happened | None:
    """The fault, the longest of its chain, that can have lost a lease between the two moments; None without one.

    `faults` are those that touch the holder.
    """
    reach_ms = _RECOVERY * terms.lease_ms + _SLACK_MS
    harmful = sorted((one for one in faults if one.kind not in _HARMLESS), key=lambda one: one.begin_ms)
    chain: list[Happened] = []
    end_ms = 0.0
    for fault in (*harmful, None):
        if fault is not None and chain and fault.begin_ms <= end_ms + reach_ms:
            chain.append(fault)
            end_ms = max(end_ms, fault.end_ms)
            continue
        if chain and chain[0].begin_ms <= until_ms and end_ms + reach_ms >= from_ms and _loses(chain, end_ms, terms):
            return max(chain, key=lambda one: one.end_ms - one.begin_ms)
        if fault is not None:
            chain, end_ms = [fault], fault.end_ms
    return None


def slow(faults: Sequence[Happened], from_ms: float, until_ms: float, others: Sequence[str]) -> Happened | None:
    """A fault that can have held a job up between the two moments: of the server, or of a worker of `others`."""
    for fault in faults:
        near = fault.begin_ms <= until_ms and fault.end_ms >= from_ms
        if near and fault.kind not in _HARMLESS and (fault.target == SERVER or fault.target in others):
            return fault
    return None


def _loses(chain: Sequence[Happened], end_ms: float, terms: Terms) -> bool:
    longest = max((one.end_ms - one.begin_ms for one in chain if one.kind not in _NO_CUT), default=0.0)
    if longest >= LOSES * terms.lease_ms:
        return True
    return len(chain) > 1 and end_ms - chain[0].begin_ms >= CHAIN * terms.lease_ms


def _unsent(run: Run, kill: Happened) -> bool:
    return run.end_ms is None or kill.begin_ms - run.end_ms <= _UNSENT_MS


def _within(fault: Happened, first: Run, again: Run) -> bool:
    return fault.begin_ms <= again.start_ms and fault.end_ms >= first.start_ms
