"""The registry of handlers: which function serves a queue, with which options, and how its arguments are filled.

Source: design.md section 2; issue "A worker that runs jobs", Handlers. All that can be decided is decided at
registration: a wrong option or parameter is an error there, in one line, and the first job finds a plain call.

For the worker: `handlers.register(queue, ...)` is the decorator; `for bound in handlers` gives one `Bound` per queue;
`bound.options.over(limits)` gives the numbers in force (`limits` from the settings); `bound.caller(state)` the function
of a job that the executor calls, `state` being what the lifespan yielded.

Parameters of a handler, in any order, all optional:

- the job: annotated `Job`, or named `job` without annotation;
- the state: named `state`, or annotated with the type that the lifespan yields (unless that is a plain JSON type);
- the payload: the one parameter that is left. Without annotation or as `bytes` the bytes as they are; else decoded and
  validated. A parameter with a default is the payload only where it is annotated and no other can be.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from echomq_worker.backoff import Policy
from echomq_worker.codec import decoder_for
from echomq_worker.errors import ConfigError, InvalidArgument, Unreadable, shown
from echomq_worker.job import Job
from echomq_worker.options import Options

F = TypeVar("F", bound=Callable[..., Any])

_STATE = "the state (`state`, or the type yielded by a lifespan that is known before)"
# A payload may be of these types too: a state of such a type is only filled in by its name, `state`.
_JSON_TYPES = (dict, list, str, int, float, bool, bytes, tuple, type(None), object, Any)


class PayloadRefused(Unreadable):
    """The handler's payload cannot be read; its cause is the decoder's Unreadable. No handler raises it by itself."""


class _Fill(Enum):
    JOB = "job"
    STATE = "state"
    PAYLOAD = "payload"


@dataclass(frozen=True, slots=True)
class Bound:
    """A handler with its options and the way to call it.

    `is_async`: its coroutine runs on the event loop; else the function runs in a thread. `positional` and `named` say
    which arguments it takes; `decode` reads the payload, None where it is taken as bytes or not at all.
    """

    options: Options
    function: Callable[..., Any]
    name: str
    is_async: bool
    positional: tuple[_Fill, ...] = ()
    named: tuple[tuple[str, _Fill], ...] = ()
    decode: Callable[[bytes], object] | None = None

    @property
    def needs_state(self) -> bool:
        """Whether it has a parameter `state` without a default."""
        parameter = inspect.signature(self.function).parameters.get("state")
        return parameter is not None and parameter.default is parameter.empty

    def caller(self, state: object = None) -> Callable[[Job], Any]:
        """The function of a job that calls the handler: returns its value, or the coroutine to await.

        Raises PayloadRefused before the handler is called, and whatever the handler raises.
        """
        call = self.function
        if self.named or _Fill.STATE in self.positional:
            return self._general(state)
        if self.positional == ():
            return lambda _job: call()
        if self.positional == (_Fill.JOB,):
            return call
        read = self._reader()
        if self.positional == (_Fill.PAYLOAD,):
            return lambda job: call(read(job))
        if self.positional == (_Fill.JOB, _Fill.PAYLOAD):
            return lambda job: call(job, read(job))
        return lambda job: call(read(job), job)

    def _reader(self) -> Callable[[Job], object]:
        decode = self.decode
        if decode is None:
            return lambda job: job.payload

        def read(job: Job) -> object:
            try:
                return decode(job.payload)
            except Unreadable as exc:
                raise PayloadRefused(*exc.args) from exc

        return read

    def _general(self, state: object) -> Callable[[Job], Any]:
        call = self.function
        fills: dict[_Fill, Callable[[Job], object]] = {
            _Fill.JOB: lambda job: job,
            _Fill.STATE: lambda _job: state,
            _Fill.PAYLOAD: self._reader(),
        }
        positional = [fills[fill] for fill in self.positional]
        named = [(name, fills[fill]) for name, fill in self.named]
        return lambda job: call(*[fill(job) for fill in positional], **{name: fill(job) for name, fill in named})


class Handlers:
    """Handlers by queue name. `state_type` is what the worker's lifespan yields, if it says so (`yielded_type`)."""

    def __init__(self, *, state_type: object = None) -> None:
        self.state_type = state_type
        self._bound: dict[str, Bound] = {}

    def register(  # noqa: PLR0913 - a keyword per option
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        prefetch: int | None = None,
        consumers: int | None = None,
        max_attempts: int | None = None,
        retry: int | Policy | None = None,
        no_retry: type[BaseException] | tuple[type[BaseException], ...] = (),
        timeout_ms: int | None = None,
        lease_ms: int | None = None,
        cancellable: bool = False,
    ) -> Callable[[F], F]:
        """A decorator that makes a function the handler of `queue` and returns it unchanged.

        Raises InvalidQueueName, InvalidArgument (an option) here; when it is applied ConfigError (the function, or a
        second handler for the queue).
        """
        return self._decorator(
            queue,
            concurrency=concurrency,
            prefetch=prefetch,
            consumers=consumers,
            max_attempts=max_attempts,
            retry=retry,
            no_retry=no_retry,
            timeout_ms=timeout_ms,
            lease_ms=lease_ms,
            cancellable=cancellable,
        )

    def register_batch(  # noqa: PLR0913 - a keyword per option
        self,
        queue: str,
        *,
        min_size: int,
        timeout_ms: int,
        concurrency: int | None = None,
        consumers: int | None = None,
        max_attempts: int | None = None,
        retry: int | Policy | None = None,
        no_retry: type[BaseException] | tuple[type[BaseException], ...] = (),
        run_timeout_ms: int | None = None,
        lease_ms: int | None = None,
    ) -> Callable[[F], F]:
        """The same for a function of many jobs; `timeout_ms` is how long the first of them may wait for the others,
        `run_timeout_ms` how long a call may take.
        """
        return self._decorator(
            queue,
            min_size=min_size,
            window_ms=timeout_ms,
            concurrency=concurrency,
            consumers=consumers,
            max_attempts=max_attempts,
            retry=retry,
            no_retry=no_retry,
            timeout_ms=run_timeout_ms,
            lease_ms=lease_ms,
        )

    def _decorator(self, queue: object, **given: Any) -> Callable[[F], F]:
        if not isinstance(queue, str):
            raise InvalidArgument(f'handler: expected a queue name, as in handler("emails"), got {_shown(queue)}')
        no_retry = given.pop("no_retry")
        several = tuple(no_retry) if isinstance(no_retry, (tuple, list)) else (no_retry,)
        options = Options(queue=queue, no_retry=several, **given)

        def decorate(function: F) -> F:
            if queue in self._bound:
                raise ConfigError(f"queue {queue} has a handler already: {self._bound[queue].name}, expected one")
            self._bound[queue] = bind(function, options, state_type=self.state_type)
            return function

        return decorate

    def get(self, queue: str) -> Bound | None:
        """The handler of `queue`."""
        return self._bound.get(queue)

    @property
    def queues(self) -> tuple[str, ...]:
        """Names of the queues that have a handler, in the order of registration."""
        return tuple(self._bound)

    def __iter__(self) -> Iterator[Bound]:
        return iter(self._bound.values())

    def __len__(self) -> int:
        return len(self._bound)


