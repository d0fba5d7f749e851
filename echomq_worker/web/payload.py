"""A payload as a person may read it, and edit it: JSON indented, text, or bytes in hex; cut at a limit. Values, no I/O.

Source: issue "Made for the people who run it", A dashboard (pretty JSON, hex for binary, cut at a limit). Nothing here
goes through numbers or dicts: what is shown and stored again differs from what was there in blanks alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from echomq_worker.errors import InvalidArgument

SHOWN_BYTES = 64 * 1024
"""So much of a payload is on a page; the rest is there to be downloaded."""

EDIT_BYTES = 256 * 1024
"""A longer payload is not put into a form."""

PREVIEW_CHARACTERS = 120

Kind = Literal["none", "json", "text", "hex"]

_INDENT = "  "
_HEX_COLUMNS = 16
_DEPTH = 200
# Strings come first, so that brackets inside them do not count; then what has no blanks in it.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
# What a person cannot see, or what changes the order in which the rest is read.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]")
_BLANKS = "\n\t"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows: `text` of the kind; `size` of the whole in bytes (None: the row has no payload); `cut`: only
    the beginning is there.
    """

    kind: Kind
    text: str
    size: int | None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """What a form holds: text that becomes the payload again, `hex` for one that is no text. `compact`: the payload has
    no blanks that do not matter, and gets none.
    """

    kind: Literal["json", "text", "hex"]
    text: str
    compact: bool = False


def shown(payload: bytes | None, *, limit: int = SHOWN_BYTES) -> Shown:
    """A payload for a page, at most `limit` bytes of it."""
    if payload is None:
        return Shown("none", "", None)
    size, cut = len(payload), len(payload) > limit
    text = _text(payload[:limit], may_end_early=cut)
    if text is None:
        return Shown("hex", hex_lines(payload[:limit]), size, cut)
    if not cut and is_json(text):
        return Shown("json", visible(indented(text)), size)
    return Shown("text", visible(text), size, cut)


def preview(payload: bytes | None) -> str:
    """One short line of a payload, for a list."""
    if not payload:
        return ""
    text = _text(payload[: 4 * PREVIEW_CHARACTERS], may_end_early=True)
    if text is None:
        return payload[:24].hex(" ") + (" …" if len(payload) > 24 else "")
    line = visible(" ".join(text.split()), blanks="")
    return line if len(line) <= PREVIEW_CHARACTERS else f"{line[:PREVIEW_CHARACTERS]}…"


def draft(payload: bytes | None) -> Draft | None:
    """A payload in a form; None where it is too long for one."""
    payload = payload or b""
    if len(payload) > EDIT_BYTES:
        return None
    text = _text(payload, may_end_early=False)
    if text is None or "\r" in text:
        # Browsers send every line break of a form as "\r\n".
        return Draft("hex", hex_plain(payload))
    if is_json(text):
        return Draft("json", visible(indented(text)), compact=text == compacted(text))
    return Draft("hex", hex_plain(payload)) if visible(text) != text else Draft("text", text)


def payload_of(kind: str, text: str, *, compact: bool = False, anyway: bool = False) -> bytes:
    """The payload that a form asks for. Raises InvalidArgument, which says where it is wrong and quotes nothing.

    `anyway`: what is no JSON is taken as text.
    """
    text = text.replace("\r\n", "\n")
    if kind == "hex":
        return _from_hex(text)
    if kind == "json" and not anyway:
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidArgument(f"payload: not JSON at line {error.lineno}, column {error.colno}") from None
        except (ValueError, RecursionError):
            raise InvalidArgument("payload: it is nested too deep, or has a number too long, to be checked") from None
        text = compacted(text) if compact else text
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("payload: expected text that UTF-8 can carry") from None


def is_json(text: str) -> bool:
    """Whether it is a JSON object or list: a lone number or word is read better as it stands."""
    if text.lstrip()[:1] not in {"{", "["}:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def indented(text: str) -> str:
    """JSON on lines of its own, every number, string and doubled name as it was."""
    out: list[str] = []
    depth, opened = 0, False
    for part in _TOKEN.findall(text):
        if opened and part not in "]}":
            out.append(_line(depth))
        opened = part in "[{"
        if part in "]}":
            depth -= 1
            if out[-1] not in {"[", "{"}:
                out.append(_line(depth))
        out.append(part)
        if part in "[{":
            depth += 1
        elif part == ",":
            out.append(_line(depth))
        elif part == ":":
            out.append(" ")
    return "".join(out)


def compacted(text: str) -> str:
    """JSON without the blanks between its parts."""
    return "".join(_TOKEN.findall(text))


def visible(text: str, *, blanks: str = _BLANKS) -> str:
    r"""Text in which everything can be seen: controls, direction marks and the like as `\u202e`; `blanks` stay.

    In JSON that is the same text, as such characters stand in strings alone.
    """
    return _INVISIBLE.sub(lambda match: match[0] if match[0] in blanks else f"\\u{ord(match[0]):04x}", text)


def hex_lines(data: bytes) -> str:
    """Bytes as a dump: place, sixteen bytes, the same as ASCII."""
    lines = []
    for start in range(0, len(data), _HEX_COLUMNS):
        row = data[start : start + _HEX_COLUMNS]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{3 * _HEX_COLUMNS - 1}}  {letters}")
    return "\n".join(lines)


def hex_plain(data: bytes) -> str:
    """Bytes as pairs of digits, sixteen a line."""
    return "\n".join(data[start : start + 16].hex(" ") for start in range(0, len(data), 16))


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex("".join(text.split()))
    except ValueError:
        raise InvalidArgument("payload: expected pairs of hex digits, with or without blanks") from None


def _line(depth: int) -> str:
    return "\n" + _INDENT * min(depth, _DEPTH)


def _text(data: bytes, *, may_end_early: bool) -> str | None:
    """The text of bytes that are one, without controls that no text has; it may end in the middle of a character."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not (may_end_early and error.end == len(data) and len(data) - error.start < 4):
            return None
        text = data[: error.start].decode()
    return None if any(character < " " and character not in "\n\r\t" for character in set(text)) else text
