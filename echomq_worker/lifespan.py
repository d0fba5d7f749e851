"""Lifespan: what handlers share, made before the first claim and closed after the last verdict.

Source: design section 2, issue "Made for the people who run it" (moving an application over: what its handlers
enqueue, and what it registers when it starts, goes to the server that the worker was told). The user's function takes
nothing, or one connector: of its own, so that what handlers send holds up no claim and no verdict.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from echomq_worker.connector import Connector, Wire, make_connector
from echomq_worker.errors import ConfigError
from echomq_worker.guest import hosted
from echomq_worker.handlers import name_of
from echomq_worker.settings import Settings

if TYPE_CHECKING:
    from echomq_worker import sync

    Made = AsyncIterator[Any] | AbstractAsyncContextManager[Any]
    Function = Callable[[], Made] | Callable[[Connector], Made] | Callable[[sync.Connector], Made]

Manager = AbstractAsyncContextManager[Any]
Takes = Literal["nothing", "connector", "sync connector"]

_NAMES = ("connector", "wire")
# As text where what a type checker alone imports cannot be looked up.
_TYPES = (Connector, Wire, "Connector", "Wire")


@dataclass(frozen=True, slots=True)
class Lifespan:
    """A user's lifespan: the function that makes the context manager, and what it takes."""

    make: Callable[..., Manager]
    takes: Takes

    @classmethod
    def of(cls, function: Function) -> Lifespan:
        """An async generator function that yields once, or one that makes an async context manager.

        Raises ConfigError for parameters that nobody fills.
        """
        made: Any = function
        return cls(made if hasattr(function, "__wrapped__") else asynccontextmanager(made), _takes(function))

    @property
    def name(self) -> str:
        """What its function is called."""
        return name_of(self.make)

    @classmethod
    def yielding(cls, state: object) -> Lifespan:
        """One that yields `state` and nothing else."""
        return cls(partial(nullcontext, state), "nothing")

    @asynccontextmanager
    async def entered(self, settings: Callable[[], Settings], name: str) -> AsyncIterator[Any]:
        """What it yields, for the length of a block; its connector, `name` to the server, outlives it.

        `settings` is asked only where there is to be a connector. Raises what `connect` raises.
        """
        if self.takes == "nothing":
            async with _Hosted(self.make()) as state:
                yield state
            return
        numbers = settings()
        async with AsyncExitStack() as connected:
            options: dict[str, Any] = {
                "wire_version": numbers.wire_version,
                "connect_timeout_ms": numbers.connect_timeout_ms,
                "command_timeout_ms": numbers.command_timeout_ms,
                "name": name,
            }
            if self.takes == "connector":
                made = make_connector(numbers.require_url(), wire=numbers.wire, **options)
                connector: Any = await connected.enter_async_context(made)
            else:
                from echomq_worker.blocking_connector import BlockingConnector

                # The first call of a thread opens it.
                connector = BlockingConnector(numbers.require_url(), **options)
                connected.callback(connector.close)
            async with _Hosted(self.make(connector)) as state:
                yield state


class _Hosted:
    """A context manager of the user's, entered and left as a guest."""

    __slots__ = ("_manager",)

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return await hosted(self._manager.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await hosted(self._manager.__aexit__(kind, error, trace))


def yielded_type(function: Callable[..., Any]) -> object:
    """The type that an async generator function (also a decorated context manager) says it yields, else None."""
    arguments = typing.get_args(_hints(function).get("return"))
    return arguments[0] if arguments else None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function))
    except Exception:  # noqa: BLE001 - an annotation is any expression; names do where it cannot be evaluated
        return {}


def _takes(function: Callable[..., Any]) -> Takes:
    """A connector where its one parameter without a default is annotated as one, or named so."""
    needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    if not needed:
        return "nothing"
    if len(needed) == 1 and needed[0].kind is not inspect.Parameter.KEYWORD_ONLY:
        name, written = needed[0].name, needed[0].annotation
        found = _hints(function).get(name, written)
        if found in _TYPES or (found is inspect.Parameter.empty and name in _NAMES):
            return "connector"
        if found == "sync.Connector" or _is_blocking(found):
            return "sync connector"
    where = getattr(function, "__qualname__", type(function).__name__)
    raise ConfigError(
        f"lifespan {where}: parameters {', '.join(one.name for one in needed)}: expected none, or one for a connector "
        "to the worker's server (annotated Connector or sync.Connector, or named connector)"
    )


def _is_blocking(annotation: object) -> bool:
    # Who is annotated with it has imported it; a worker's memory is counted.
    module = sys.modules.get("echomq_worker.blocking_connector")
    return module is not None and annotation is module.BlockingConnector
