"""What a lifespan yields and takes, read off its signature."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from echomq_worker import Connector, Worker, sync
from echomq_worker.connector import Wire
from echomq_worker.errors import ConfigError
from echomq_worker.lifespan import Lifespan, yielded_type

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTheChecker


@dataclass
class Resources:
    """What a lifespan yields."""


async def generator() -> AsyncIterator[Resources]:
    """Takes nothing."""
    yield Resources()


async def silent():  # type: ignore[no-untyped-def]  # noqa: ANN201 - that is the point
    """Says nothing."""
    yield 1


async def unknown(connector: Connector) -> AsyncIterator[OnlyForTheChecker]:
    """What it yields cannot be looked up, so its parameter's name has to do."""
    yield cast("Any", None)


async def by_type(server: Connector) -> AsyncIterator[None]:
    """Takes a connector."""
    yield


async def by_protocol(server: Wire) -> AsyncIterator[None]:
    """Takes anything that a connector is."""
    yield


async def for_threads(server: sync.Connector) -> AsyncIterator[None]:
    """Takes the other connector."""
    yield


async def by_name(connector):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - that is the point
    """Takes a connector."""
    yield


async def with_a_default(size: int = 3) -> AsyncIterator[int]:
    """Takes nothing that it has to be given."""
    yield size


async def context(ctx):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - arq's way
    """Wants what nobody has."""
    yield


async def named_so(connector: int) -> AsyncIterator[int]:
    """Is no connector in spite of its name."""
    yield connector


async def two(connector: Connector, other: int) -> AsyncIterator[int]:
    """Wants more than there is."""
    yield other


def test_the_type_that_a_lifespan_yields() -> None:
    """From an async generator, also under the decorator of a context manager; None where it does not say."""
    assert yielded_type(generator) is Resources
    assert yielded_type(asynccontextmanager(generator)) is Resources
    assert yielded_type(silent) is None
    assert yielded_type(unknown) is None


def test_a_lifespan_may_take_a_connector() -> None:
    """By type or by name, also under the decorator of a context manager; a parameter with a default is its own."""
    for taking in (by_type, by_protocol, by_name, unknown, asynccontextmanager(by_type)):
        assert Lifespan.of(taking).takes == "connector"
    assert Lifespan.of(for_threads).takes == "sync connector"
    for alone in (generator, silent, with_a_default, asynccontextmanager(generator)):
        assert Lifespan.of(alone).takes == "nothing"


@pytest.mark.parametrize("wanting", [context, named_so, two])
def test_a_parameter_that_nobody_fills_is_refused_with_what_there_is(wanting: Any) -> None:
    """In one line that names the function, its parameters, and what is expected."""
    with pytest.raises(ConfigError, match=rf"^lifespan {wanting.__name__}: parameters .*: expected none, or one"):
        Lifespan.of(wanting)


async def test_a_state_that_nobody_yields_is_told_before_a_job_sees_none() -> None:
    """By name, without a default. A default, a lifespan or a test's own state will do."""
    worker = Worker()

    @worker.handler("defaulted")
    def defaulted(payload: bytes, state: object = "own") -> None: ...

    async with worker.entered():
        worker.check_state()

    @worker.handler("needy")
    def needy(payload: bytes, state: object) -> None: ...

    with pytest.raises(ConfigError, match=r"^handler .*needy of needy: parameter state: .* the lifespan yields"):
        async with worker.entered():
            pass
    with worker.override_lifespan("state"):
        async with worker.entered() as state:
            assert state == "state"
    worker.lifespan(generator)
    worker.check_state()
