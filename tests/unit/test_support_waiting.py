"""Waiting ends as soon as the condition holds, or with a sentence."""

from __future__ import annotations

import itertools

import pytest

from tests.support.waiting import wait_until, wait_until_sync


async def test_wait_until_returns_the_first_true_value() -> None:
    """A plain and an async predicate are asked until they are true, and the value is returned."""
    numbers = itertools.count()
    assert await wait_until(lambda: next(numbers) == 2 and "two", "the count reaches two") == "two"

    async def asked() -> list[int]:
        return [7]

    assert await wait_until(asked, "there is a seven") == [7]
    assert next(numbers) == 3


async def test_wait_until_fails_with_its_sentence_and_what_it_saw() -> None:
    """At the deadline the sentence and the last value are the error."""
    with pytest.raises(AssertionError, match=r"not within 0.01 s: pigs fly \(last seen: 0\)"):
        await wait_until(lambda: 0, "pigs fly", 0.01)


def test_wait_until_sync() -> None:
    """The blocking form keeps the same promises."""
    numbers = itertools.count()
    assert wait_until_sync(lambda: next(numbers), "the count is above zero") == 1
    with pytest.raises(AssertionError, match=r"not within 0 s: pigs fly \(last seen: None\)"):
        wait_until_sync(lambda: None, "pigs fly", 0)
