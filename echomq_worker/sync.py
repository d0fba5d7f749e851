"""Sync: producing without an event loop: the names of the package that produce, and no `await`.

Source: issue "Made for the people who run it", For handler authors. Each verb here is the coroutine of the same name,
run over a blocking wire: the same arguments, answers, errors and scripts. For Django, Flask and scripts:

    jobs = Jobs(Connector("redis://localhost:6379/0"))  # opens nothing yet
    jobs.enqueue("emails", {"to": "ada@example.com"})

A connector and what is made of it may be shared by threads, and by processes that are forked off afterwards. On an
event loop it would block all else: use `echomq_worker.connect` there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from echomq_worker import admin, cancel, flows, jobs, lanes, metrics, repeat
from echomq_worker.admission import New
from echomq_worker.blocking import BlockingWire, finished
from echomq_worker.blocking_connector import BlockingConnector as Connector
from echomq_worker.connector import Wire
from echomq_worker.flows import Node
from echomq_worker.identity import Mint
from echomq_worker.rows import Receipt

__all__ = [
    "Admin",
    "Cancel",
    "Connector",
    "Flows",
    "Jobs",
    "Lanes",
    "Metrics",
    "New",
    "Node",
    "Receipt",
    "Repeat",
    "connect",
]

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


@contextmanager
def connect(
    url: str,
    *,
    wire_version: str = "echomq:3.0.0",
    connect_timeout_ms: int = 5000,
    command_timeout_ms: int = 5000,
    name: str = "echomq",
) -> Iterator[Connector]:
    """A Connector that is open for the length of a block; arguments and errors as in `echomq_worker.connect`."""
    connector = Connector(
        url,
        wire_version=wire_version,
        connect_timeout_ms=connect_timeout_ms,
        command_timeout_ms=command_timeout_ms,
        name=name,
    )
    with connector:
        yield connector


class _Verbs(Generic[V]):
    """The coroutines of a noun, and the connector that they go over."""

    __slots__ = ("_connector", "_verbs")

    def __init__(self, connector: Connector, verbs: Callable[[Wire], V]) -> None:
        self._connector = connector
        wire = BlockingWire(connector)
        self._verbs = verbs(wire if connector.around is None else connector.around(wire))

    def _run(self, verb: Callable[Concatenate[V, P], Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """One verb, to its end."""
        # Before anything else, so that a forked child draws its ids from another node than its parent.
        self._connector.here()
        return finished(verb(self._verbs, *args, **kwargs))


def _waiting(verb: Callable[Concatenate[V, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Verbs[V], P], T]:
    """The verb that waits for the answer of a coroutine, with its arguments."""

    @functools.wraps(verb)
    def wait(self: _Verbs[V], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(verb, *args, **kwargs)

    return wait


class _Jobs(jobs.Jobs):
    __slots__ = ()

    # One at a time: there is no event loop that could go on with another trip in the meantime.
    trips_in_flight = 1
    gathers = False


class Jobs(_Verbs[jobs.Jobs]):
    """The verbs of `echomq_worker.Jobs` that a producer or an operator uses."""

    __slots__ = ()

    def __init__(self, connector: Connector, *, mint: Mint | None = None) -> None:
        super().__init__(connector, lambda wire: _Jobs(wire, mint=mint))

    enqueue = _waiting(jobs.Jobs.enqueue)
    enqueue_at = _waiting(jobs.Jobs.enqueue_at)
    enqueue_in = _waiting(jobs.Jobs.enqueue_in)
    enqueue_many = _waiting(jobs.Jobs.enqueue_many)
    get = _waiting(jobs.Jobs.get)
    browse = _waiting(jobs.Jobs.browse)
    counts = _waiting(jobs.Jobs.counts)
    metrics = _waiting(jobs.Jobs.metrics)
    update_data = _waiting(jobs.Jobs.update_data)
    get_job_logs = _waiting(jobs.Jobs.get_job_logs)
    remove_job = _waiting(jobs.Jobs.remove_job)
    reprocess = _waiting(jobs.Jobs.reprocess)


class Lanes(_Verbs[lanes.Lanes]):
    """The verbs of `echomq_worker.Lanes` that a producer or an operator uses."""

    __slots__ = ()

    def __init__(self, connector: Connector, *, mint: Mint | None = None) -> None:
        super().__init__(connector, lambda wire: lanes.Lanes(wire, mint=mint))

    group_for = staticmethod(lanes.Lanes.group_for)
    enqueue = _waiting(lanes.Lanes.enqueue)
    pause = _waiting(lanes.Lanes.pause)
    resume = _waiting(lanes.Lanes.resume)
    limit = _waiting(lanes.Lanes.limit)
    weight = _waiting(lanes.Lanes.weight)
    reassign = _waiting(lanes.Lanes.reassign)
    drain = _waiting(lanes.Lanes.drain)
    depth = _waiting(lanes.Lanes.depth)
    depths = _waiting(lanes.Lanes.depths)


class Repeat(_Verbs[repeat.Repeat]):
    """The verbs of `echomq_worker.Repeat` that a producer or an operator uses."""

    __slots__ = ()

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector, repeat.Repeat)

    register = _waiting(repeat.Repeat.register)
    cancel = _waiting(repeat.Repeat.cancel)
    count = _waiting(repeat.Repeat.count)
    list = _waiting(repeat.Repeat.list)


class Flows(_Verbs[flows.Flows]):
    """The verbs of `echomq_worker.Flows`."""

    __slots__ = ()

    def __init__(self, connector: Connector, *, mint: Mint | None = None) -> None:
        super().__init__(connector, lambda wire: flows.Flows(wire, mint=mint))

    add = _waiting(flows.Flows.add)
    add_bulk = _waiting(flows.Flows.add_bulk)
    children_values = _waiting(flows.Flows.children_values)
    dependencies = _waiting(flows.Flows.dependencies)
    ignored_failures = _waiting(flows.Flows.ignored_failures)
    tree = _waiting(flows.Flows.tree)


class Cancel(_Verbs[cancel.Cancel]):
    """The verb of `echomq_worker.Cancel`."""

    __slots__ = ()

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector, cancel.Cancel)

    request = _waiting(cancel.Cancel.request)


class Admin(_Verbs[admin.Admin]):
    """The verbs of `echomq_worker.Admin` over a whole queue."""

    __slots__ = ()

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector, admin.Admin)

    pause = _waiting(admin.Admin.pause)
    resume = _waiting(admin.Admin.resume)
    drain = _waiting(admin.Admin.drain)
    obliterate = _waiting(admin.Admin.obliterate)
    set_concurrency = _waiting(admin.Admin.set_concurrency)
    set_rate = _waiting(admin.Admin.set_rate)
    count_dead = _waiting(admin.Admin.count_dead)
    requeue_dead = _waiting(admin.Admin.requeue_dead)
    delete_dead = _waiting(admin.Admin.delete_dead)
    trim_dead = _waiting(admin.Admin.trim_dead)


class Metrics(_Verbs[metrics.Metrics]):
    """The numbers of `echomq_worker.Metrics`."""

    __slots__ = ()

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector, metrics.Metrics)

    stats = _waiting(metrics.Metrics.stats)
    lanes = _waiting(metrics.Metrics.lanes)
    oldest_pending_age_ms = _waiting(metrics.Metrics.oldest_pending_age_ms)
    get_job_state = _waiting(metrics.Metrics.get_job_state)
    queues = _waiting(metrics.Metrics.queues)
