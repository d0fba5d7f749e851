"""What has no payload: values that cannot be written are refused in one line, nothing chained."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from echomq_worker.codec import encode
from echomq_worker.errors import InvalidArgument


class Email(BaseModel):
    """A model with a number that may have no JSON form."""

    to: str
    weight: float = 1.0


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        [float("-inf")],
        {"x": float("nan")},
        Email(to="a", weight=float("nan")),
        {"mail": Email(to="a", weight=float("inf"))},
        "half \ud83d",
        {"half \ud83d": 1},
        Email(to="half \ud83d"),
        {"raw": b"\xff"},
        {"raw": b"text"},
        [memoryview(b"x")],
        object(),
        {"x": object()},
        {(1, 2): 3},
        10**5000,
        lambda: None,
        Email,
    ],
    ids=range(18),
)
def test_what_has_no_payload_is_refused(value: object) -> None:
    """NaN also in a model, bytes inside JSON, text without UTF-8, and what is no data: one line, nothing chained."""
    with pytest.raises(InvalidArgument, match=r"^payload of type \w+: cannot be written \(\w+\), expected") as caught:
        encode(value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_endless_values_are_refused() -> None:
    """A value that holds itself, or is too deep, is refused instead of ending the process."""
    endless: list[object] = []
    endless.append(endless)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (endless, deep):
        with pytest.raises(InvalidArgument, match=r"^payload of type list: cannot be written"):
            encode(value)
