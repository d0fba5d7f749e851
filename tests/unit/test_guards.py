"""Guards: what is refused before anything is sent."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.errors import InvalidArgument
from echomq_worker.guards import decimal, integer, token_text


@given(st.integers())
def test_every_integer_passes_and_is_written_as_it_is(value: int) -> None:
    """No bound unless one is named."""
    assert integer("n", value) is value
    assert decimal(value) == str(value)


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, b"1"])
def test_what_is_no_integer_is_refused(value: object) -> None:
    """A bool neither; the text names the argument, what it is and what was expected."""
    with pytest.raises(InvalidArgument, match=r"^n of type \w+: expected an integer$"):
        integer("n", value)


@pytest.mark.parametrize(("name", "unit"), [("delay_ms", "milliseconds"), ("run_at_ms", "ms since 1970")])
def test_a_time_names_its_unit(name: str, unit: str) -> None:
    """A datetime, or seconds with a fraction, for a time: the text says what a number of it counts."""
    with pytest.raises(InvalidArgument, match=rf"^{name} of type datetime: expected an integer of {unit}$"):
        integer(name, dt.datetime.now(dt.UTC))


@given(st.integers(), st.integers())
def test_a_lower_bound_is_inclusive(value: int, at_least: int) -> None:
    """From the bound on it passes, below it is refused with the bound in the text."""
    if value >= at_least:
        assert integer("n", value, at_least=at_least) is value
    else:
        with pytest.raises(InvalidArgument, match=f"expected {at_least} or more"):
            integer("n", value, at_least=at_least)


def test_a_number_of_any_length_is_refused_in_one_short_line() -> None:
    """Beyond the digits that Python converts, too."""
    with pytest.raises(InvalidArgument, match=r"^n of 33220 bits: expected 0 or more$"):
        integer("n", -(10**10_000), at_least=0)
    assert decimal(10**10_000) == "inf"
    assert decimal(-(10**10_000)) == "-inf"


@pytest.mark.parametrize(("token", "text"), [(3, "3"), ("3", "3"), ("3:ab12", "3:ab12")])
def test_tokens_of_plain_and_own_claims(token: int | str, text: str) -> None:
    """A number, or number:random."""
    assert token_text(token) == text


@pytest.mark.parametrize("token", ["", "3:", ":ab", "3:a:b", "x", "٣", "-1", True, 1.5, None])
def test_other_tokens_are_refused_without_being_told(token: object) -> None:
    """The text does not hold the token."""
    with pytest.raises(InvalidArgument, match="token"):
        token_text(token)  # type: ignore[arg-type]  # what a caller without a checker sends
