"""Render: the templates of the package, every value escaped, and the words for numbers, times and sizes.

Source: issue "Made for the people who run it", A dashboard (every value escaped, a strict content security policy). The
templates and the static files are read when the first dashboard is made, so that no page waits for a disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from urllib.parse import quote, urlencode

from jinja2 import DictLoader, Environment, StrictUndefined

from echomq_worker.web.payload import visible

NOTHING = "\u2013"

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


@dataclass(frozen=True, slots=True)
class Static:
    """A file that pages refer to: its bytes, its type, and a mark that changes with it."""

    body: bytes
    type: str
    mark: str


@cache
def environment() -> Environment:
    """The templates, read once, with escaping on for all of them and an error for a name that is not given."""
    folder = files("echomq_worker.web") / "templates"
    sources = {
        entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.name.endswith(".html")
    }
    made = Environment(
        loader=DictLoader(sources),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        seen=seen,
        lines=visible,
        number=number,
        amount=amount,
        size=size,
        took=took,
        moment=moment,
    )
    return made


@cache
def static_files() -> Mapping[str, Static]:
    """The static files by name, read once."""
    found = {}
    for entry in (files("echomq_worker.web") / "static").iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            found[entry.name] = Static(body, kind, hashlib.sha256(body).hexdigest()[:12])
    return MappingProxyType(found)


def path(root: str, *parts: str, **query: object) -> str:
    """An address below `root`; parts and values are quoted, values that are None or '' left out."""
    asked = urlencode({name: value for name, value in query.items() if value not in {None, ""}})
    return "/".join([root, *(quote(part, safe="~") for part in parts)]) + (f"?{asked}" if asked else "")


def seen(text: object) -> str:
    """A text on one line with nothing hidden in it."""
    return visible(str(text), blanks="")


def number(value: float | None) -> str:
    """A count: `12,345`; a dash where there is none."""
    return NOTHING if value is None else f"{value:,.0f}"


def amount(value: float | None) -> str:
    """A rate or the top of an axis, as short as it may be: `0.4`, `12`, `3.4k`."""
    if value is None:
        return NOTHING
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"


def size(value: int | None) -> str:
    """Bytes: `312 B`, `4.2 KiB`."""
    if value is None:
        return NOTHING
    scaled = float(value)
    for unit in ("B", "KiB", "MiB"):
        if scaled < 1024:
            return f"{scaled:.0f} {unit}" if unit == "B" else f"{scaled:.1f} {unit}"
        scaled /= 1024
    return f"{scaled:.1f} GiB"


def took(ms: float | None) -> str:
    """A length of time in its two largest units: `3 min 12 s`, `450 ms`; a minus for what is past."""
    if ms is None:
        return NOTHING
    left, said, sign = abs(int(ms)), list[str](), "-" if ms < 0 else ""
    if left < 1_000:
        return f"{sign}{left} ms" if left else "0 s"
    for unit, scale in _UNITS:
        if left >= scale or said:
            count, left = divmod(left, scale)
            said.append(f"{count} {unit}")
        if len(said) == 2:
            break
    return sign + " ".join(part for place, part in enumerate(said) if place == 0 or not part.startswith("0 "))


def moment(ms: float | None) -> str:
    """A moment in UTC, to the second; the number itself where no calendar reaches."""
    if ms is None:
        return NOTHING
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(ms)
