"""Verdicts, the exceptions by which a handler steers, and the laws of describing any exception at all."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.errors import InvalidArgument
from echomq_worker.verdict import (
    ERROR_LIMIT,
    Bury,
    Complete,
    Delay,
    DelayTo,
    Reject,
    Retry,
    RetryLater,
    clean,
    describe,
)

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]))
RAISED = [
    ValueError("no"),
    KeyboardInterrupt(),
    SystemExit(3),
    asyncio.CancelledError(),
    RecursionError(),
    MemoryError(),
]


class HostileText(str):
    """A text that answers nothing."""

    __slots__ = ()

    def __getitem__(self, _: object) -> str:
        raise RuntimeError("no item")

    def __str__(self) -> str:
        return self

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __format__(self, _: str) -> str:
        raise RuntimeError("no format")

    def isprintable(self) -> bool:
        """Refuse to say."""
        raise RuntimeError("no isprintable")

    def strip(self, _: str | None = None) -> str:
        """Refuse to strip."""
        raise RuntimeError("no strip")


def refuse(_: object) -> Any:
    """Refuse to answer."""
    raise RuntimeError("no")


# A class that does not tell its name, a text that is no text, an exception that does not even tell its class.
UnnamedError: Any = type("Nameless", (type,), {"__name__": property(refuse)})("UnnamedError", (Exception,), {})
WrongTypeError: Any = type("WrongTypeError", (Exception,), {"__str__": lambda _: 7})
LyingError: Any = type("LyingError", (Exception,), {"__class__": property(refuse)})


class HostileError(Exception):
    """An exception whose text is hostile."""

    def __str__(self) -> str:
        return HostileText("hostile")


def silent(raised: BaseException) -> Exception:
    """An exception whose text cannot be had: asking raises."""

    class SilentError(Exception):
        def __str__(self) -> str:
            raise raised

    return SilentError()


def assert_keepable(text: str) -> None:
    """What every row, terminal and wire can take."""
    assert type(text) is str
    assert 0 < len(text) <= ERROR_LIMIT
    assert text.isprintable()
    text.encode()


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (ValueError("no such user"), "ValueError: no such user"),
        (TimeoutError(), "TimeoutError"),
        (KeyError("name"), "KeyError: 'name'"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "CancelledError"),
        (ValueError("größe 東京 🎉"), "ValueError: größe 東京 🎉"),
        (ValueError("two\nlines\tand a\r\nthird\n"), "ValueError: two lines and a  third"),
        (
            ValueError("\x1b[31mred\x1b[0m\x07\x00\x7f\x9b"),
            "ValueError: \ufffd[31mred\ufffd[0m\ufffd\ufffd\ufffd\ufffd",
        ),
        (ValueError("left\u202eright\u2028next"), "ValueError: left\ufffdright next"),
        (ValueError("half \ud83d"), "ValueError: half \ufffd"),
        (ValueError("   "), "ValueError"),
        (Retry(5, "later"), "Retry: later"),
        (Reject("bad address"), "Reject: bad address"),
        (type("Odd\x1b[2J\nName", (Exception,), {})("x"), "Odd\ufffd[2J Name: x"),
        (type("\r", (Exception,), {})(), "Exception"),
        (type("Größe", (BaseException,), {})("x"), "Größe: x"),
        (UnnamedError("x"), "Exception: x"),
        (WrongTypeError("x"), "WrongTypeError: (its text cannot be read)"),
        (LyingError("x"), "LyingError: x"),
        (HostileError(), "HostileError: hostile"),
        (HostileError(HostileText("x")), "HostileError: hostile"),
        (ValueError(HostileText("x")), "ValueError: x"),
    ],
    ids=range(23),
)
def test_an_exception_is_described_by_type_and_text(exc: BaseException, expected: str) -> None:
    """`TypeName: text`, on one printable line, for every kind of exception."""
    assert describe(exc) == expected
    assert_keepable(describe(exc))


@pytest.mark.parametrize("raised", RAISED, ids=repr)
def test_an_exception_whose_text_fails_is_described(raised: BaseException) -> None:
    """Whatever `str(exc)` raises, a description comes back."""
    assert describe(silent(raised)) == "SilentError: (its text cannot be read)"


@given(ANY_TEXT, st.sampled_from([Exception, BaseException, ValueError, KeyError, OSError]))
def test_every_text_gives_a_description_that_can_be_kept(text: str, kind: type[BaseException]) -> None:
    """Any text: within the limit, one printable line, with a UTF-8 form."""
    assert_keepable(describe(kind(text)))


@given(st.from_regex(r"\A[^\x00\ud800-\udfff]{1,30}\Z"), ANY_TEXT)
def test_every_class_name_gives_a_description_that_can_be_kept(name: str, text: str) -> None:
    """Any class name, too."""
    assert_keepable(describe(type(name, (Exception,), {})(text)))


@pytest.mark.parametrize("character", ["x", "\x1b", "\ud800", "🎉"], ids=ascii)
def test_a_text_of_ten_megabytes_is_cut(character: str) -> None:
    """Only the beginning of a huge text is kept, with an ellipsis that says so."""
    text = describe(ValueError(f"begin{character * 10_000_000}"))
    assert_keepable(text)
    assert text.startswith("ValueError: begin")
    assert len(text) == ERROR_LIMIT
    assert text.endswith("…")


def test_huge_white_space_is_cut_too() -> None:
    """White space at the ends goes, the ellipsis says that there was more."""
    assert describe(ValueError("begin" + "\n" * 10_000_000)) == "ValueError: begin…"
    assert describe(ValueError("\n" * 10_000_000 + "end")) == "ValueError: …"
    assert clean(" " + "x" * ERROR_LIMIT) == "x" * (ERROR_LIMIT - 1) + "…"


def test_a_huge_class_name_is_cut() -> None:
    """The limit is for the whole description."""
    text = describe(type("x" * 1_000_000, (Exception,), {})("text"))
    assert_keepable(text)
    assert len(text) == ERROR_LIMIT == 1000


@pytest.mark.parametrize(("length", "cut"), [(ERROR_LIMIT - 1, False), (ERROR_LIMIT, False), (ERROR_LIMIT + 1, True)])
def test_exactly_the_limit_is_kept(*, length: int, cut: bool) -> None:
    """A text of the limit is whole; one character more is cut to the limit."""
    text = clean("x" * length)
    assert text == ("x" * (ERROR_LIMIT - 1) + "…" if cut else "x" * length)


def test_a_group_names_what_it_holds() -> None:
    """A task group's failure is described by its causes, nested ones too, not by their number alone."""
    group = BaseExceptionGroup(
        "in a group", [ValueError("first"), ExceptionGroup("inner", [KeyError("second")]), SystemExit(4)]
    )
    assert describe(group) == (
        "BaseExceptionGroup: in a group (3 sub-exceptions): ValueError: first; KeyError: 'second'; SystemExit: 4"
    )


