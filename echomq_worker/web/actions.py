"""Actions: what changes something. The guard has let the form in; what is lost for good is asked about first.

Source: issue "Made for the people who run it", A dashboard. Every action is a verb of the package, and leaves by a
redirect, so that going back or loading a page again does nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import RedirectResponse, Response

from echomq_worker.admin import Admin
from echomq_worker.cancel import Cancel
from echomq_worker.dead import DeadFilter, Handled
from echomq_worker.errors import EchoMQError, InvalidArgument
from echomq_worker.identity import is_branded
from echomq_worker.jobs import Jobs, New
from echomq_worker.lanes import Lanes
from echomq_worker.repeat import Repeat
from echomq_worker.rows import Progress
from echomq_worker.web import pages
from echomq_worker.web.guard import session_cookie
from echomq_worker.web.payload import Draft, payload_of
from echomq_worker.web.render import took
from echomq_worker.web.visit import Visit, whole_number

_AT_ONCE_S = 0.5
"""What is over sooner is told on the page itself, what is not on one of its own."""

_YEAR_MS = 365 * 86_400_000
_DEAD = {"requeue": "requeued", "delete": "deleted"}
_LANES = {"pause": "paused", "resume": "resumed"}


async def login(visit: Visit) -> Response:
    """Let in whoever knows the token."""
    doorman = visit.dash.doorman
    if not doorman.access.is_token(visit.field("token")):
        return visit.page("login.html", status=403, problem="That is not the token.")
    session = doorman.new("in", visit.dash.clock.now_ms())
    response = visit.go("")
    cookie = session_cookie(doorman.cookie, doorman.written(session), visit.request.scope)
    response.headers["Set-Cookie"] = cookie
    return response


async def logout(visit: Visit) -> Response:
    """Forget the session in this browser."""
    response = visit.go("login")
    response.headers["Set-Cookie"] = session_cookie(visit.dash.doorman.cookie, "", visit.request.scope, age_s=0)
    return response


async def pause(visit: Visit) -> Response:
    """Claim nothing of a queue."""
    await Admin(visit.wire).pause(visit.queue)
    return visit.go("q", visit.queue, said="paused")


async def resume(visit: Visit) -> Response:
    """Serve it again."""
    await Admin(visit.wire).resume(visit.queue)
    return visit.go("q", visit.queue, said="resumed")


async def lane(visit: Visit) -> Response:
    """Pause or resume a lane."""
    verb, lanes = visit.request.path_params["verb"], Lanes(visit.wire)
    verbs: dict[str, Callable[[str, str], Awaitable[None]]] = {"pause": lanes.pause, "resume": lanes.resume}
    if verb not in verbs:
        raise InvalidArgument("lane: expected pause or resume")
    await verbs[verb](visit.queue, visit.field("lane"))
    return visit.go("q", visit.queue, "lanes", said=_LANES[verb])


async def cancel_repeat(visit: Visit) -> Response:
    """Take a registration away, asked about first."""
    name = visit.field("name")
    if visit.field("confirmed") != "yes":
        return visit.page(
            "confirm.html",
            question=f"Cancel the repeat {name}?",
            detail="It fires no more. What it has enqueued stays.",
            verb="Cancel the repeat",
            action=visit.path("q", visit.queue, "repeats", "cancel"),
            fields=[("name", name)],
            back=visit.path("q", visit.queue, "repeats"),
            **await pages.head(visit, "repeats"),
        )
    await Repeat(visit.wire).cancel(visit.queue, name)
    return visit.go("q", visit.queue, "repeats", said="cancelled")


async def cancel(visit: Visit) -> Response:
    """Ask for the end of a job: what does not run is removed, so it is asked about first."""
    reason = visit.field("reason").strip()
    if visit.field("confirmed") != "yes":
        return visit.page(
            "confirm.html",
            question=f"Cancel job {visit.id}?",
            detail="If it waits or is scheduled, it is deleted. If it runs, its handler is asked to end.",
            verb="Cancel the job",
            action=visit.path("q", visit.queue, "job", visit.id, "cancel"),
            fields=[],
            ask=("reason", "Reason", "from the dashboard"),
            back=visit.path("q", visit.queue, "job", visit.id),
            **await pages.head(visit, ""),
        )
    answer = await Cancel(visit.wire).request(visit.queue, visit.id, reason or "from the dashboard")
    if answer in {"removed", "gone"}:
        return visit.go("q", visit.queue, said=answer)
    return visit.go("q", visit.queue, "job", visit.id, said=answer)


async def dead(visit: Visit) -> Response:
    """Requeue or delete dead jobs: one, those that were marked, or all that a filter chooses."""
    verb = visit.request.path_params["verb"]
    if verb not in _DEAD:
        raise InvalidArgument("dead jobs: expected requeue or delete")
    ids, error, age = list(dict.fromkeys(visit.form.get("id", ()))), visit.field("error"), visit.field("older")
    every = visit.field("which") == "all"
    if not every and not ids:
        return await _nothing_marked(visit, error, age)
    older = pages.age_ms(age)
    chosen = DeadFilter(error=error or None, older_than_ms=older) if every else DeadFilter(ids=ids)
    single = not every and len(ids) == 1
    if visit.field("confirmed") != "yes" and not (single and verb == "requeue"):
        return await _ask(visit, verb, ids, every=every, error=error, age=age)
    back = visit.path("q", visit.queue, "dead", error=error, older=age)
    if single and visit.field("from") == "job" and verb == "requeue":
        back = visit.path("q", visit.queue, "job", ids[0])
    return await _behind(visit, verb, chosen, back)


async def _nothing_marked(visit: Visit, error: str, age: str) -> Response:
    back = visit.path("q", visit.queue, "dead", error=error, older=age)
    text = "No job was marked: mark some in the first column, or take all that match."
    return visit.page("error.html", status=400, title="Nothing marked", text=text, back=back)


async def _ask(visit: Visit, verb: str, ids: list[str], *, every: bool, error: str, age: str) -> Response:
    shared = await pages.head(visit, "dead")
    total = shared["stats"].counts.dead
    if every and (error or age):
        page = await visit.reader.dead(error=error, older_than_ms=pages.age_ms(age), before="", limit=5_000)
        count = f"{len(page.lines):,}" + (" or more" if page.next else "")
        reason = f"with “{error}” in the reason" if error else ""
        aged = f"enqueued over {took(pages.age_ms(age))} ago" if age else ""
        words = " and ".join(filter(None, (reason, aged)))
        question = f"{verb.capitalize()} all dead jobs {words}?"
        detail = f"{count} of {total:,} dead jobs match now; what dies meanwhile and matches goes along."
    elif every:
        question = f"{verb.capitalize()} all {total:,} dead jobs of {visit.queue}?"
        detail = "Also those that die meanwhile."
    else:
        question = f"{verb.capitalize()} {len(ids)} dead job{'s' * (len(ids) > 1)}?"
        detail = ", ".join(ids[:20]) + (f" and {len(ids) - 20} more" if len(ids) > 20 else "")
    if verb == "delete":
        detail += " Their payloads and logs are lost for good."
    fields = [("which", "all" if every else ""), ("error", error), ("older", age), *(("id", id) for id in ids)]
    return visit.page(
        "confirm.html",
        question=question,
        detail=detail,
        verb=f"{verb.capitalize()} them" if every or len(ids) > 1 else f"{verb.capitalize()} it",
        danger=verb == "delete",
        action=visit.path("q", visit.queue, "dead", verb),
        fields=[(name, value) for name, value in fields if value],
        back=visit.path("q", visit.queue, "dead", error=error, older=age),
        **shared,
    )


async def _behind(visit: Visit, verb: str, chosen: DeadFilter, back: str) -> Response:
    """Do it behind the page; what is over at once and refused nothing is told where the person was."""
    queue, admin = visit.queue, Admin(visit.wire)

    async def work(progress: Progress) -> Handled:
        if verb == "requeue":
            return await admin.requeue_dead(queue, chosen, progress=progress)
        return await admin.delete_dead(queue, chosen, progress=progress)

    title = f"{verb.capitalize()} dead jobs of {queue}"
    operation = visit.dash.operations.start(title, queue, back, work)
    if operation is None:
        text = "Several long operations are going on already: try again when one is over."
        return visit.page("error.html", status=429, title="Not now", text=text, back=back)
    assert operation.task is not None  # noqa: S101 - for the type checker
    await asyncio.wait({operation.task}, timeout=_AT_ONCE_S)
    if operation.state == "done" and not operation.refused_total and operation.done:
        joint = "&" if "?" in back else "?"
        return RedirectResponse(f"{back}{joint}said={_DEAD[verb]}", status_code=303)
    return visit.go("operations", operation.id)


async def stop(visit: Visit) -> Response:
    """End a long operation between two steps."""
    found = visit.dash.operations.get(visit.id)
    if found is not None:
        await visit.dash.operations.stop(found)
    return visit.go("operations", visit.id)


async def edit(visit: Visit) -> Response:
    """Give a dead job another payload, and requeue it where that is wanted."""
    found = await visit.reader.job(visit.id)
    if found is None:
        return visit.go("q", visit.queue, said="gone")
    if found.state != "dead" or found.payload_is_long:
        return visit.go("q", visit.queue, "job", visit.id, said="not-dead")
    kind, compact = visit.field("kind", "text"), visit.field("compact") == "yes"
    given, was = visit.field("payload"), pages.digest(found.payload)
    try:
        payload = payload_of(kind, given, compact=compact, anyway=visit.field("anyway") == "yes")
        problem, status = "", 200
    except InvalidArgument as error:
        payload, problem, status = b"", str(error), 422
    if was != visit.field("was"):
        problem, status = "Somebody has changed the payload meanwhile: below is yours. Saving it replaces theirs.", 409
    if problem:
        shared = await pages.head(visit, "")
        kept = Draft("json" if kind == "json" else "hex" if kind == "hex" else "text", given, compact)
        return visit.page("edit.html", status=status, problem=problem, draft=kept, was=was, job=found, **shared)
    return await _save(visit, payload)


async def _save(visit: Visit, payload: bytes) -> Response:
    jobs = Jobs(visit.wire)
    if not await jobs.update_data(visit.queue, visit.id, payload):
        return visit.go("q", visit.queue, said="gone")
    if visit.field("then") != "requeue":
        return visit.go("q", visit.queue, "job", visit.id, said="saved")
    await jobs.reprocess(visit.queue, visit.id)
    return visit.go("q", visit.queue, "job", visit.id, said="saved-requeued")


async def add(visit: Visit) -> Response:
    """Enqueue a job by hand."""
    given = {name: visit.field(name) for name in ("payload", "kind", "lane", "delay")}
    try:
        payload = payload_of(given["kind"], given["payload"])
        delay = given["delay"].strip()
        in_ms = whole_number(delay, "delay", at_most=_YEAR_MS // 1000) * 1000 if delay else None
        lane = given["lane"].strip()
        group = (lane if is_branded(lane) else Lanes.group_for(lane)) if lane else None
        receipt = (await Jobs(visit.wire).enqueue_many(visit.queue, [New(payload, group=group, in_ms=in_ms)]))[0]
    except EchoMQError as error:
        shared = await pages.head(visit, "add")
        return visit.page("add.html", status=422, given=given, problem=str(error), **shared)
    return visit.go("q", visit.queue, "job", receipt.id, said="added")
