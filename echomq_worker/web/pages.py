"""Pages: what is read. Each function is one address and changes nothing.

Source: issue "Made for the people who run it", A dashboard.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from echomq_worker.errors import InvalidId
from echomq_worker.identity import is_branded
from echomq_worker.keyspace import Keys, check_queue
from echomq_worker.metrics import Metrics
from echomq_worker.rows import now_ms
from echomq_worker.web import payload as payloads
from echomq_worker.web.plots import plot
from echomq_worker.web.reading import Detail, Reader
from echomq_worker.web.sampler import Known
from echomq_worker.web.visit import Visit, whole_number

_FIRST_LOOK_S = 2.0
LANES = 200
REPEATS = 200
_AGES = (("", "any age"), ("60", "1 hour"), ("1440", "1 day"), ("10080", "1 week"))


async def queues(visit: Visit) -> Response:
    """All queues."""
    if not visit.dash.sampler.found:
        # Of a server with millions of keys the page is shown before all of them were seen.
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LOOK_S):
                await visit.dash.sampler.beat()
    return visit.page("queues.html", live=visit.path("live", "queues"), **of_queues(visit))


async def go(visit: Visit) -> Response:
    """To a queue that was typed."""
    return visit.go("q", check_queue(visit.asked("queue").strip()))


async def queue(visit: Visit) -> Response:
    """One queue: its numbers and its plots."""
    return visit.page("queue.html", live=visit.path("live", "queue", queue=visit.queue), **await of_queue(visit))


async def waiting(visit: Visit) -> Response:
    """Jobs that wait, flat or of one lane."""
    group, before = visit.asked("lane") or None, _id(visit.asked("before"))
    page = await visit.reader.waiting(group=group, before=before)
    shared = await head(visit, "waiting")
    title = "Waiting" if group is None else f"Waiting in lane {group}"
    return visit.page("jobs.html", page=page, title=title, group=group, first=not before, **shared)


async def active(visit: Visit) -> Response:
    """Jobs in hand."""
    offset = whole_number(visit.asked("from", "0"), "from")
    live = visit.path("live", "active", queue=visit.queue, **{"from": offset})
    return visit.page("active.html", live=live, **await of_active(visit, visit.queue, offset))


async def scheduled(visit: Visit) -> Response:
    """Jobs that are due later."""
    offset = whole_number(visit.asked("from", "0"), "from")
    page = await visit.reader.scheduled(offset=offset)
    return visit.page("scheduled.html", page=page, first=not offset, **await head(visit, "scheduled"))


async def repeats(visit: Visit) -> Response:
    """The registrations of a queue."""
    records = await Metrics(visit.wire).repeats(visit.queue, limit=REPEATS)
    rows = [(record, payloads.preview(record.template)) for record in records]
    return visit.page("repeats.html", rows=rows, limit=REPEATS, **await head(visit, "repeats"))


async def dead(visit: Visit) -> Response:
    """Dead jobs, all or those that a filter chooses."""
    error, age, before = visit.asked("error"), visit.asked("older"), _id(visit.asked("before"))
    older = age_ms(age)
    page = await visit.reader.dead(error=error, older_than_ms=older, before=before)
    plain = not error and older is None and not before
    reasons, looked = await visit.reader.reasons() if plain and page.lines else ([], 0)
    return visit.page(
        "dead.html",
        page=page,
        error=error,
        age=age,
        ages=_AGES,
        first=not before,
        reasons=reasons,
        looked=looked,
        live=visit.path("live", "head", queue=visit.queue, tab="dead"),
        **await head(visit, "dead"),
    )


async def lanes(visit: Visit) -> Response:
    """The lanes of a queue."""
    offset = whole_number(visit.asked("from", "0"), "from")
    all_lanes = await Metrics(visit.wire).lanes(visit.queue)
    some = all_lanes[offset : offset + LANES]
    behind = offset + LANES if offset + LANES < len(all_lanes) else None
    rows = [(lane, is_branded(lane.group)) for lane in some]
    return visit.page(
        "lanes.html", rows=rows, total=len(all_lanes), next=behind, first=not offset, **await head(visit, "lanes")
    )


async def add(visit: Visit) -> Response:
    """A form for a job by hand."""
    given = {"payload": "", "kind": "json", "lane": "", "delay": ""}
    return visit.page("add.html", given=given, **await head(visit, "add"))


async def job(visit: Visit) -> Response:
    """One job, with payload and log; a page of its own where it is gone."""
    live = visit.path("live", "job", queue=visit.queue, id=visit.id)
    values = await of_job(visit, visit.queue, visit.id)
    shared = await head(visit, "")
    if values["job"] is None:
        return visit.page("gone.html", status=404, id=visit.id, **shared)
    return visit.page("job.html", live=live, **(shared | values))


async def payload(visit: Visit) -> Response:
    """The bytes of a payload, to be kept as a file and opened by nothing."""
    body = await visit.reader.payload(visit.id)
    if body is None:
        return visit.page("gone.html", status=404, id=visit.id, **await head(visit, ""))
    headers = {"Content-Disposition": f'attachment; filename="{visit.id}.payload"'}
    return Response(body, media_type="application/octet-stream", headers=headers)


async def edit(visit: Visit) -> Response:
    """A form with the payload of a dead job."""
    found = await visit.reader.job(visit.id)
    shared = await head(visit, "")
    if found is None:
        return visit.page("gone.html", status=404, id=visit.id, **shared)
    if found.state != "dead":
        return visit.go("q", visit.queue, "job", visit.id, said="not-dead")
    draft = None if found.payload_is_long else payloads.draft(found.payload)
    return visit.page("edit.html", job=found, draft=draft, was=digest(found.payload), **shared)


async def operation(visit: Visit) -> Response:
    """How far something long is."""
    found = visit.dash.operations.get(visit.id)
    if found is None:
        text = "It is not known here: it is long over, or another process does it."
        return visit.page("error.html", status=404, title="No such operation", text=text)
    live = visit.path("live", "operation", id=found.id) if found.running else ""
    return visit.page("operation.html", operation=found, live=live)


async def login(visit: Visit) -> Response:
    """A form for the token."""
    if visit.dash.doorman.access.kind != "token":
        return visit.go("")
    return visit.page("login.html")


async def static(visit: Visit) -> Response:
    """The style sheet, the script, the icon."""
    found = visit.dash.static.get(visit.request.path_params["name"])
    if found is None:
        return Response(status_code=404)
    return Response(found.body, media_type=found.type, headers={"Cache-Control": "public, max-age=31536000, immutable"})


# ------------------------------------------------------------------------- what pages and live streams have in common


async def head(visit: Visit, tab: str, queue: str | None = None) -> dict[str, Any]:
    """What every page of a queue shows: its name, the tabs with their counts, whether it is paused."""
    name = visit.queue if queue is None else queue
    known = await visit.dash.sampler.know(name)
    return {"queue": name, "tab": tab, "stats": known.stats, "known": known}


def of_queues(visit: Visit) -> dict[str, Any]:
    """The values of the list of queues."""
    sampler = visit.dash.sampler
    rows = [
        (name, known, known.history.rate("completed"), _spark(known))
        for name, known in sampler.queues.items()
        if known.stats is not None or known.trouble
    ]
    return {"rows": rows, "trouble": sampler.error, "found": sampler.found}


async def of_queue(visit: Visit, queue: str | None = None) -> dict[str, Any]:
    """The values of a queue's first page."""
    shared = await head(visit, "overview", queue)
    history = shared["known"].history
    plots = [
        (
            "Throughput",
            "jobs a second",
            plot([("completed", history.rates("completed")), ("died", history.rates("failed"))]),
            "amount",
        ),
        ("Latency", "wait of the oldest waiting job", plot([("wait", history.values("wait_ms"))], least=1_000), "took"),
        (
            "Depth",
            "jobs",
            plot([("ready", history.values("ready")), ("active", history.values("active"))], least=10),
            "amount",
        ),
        (
            "Dead and scheduled",
            "jobs",
            plot([(n, history.values(n)) for n in ("dead", "scheduled")], least=10),
            "amount",
        ),
    ]
    rates = (history.rate("completed"), history.rate("failed"))
    return {**shared, "plots": plots, "rates": rates}


