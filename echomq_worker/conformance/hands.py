"""Hands: our own verbs as the worker sends them, one consumer's claims and what it does with what it holds.

Source: protocol section 4 (claim, receipts, settle, release, disown, keep), the headers of the scripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from echomq_worker.conformance.bench import LEASE_MS, Desk
from echomq_worker.script import evaluate

_STRIDE = 6

Verdict = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """One job of a claim; `held` fences it from here on."""

    id: str
    payload: str | None
    token: int
    group: str
    failures: int
    crashes: int
    held: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim's reply: its number, why it ended, the jobs in order, and the ids that were buried with the reason."""

    number: int
    why: str
    jobs: list[Taken]
    buried: Mapping[str, str] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        """The ids of the jobs."""
        return [job.id for job in self.jobs]


class Hands:
    """One consumer of ours on one queue."""

    __slots__ = ("_claims", "_desk", "_read", "name")

    def __init__(self, desk: Desk, name: str = "hands") -> None:
        self._desk = desk
        self._claims = 0
        self._read = 0
        self.name = name
        desk.owns(f"claimed:{name}")

    async def claim(
        self,
        n: int = 10,
        *,
        lease_ms: int = LEASE_MS,
        reply_lost: bool = False,
        suspects: int = 1,
        max_crashes: int = 5,
    ) -> Claim:
        """Fill `n` free slots. With `reply_lost` the next claim does not know that this one was answered."""
        keys = self._desk.keys
        self._claims += 1
        names = (keys.pending, keys.active, keys.ring, keys.meta, keys.receipt(self.name))
        random = f"{self.name}.{self._claims}"
        values = (keys.base, lease_ms, n, self._read, random, max_crashes, suspects)
        reply = await evaluate(self._desk.wire, "claim_many", names, values)
        number, why, whose, flat, buried = reply[:5]
        if not reply_lost:
            self._read = number
        jobs = [_taken(flat[at : at + _STRIDE], whose.decode()) for at in range(0, len(flat), _STRIDE)]
        told = {buried[at].decode(): buried[at + 1].decode() for at in range(0, len(buried), 2)}
        return Claim(number, why.decode(), jobs, told)

    async def settle(self, *verdicts: Verdict) -> list[str]:
        """Verdicts in one call, an answer each."""
        keys = self._desk.keys
        names = (keys.active, keys.pending, keys.schedule, keys.dead)
        values = (keys.base, *(word for verdict in verdicts for word in verdict))
        return _texts(await evaluate(self._desk.wire, "settle", names, values))

    async def release(self, *jobs: Taken) -> list[str]:
        """Give jobs back that were never started."""
        keys = self._desk.keys
        values = (keys.base, *(word for job in jobs for word in (job.id, job.held)))
        return _texts(await evaluate(self._desk.wire, "release", (keys.active, keys.pending), values))

    async def disown(self, *jobs: Taken) -> list[str]:
        """Leave jobs whose plain function still runs."""
        keys = self._desk.keys
        values = (keys.base, *(word for job in jobs for word in (job.id, job.held)))
        return _texts(await evaluate(self._desk.wire, "disown", (keys.active,), values))

    async def keep(self, *jobs: Taken, lease_ms: int = LEASE_MS) -> dict[str, str]:
        """Extend the leases of jobs; what is to be said of some of them, by id."""
        keys = self._desk.keys
        values = (keys.base, lease_ms, *(word for job in jobs for word in (job.id, job.held)))
        told = _texts(await evaluate(self._desk.wire, "keep", (keys.active,), values))
        return dict(zip(told[::2], told[1::2], strict=True))


def done(job: Taken, result: str | None = None) -> Verdict:
    """The job is done; a result goes to a flow's parent."""
    return ("c", job.id, job.held, job.group) if result is None else ("v", job.id, job.held, job.group, result)


def failed(job: Taken, error: str = "boom", *, delay_ms: int = 1_000, max_attempts: int = 3) -> Verdict:
    """The run failed."""
    return "r", job.id, job.held, job.group, delay_ms, max_attempts, error


def delayed(job: Taken, delay_ms: int = 1_000) -> Verdict:
    """Back to the schedule, not a failure."""
    return "d", job.id, job.held, job.group, "in", delay_ms


def _taken(values: list[Any], random: str) -> Taken:
    id, payload, attempts, group, failures, crashes = values
    text = None if payload is None else payload.decode("utf-8", "backslashreplace")
    return Taken(
        id.decode(), text, int(attempts), group.decode(), int(failures), int(crashes), f"{int(attempts)}:{random}"
    )


def _texts(reply: list[bytes]) -> list[str]:
    return [one.decode() for one in reply]
