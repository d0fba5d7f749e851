"""The registry of handlers: what is refused at registration, and the numbers in force."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

from echomq_worker.backoff import Exponential, Fixed, Jitter
from echomq_worker.errors import ConfigError, EchoMQError, InvalidArgument, InvalidQueueName
from echomq_worker.handlers import Handlers, PayloadRefused
from echomq_worker.job import Job
from echomq_worker.options import Limits, Options
from echomq_worker.settings import Settings
from tests.support.executing import bound
from tests.support.models import Base, Email, Sms

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTheChecker


def two_payloads(job: Job, email: Email, sms: Sms) -> None:
    """Refused."""


def two_defaults(job: Job, email: Email | None = None, sms: Sms | None = None) -> None:
    """Refused."""


def many(job: Job, *args: object) -> None:
    """Refused."""


def named(job: Job, **kwargs: object) -> None:
    """Refused."""


def unresolvable(job: Job, amount: OnlyForTheChecker) -> None:
    """Refused."""


def unreadable(job: Job, tell: Base) -> None:
    """Refused."""


def generates(job: Job) -> Iterator[int]:
    """Refused."""
    yield 1


async def generates_async(job: Job) -> AsyncIterator[int]:
    """Refused."""
    yield 1


def behind_a_default(job: Job, client=None, payload: bytes = b"", /) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - bare on purpose
    """Refused."""


class Mailer:
    """A class with a handler as its method."""

    def send(self, job: Job, email: Email) -> None:
        """Refused; what an object has of it is taken."""


def test_the_method_of_an_object_is_taken() -> None:
    """Its object is not among the parameters."""
    bound(Mailer().send)


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (two_payloads, ("two_payloads", "email, sms")),
        (two_defaults, ("two_defaults", "email, sms")),
        (many, ("many", "*args")),
        (named, ("named", "**kwargs")),
        (unresolvable, ("unresolvable", "parameter amount", "OnlyForTheChecker", "NameError")),
        (unreadable, ("unreadable", "parameter tell")),
        (generates, ("generates", "generator")),
        (generates_async, ("generates_async", "generator")),
        (behind_a_default, ("behind_a_default", "parameter payload")),
        (Mailer.send, ("Mailer.send", "method without its object")),
        (Base, ("Base", "expected a function")),
        (7, ("int", "expected a function")),
        (min, ("min", "cannot be read")),
    ],
)
def test_functions_that_cannot_be_bound(handler: Any, words: tuple[str, ...]) -> None:
    """Refused at registration, in one line that names handler, queue and parameter."""
    with pytest.raises(ConfigError) as refused:
        bound(handler)

    text = str(refused.value)
    assert "\n" not in text
    assert "of work" in text
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"concurrency": "10"},
        {"concurrency": 10**9},
        {"prefetch": 10**9},
        {"consumers": 10**9},
        {"timeout_ms": 10**12},
        {"retry": Exponential(1, 10**12)},
        {"retry": Jitter(Fixed(10**12))},
        {"consumers": 0},
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"timeout_ms": 0},
        {"timeout_ms": -1},
        {"lease_ms": 0},
        {"retry": -1},
        {"retry": True},
        {"retry": 1.5},
        {"retry": "fast"},
        {"no_retry": "ValueError"},
        {"no_retry": ValueError("an instance")},
        {"no_retry": (ValueError, int)},
    ],
)
def test_options_are_checked_when_they_are_given(options: dict[str, Any]) -> None:
    """One line with the queue, the option and what was expected; nothing is registered."""
    handlers = Handlers()
    with pytest.raises(InvalidArgument) as refused:
        handlers.register("work", **options)

    (name,) = options
    assert str(refused.value).startswith(f"handler of work: {name}: expected ")
    assert "\n" not in str(refused.value)
    assert len(handlers) == 0


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("concurrency", "concurrency"),
        ("prefetch", "prefetch"),
        ("max_attempts", "max_attempts"),
        ("lease_ms", "lease_ms"),
        ("retry", "retry_delay_ms"),
    ],
)
def test_an_option_goes_from_where_to_where_its_setting_goes(option: str, setting: str) -> None:
    """Whichever of the two a number stands in, it is taken or refused, with the same words."""
    marks: Any = Settings.model_fields[setting].metadata
    (least,), (most,) = [one.ge for one in marks if hasattr(one, "ge")], [one.le for one in marks if hasattr(one, "le")]
    for value in (least, most):
        Handlers().register("work", **{option: value})
        Settings(**{"beat_ms": 1, setting: value})
    for value in (least - 1, most + 1):
        expected = f"expected an integer from {least} to {most}"
        with pytest.raises(InvalidArgument, match=f"work: {option}: {expected}"):
            Handlers().register("work", **{option: value})
        with pytest.raises(ConfigError, match=expected):
            Settings(**{setting: value})


def test_queue_names_are_checked_and_used_once() -> None:
    """A bad name, a forgotten name (`@handler` without parentheses), and a second handler are refused."""
    handlers = Handlers()

    def first() -> None:
        """Takes the queue."""

    handlers.register("work")(first)
    with pytest.raises(InvalidQueueName):
        handlers.register("no spaces")
    with pytest.raises(InvalidArgument, match=r'expected a queue name, as in handler\("emails"\)'):
        handlers.register(cast("Any", first))
    with pytest.raises(ConfigError, match=r"queue work has a handler already: .*first"):
        handlers.register("work")(first)
    assert handlers.queues == ("work",)


def test_a_refused_function_leaves_the_queue_free() -> None:
    """After the error is mended the same queue can be registered."""
    handlers = Handlers()
    with pytest.raises(ConfigError):
        handlers.register("work")(many)
    handlers.register("work")(lambda: None)

    assert handlers.queues == ("work",)
    assert handlers.get("other") is None


def test_options_win_over_limits_and_unset_ones_do_not() -> None:
    """What a handler sets wins, also a delay of 0; the rest is the worker's."""
    limits = Limits(concurrency=7, max_attempts=9, retry=50, lease_ms=1_000, timeout_ms=600)

    assert Options(queue="q").over(limits) == limits
    own = Options(queue="q", retry=0, max_attempts=1, consumers=2, timeout_ms=5).over(limits)
    assert own == Limits(concurrency=7, consumers=2, max_attempts=1, retry=0, timeout_ms=5, lease_ms=1_000)
    assert Limits() == Limits(
        concurrency=10, consumers=1, max_attempts=3, retry=1_000, timeout_ms=None, lease_ms=30_000
    )


@pytest.mark.parametrize("retry", [0, 250, Fixed(5), Exponential(100, 10_000), Jitter(Fixed(10))])
def test_retry_is_a_delay_or_a_policy(retry: Any) -> None:
    """All of the three policies, and a fixed number."""
    assert bound(lambda: None, retry=retry).options.retry == retry


def test_no_retry_takes_one_class_or_several() -> None:
    """A single class needs no tuple; a list does as well."""
    assert bound(lambda: None, no_retry=ValueError).options.no_retry == (ValueError,)
    assert bound(lambda: None, no_retry=[ValueError, OSError]).options.no_retry == (ValueError, OSError)


def test_errors_share_the_package_s_root() -> None:
    """A caller that catches the root catches them all."""
    assert all(issubclass(one, EchoMQError) for one in (ConfigError, InvalidArgument, InvalidQueueName, PayloadRefused))
