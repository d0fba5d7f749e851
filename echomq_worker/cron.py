"""Cron: a calendar of runs, as a value: which moment comes after another.

Source: issue "Made for the people who run it" (cron repeats), decision 0033. The calendar itself is cronsim's, which
has the rules of Debian's cron; it is imported where one is asked, and is there with the extra `cron`.

- A time of day (neither the minute nor the hour begins with `*`) runs once a day: in an hour that is skipped at the
  first moment behind it, in an hour that comes twice the first time.
- Any other expression goes by real time: it does not run in an hour that is skipped, and runs in both of two hours
  that have the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from types import ModuleType
from typing import Self

from echomq_worker.errors import ConfigError, InvalidArgument

_FIELDS = 5
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields (minute, hour, day of month, month, day of week), and the IANA zone that they are read in."""

    expression: str
    zone: str = "UTC"

    @classmethod
    def of(cls, expression: object, zone: object) -> Self:
        """What a user gives, checked for what it is; the fields of the expression one blank apart. InvalidArgument."""
        for what, given in (("cron", expression), ("tz", zone)):
            if not isinstance(given, str):
                raise InvalidArgument(f"{what} of type {type(given).__name__}: expected a text")
        return cls(" ".join(str(expression).split()), str(zone))

    def after(self, ms: int) -> int:
        """The first run after a moment, both in ms since 1970.

        Raises InvalidArgument for an expression or a zone that is none, and for one that never runs; ConfigError where
        cronsim is not installed.
        """
        cronsim, expression, zone = _cronsim(), self._checked(), _zone(self.zone)
        try:
            start = datetime.fromtimestamp(ms // 1000, zone)
            # In an hour that comes twice the calendar gives the first of the two moments, even when that has passed.
            for run in cronsim.CronSim(expression, start):
                at_ms = int(run.timestamp()) * 1000
                if at_ms > ms:
                    return at_ms
        except cronsim.CronSimError as error:
            raise InvalidArgument(f"cron {self._shown()}: {error}, expected such as '0 3 * * *'") from None
        except (OverflowError, ValueError, OSError):
            raise InvalidArgument(f"cron {self._shown()}: no run in reach of the calendar") from None
        raise InvalidArgument(f"cron {self._shown()}: it never runs")

    def _checked(self) -> str:
        fields = self.expression.split()
        if len(fields) != _FIELDS:
            what = "minute, hour, day of month, month, day of week"
            raise InvalidArgument(f"cron {self._shown()}: {len(fields)} fields, expected {_FIELDS}: {what}")
        return self.expression

    def _shown(self) -> str:
        return repr(self.expression[:_SHOWN])


def _cronsim() -> ModuleType:
    try:
        import cronsim
    except ImportError:
        raise ConfigError("cron: cronsim is not installed, expected pip install 'echomq-worker[cron]'") from None
    return cronsim


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    # A name that is no zone may be a folder of the data base, or no path at all.
    except (KeyError, ValueError, OSError):
        raise InvalidArgument(f"tz {name[:_SHOWN]!r}: no such time zone here, expected such as Europe/Berlin") from None
