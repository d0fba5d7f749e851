"""Repeat: a recurrence is a registration, not a loop; each occurrence is a job of its own.

Source: the seed "Scheduling & recurrence" (register, cancel, due, advance, count; every score is priced on the host's
clock); `fixed_rate`, `update`, calendars (decision 0033) and `fire`, which claims, enqueues and advances in one script,
are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self, overload

from echomq_worker.admission import MOST_MS
from echomq_worker.clock import Clock, SystemClock
from echomq_worker.codec import count_of, encode
from echomq_worker.connector import Wire
from echomq_worker.cron import Cron
from echomq_worker.errors import InvalidArgument
from echomq_worker.guards import integer
from echomq_worker.identity import Mint, default_mint
from echomq_worker.keyspace import Keys, check_name
from echomq_worker.rows import checked
from echomq_worker.script import Call, evaluate

Outcome = Literal["fired", "not_due", "absent", "duplicate"]

_REGISTRATION = ("exists", "registered", "updated")
_FIELDS = ("every_ms", "template", "fixed_rate", "cron", "tz")


@dataclass(frozen=True, slots=True)
class RepeatRecord:
    """One registration: its period, the payload of each occurrence, its next run in ms on the hosts' clock.

    `fixed_rate`: runs keep the grid (due + period, whole missed periods skipped), else the next run is a period after
    the last one fired. One that runs by a calendar has `cron` and `tz`, and a period of 0.
    """

    name: str
    every_ms: int
    template: bytes
    next_at_ms: int
    fixed_rate: bool = False
    cron: str | None = None
    tz: str | None = None


class Registration(str):
    """The outcome of `register`, itself the text `registered`, `exists` or `updated`.

    `standing` is the record that was left alone where the name exists, `difference` the names of its fields that are
    not what was asked for: empty where nothing is to be said.
    """

    __slots__ = ("difference", "standing")

    standing: RepeatRecord | None
    difference: tuple[str, ...]

    @classmethod
    def of(cls, outcome: str, standing: RepeatRecord | None = None, difference: Sequence[str] = ()) -> Self:
        """An outcome with what stands in its way."""
        self = cls(outcome)
        self.standing = standing
        self.difference = tuple(difference)
        return self


class Fired(NamedTuple):
    """What became of one name: the outcome, and the id of the occurrence when it is `fired`."""

    name: str
    outcome: Outcome
    id: str | None


class Firing(NamedTuple):
    """What became of each name in order, and the earliest next run of the registry in ms (None: it is empty)."""

    fired: list[Fired]
    next_at_ms: int | None


class Repeat:
    """The registry over any wire. `clock` is the host's: it prices register, due and advance, as in the seeds."""

    __slots__ = ("_clock", "_mint", "_wire")

    def __init__(self, wire: Wire, *, clock: Clock | None = None, mint: Mint | None = None) -> None:
        self._wire = wire
        self._clock = clock or SystemClock()
        self._mint = mint or default_mint()

    @overload
    async def register(
        self,
        queue: str,
        name: str,
        every_ms: int,
        template: object,
        *,
        first_in_ms: int = 0,
        fixed_rate: bool = False,
        update: bool = False,
    ) -> Registration: ...

    @overload
    async def register(
        self, queue: str, name: str, *, cron: str, tz: str = "UTC", template: object, update: bool = False
    ) -> Registration: ...

    async def register(
        self,
        queue: str,
        name: str,
        every_ms: int | None = None,
        template: object = None,
        *,
        first_in_ms: int = 0,
        fixed_rate: bool = False,
        cron: str | None = None,
        tz: str = "UTC",
        update: bool = False,
    ) -> Registration:
        """Register a name; the first run is `first_in_ms` (0 or more) from now, then every `every_ms` (1 or more).

        With `cron` instead (five fields, read in the time zone `tz`) the runs are those of a calendar: the first is its
        next one, and runs that nobody was there to fire are one run, late. It needs the extra `cron`; ConfigError
        without it. A time of day in an hour that summer time skips runs right behind it, in one that comes twice the
        first time; an expression whose minute or hour begins with `*` goes by real time.

        A name that is registered already answers `exists` and is left alone; what differs is on the answer. With
        `update` what differs is replaced (`updated`); its next run moves only when the period or the calendar does.
        """
        keys, payload = Keys(queue), encode(template)
        check_name("repeat name", name)
        flags = ["update"] if update else []
        if cron is None:
            if every_ms is None:
                raise InvalidArgument(f"repeat {name!r}: neither every_ms nor cron is given, expected one of them")
            first_at = self._clock.now_ms() + integer("first_in_ms", first_in_ms, at_least=0)
            values = [name, str(integer("every_ms", every_ms, at_least=1)), payload, str(first_at)]
            flags += ["fixed"] if fixed_rate else []
            asked = {"every_ms": every_ms, "template": payload, "fixed_rate": fixed_rate, "cron": None}
            call: Call = ("repeat_register", (keys.repeat, keys.repeat_record(name)), [*values, *flags])
        else:
            if every_ms is not None or first_in_ms or fixed_rate:
                raise InvalidArgument(f"repeat {name!r}: cron is given, expected no every_ms, first_in_ms, fixed_rate")
            calendar = Cron.of(cron, tz)
            values = [name, calendar.expression, tz, payload, str(calendar.after(self._clock.now_ms()))]
            asked = {"every_ms": 0, "template": payload, "cron": calendar.expression, "tz": tz}
            call = ("cron_register", (keys.cron, keys.repeat_record(name), keys.repeat), [*values, *flags])
        return await self._registered(keys, name, call, asked)

    async def _registered(self, keys: Keys, name: str, call: Call, asked: Mapping[str, object]) -> Registration:
        outcome = _REGISTRATION[await evaluate(self._wire, *call)]
        standing = await self._records(keys, [name]) if outcome == "exists" else []
        if not standing:
            return Registration.of(outcome)
        difference = [field for field, value in asked.items() if getattr(standing[0], field) != value]
        return Registration.of(outcome, standing[0], difference)

    async def cancel(self, queue: str, name: str) -> bool:
        """Remove a registration; False when there was none. Occurrences that were enqueued stay."""
        keys = Keys(queue)
        return bool(await evaluate(self._wire, "repeat_cancel", (keys.repeat, keys.repeat_record(name)), (name,)))

    async def due(self, queue: str, now_ms: int | None = None) -> list[RepeatRecord]:
        """The registrations whose next run is at or before `now_ms` (default: the host's clock), earliest first.

        Those of a period: what runs by a calendar is the Pump's.
        """
        keys = Keys(queue)
        until = self._clock.now_ms() if now_ms is None else integer("now_ms", now_ms)
        return await self._listed(keys, await self._wire.call("ZRANGE", keys.repeat, "-inf", until, "BYSCORE"))

    async def advance(self, queue: str, name: str, every_ms: int) -> bool:
        """Set a name's next run to the host's now plus `every_ms`; False for a cancelled one, which is dropped."""
        keys = Keys(queue)
        next_at = self._clock.now_ms() + integer("every_ms", every_ms, at_least=1)
        names = (keys.repeat, keys.repeat_record(name))
        return bool(await evaluate(self._wire, "repeat_advance", names, (name, str(next_at))))

    async def count(self, queue: str) -> int:
        """How many names are registered."""
        keys = Keys(queue)
        return sum(checked(await self._wire.pipeline([("ZCARD", key) for key in (keys.repeat, keys.cron)])))

    async def fire(self, queue: str, names: Iterable[str], now_ms: int | None = None) -> Firing:
        """Fire the names that are due at `now_ms` (default: the host's clock): once per period for a whole fleet. Names
        of a period only, as `due` answers them.

        Each occurrence is claimed, enqueued and advanced in one script, so no crash falls in between. A cancelled name
        is `absent` and dropped.
        """
        keys = Keys(queue)
        pairs = [(name, self._mint.next()) for name in names]
        now = self._clock.now_ms() if now_ms is None else integer("now_ms", now_ms)
        values = [keys.base, str(now), *(value for pair in pairs for value in pair)]
        *answers, next_at = await evaluate(self._wire, "repeat_fire", (keys.repeat, keys.pending), values)
        fired = [
            Fired(name, answer, id if answer == "fired" else None)
            for (name, id), answer in zip(pairs, (answer.decode() for answer in answers), strict=True)
        ]
        return Firing(fired, _moment(next_at) if next_at else None)

    async def _listed(self, keys: Keys, members: Sequence[bytes]) -> list[RepeatRecord]:
        return await self._records(keys, [member.decode("utf-8", "replace") for member in members])

    async def _records(self, keys: Keys, names: Sequence[str]) -> list[RepeatRecord]:
        """The records of names, those without one left out."""
        if not names:
            return []
        *rows, periods, calendars = checked(
            await self._wire.pipeline(
                [
                    *(("HMGET", keys.repeat_record(name), *_FIELDS) for name in names),
                    *(("ZMSCORE", key, *names) for key in (keys.repeat, keys.cron)),
                ]
            )
        )
        # A record that says a period runs by that, whatever else it says.
        rows = [(*row[:3], None, None) if row[0] is not None else row for row in rows]
        both = zip(rows, periods, calendars, strict=True)
        scores = [period if row[3] is None else calendar for row, period, calendar in both]
        return [
            RepeatRecord(
                name,
                count_of(every_ms),
                template or b"",
                _moment(score),
                fixed_rate is not None,
                None if cron is None else cron.decode("utf-8", "replace"),
                None if cron is None else (tz or b"UTC").decode("utf-8", "replace"),
            )
            for name, (every_ms, template, fixed_rate, cron, tz), score in zip(names, rows, scores, strict=True)
            if every_ms is not None or cron is not None
        ]

    async def list(self, queue: str) -> list[RepeatRecord]:
        """All registrations, of periods and of calendars, the earliest next run first."""
        keys = Keys(queue)
        names = checked(await self._wire.pipeline([("ZRANGE", key, 0, -1) for key in (keys.repeat, keys.cron)]))
        records = await self._listed(keys, [member for members in names for member in members])
        return sorted(records, key=lambda record: record.next_at_ms)


def _moment(score: bytes | None) -> int:
    """A next run in ms; where others have written infinity, as far away as a double counts exactly."""
    at = float(score or 0)
    return int(at) if math.isfinite(at) else int(math.copysign(MOST_MS, at))