def test_a_large_and_deep_group_stays_within_the_limit() -> None:
    """However many exceptions a group holds, and however deep, the first five are described."""
    group: ExceptionGroup[Exception] = ExceptionGroup("wide", [ValueError(str(number)) for number in range(1000)])
    for _ in range(5000):
        group = ExceptionGroup("deep", [group])
    text = describe(group)
    assert_keepable(text)
    assert text.endswith("ValueError: 0; ValueError: 1; ValueError: 2; ValueError: 3; ValueError: 4")


def test_a_group_with_a_silent_exception_is_described() -> None:
    """One member whose text fails does not hide the others."""
    text = describe(ExceptionGroup("g", [silent(ValueError()), ValueError("seen")]))
    assert text == "ExceptionGroup: g (2 sub-exceptions): SilentError: (its text cannot be read); ValueError: seen"


@given(ANY_TEXT)
def test_cleaning_twice_changes_nothing(text: str) -> None:
    """A cleaned text is clean."""
    assert clean(clean(text)) == clean(text)


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S"]), max_size=ERROR_LIMIT))
def test_a_clean_text_is_kept_as_it_is(text: str) -> None:
    """Printable text of any script is not touched."""
    assert clean(text) == text


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", ""), (7, "7"), (None, "None"), (silent(ValueError("no")), "(its text cannot be read)")],
    ids=range(4),
)
def test_what_is_no_text_is_cleaned_as_its_text(value: object, expected: str) -> None:
    """A reason that is not a text becomes one instead of failing the failure."""
    assert clean(value) == expected


