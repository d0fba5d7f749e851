"""Batch handlers at registration: options, and the parameters that a function of many jobs may have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pytest

from echomq_worker.errors import ConfigError, EchoMQError, InvalidArgument, InvalidQueueName
from echomq_worker.handlers import Bound, Handlers
from echomq_worker.job import Job
from echomq_worker.options import Limits

JOBS: Any = ["one", "two"]


class Pool:
    """What a lifespan yields."""


def bound(function: Callable[..., Any], *, state_type: object = None, **options: Any) -> Bound:
    """`function` registered for batches."""
    handlers = Handlers(state_type=state_type)
    assert handlers.register_batch("q", **{"min_size": 2, "timeout_ms": 5, **options})(function) is function
    (made,) = handlers
    return made


async def _list(jobs: list[Job]) -> Any:
    return jobs, None


async def _sequence(state: Pool, many: Sequence[Job]) -> Any:
    return many, state


async def _named(jobs, state) -> Any:  # type: ignore[no-untyped-def]  # noqa: ANN001 - it goes by its name
    return jobs, state


async def _keyword(*, jobs: Collection[Job], state: Pool, limit: int = 5) -> Any:
    return jobs, state


async def _iterable(these: Iterable[Job], by_type: Pool) -> Any:
    return these, by_type


@pytest.mark.parametrize("function", [_list, _sequence, _named, _keyword, _iterable])
async def test_a_function_gets_the_jobs_and_the_state(function: Callable[..., Any]) -> None:
    """By annotation, or by name; in any order."""
    state = Pool()
    made = bound(function, state_type=Pool)
    assert (made.is_async, made.options.is_batch, made.decode) == (True, True, None)
    assert await made.caller(state)(JOBS) == (JOBS, None if function is _list else state)


async def test_a_function_without_parameters_is_called_too() -> None:
    """It is only told that it is time."""

    async def tick() -> None:
        return None

    assert await bound(tick).caller()(JOBS) is None


def _plain(jobs: list[Job]) -> None: ...


async def _one(job: Job) -> None: ...


async def _payload(jobs: list[Job], payload: bytes) -> None: ...


async def _payloads(payloads: list[bytes]) -> None: ...


async def _tuple(jobs: tuple[Job, ...]) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_plain, "expected an async function"),
        (_one, r"parameter job: expected list\[Job\]"),
        (_payload, r"parameter payload: expected list\[Job\]"),
        (_payloads, r"parameter payloads: expected list\[Job\]"),
        (_tuple, r"parameter jobs: expected list\[Job\]"),
    ],
)
def test_a_function_that_takes_no_batch_is_refused(function: Callable[..., Any], said: str) -> None:
    """When it is registered, in one line that names it."""
    with pytest.raises(ConfigError, match=said) as caught:
        bound(function)
    assert function.__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"min_size": 0}, InvalidArgument, "min_size"),
        ({"min_size": 1_001}, InvalidArgument, "min_size"),
        ({"min_size": "5"}, InvalidArgument, "min_size"),
        ({"min_size": 5, "concurrency": 4}, InvalidArgument, "concurrency / consumers = 4"),
        ({"min_size": 5, "concurrency": 9, "consumers": 2}, InvalidArgument, "concurrency / consumers = 4"),
        ({"timeout_ms": -1}, InvalidArgument, "q: timeout_ms: expected an integer from 0 to 86400000 "),
        ({"timeout_ms": 0.5}, InvalidArgument, "timeout_ms"),
        ({"timeout_ms": None}, InvalidArgument, "timeout_ms"),
        ({"run_timeout_ms": 0}, InvalidArgument, "run_timeout_ms: expected an integer from 1"),
        ({"queue": "no queue"}, InvalidQueueName, "no queue"),
        ({"queue": _list}, InvalidArgument, "expected a queue name"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], kind: type[EchoMQError], said: str) -> None:
    """At once, in one line."""
    given: dict[str, Any] = {"queue": "q", "min_size": 2, "timeout_ms": 5, **options}
    with pytest.raises(kind, match=said) as caught:
        Handlers().register_batch(**given)
    assert "\n" not in str(caught.value)


def test_a_queue_has_one_handler_of_either_kind() -> None:
    """The second is refused."""
    handlers = Handlers()
    handlers.register_batch("q", min_size=1, timeout_ms=0)(_list)
    with pytest.raises(ConfigError, match="has a handler already"):
        handlers.register("q")(_one)


@pytest.mark.parametrize(
    ("options", "concurrency"),
    [
        ({"min_size": 2}, 10),
        ({"min_size": 50}, 50),
        ({"min_size": 50, "consumers": 3}, 150),
        ({"min_size": 50, "concurrency": 70}, 70),
    ],
)
def test_there_is_room_for_the_smallest_batch(options: dict[str, Any], concurrency: int) -> None:
    """Where the handler does not say how much there is."""
    assert bound(_list, **options).options.over(Limits()).concurrency == concurrency