def bind(function: Callable[..., Any], options: Options, *, state_type: object = None) -> Bound:
    """`function` with the way to fill its parameters. Raises ConfigError naming the handler and the parameter."""
    name = name_of(function)
    where = f"handler {name} of {options.queue}"
    core = _core(function, where)
    if inspect.isgeneratorfunction(core) or inspect.isasyncgenfunction(core):
        raise ConfigError(f"{where}: it is a generator, expected a function that returns")
    is_async = inspect.iscoroutinefunction(core) or inspect.iscoroutinefunction(function)
    if options.is_batch and not is_async:
        raise ConfigError(f"{where}: it handles batches, expected an async function")
    positional: list[_Fill] = []
    named: list[tuple[str, _Fill]] = []
    decode: Callable[[bytes], object] | None = None
    skipped = False
    for parameter, fill in _plan(function, core, where, state_type, batch=options.is_batch):
        if fill is None:
            skipped = True
            continue
        if fill is _Fill.PAYLOAD:
            decode = _decoder(parameter, where)
        if parameter.kind is parameter.KEYWORD_ONLY or (skipped and parameter.kind is parameter.POSITIONAL_OR_KEYWORD):
            named.append((parameter.name, fill))
        elif skipped:
            raise ConfigError(f"{where}: parameter {parameter.name}: it stands behind one that keeps its default")
        else:
            positional.append(fill)
    return Bound(
        options=options,
        function=function,
        name=name,
        is_async=is_async,
        positional=tuple(positional),
        named=tuple(named),
        decode=decode,
    )


def filled_by(
    function: Callable[..., Any], where: str, state_type: object
) -> list[tuple[inspect.Parameter, str | None]]:
    """Each parameter with `job` or `state`, or None where it is neither: for functions beside a handler (`hooks`).

    Raises ConfigError, beginning with `where`.
    """
    core = _core(function, where)
    found = [_resolved(parameter, core, where) for parameter in _parameters(function, where)]
    kinds = [_by_kind(parameter, state_type, batch=False) for parameter in found]
    return [(parameter, kind and kind.value) for parameter, kind in zip(found, kinds, strict=True)]


