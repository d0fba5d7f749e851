"""App: the dashboard as an ASGI application: its routes, its connection, what goes on behind the pages.

Source: issue "Made for the people who run it", A dashboard. Served by itself it looks at the queues all the time, so
that the plots have a past when somebody comes; mounted, it does so from the first page on, and no longer than somebody
looks, unless the application holds it open with `async with`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from types import TracebackType
from typing import Self

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from echomq_worker.clock import Clock, SystemClock
from echomq_worker.connector import Connector, Wire, make_connector
from echomq_worker.errors import EchoMQError, InvalidId, InvalidQueueName, Refused, WireError
from echomq_worker.logs import Logger, get_logger
from echomq_worker.web import actions, live, pages
from echomq_worker.web.access import Access, Doorman
from echomq_worker.web.guard import Guard
from echomq_worker.web.operations import Operations
from echomq_worker.web.render import environment, static_files
from echomq_worker.web.sampler import Sampler
from echomq_worker.web.visit import Visit

IDLE_MS = 600_000
"""Mounted, it stops looking when nobody has asked for so long."""

Page = Callable[[Visit], Awaitable[Response]]


class Dashboard:
    """The application. `async with` it, or its ASGI lifespan, keeps it looking; `aclose` ends what goes on behind the
    pages and closes the connection that it has made itself.
    """

    def __init__(
        self,
        wire: Wire,
        doorman: Doorman,
        *,
        own: Connector | None,
        read_only: bool,
        queues: Collection[str],
        label: str,
        title: str,
        clock: Clock | None = None,
    ) -> None:
        self.wire = wire
        self.doorman = doorman
        self.read_only = read_only
        self.label = label
        self.title = title
        self.clock = clock or SystemClock()
        self.templates = environment()
        self.static = static_files()
        self.sampler = Sampler(lambda: self.wire, queues, clock=self.clock)
        self.operations = Operations()
        self.streams = 0
        self._own = own
        self._held = False
        self._asked_at_ms = 0.0
        self._closing = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._app = Guard(_starlette(), self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            self.touch()
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def __aenter__(self) -> Self:
        """Begin to look, and go on until the end of the block."""
        self._held = True
        self.touch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def closing(self) -> bool:
        """Whether streams should end."""
        return self._closing.is_set()

    def touch(self) -> None:
        """Somebody asks: look, if nobody did."""
        self._asked_at_ms = self.clock.monotonic_ms()
        if not self.closing and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self.sampler.run(self._wanted), name="dashboard:sampler")

    def end_streams(self) -> None:
        """Let the live pages go: a server that stops waits for them."""
        self._closing.set()

    async def rest(self, ms: float) -> None:
        """Wait so long, or until the streams should end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ms / 1000):
                await self._closing.wait()

    async def aclose(self) -> None:
        """End what goes on behind the pages; may be called again."""
        self._held = False
        self.end_streams()
        await self.operations.aclose()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        if self._own is not None:
            await self._own.aclose()

    def _wanted(self) -> bool:
        return self._held or self.clock.monotonic_ms() - self._asked_at_ms < IDLE_MS

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.__aenter__()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return


def make_dashboard(
    wire: Wire | str,
    *,
    access: Access,
    read_only: bool,
    queues: Collection[str],
    hosts: Collection[str] | None,
    secret: bytes | None,
    label: str | None,
    title: str,
) -> Dashboard:
    """As `dashboard`, where the extra is installed."""
    doorman = Doorman(access, secret=secret, hosts=hosts)
    own = make_connector(wire, name="echomq-web") if isinstance(wire, str) else None
    used = own if own is not None else wire
    assert not isinstance(used, str)  # noqa: S101 - for the type checker
    return Dashboard(
        used,
        doorman,
        own=own,
        read_only=read_only,
        queues=queues,
        label=label or str(getattr(used, "url_safe", "")),
        title=title,
    )


def _log() -> Logger:
    return get_logger("echomq_worker.web")


def _starlette() -> Starlette:
    def get(where: str, page: Page) -> Route:
        return Route(where, _answering(page), methods=["GET"])

    def post(where: str, action: Page) -> Route:
        return Route(where, _answering(action), methods=["POST"])

    return Starlette(
        routes=[
            get("/", pages.queues),
            get("/go", pages.go),
            get("/static/{name}", pages.static),
            get("/login", pages.login),
            get("/live/{view}", live.stream),
            get("/operations/{id}", pages.operation),
            get("/q/{queue}", pages.queue),
            get("/q/{queue}/waiting", pages.waiting),
            get("/q/{queue}/active", pages.active),
            get("/q/{queue}/scheduled", pages.scheduled),
            get("/q/{queue}/repeats", pages.repeats),
            get("/q/{queue}/dead", pages.dead),
            get("/q/{queue}/lanes", pages.lanes),
            get("/q/{queue}/add", pages.add),
            get("/q/{queue}/job/{id}", pages.job),
            get("/q/{queue}/job/{id}/payload", pages.payload),
            get("/q/{queue}/job/{id}/edit", pages.edit),
            post("/login", actions.login),
            post("/logout", actions.logout),
            post("/operations/{id}/stop", actions.stop),
            post("/q/{queue}/pause", actions.pause),
            post("/q/{queue}/resume", actions.resume),
            post("/q/{queue}/lanes/{verb}", actions.lane),
            post("/q/{queue}/repeats/cancel", actions.cancel_repeat),
            post("/q/{queue}/dead/{verb}", actions.dead),
            post("/q/{queue}/add", actions.add),
            post("/q/{queue}/job/{id}/cancel", actions.cancel),
            post("/q/{queue}/job/{id}/edit", actions.edit),
        ],
        exception_handlers={EchoMQError: _told, ValueError: _unreadable, HTTPException: _missing},
    )


def _answering(page: Page) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return await page(request.scope["emq"])

    return answer


async def _told(request: Request, error: Exception) -> Response:
    """What the queue or the server said, as a page: with a status that a script can read."""
    status, title = 400, "That cannot be done"
    if isinstance(error, InvalidQueueName | InvalidId):
        status, title = 404, "There is no such thing"
    elif isinstance(error, Refused):
        status = 409
    elif isinstance(error, WireError):
        status, title = 503, "The server cannot be reached"
    elif not isinstance(error, ValueError):
        status, title = 502, "The server answered with an error"
    visit: Visit = request.scope["emq"]
    return visit.page("error.html", status=status, title=title, text=str(error))


async def _unreadable(request: Request, error: Exception) -> Response:
    """Others write to a queue, too: what is no number where one is expected is theirs, and no reason to fall over."""
    visit: Visit = request.scope["emq"]
    text = "Something else than expected stands there, as echomq-worker queue audit may tell."
    _log().warning("page unreadable", path=request.url.path, error=type(error).__name__)
    return visit.page("error.html", status=502, title="That cannot be read", text=text)


async def _missing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - for the type checker
    visit: Visit = request.scope["emq"]
    text = "There is no page of that address." if error.status_code == 404 else error.detail
    return visit.page("error.html", status=error.status_code, title="Not here", text=text)
