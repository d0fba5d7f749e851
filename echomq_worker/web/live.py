"""Live: parts of a page, sent again by server-sent events when they have changed.

Source: issue "Made for the people who run it", A dashboard (live by server-sent events). These are the same
fragments as the page was made of, so a page without the script shows the same, but only once.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.responses import Response, StreamingResponse

from echomq_worker.errors import EchoMQError
from echomq_worker.web import pages
from echomq_worker.web.visit import Visit, whole_number

EVERY_MS = 1_000
STREAMS = 100
_QUIET = 15
"""Looks without news, after which a line says that the connection stands."""

_TABS = ("overview", "waiting", "active", "scheduled", "repeats", "dead", "lanes", "add", "")

Parts = dict[str, str]


async def stream(visit: Visit) -> Response:
    """The live parts of one page, until the browser goes."""
    made = _VIEWS.get(visit.request.path_params["view"])
    if made is None:
        return Response(status_code=404)
    if visit.dash.streams >= STREAMS:
        return Response("too many pages are open", status_code=503, headers={"Retry-After": "30"})
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_told(visit, made), media_type="text/event-stream", headers=headers)


async def _told(visit: Visit, made: Callable[[Visit], Awaitable[Parts]]) -> AsyncIterator[str]:
    dash = visit.dash
    dash.streams += 1
    try:
        yield "retry: 2000\n\n"
        last: Parts = {}
        quiet = 0
        while not dash.closing:
            dash.touch()
            try:
                parts = await made(visit)
            except (EchoMQError, ValueError) as error:
                text = str(error) if isinstance(error, EchoMQError) else "something else than expected stands there"
                parts = {"trouble": visit.fragment("_trouble.html", text=text)}
            else:
                parts.setdefault("trouble", "")
            news = {name: html for name, html in parts.items() if last.get(name) != html}
            last |= parts
            quiet = 0 if news else quiet + 1
            if news:
                yield f"data: {json.dumps(news)}\n\n"
            elif quiet % _QUIET == 0:
                yield ": here\n\n"
            await dash.rest(max(EVERY_MS, dash.sampler.pause_ms // 2))
    finally:
        dash.streams -= 1


async def _queues(visit: Visit) -> Parts:
    return {"queues": visit.fragment("_queues.html", **pages.of_queues(visit))}


async def _queue(visit: Visit) -> Parts:
    values = await pages.of_queue(visit, visit.asked("queue"))
    return {
        "head": visit.fragment("_head.html", **values),
        "tiles": visit.fragment("_tiles.html", **values),
        "plots": visit.fragment("_plots.html", **values),
    }


async def _head(visit: Visit) -> Parts:
    tab = visit.asked("tab") if visit.asked("tab") in _TABS else ""
    return {"head": visit.fragment("_head.html", **await pages.head(visit, tab, visit.asked("queue")))}


async def _active(visit: Visit) -> Parts:
    values = await pages.of_active(visit, visit.asked("queue"), whole_number(visit.asked("from", "0"), "from"))
    return {
        "head": visit.fragment("_head.html", **values),
        "active": visit.fragment("_active.html", **values),
    }


async def _job(visit: Visit) -> Parts:
    values: dict[str, Any] = await pages.of_job(visit, visit.asked("queue"), visit.asked("id"))
    shared = await pages.head(visit, "", visit.asked("queue"))
    return {
        "head": visit.fragment("_head.html", **shared),
        "job": visit.fragment("_job.html", **values) if values["job"] else visit.fragment("_gone.html", **values),
    }


async def _operation(visit: Visit) -> Parts:
    found = visit.dash.operations.get(visit.asked("id"))
    return {} if found is None else {"operation": visit.fragment("_operation.html", operation=found)}


_VIEWS: dict[str, Callable[[Visit], Awaitable[Parts]]] = {
    "queues": _queues,
    "queue": _queue,
    "head": _head,
    "active": _active,
    "job": _job,
    "operation": _operation,
}
