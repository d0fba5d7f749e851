"""Calendars: fires what is due by a calendar, once for the whole fleet, whichever Pump is first.

Source: issue "Made for the people who run it" (cron repeats), decision 0033. The host computes which run comes next,
the script claims the due one, enqueues it and moves the name on, all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from echomq_worker.connector import Wire
from echomq_worker.cron import Cron
from echomq_worker.errors import ConfigError, InvalidArgument
from echomq_worker.identity import Mint
from echomq_worker.keyspace import Keys
from echomq_worker.logs import Logger
from echomq_worker.rows import checked
from echomq_worker.script import evaluate

BATCH = 100


class Struck(NamedTuple):
    """What one pass did: how many occurrences it enqueued, and the lowest next run, a score in ms (empty: there is none
    to wait for).
    """

    fired: int
    next_due: bytes


class Calendars:
    """The calendars of one queue, as a Pump of it fires them."""

    __slots__ = ("_keys", "_log", "_mint", "_offset", "_told", "_wire")

    def __init__(self, wire: Wire, keys: Keys, *, mint: Mint, log: Logger | None = None) -> None:
        self._wire = wire
        self._keys = keys
        self._mint = mint
        self._log = log
        # Names in a row from the first one on that cannot be computed here: they stay due, for another Pump.
        self._offset = 0
        self._told: set[bytes] = set()

    async def beat(self, head: Sequence[bytes], now_ms: int) -> Struck:
        """Fire what is due at `now_ms`, at most 100. `head` is the registry's first name and its score, or empty.

        Raises WireError, ServerError.
        """
        if not head or float(head[1]) > now_ms:
            self._offset = 0
            return Struck(0, head[1] if head else b"")
        wire, keys = self._wire, self._keys
        page = ("BYSCORE", "LIMIT", self._offset, BATCH, "WITHSCORES")
        due = await wire.call("ZRANGE", keys.cron, "-inf", now_ms, *page)
        names, scores = due[::2], due[1::2]
        record = f"{keys.base}repeat:".encode()
        rows = checked(await wire.pipeline([("HMGET", record + name, "cron", "tz") for name in names]))
        words: list[Any] = []
        for name, score, row in zip(names, scores, rows, strict=True):
            words += self._words(name, score, row, now_ms)
        passed = len(names) - len(words) // 6
        self._offset = self._offset + BATCH if passed == BATCH else 0
        if not words:
            return Struck(0, b"")
        *answers, next_due = await evaluate(
            wire, "cron_fire", (keys.cron, keys.pending), (keys.base, str(now_ms), *words)
        )
        # What stays due because it cannot be computed here must not keep the Pump from resting.
        return Struck(answers.count(b"fired"), b"" if passed else next_due)

    def _words(self, name: bytes, score: bytes, row: Sequence[bytes | None], now_ms: int) -> tuple[Any, ...]:
        """What the script is told of one name; nothing where its next run cannot be computed here."""
        expression, zone = row
        if expression is None:
            # Without a record, or with one that has no calendar: the script drops it.
            return (name, self._mint.next(), score, score, b"", b"")
        zone = zone or b"UTC"
        try:
            next_ms = Cron(expression.decode(), zone.decode()).after(now_ms)
        except (ConfigError, InvalidArgument, UnicodeDecodeError) as error:
            if self._log is not None and name not in self._told:
                self._told.add(name)
                shown, why = name.decode("utf-8", "replace"), str(error)
                self._log.warning("repeat cannot run here", queue=self._keys.queue, repeat=shown, error=why)
            return ()
        return (name, self._mint.next(), score, str(next_ms), expression, zone)
