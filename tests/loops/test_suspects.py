"""Suspects: one place per process for a job that may kill it."""

from __future__ import annotations

from echomq_worker.suspects import Suspects


def test_one_holder_at_a_time() -> None:
    """The place is given once; whoever has it may ask again, whoever has it not cannot give it back."""
    suspects, one, other = Suspects(), object(), object()
    assert suspects.reserve(one)
    assert suspects.reserve(one)
    assert not suspects.reserve(other)
    suspects.release(other)
    assert not suspects.reserve(other)
    suspects.release(one)
    assert suspects.reserve(other)


def test_a_claim_hands_the_place_over_to_the_job_that_it_brought() -> None:
    """From then on the job gives it back, not the claim; a claim that does not hold it has nothing to hand over."""
    suspects, claim, job, other = Suspects(), object(), object(), object()
    suspects.reserve(claim)
    suspects.hand_over(other, other)
    suspects.hand_over(claim, job)
    assert not suspects.reserve(claim)
    suspects.release(claim)
    assert not suspects.reserve(other)
    suspects.release(job)
    assert suspects.reserve(other)


def test_those_who_wait_are_told_once() -> None:
    """Each of them when the place is given back, and not again for a later one; asking twice is one poke."""
    suspects, holder, poked = Suspects(), object(), list[str]()
    suspects.reserve(holder)
    for waiter in ("a", "b", "a"):
        suspects.tell(waiter, lambda name=waiter: poked.append(name))  # type: ignore[misc]  # mypy takes the default for a parameter
    suspects.release(object())
    assert poked == []
    suspects.release(holder)
    assert sorted(poked) == ["a", "b"]
    suspects.reserve(holder)
    suspects.release(holder)
    assert sorted(poked) == ["a", "b"]


def test_who_waits_for_a_place_that_is_free_is_told_at_once() -> None:
    """It may have been given back while the claim that passed a suspect over was on its way."""
    suspects, poked = Suspects(), list[str]()
    suspects.tell("a", lambda: poked.append("a"))
    assert poked == ["a"]