async def of_active(visit: Visit, queue: str, offset: int) -> dict[str, Any]:
    """The values of the jobs in hand."""
    page = await Reader(visit.wire, queue).active(offset=offset)
    now = await now_ms(visit.wire, Keys(queue))
    return {"page": page, "now": now, "first": not offset, **await head(visit, "active", queue)}


async def of_job(visit: Visit, queue: str, id: str) -> dict[str, Any]:
    """The values of one job."""
    found = await Reader(visit.wire, queue).job(id)
    return {"job": found, "shown": None if found is None else shown_of(found), "id": id, "queue": queue}


def shown_of(found: Detail) -> payloads.Shown:
    """The payload of a job as its page has it."""
    if found.payload_is_long:
        return payloads.Shown("none", "", found.size, cut=True)
    return payloads.shown(found.payload)


def digest(payload: bytes | None) -> str:
    """What tells one payload from another."""
    return hashlib.sha256(payload or b"").hexdigest()


def age_ms(minutes: str) -> int | None:
    """The age of a filter, of minutes in a form. Raises InvalidArgument."""
    return whole_number(minutes, "older", at_most=10_000_000) * 60_000 if minutes else None


def _id(text: str) -> str:
    if text and not is_branded(text):
        raise InvalidId("before: expected an id")
    return text


def _spark(known: Known) -> Any:
    return plot([("completed", known.history.rates("completed"))], width=96, height=24)
