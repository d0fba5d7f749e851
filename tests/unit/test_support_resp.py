"""Where values of the Redis protocol end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.resp import frame_end, frames

SCALARS = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":12\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"(123\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"$4\r\n\r\n\r\n\r\n",
    b"=5\r\ntxt:a\r\n",
    b"*0\r\n",
    b"*-1\r\n",
]
VALUES = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.tuples(st.sampled_from([b"*", b"~", b">", b"%"]), st.lists(inner, max_size=4)).map(
        lambda pair: pair[0] + str(len(pair[1])).encode() + b"\r\n" + b"".join(pair[1] * (2 if pair[0] == b"%" else 1))
    ),
    max_leaves=12,
)


@given(st.lists(VALUES, max_size=5), st.data())
def test_frames_are_found_wherever_the_bytes_are_cut(values: list[bytes], data: st.DataObject) -> None:
    """Any stream, fed in any pieces, gives back its values in order, and nothing is left over."""
    stream = b"".join(values)
    cut = data.draw(st.integers(0, len(stream)))
    buffer, found = bytearray(), []
    for piece in (stream[:cut], stream[cut:]):
        buffer += piece
        found += list(frames(buffer))
    assert found == values
    assert not buffer


@given(VALUES)
def test_a_value_that_is_cut_short_is_not_complete(value: bytes) -> None:
    """No proper prefix of a value counts as one."""
    assert all(frame_end(value[:cut]) is None for cut in range(len(value)))
    assert frame_end(value) == len(value)


def test_what_is_not_resp_is_refused() -> None:
    """A type byte that the protocol does not have is an error, not a hang."""
    with pytest.raises(ValueError, match="type byte b'P'"):
        frame_end(b"PING\r\n")
