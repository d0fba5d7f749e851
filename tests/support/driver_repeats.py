"""The driver's steps for repeats: two registries, and two Pumps that fire what is due, each on a clock of its own.

Source: protocol section 1 (`repeat`, `cron`), decisions 0016 and 0033; the seed "Recurrence". Registering and firing
are the package's own code, a round trip a step, so that the other Pump, a cancellation or an update may come between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from echomq_worker.calendars import Calendars
from echomq_worker.clock import Clock
from echomq_worker.identity import Mint
from echomq_worker.repeat import Repeat
from tests.support.driver_model import require
from tests.support.driver_plain import PlainVerbs
from tests.support.driver_trips import Calls, Command, Trips
from tests.support.driver_world import Turn

NAMES = ("hourly", "nightly", "often")
_BEGAN_MS = 1_000_000
# ARGV: queue base, then the names.
REPEAT_LOOK = """
local p, records = ARGV[1], {}
for i = 2, #ARGV do
  records[i - 1] = redis.call('HMGET', p .. 'repeat:' .. ARGV[i], 'every_ms', 'template', 'fixed_rate', 'cron')
  records[i - 1][5] = redis.call('ZSCORE', p .. (records[i - 1][4] and 'cron' or 'repeat'), ARGV[i])
end
return {redis.call('ZCARD', p .. 'repeat') + redis.call('ZCARD', p .. 'cron'), records}
"""


@dataclass(slots=True)
class Record:
    """A registration as it must stand: by a period, or (0) by the calendar `cron`."""

    every: int
    template: str
    fixed: bool
    next_ms: int
    cron: str = ""

    def occurs(self, now: int) -> None:
        """It has run; the next time is a period from now, or the grid's next one that is ahead."""
        if self.fixed:
            self.next_ms += self.every * ((now - self.next_ms) // self.every + 1)
        else:
            self.next_ms = now + self.every


@dataclass(slots=True)
class Ringer:
    """One Pump's side of repeats: what comes next, and how far its clock is ahead."""

    ahead_ms: int
    coroutine: Trips | None = None
    commands: list[Command] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _At:
    ms: int

    def now_ms(self) -> int:
        return self.ms


class _Ids:
    """A mint of the ids that a step names, over and over."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = list(ids)

    def next(self) -> str:
        self._ids.append(self._ids.pop(0))
        return self._ids[-1]


class RepeatWorld(PlainVerbs):
    """A queue with a registry of repeats."""

    def __init__(self, queue: str, scripts: Any, realm: Any) -> None:
        super().__init__(queue, scripts, realm)
        self.now_ms = _BEGAN_MS
        self.records: dict[str, Record] = {}
        self.ringers = (Ringer(0), Ringer(7))
        self.handlers |= {
            "register": self.register,
            "calendar": self.calendar,
            "unregister": self.unregister,
            "advance": self.advance,
            "tick": self.tick,
            "ring": self.ring,
            "rcrash": self.ring_crash,
        }
        self.effects |= {
            "repeat_register": self._registered,
            "cron_register": self._calendar_registered,
            "cron_fire": self._struck,
            "repeat_cancel": self._unregistered,
            "repeat_advance": self._advanced,
            "repeat_fire": self._fired,
        }

    def _repeat(self, ahead_ms: int = 0, ids: Sequence[str] = ()) -> Repeat:
        clock, mint = _At(self.now_ms + ahead_ms), _Ids(ids)
        return Repeat(Calls(), clock=cast("Clock", clock), mint=cast("Mint", mint))

    # -- who registers

    def register(self, name: str, every: int, first: int, fixed: int, update: int) -> Turn:
        """A name is registered, or registered again."""
        registry, flags = self._repeat(), {"fixed_rate": bool(fixed), "update": bool(update)}
        yield from self.through(registry.register(self.keys.queue, name, every, name, first_in_ms=first, **flags))

    def calendar(self, name: str, minutes: int, update: int) -> Turn:
        """A name is registered, or registered again, to run every so many minutes of the hour."""
        line = f"*/{minutes} * * * *"
        yield from self.through(
            self._repeat().register(self.keys.queue, name, cron=line, template=name, update=bool(update))
        )

    def unregister(self, name: str) -> Turn:
        """A registration is taken back."""
        yield from self.through(self._repeat().cancel(self.keys.queue, name))

    def advance(self, name: str, every: int) -> Turn:
        """A name's next run is set from now."""
        yield from self.through(self._repeat().advance(self.keys.queue, name, every))

    def tick(self, ms: int) -> Turn:
        """The hosts' time goes by."""
        self.now_ms += ms
        yield from ()

    # -- Pumps

    def ring(self, p: int, numbers: Sequence[int]) -> Turn:
        """A Pump's next round trip: it reads what is due, or fires that, under ids of these numbers."""
        ringer = self.ringers[p]
        if ringer.coroutine is None:
            ids = [self.model.kin(n).id for n in numbers]
            ringer.coroutine = self._fire_due(ringer.ahead_ms, ids)
            self._goes_on(ringer, None)
        else:
            self._goes_on(ringer, (yield from self.trip(ringer.commands)))

    async def _fire_due(self, ahead_ms: int, ids: Sequence[str]) -> None:
        repeat, now = self._repeat(ahead_ms, ids), self.now_ms + ahead_ms
        due = await repeat.due(self.keys.queue)
        if due:
            await repeat.fire(self.keys.queue, [record.name for record in due])
        calls = Calls()
        head = await calls.call("ZRANGE", self.keys.cron, 0, 0, "WITHSCORES")
        await Calendars(calls, self.keys, mint=cast("Mint", _Ids(ids))).beat(head, now)

    @staticmethod
    def _goes_on(ringer: Ringer, replies: list[Any] | None) -> None:
        assert ringer.coroutine is not None
        try:
            ringer.commands = ringer.coroutine.send(replies)
        except StopIteration:
            ringer.coroutine = None

    def ring_crash(self, p: int) -> Turn:
        """A Pump dies between what it has read and what it would fire."""
        ringer = self.ringers[p]
        if ringer.coroutine is not None:
            ringer.coroutine.close()
            ringer.coroutine = None
        yield from ()

    # -- what the scripts do

    def _registered(self, keys: list[str], values: list[str]) -> int:
        name, every, template, first, *flags = values
        fixed, stands = "fixed" in flags, self.records.get(name)
        if stands is None:
            self.records[name] = Record(int(every), template, fixed, int(first))
            return 1
        same = (stands.every, stands.template, stands.fixed, stands.cron) == (int(every), template, fixed, "")
        if same or "update" not in flags:
            return 0
        if stands.every != int(every):
            stands.next_ms = int(first)
        stands.every, stands.template, stands.fixed, stands.cron = int(every), template, fixed, ""
        return 2

    def _calendar_registered(self, keys: list[str], values: list[str]) -> int:
        name, cron, _, template, first, *flags = values
        stands = self.records.get(name)
        if stands is None:
            self.records[name] = Record(0, template, fixed=False, next_ms=int(first), cron=cron)
            return 1
        if (stands.cron, stands.template) == (cron, template) or "update" not in flags:
            return 0
        if stands.cron != cron:
            stands.next_ms = int(first)
        stands.every, stands.template, stands.fixed, stands.cron = 0, template, False, cron
        return 2

    def _unregistered(self, keys: list[str], values: list[str]) -> int:
        return int(self.records.pop(values[0], None) is not None)

    def _advanced(self, keys: list[str], values: list[str]) -> int:
        record = self._of_a_period(values[0])
        if record is not None:
            record.next_ms = int(values[1])
        return int(record is not None)

    def _of_a_period(self, name: str) -> Record | None:
        """A calendar is none to who knows periods only."""
        record = self.records.get(name)
        return None if record is None or record.cron else record

    def _fired(self, keys: list[str], values: list[str]) -> list[bytes]:
        now, answers = int(values[1]), list[bytes]()
        for name, id in zip(values[2::2], values[3::2], strict=True):
            record = self._of_a_period(name)
            if record is None:
                answers.append(b"absent")
            elif record.next_ms > now:
                answers.append(b"not_due")
            elif self.model.of(id).row:
                answers.append(b"duplicate")
            else:
                record.occurs(now)
                self.model.admit(self.model.of(id), record.template.encode(), "pending", None)
                answers.append(b"fired")
        return [*answers, self._lowest(calendars=False)]

    def _struck(self, keys: list[str], values: list[str]) -> list[bytes]:
        now, answers = int(values[1]), list[bytes]()
        for at in range(2, len(values), 6):
            name, id, due, after, cron, _ = values[at : at + 6]
            record = self.records.get(name)
            if record is None or not record.cron:
                answers.append(b"absent")
            elif record.next_ms != int(float(due)) or record.next_ms > now:
                answers.append(b"not_due")
            elif record.cron != cron:
                answers.append(b"changed")
            elif self.model.of(id).row:
                answers.append(b"duplicate")
            else:
                require(int(after) > now, "registry", f"{name} is moved on to {after}, which is over at {now}")
                record.next_ms = int(after)
                self.model.admit(self.model.of(id), record.template.encode(), "pending", None)
                answers.append(b"fired")
        return [*answers, self._lowest(calendars=True)]

    def _lowest(self, *, calendars: bool) -> bytes:
        found = [record.next_ms for record in self.records.values() if bool(record.cron) == calendars]
        return b"%d" % min(found) if found else b""

    # -- a look

    def looks(self) -> list[bytes]:
        """The registry, too."""
        return [*super().looks(), self.scripts("audit:repeats", (), (self.keys.base, *NAMES))]

    def looked(self, replies: list[Any]) -> None:
        """Raise Violation where the registry is not as it must be."""
        super().looked(replies[:-1])
        self.sound(replies[-1])
        count, rows = replies[-1]
        require(count == len(self.records), "registry", f"{count} names, expected {sorted(self.records)}")
        for name, (every, template, fixed, cron, score) in zip(NAMES, rows, strict=True):
            record, told = self.records.get(name), None
            if every is not None or cron is not None:
                kind = (int(every or 0), template.decode(), fixed is not None, (cron or b"").decode())
                told = (*kind, int(float(score or 0)))
            right = record and (record.every, record.template, record.fixed, record.cron, record.next_ms)
            require(told == right, "registry", f"{name} stands as {told}, expected {right}")
