"""Where a command or reply of the Redis protocol (RESP2 and RESP3) ends. Source: the RESP specification."""

from __future__ import annotations

from collections.abc import Iterator

_LINE = b"+-:_#,("
_BULK = b"$!="
# Type byte -> how many values follow for each one counted.
_MANY = {b"*": 1, b"~": 1, b">": 1, b"%": 2}


def frame_end(buffer: bytes | bytearray, start: int = 0) -> int | None:
    """Offset behind the value that begins at `start`, or None when it is not complete yet; ValueError: not RESP."""
    left = 1
    position = start
    while left:
        line_end = buffer.find(b"\r\n", position)
        if line_end < 0:
            return None
        kind = bytes(buffer[position : position + 1])
        left -= 1
        if kind in _MANY:
            # -1: the null array of RESP2.
            left += max(0, int(buffer[position + 1 : line_end])) * _MANY[kind]
            position = line_end + 2
        elif kind in _BULK:
            size = int(buffer[position + 1 : line_end])
            position = line_end + 2 + (size + 2 if size >= 0 else 0)
            if position > len(buffer):
                return None
        elif kind in _LINE:
            position = line_end + 2
        else:
            raise ValueError(f"offset {position}: type byte {kind!r}, expected one of RESP")
    return position


def frames(buffer: bytearray) -> Iterator[bytes]:
    """Take every complete value off the front of `buffer`, one at a time; what is incomplete stays."""
    while buffer:
        end = frame_end(buffer)
        if end is None:
            return
        frame = bytes(buffer[:end])
        del buffer[:end]
        yield frame
