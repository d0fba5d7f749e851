"""The error classes: one root, refusals by the first word of the reply, texts that name both versions of the fence."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker import errors


def all_errors() -> list[type[BaseException]]:
    """Every exception class that the module defines."""
    return [
        member
        for _, member in inspect.getmembers(errors, inspect.isclass)
        if issubclass(member, BaseException) and member.__module__ == errors.__name__
    ]


def test_every_error_has_the_one_root() -> None:
    """A caller that catches EchoMQError catches every error of the package."""
    found = all_errors()
    assert errors.Refused in found
    assert all(issubclass(error, errors.EchoMQError) for error in found)


def test_every_public_error_says_when_it_is_raised() -> None:
    """Each class has a docstring of its own."""
    assert [error.__name__ for error in all_errors() if not error.__dict__.get("__doc__")] == []


@pytest.mark.parametrize("error", [errors.InvalidId, errors.InvalidQueueName, errors.InvalidArgument])
def test_bad_arguments_are_value_errors(error: type[Exception]) -> None:
    """A refused argument is a ValueError, as Python callers expect (protocol section 2)."""
    assert issubclass(error, ValueError)


@pytest.mark.parametrize(
    "error", [errors.Unreachable, errors.ConnectionLost, errors.CommandTimeout, errors.Unavailable]
)
def test_transport_trouble_is_a_wire_error(error: type[Exception]) -> None:
    """Everything that a later attempt may cure is a WireError."""
    assert issubclass(error, errors.WireError)


@pytest.mark.parametrize(
    "error", [errors.FenceRefused, errors.AuthenticationFailed, errors.ServerError, errors.Refused, errors.ConfigError]
)
def test_what_a_retry_cannot_cure_is_no_wire_error(error: type[Exception]) -> None:
    """A loop that retries WireError never spins on a refusal."""
    assert not issubclass(error, errors.WireError)


def test_a_timeout_leaves_the_reply_unknown_like_a_lost_connection() -> None:
    """One except clause serves both cases in which the command may have run."""
    assert issubclass(errors.CommandTimeout, errors.ConnectionLost)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("EMQKIND job id must be JOB-namespaced", errors.KindRefused),
        ("EMQSTALE complete token mismatch", errors.Stale),
        ("EMQSTALE retry token mismatch", errors.Stale),
        ("EMQSTALE delay token mismatch", errors.Stale),
        ("EMQSTALE extend token mismatch", errors.Stale),
        ("EMQSTALE job gone", errors.Gone),
        ("EMQSTALE job gone script: 0a1b, on @user_script:7.", errors.Gone),
        ("EMQSTATE not paused", errors.StateRefused),
        ("EMQSTATE active jobs present", errors.StateRefused),
        ("EMQSTATE not dead", errors.StateRefused),
        ("EMQLOCK job is locked", errors.Locked),
        ("EMQRATE at concurrency ceiling", errors.RateLimited),
    ],
)
def test_a_refusal_is_mapped_by_its_first_word(text: str, expected: type[errors.Refused]) -> None:
    """Every refusal text of protocol section 4 becomes its class, with the text kept."""
    found = errors.refusal(text)
    assert type(found) is expected
    assert str(found) == text
    assert found.code == text.partition(" ")[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "ERR unknown command",
        "EMQSTALEX token",
        "emqstale token",
        "ERR EMQ.DELAY due must be a non-negative integer",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "EMQ",
    ],
)
def test_other_error_replies_are_no_refusals(text: str) -> None:
    """Only the five classes of the protocol are refusals."""
    assert errors.refusal(text) is None


@given(st.text())
def test_any_text_can_be_asked(text: str) -> None:
    """Mapping a reply never raises, whatever a server sends."""
    found = errors.refusal(text)
    assert found is None or str(found) == text


def test_gone_is_caught_as_stale() -> None:
    """A caller that only knows stale handles a job that is gone as well."""
    with pytest.raises(errors.Stale):
        raise errors.Gone("EMQSTALE job gone")


def test_the_fence_names_both_versions() -> None:
    """The refusal carries both versions, as values and in its one-line text."""
    error = errors.FenceRefused("echomq:3.0.0", "echomq:2.4.2")
    assert (error.expected, error.found) == ("echomq:3.0.0", "echomq:2.4.2")
    assert str(error) == "wire version fence {emq}:version: expected 'echomq:3.0.0', the server has 'echomq:2.4.2'"


def test_a_strange_fence_value_stays_one_short_printable_line() -> None:
    """Whatever was found under the fence key, the text is one printable line of bounded length."""
    text = str(errors.FenceRefused("echomq:3.0.0", "\x1b[31m\n" * 10_000))
    assert text.isprintable()
    assert len(text) < 250


class Odd(str):
    """A text whose repr fails."""

    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("emails", "'emails'"),
        ("größe\n", "'gr\\xf6\\xdfe\\n'"),
        (-1, "-1"),
        (1.5, "1.5"),
        (None, "None"),
        (True, "True"),
        (1 << 50_000, "of 50001 bits"),
        (b"payload", "of type bytes"),
        (["payload"], "of type list"),
        (type("Größe", (), {})(), "of type Gr\\xf6\\xdfe"),
        ("x" * 59, "'" + "x" * 59 + "..."),
        ("x" * 58, "'" + "x" * 58 + "'"),
        (Odd("emails"), "of type Odd"),
    ],
    ids=range(13),
)
def test_a_refused_value_is_shown_in_a_short_printable_line(value: object, expected: str) -> None:
    """What an error's text shows of a value that was refused."""
    assert errors.shown(value) == expected


@given(st.text(alphabet=st.characters(exclude_categories=[])) | st.integers() | st.floats() | st.binary())
def test_every_value_can_be_shown(value: object) -> None:
    """Whatever was passed, what is shown is printable, short, and has a UTF-8 form."""
    text = errors.shown(value)
    assert text.isprintable()
    assert text.isascii()
    assert len(text) <= 80


@pytest.mark.parametrize("kind", [errors.ServerError, errors.Unavailable])
def test_a_server_error_has_its_code(kind: type[errors.ServerError | errors.Unavailable]) -> None:
    """`code` is the first word of the reply, and empty for an empty reply."""
    assert kind("READONLY You can't write against a read only replica.").code == "READONLY"
    assert kind("").code == ""
    assert kind("  ").code == ""


@pytest.mark.parametrize("error", [errors.FenceRefused("a", "b"), errors.ServerError("ERR x"), errors.Gone("gone")])
def test_errors_survive_copy_and_pickle(error: Exception) -> None:
    """An error can cross a process border and be copied without losing its values."""
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
