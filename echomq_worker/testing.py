"""Testing: what a user's own tests need: a private server, a fresh queue, a worker that runs until nothing is left.

Source: issue "Made for the people who run it", For handler authors; docs/testing.md shows each of these at work. The
fixtures are there after `pytest_plugins = ["echomq_worker.testing"]` in conftest.py, and only then: a test run that has
nothing to do with this package imports none of it. No fixture is a coroutine, so they work with pytest-asyncio in
either mode, with anyio's plugin, and without an event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, Final

import anyio

try:
    import pytest
except ImportError as error:
    raise ImportError("echomq_worker.testing needs pytest: pip install pytest") from error

from echomq_worker.blocking import BlockingWire
from echomq_worker.blocking_connector import BlockingConnector
from echomq_worker.children import Dependencies
from echomq_worker.codec import encode
from echomq_worker.connector import Wire, connect
from echomq_worker.embedded import embedded_valkey
from echomq_worker.errors import ConfigError, EchoMQError
from echomq_worker.guards import integer, progress_text, utf8
from echomq_worker.identity import check_group, check_id, default_mint
from echomq_worker.job import BlockingJob, Job, JobContext, ask
from echomq_worker.keyspace import Keys
from echomq_worker.metrics import Metrics
from echomq_worker.repeat import Repeat
from echomq_worker.report import Report
from echomq_worker.rows import Counts
from echomq_worker.run import BURST_HORIZON_MS
from echomq_worker.settings import Settings, load_settings
from echomq_worker.worker import Worker

__all__ = [
    "FakeJob",
    "NotIdle",
    "call_handler",
    "echomq_queue",
    "echomq_server",
    "echomq_url",
    "echomq_wire",
    "make_job",
    "run_until_idle",
]

# Far enough for whatever is scheduled.
_EVER_MS: Final = 100 * 365 * 86_400_000
_LOOK_S: Final = 0.01
# A test does not wait for a beat of a second.
_BEAT_MS: Final = 50
_GRACE_MS: Final = 2_000
_SHOWN_IDS: Final = 5
_NOT_GIVEN: Final = object()


class NotIdle(AssertionError):
    """A worker still had something to do when its time was up; the text says what is left, queue by queue."""


# ------------------------------------------------------------------------------------------------ fixtures


@pytest.fixture(scope="session")
def echomq_server() -> Iterator[str]:
    """The URL of a private Valkey that this test process has to itself. It needs the extra `embedded`."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(embedded_valkey())
        except ConfigError as error:
            pytest.fail(str(error), pytrace=False)
        yield url


