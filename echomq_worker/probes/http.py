"""The port of `--http`: /livez, /readyz and /metrics over starlette and uvicorn, on the event loop that is there.

Source: issue "Made for the people who run it"; user-needs 100. Nothing can be changed here and no payload
read: there are names of queues and lanes, and numbers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from echomq_worker.errors import ConfigError
from echomq_worker.hostport import parse_hostport, show_hostport
from echomq_worker.logs import get_logger
from echomq_worker.probes.probe import Said, Source

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

INSTALL = "pip install 'echomq-worker[web,metrics]'"
_BACKLOG = 64
_CONNECTIONS = 100
_LAST_S = 1


@asynccontextmanager
async def serving(at: str, source: Source) -> AsyncIterator[int]:
    """Answer on HOST:PORT while inside; yields the port. Raises ConfigError: the address cannot be had, or the extra
    is not installed.
    """
    # Imports and name look-ups block, and must not do so on the event loop.
    server = await asyncio.to_thread(_made, source)
    listening = await asyncio.to_thread(bind, at)
    log = get_logger(__name__)

    async def serve() -> None:
        # Not `Server.serve`, which takes the signals: they are the worker's.
        await server.startup(sockets=[listening])
        try:
            await server.main_loop()
        finally:
            await server.shutdown(sockets=[listening])

    host, port = listening.getsockname()[:2]
    task = asyncio.create_task(serve(), name="http")
    log.info("http listening", address=show_hostport(host, port))
    try:
        yield port
    finally:
        server.should_exit = True
        try:
            await task
        except Exception as error:
            # A worker does not die because its port does; whoever probes it notices.
            log.warning("http ended", exc_info=error)
        finally:
            listening.close()


def _made(source: Source) -> uvicorn.Server:
    try:
        import uvicorn

        app = make_app(source)
    except ImportError as error:
        raise ConfigError(f"--http needs the extra web, {error.name} is not installed: {INSTALL}") from None
    quiet_uvicorn()
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_LAST_S,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    return server


def bind(at: str) -> socket.socket:
    """A socket that listens on HOST:PORT. Raises ConfigError."""
    host, port = parse_hostport(at)
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, number)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--http {at}: {_reason(error)}, expected an address of this machine") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise ConfigError(f"--http {at}: {_reason(error)}, expected a free address of this machine") from None
    return made


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def quiet_uvicorn() -> None:
    """Its lines about itself are not the program's. A host that has set a level has it."""
    for name in ("uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def make_app(source: Source) -> Starlette:
    """The three pages. Raises ImportError where starlette is not installed."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    expose = _exposition()

    def answer(said: Said) -> Response:
        return JSONResponse(said.body, status_code=200 if said.ok else 503, headers={"cache-control": "no-store"})

    async def livez(_request: Request) -> Response:
        return answer(await source.live())

    async def readyz(_request: Request) -> Response:
        return answer(await source.ready())

    async def metrics(request: Request) -> Response:
        if expose is None:
            return PlainTextResponse(f"the extra metrics is not installed: {INSTALL}\n", status_code=501)
        body, kind = expose(await source.snapshot(), request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    pages = {"/livez": livez, "/readyz": readyz, "/metrics": metrics}
    return Starlette(routes=[Route(path, page, methods=["GET"]) for path, page in pages.items()])


def _exposition() -> Callable[..., tuple[bytes, str]] | None:
    try:
        from echomq_worker.probes.exposition import expose
    except ImportError:
        get_logger(__name__).warning("no metrics", hint=f"/metrics needs the extra metrics: {INSTALL}")
        return None
    return expose