def _plan(
    function: Callable[..., Any], core: Callable[..., Any], where: str, state_type: object, *, batch: bool
) -> list[tuple[inspect.Parameter, _Fill | None]]:
    """Each parameter, its annotation resolved, with what fills it; None: it keeps its default."""
    parameters = [_resolved(parameter, core, where) for parameter in _parameters(function, where)]
    fills = {parameter.name: _by_kind(parameter, state_type, batch=batch) for parameter in parameters}
    open_ = [parameter for parameter in parameters if fills[parameter.name] is None]
    candidates = [one for one in open_ if one.default is one.empty]
    if batch and candidates:
        raise ConfigError(f"{where}: parameter {candidates[0].name}: expected list[Job], or {_STATE}")
    if batch:
        return [(parameter, fills[parameter.name]) for parameter in parameters]
    if not candidates:
        given = _given(function)
        candidates = [one for one in open_ if one.annotation is not one.empty and one.name not in given]
    if len(candidates) > 1:
        named = ", ".join(one.name for one in candidates)
        raise ConfigError(
            f"{where}: parameters {named}: expected one of them, for the payload, beside the job and {_STATE}; several "
            "values are one model, dataclass or TypedDict"
        )
    fills.update({one.name: _Fill.PAYLOAD for one in candidates})
    return [(parameter, fills[parameter.name]) for parameter in parameters]


def _by_kind(parameter: inspect.Parameter, state_type: object, *, batch: bool) -> _Fill | None:
    annotation = parameter.annotation
    if _is_jobs(parameter) if batch else _is_job(parameter):
        return _Fill.JOB
    if parameter.name == "state":
        return _Fill.STATE
    if state_type is None or state_type in _JSON_TYPES or annotation is parameter.empty or annotation in _JSON_TYPES:
        return None
    base = isinstance(annotation, type) and isinstance(state_type, type) and issubclass(state_type, annotation)
    return _Fill.STATE if base or annotation == state_type else None


def _is_job(parameter: inspect.Parameter) -> bool:
    if parameter.annotation is parameter.empty:
        return parameter.name == "job"
    return isinstance(parameter.annotation, type) and issubclass(parameter.annotation, Job)


def _is_jobs(parameter: inspect.Parameter) -> bool:
    """Whether a parameter takes the jobs of a batch: `list[Job]`, `Sequence[Job]`, or named `jobs`."""
    if parameter.annotation is parameter.empty:
        return parameter.name == "jobs"
    origin, arguments = typing.get_origin(parameter.annotation), typing.get_args(parameter.annotation)
    of_jobs = len(arguments) == 1 and isinstance(arguments[0], type) and issubclass(arguments[0], Job)
    return of_jobs and isinstance(origin, type) and issubclass(list, origin)


def _parameters(function: Callable[..., Any], where: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: its parameters cannot be read, expected a Python function") from None
    for parameter in parameters:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise ConfigError(f"{where}: parameter {parameter}: expected parameters with names of their own")
        if parameter.name == "self":
            raise ConfigError(f"{where}: it is a method without its object, expected a function or an object's method")
    return parameters


def _resolved(parameter: inspect.Parameter, core: Callable[..., Any], where: str) -> inspect.Parameter:
    """The parameter with its annotation read, where that is text or has text inside."""
    if parameter.annotation is parameter.empty:
        return parameter
    annotation = parameter.annotation
    # Importing Job for the type checker alone is what linters recommend.
    if isinstance(annotation, str) and parameter.name == "job" and annotation.split(".")[-1] == Job.__name__:
        return parameter.replace(annotation=Job)
    holder = types.SimpleNamespace(__annotations__={parameter.name: annotation})
    names = getattr(inspect.unwrap(core), "__globals__", {})
    try:
        hints = typing.get_type_hints(holder, globalns=names, include_extras=True)
    except Exception as exc:
        raise ConfigError(
            f"{where}: parameter {parameter.name}: annotation {shown(str(annotation))} cannot be resolved "
            f"({type(exc).__name__}), expected names that its module has when it runs"
        ) from exc
    return parameter.replace(annotation=hints[parameter.name])


def _decoder(parameter: inspect.Parameter, where: str) -> Callable[[bytes], object] | None:
    if parameter.annotation is parameter.empty or parameter.annotation is bytes:
        return None
    try:
        return decoder_for(parameter.annotation)
    except Exception as exc:
        why = str(exc) if isinstance(exc, ConfigError) else type(exc).__name__
        raise ConfigError(
            f"{where}: parameter {parameter.name}: no payload can be read as {_shown(parameter.annotation)} ({why}), "
            "expected bytes, a JSON type, a pydantic model or a union of them"
        ) from exc


def _core(function: object, where: str) -> Callable[..., Any]:
    """The Python function that runs in the end: inside partials, bound methods and objects with __call__."""
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"{where}: expected a function or an object with __call__, got {_shown(function)}")
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return getattr(function, "__func__", function)
    core: Callable[..., Any] = type(function).__call__
    return core


def _given(function: Callable[..., Any]) -> set[str]:
    """Names that partials have filled already."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names.update(function.keywords)
        function = function.func
    return names


def name_of(function: object) -> str:
    """Where a function stands: its module and its name."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _shown(value: object) -> str:
    return value.__qualname__ if isinstance(value, type) else shown(repr(value))