@pytest.fixture
def echomq_url(echomq_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of that server, emptied; for the length of the test it is in ECHOMQ_URL as well.

    Overridden with the URL of another server it is up to you to empty that.
    """
    with BlockingConnector(echomq_server, name="echomq-testing") as connector:
        connector.call("FLUSHALL")
    monkeypatch.setenv("ECHOMQ_URL", echomq_server)
    return echomq_server


@pytest.fixture
def echomq_queue() -> str:
    """The name of a queue that nobody else has, `test-` and eight characters."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def echomq_wire(echomq_url: str) -> Iterator[Wire]:
    """What `Jobs(…)` and the others take, open. Awaiting it blocks for the round trip: it belongs to no event loop."""
    with BlockingConnector(echomq_url, name="echomq-testing") as connector:
        yield BlockingWire(connector)


# ------------------------------------------------------------------------------------------------ a worker


async def run_until_idle(
    worker: Worker,
    *,
    url: str | None = None,
    queues: Sequence[str] = (),
    due_now: bool = False,
    state: object = _NOT_GIVEN,
    timeout_ms: int = 10_000,
    **settings: object,
) -> Report:
    """Run the worker until nothing is in hand, nothing can be claimed, and nothing is due within five seconds.

    `url`: instead of ECHOMQ_URL, and of the worker's own. `queues`: only these. `due_now`: whatever is scheduled, also
    while it runs, comes due at once, so that retries and delays are not waited for. `state`: what the handlers share,
    instead of what the lifespan yields, which is not entered. `settings`: more of them; a beat is 50 ms and the
    grace 2 s unless they say otherwise. Repeats that are due are fired.

    Returns what the run did. Raises NotIdle after `timeout_ms`, with what is left, and what `Worker.run` raises.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError("run_until_idle: expected an event loop of asyncio (of anyio the backend asyncio)") from None
    numbers = _numbers(worker, url, settings)
    overriding = nullcontext() if state is _NOT_GIVEN else worker.override_lifespan(state)
    with overriding:
        async with connect(numbers.require_url(), wire_version=numbers.wire_version, name="echomq-testing") as wire:
            running = asyncio.create_task(worker.run(numbers, queues=queues, signals=False, pump=True))
            left = ""
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await _idle(worker, running, wire, queues or worker.handlers.queues, due_now=due_now)
            except TimeoutError:
                left = await _left(wire, queues or worker.handlers.queues)
            finally:
                # Where this run has not begun, or has ended, somebody else's may be on.
                for _ in range(0 if running.done() else 2 if left else 1):
                    worker.stop()  # the second one: what runs still is not waited for
                with anyio.CancelScope(shield=True):
                    report = await running
    if left:
        raise NotIdle(f"the worker was not idle after {timeout_ms} ms: {left}")
    return report


def _numbers(worker: Worker, url: str | None, more: Mapping[str, object]) -> Settings:
    """The settings in force: the worker's own or the environment's, made quick, and the URL of a test's server."""
    found = load_settings()
    own = worker.settings or found
    quick: dict[str, Any] = {"beat_ms": min(own.beat_ms, _BEAT_MS), "tick_ms": min(own.tick_ms, _BEAT_MS)}
    quick |= {"grace_ms": min(own.grace_ms, _GRACE_MS), "http": None}
    given = own.model_dump(exclude_unset=True)
    return Settings(**{**given, **quick, "url": url or found.url or own.url, **more})


async def _idle(
    worker: Worker, running: asyncio.Task[Report], wire: Wire, queues: Sequence[str], *, due_now: bool
) -> None:
    """Return when the worker has nothing to do, or has ended."""
    horizon_ms = _EVER_MS if due_now else BURST_HORIZON_MS
    repeat = Repeat(wire)
    while not running.done():
        try:
            if due_now:
                await _bring_forward(wire, queues)
            # Between two looks: a repeat that fires after the first is no longer due, but a job that the second sees.
            idle = await worker.exhausted(horizon_ms) and not any([await repeat.due(queue) for queue in queues])
            if idle and await worker.exhausted(horizon_ms):
                return
        except EchoMQError:
            # Whoever runs says what is wrong with the server.
            if running.done():
                return
        await asyncio.sleep(_LOOK_S)


async def _bring_forward(wire: Wire, queues: Sequence[str]) -> None:
    for queue in queues:
        schedule = Keys(queue).schedule
        waiting = await wire.call("ZRANGE", schedule, "(0", "+inf", "BYSCORE")
        if waiting:
            await wire.call("ZADD", schedule, "XX", *(word for id in waiting for word in (0, id)))


async def _left(wire: Wire, queues: Sequence[str]) -> str:
    """What stands where, in words; queues with nothing are left out."""
    told = []
    for queue in queues:
        try:
            counts = await Metrics(wire).counts(queue)
            active = [job.id for job in await Metrics(wire).browse(queue, "active", limit=_SHOWN_IDS)]
        except EchoMQError as error:
            told.append(f"{queue}: {error}")
            continue
        some = [f"{number} {state}" for state, number in _states(counts) if number]
        if counts.active:
            some.append(f"in hand: {', '.join(active)}{', …' if counts.active > len(active) else ''}")
        if some:
            told.append(f"{queue}: {', '.join(some)}")
    return "; ".join(told) or "its queues are empty, a hook or a verdict is on its way"


def _states(counts: Counts) -> list[tuple[str, int]]:
    lanes = sum(counts.lanes.values())
    return [
        ("pending (paused)" if counts.paused else "pending", counts.pending),
        ("in lanes", lanes),
        ("active", counts.active),
        ("scheduled", counts.scheduled),
        ("dead", counts.dead),
    ]


# --------------------------------------------------------------------------------------------------- a job


class _NoServer(JobContext):
    """What a job refers to that no worker has claimed: it needs no event loop, and nothing is sent."""

    __slots__ = ()

    def __init__(self, queue: str, max_attempts: int) -> None:
        self.keys = Keys(queue)
        self.queue = queue
        self.max_attempts = max_attempts
        self.logs_keep = None


class FakeJob(Job):
    """A job for a handler that is called as a function. What it would have told the server is kept here.

    `progressed` has what was given to `progress`, `logged` the lines of `log`, `extended` the milliseconds of `extend`.
    """

    def __init__(
        self, context: JobContext, id: str, payload: bytes, attempts: int, failures: int, group: str | None
    ) -> None:
        super().__init__(context, id, payload, attempts, failures, group)
        self.progressed: list[object] = []
        self.logged: list[str] = []
        self.extended: list[int] = []
        self.children: dict[str, object] = {}
        self.ignored: dict[str, str] = {}

    @property
    def blocking(self) -> BlockingJob:
        """The same for plain functions; it needs no event loop here."""
        return _FakeBlocking(self)

    async def progress(self, value: object) -> bool:
        """As `Job.progress`, kept in `progressed`."""
        progress_text(value)
        self.progressed.append(value)
        return True

    async def log(self, line: str) -> bool:
        """As `Job.log`, kept in `logged`."""
        utf8("log line", line)
        self.logged.append(line)
        return True

    async def extend(self, ms: int) -> bool:
        """As `Job.extend`, kept in `extended`."""
        self.extended.append(integer("extend", ms, at_least=1))
        return True

    async def children_values(self) -> dict[str, object]:
        """The `children` that it was made with."""
        return dict(self.children)

    async def ignored_failures(self) -> dict[str, str]:
        """The `ignored` that it was made with."""
        return dict(self.ignored)

    async def dependencies(self) -> Dependencies:
        """All children done, or dead and ignored."""
        return Dependencies(0, list(self.children), [], list(self.ignored))

    def ask_to_end(self, why: str) -> None:
        """What a request to cancel does: `cancelled` is true, `check_cancelled()` raises."""
        ask(self, why, interrupt=False)


class _FakeBlocking(BlockingJob):
    __slots__ = ()

    def _wait(self, verb: str, call: Any) -> Any:
        try:
            call.send(None)
        except StopIteration as end:
            return end.value
        call.close()
        raise ConfigError(f"job.blocking.{verb}() of a FakeJob: it waits for an event loop")


def make_job(
    payload: object = b"",
    *,
    queue: str = "test",
    id: str | None = None,
    attempts: int = 1,
    failures: int = 0,
    max_attempts: int = 3,
    group: str | None = None,
    children: Mapping[str, object] | None = None,
    ignored: Mapping[str, str] | None = None,
) -> FakeJob:
    """A job to call a handler with, `await send_email(make_job(), email)`: no server, no worker, no event loop.

    `payload` is encoded as `enqueue` would; `children` and `ignored` are what a flow's parent reads. Raises
    InvalidQueueName, InvalidId, InvalidArgument.
    """
    job = FakeJob(
        _NoServer(queue, integer("max_attempts", max_attempts, at_least=1)),
        default_mint().next() if id is None else check_id(id),
        encode(payload),
        integer("attempts", attempts, at_least=1),
        integer("failures", failures, at_least=0),
        None if group is None else check_group(group),
    )
    job.children.update(children or {})
    job.ignored.update(ignored or {})
    return job


async def call_handler(worker: Worker, job: Job, *, state: object = _NOT_GIVEN) -> Any:
    """Call the handler of the job's queue as the worker would: its payload read, its other parameters filled.

    `state` is what handlers share; without it the worker's lifespan is entered, and left. Returns what the handler
    returns, raises what it raises, and Unreadable for a payload that it cannot take: such a job would be dead. A plain
    function runs in the calling thread. Raises ConfigError for a queue without a handler, or with one of batches.
    """
    bound = worker.handlers.get(job.queue)
    if bound is None or bound.options.is_batch:
        raise ConfigError(f"call_handler: queue {job.queue}: expected a handler of single jobs")
    overriding = nullcontext() if state is _NOT_GIVEN else worker.override_lifespan(state)
    with overriding:
        async with worker.entered() as shared:
            said = bound.caller(shared)(job)
            return await said if inspect.isawaitable(said) else said