@pytest.mark.parametrize("make", [Bury, lambda error: RetryLater(10, error), Reject, lambda reason: Retry(1, reason)])
@given(text=ANY_TEXT)
def test_what_a_verdict_carries_can_be_sent(make: Callable[[str], Any], text: str) -> None:
    """An error or a reason has a UTF-8 form and a bounded length, whatever the handler wrote."""
    made = make(text)
    kept = made.error if isinstance(made, Bury | RetryLater) else made.reason
    assert kept == clean(text)
    kept.encode()


def test_verdicts_are_values() -> None:
    """Verdicts compare by what they say."""
    assert Complete() == Complete(None)
    assert Complete(b"\xff") != Complete()
    assert RetryLater(None, "x") == RetryLater(delay_ms=None, error="x")
    assert DelayTo("in", 5) != DelayTo("at", 5)
    assert Bury("a\n") == Bury("a")


def test_retry_takes_nothing_a_delay_and_a_reason() -> None:
    """A bare Retry leaves the delay to the handler's policy."""
    assert (Retry().delay_ms, Retry().reason, str(Retry())) == (None, "", "")
    assert (Retry(0).delay_ms, Retry(2**53 - 1, "why").reason) == (0, "why")
    assert Retry(delay_ms=5, reason="why").args == (5, "why")


@pytest.mark.parametrize("delay_ms", [-1, 2**53, 1.5, "1", True])
def test_retry_refuses_a_bad_delay(delay_ms: Any) -> None:
    """A retry's delay is 0 or more whole milliseconds, refused where it is raised."""
    with pytest.raises(InvalidArgument, match=r"^Retry delay_ms .*: expected an integer of milliseconds, 0\.\."):
        Retry(delay_ms)


def test_delay_takes_a_span_or_a_moment() -> None:
    """Either form, also one that has passed: the seeds admit any integer."""
    assert (Delay(5).ms, Delay(5).at_ms) == (5, None)
    assert (Delay(-5).ms, Delay(0).ms) == (-5, 0)
    assert (Delay(at_ms=-7).ms, Delay(at_ms=-7).at_ms) == (None, -7)
    assert [str(Delay(5)), str(Delay(at_ms=9))] == ["for 5 ms", "until 9 ms"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, r"^Delay: expected either ms or at_ms$"),
        ({"ms": 1, "at_ms": 1}, r"^Delay: expected either ms or at_ms$"),
        ({"ms": 1.5}, r"^Delay ms 1\.5: expected an integer of milliseconds"),
        ({"ms": 2**53}, r"^Delay ms 9007199254740992: expected an integer of milliseconds"),
        ({"at_ms": "soon"}, r"^Delay at_ms 'soon': expected an integer of milliseconds"),
    ],
)
def test_delay_refuses_anything_else(arguments: dict[str, Any], expected: str) -> None:
    """Neither, both, or what is no whole number of milliseconds is refused where it is raised."""
    with pytest.raises(InvalidArgument, match=expected):
        Delay(**arguments)


@pytest.mark.parametrize("exc", [Retry(), Retry(5, "x"), Delay(5), Delay(at_ms=6), Reject("why")], ids=repr)
def test_steering_crosses_a_process_border(exc: Exception) -> None:
    """A handler may raise them in a process pool: they arrive as they were."""
    for twin in (pickle.loads(pickle.dumps(exc)), copy.copy(exc)):
        assert type(twin) is type(exc)
        assert vars(twin) == vars(exc)
        assert str(twin) == str(exc)
