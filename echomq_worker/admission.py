"""What is admitted: a `New`, checked, as the scripts `admit_many` and `enqueue_many` take it, and what they answer.

Source: protocol section 4 (enqueue, schedule, lanes), issue "Every control" (dedup key, expiry per job).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from echomq_worker.codec import encode
from echomq_worker.connector import Wire
from echomq_worker.errors import InvalidArgument, KindRefused
from echomq_worker.guards import decimal, integer
from echomq_worker.identity import Mint, check_group, check_id
from echomq_worker.keyspace import Keys, check_name
from echomq_worker.rows import Receipt
from echomq_worker.script import Call, evaluate

# Above this the server's arithmetic is not exact, and it refuses a time to live.
MOST_MS = 2**53
_VERDICT_REFUSED = -1

# id, payload, group, mode, value, dedup key, its ttl, expires: '' for what a job has not.
Row = tuple[str, bytes, str, str, str, str, str, str]
_PLAIN = ("", "", "", "", "", "")


@dataclass(frozen=True, slots=True)
class New:
    """One item of `enqueue_many` that is more than a payload: its id, its lane, when it is due (one of the two), when
    it expires (one of the two), its dedup key.

    `in_ms` (0 or more) is priced on the server's clock, `at_ms` (any integer) is an absolute run-at in ms since 1970;
    likewise `expires_in_ms` and `expires_at_ms`: a job that was not started by then is dead, `expired`. While a job
    with the key `dedup` is neither done nor dead, another one is not admitted and the receipt names the first; with
    `dedup_ttl_ms` the key stands no longer than that.
    """

    payload: object
    id: str | None = None
    group: str | None = None
    in_ms: int | None = None
    at_ms: int | None = None
    dedup: str | None = None
    dedup_ttl_ms: int | None = None
    expires_in_ms: int | None = None
    expires_at_ms: int | None = None


def row_of(item: object | New, mint: Mint) -> Row:
    """One item, checked. Raises InvalidId, InvalidArgument."""
    if not isinstance(item, New):
        return (mint.next(), encode(item), *_PLAIN)
    id = mint.next() if item.id is None else check_id(item.id)
    return (id, encode(item.payload), *terms_of(item))


def terms_of(item: New) -> tuple[str, str, str, str, str, str]:
    """What an item has beside id and payload, checked. Raises InvalidId, InvalidArgument."""
    group = "" if item.group is None else check_group(item.group)
    mode, value = _moment("in_ms", item.in_ms, "at_ms", item.at_ms)
    return (group, mode, value, *_dedup(item), _expires(item))


def is_more(item: New) -> bool:
    """Whether it has what only `admit_many` knows: a dedup key or an expiry."""
    return (item.dedup, item.dedup_ttl_ms, item.expires_in_ms, item.expires_at_ms) != (None, None, None, None)


async def admit_one(wire: Wire, queue: str, item: New, mint: Mint) -> Receipt:
    """Admit one item by `admit_many`. Raises KindRefused, what `row_of` and what `Connector.call` raises."""
    keys, row = Keys(queue), row_of(item, mint)
    (verdict,) = await evaluate(wire, *_admit(keys, [row]))
    receipt = receipt_of(row[0], verdict)
    if receipt.refused:
        raise KindRefused(f"EMQKIND job id must be JOB-namespaced: {receipt.id}")
    return receipt


def admission(keys: Keys, rows: Sequence[Row]) -> Call:
    """The script call for some rows; flat jobs that are due now take the shorter one."""
    if any(row[2:] != _PLAIN for row in rows):
        return _admit(keys, rows)
    return "enqueue_many", (keys.pending,), [keys.base, *(value for row in rows for value in row[:2])]


def receipt_of(id: str, verdict: int | bytes) -> Receipt:
    """What a script's verdict says."""
    if isinstance(verdict, bytes):
        return Receipt(verdict.decode("utf-8", "replace"), admitted=False, deduplicated=True)
    return Receipt(id, verdict == 1, verdict == _VERDICT_REFUSED)


def _admit(keys: Keys, rows: Sequence[Row]) -> Call:
    return "admit_many", (keys.pending, keys.schedule), [keys.base, *(value for row in rows for value in row)]


def _dedup(item: New) -> tuple[str, str]:
    """Key and time to live, '' for what it has not."""
    if item.dedup is None:
        if item.dedup_ttl_ms is not None:
            raise InvalidArgument("dedup_ttl_ms: expected dedup with it")
        return "", ""
    check_name("dedup key", item.dedup)
    if item.dedup_ttl_ms is None:
        return item.dedup, ""
    return item.dedup, decimal(integer("dedup_ttl_ms", item.dedup_ttl_ms, at_least=1, at_most=MOST_MS))


def _expires(item: New) -> str:
    given = ("expires_in_ms", item.expires_in_ms, "expires_at_ms", item.expires_at_ms)
    mode, value = _moment(*given, at_most=MOST_MS)
    return f"{mode}:{value}" if mode else ""


def _moment(
    in_name: str, in_ms: int | None, at_name: str, at_ms: int | None, *, at_most: int | None = None
) -> tuple[str, str]:
    """Mode and value of a moment that is given in one of two ways, or two empty texts."""
    if in_ms is not None and at_ms is not None:
        raise InvalidArgument(f"{in_name} and {at_name} are both given, expected one of them")
    if in_ms is not None:
        return "in", decimal(integer(in_name, in_ms, at_least=0, at_most=at_most))
    if at_ms is not None:
        return "at", decimal(integer(at_name, at_ms, at_most=at_most))
    return "", ""
