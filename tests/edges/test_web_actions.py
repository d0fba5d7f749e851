"""The dashboard's actions: what a person does there is what the verb does, and what is lost is asked about first."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from echomq_worker.lanes import Lanes
from echomq_worker.metrics import Metrics
from echomq_worker.repeat import Repeat
from echomq_worker.web import actions, operations
from tests.support.plain import FAR_MS, GROUP, QUEUE, Queue, job, row
from tests.support.valkey import OwnServer, raw_client
from tests.support.waiting import wait_until
from tests.support.web import Browser, all_at_once, browsing, text_of

__all__ = ["all_at_once"]

ID = job(1)
DEAD = f"/q/{QUEUE}/dead"


async def bury(raw: Redis, count: int, **fields: str) -> list[str]:
    """So many dead jobs, the oldest first."""
    ids = [job(n) for n in range(1, count + 1)]
    pipe = raw.pipeline(transaction=False)
    queue = Queue(raw)
    for id in ids:
        pipe.hset(
            queue.keys.job(id),
            mapping=dict[Any, Any](row("dead", 3, '{"n":1}', last_error="TimeoutError: late", **fields)),
        )
    pipe.zadd(queue.keys.dead, dict.fromkeys(ids, 0))
    await pipe.execute()
    return ids


async def numbers(raw: Redis) -> tuple[int, int]:
    """How many are dead, how many are pending."""
    keys = Queue(raw).keys
    both = raw.pipeline(transaction=True)
    both.zcard(keys.dead)
    both.zcard(keys.pending)
    dead, pending = await both.execute()
    return dead, pending


async def test_pause_and_resume(url: str, raw: Redis) -> None:
    """Of a queue, and of a lane."""
    async with connect(url) as connector:
        await Lanes(connector).enqueue(QUEUE, GROUP, "x")
        metrics = Metrics(connector)
        async with browsing(url) as browser:
            assert await browser.do(f"/q/{QUEUE}/pause") == f"/q/{QUEUE}?said=paused"
            assert (await metrics.counts(QUEUE)).paused
            assert "paused" in await browser.read(f"/q/{QUEUE}?said=paused")
            await browser.do(f"/q/{QUEUE}/resume")
            assert not (await metrics.counts(QUEUE)).paused

            await browser.do(f"/q/{QUEUE}/lanes/pause", ("lane", GROUP))
            assert [lane.paused for lane in await metrics.lanes(QUEUE)] == [True]
            await browser.do(f"/q/{QUEUE}/lanes/resume", ("lane", GROUP))
            assert [lane.paused for lane in await metrics.lanes(QUEUE)] == [False]
            assert (await browser.post(f"/q/{QUEUE}/lanes/pause", [("lane", "nonsense")])).status_code == 404
            assert (await browser.post(f"/q/{QUEUE}/lanes/burn", [("lane", GROUP)])).status_code == 400


async def test_one_dead_job_is_requeued_at_once(url: str, raw: Redis) -> None:
    """From the list or from its page: nothing is lost by it, so nothing is asked."""
    await bury(raw, 2)
    async with browsing(url) as browser:
        assert await browser.do(f"{DEAD}/requeue", ("id", ID), ("from", "job")) == f"/q/{QUEUE}/job/{ID}?said=requeued"
        assert await numbers(raw) == (1, 1)
        assert await browser.do(f"{DEAD}/requeue", ("id", job(2))) == f"{DEAD}?said=requeued"
        assert await numbers(raw) == (0, 2)


@pytest.mark.parametrize(("verb", "left"), [("requeue", (1, 2)), ("delete", (1, 0))])
async def test_marked_jobs_are_asked_about_and_done(url: str, raw: Redis, verb: str, left: tuple[int, int]) -> None:
    """The question names them, and a no is a way back; the yes does exactly those."""
    await bury(raw, 3)
    async with browsing(url) as browser:
        asked = await browser.post(f"{DEAD}/{verb}", [("id", job(1)), ("id", job(3))])
        text = text_of(asked.text)
        assert asked.status_code == 200
        assert f"{verb.capitalize()} 2 dead jobs?" in text
        assert f"{job(1)}, {job(3)}" in text
        assert ("lost for good" in text) is (verb == "delete")
        assert await numbers(raw) == (3, 0)

        await browser.do(f"{DEAD}/{verb}", ("id", job(1)), ("id", job(3)), ("confirmed", "yes"))

    assert await numbers(raw) == left
    assert await raw.zscore(Queue(raw).keys.dead, job(2)) == 0


async def test_deleting_one_is_asked_about(url: str, raw: Redis) -> None:
    """Its payload would be lost."""
    await bury(raw, 1)
    async with browsing(url) as browser:
        assert "Delete 1 dead job?" in text_of((await browser.post(f"{DEAD}/delete", [("id", ID)])).text)
        assert await numbers(raw) == (1, 0)
        await browser.do(f"{DEAD}/delete", ("id", ID), ("confirmed", "yes"))
    assert await numbers(raw) == (0, 0)


async def test_nothing_marked_is_told(url: str, raw: Redis) -> None:
    """And changes nothing."""
    await bury(raw, 1)
    async with browsing(url) as browser:
        response = await browser.post(f"{DEAD}/delete", [("confirmed", "yes")])
    assert response.status_code == 400
    assert "No job was marked" in text_of(response.text)
    assert await numbers(raw) == (1, 0)


async def test_all_that_match_are_done_and_no_other(url: str, raw: Redis) -> None:
    """The question says how many match; the others stay."""
    await bury(raw, 4)
    await raw.hset(Queue(raw).keys.job(job(2)), "last_error", "rejected")
    async with browsing(url) as browser:
        chosen = [("which", "all"), ("error", "Timeout")]
        text = text_of((await browser.post(f"{DEAD}/requeue", chosen)).text)
        assert "Requeue all dead jobs with “Timeout” in the reason?" in text
        assert "3 of 4 dead jobs match" in text
        aged = text_of((await browser.post(f"{DEAD}/requeue", [*chosen, ("older", "60")])).text)
        assert "in the reason and enqueued over 1 h ago?" in aged
        assert (await browser.post(f"{DEAD}/burn", chosen)).status_code == 400
        where = await browser.do(f"{DEAD}/requeue", *chosen, ("confirmed", "yes"))
    assert where == f"{DEAD}?error=Timeout&said=requeued"
    assert await numbers(raw) == (1, 3)


async def test_a_long_operation_goes_on_behind_a_page_that_tells_how_far_it_is(
    url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In steps, with numbers, to its end; whoever comes back sees what became of it."""
    monkeypatch.setattr(actions, "_AT_ONCE_S", 0.0)
    await bury(raw, 2_300)
    async with browsing(url) as browser:
        where = await browser.do(f"{DEAD}/delete", ("which", "all"), ("confirmed", "yes"))
        assert where.startswith("/operations/")
        operation = browser.dash.operations.get(where.rpartition("/")[2])
        assert operation is not None
        seen = set[int]()

        def over() -> bool:
            seen.add(operation.done)
            return not operation.running

        assert "so far" in await browser.read(where)
        await wait_until(over, "the operation is over")
        assert "Done: 2,300 jobs." in await browser.read(where)
    assert await numbers(raw) == (0, 0)
    assert len(seen) > 2


async def test_a_long_operation_can_be_stopped_between_two_steps(
    url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done stays done, the rest stays as it was; the end of the dashboard stops it, too."""
    monkeypatch.setattr(actions, "_AT_ONCE_S", 0.0)
    await bury(raw, 3_000)
    async with browsing(url) as browser:
        where = await browser.do(f"{DEAD}/requeue", ("which", "all"), ("confirmed", "yes"))
        operation = browser.dash.operations.get(where.rpartition("/")[2])
        assert operation is not None
        await wait_until(lambda: operation.done, "some are done")
        await browser.do(f"{where}/stop")
        dead, pending = await numbers(raw)
        assert f"Stopped after {pending:,} jobs" in await browser.read(where)
        assert 0 < dead < 3_000
        assert dead + pending == 3_000
        await browser.do(f"{DEAD}/requeue", ("which", "all"), ("confirmed", "yes"))
    dead, pending = await numbers(raw)
    assert dead + pending == 3_000


async def test_an_operation_that_breaks_off_says_so(own_server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has gone meanwhile: why, and that it can be begun again; another one can be, once it is back."""
    monkeypatch.setattr(actions, "_AT_ONCE_S", 0.0)
    server = own_server(append_only=True)
    async with raw_client(server.url) as raw, browsing(server.url) as browser:
        await bury(raw, 3_000)
        where = await browser.do(f"{DEAD}/delete", ("which", "all"), ("confirmed", "yes"))
        operation = browser.dash.operations.get(where.rpartition("/")[2])
        assert operation is not None
        await wait_until(lambda: operation.done, "some are done")
        await asyncio.to_thread(server.kill)
        await wait_until(lambda: not operation.running, "it has ended")
        assert re.search(r"Broken off after [\d,]+ jobs: .* It can be begun again.", await browser.read(where))
        assert (await browser.client.get(f"/q/{QUEUE}")).status_code == 503


async def test_too_many_operations_at_a_time_are_refused(url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever presses the button again and again does not load the server again and again."""
    monkeypatch.setattr(actions, "_AT_ONCE_S", 0.0)
    monkeypatch.setattr(operations, "AT_A_TIME", 0)
    await bury(raw, 1)
    async with browsing(url) as browser:
        response = await browser.post(f"{DEAD}/delete", [("which", "all"), ("confirmed", "yes")])
    assert response.status_code == 429
    assert await numbers(raw) == (1, 0)


async def test_what_was_refused_is_told_with_the_reason(url: str, raw: Redis) -> None:
    """A parent whose children are still out stays dead, and the page says why."""
    await bury(raw, 2)
    await raw.set(Queue(raw).keys.dependencies(ID), 1)
    async with browsing(url) as browser:
        where = await browser.do(f"{DEAD}/requeue", ("which", "all"), ("confirmed", "yes"))
        text = await browser.read(where)
    assert "Done: 1 job." in text
    assert re.search(rf"1 refused {ID} EMQSTATE \w+", text)
    await raw.delete(Queue(raw).keys.dependencies(ID))


async def fix(browser: Browser, payload: str, *more: tuple[str, str], was: str = "") -> tuple[int, str]:
    """Save a payload as the form would; status, and where it leads or what it says."""
    page = (await browser.get(f"/q/{QUEUE}/job/{ID}/edit")).text
    hidden = dict(re.findall(r'type="hidden" name="(was|kind|compact)" value="([^"]*)"', page))
    hidden["was"] = was or hidden["was"]
    fields = [*hidden.items(), ("payload", payload), *more]
    response = await browser.post(f"/q/{QUEUE}/job/{ID}/edit", fields)
    return response.status_code, response.headers.get("location") or text_of(response.text)


async def test_a_payload_is_corrected_and_requeued(url: str, raw: Redis) -> None:
    """JSON that had no blanks gets none; saved alone the job stays dead."""
    await bury(raw, 1)
    key = Queue(raw).keys.job(ID)
    async with browsing(url) as browser:
        assert await fix(browser, '{\r\n  "n": 2\r\n}', ("then", "save")) == (303, f"/q/{QUEUE}/job/{ID}?said=saved")
        assert await raw.hget(key, "payload") == b'{"n":2}'
        assert await numbers(raw) == (1, 0)
        await fix(browser, '{"n": 3}', ("then", "requeue"))
    assert await raw.hget(key, "payload") == b'{"n":3}'
    assert await numbers(raw) == (0, 1)


async def test_a_payload_that_cannot_be_meant_is_kept_in_the_form(url: str, raw: Redis) -> None:
    """Where it is wrong is told, what was typed is still there, and nothing is saved unless that is wanted."""
    await bury(raw, 1)
    async with browsing(url) as browser:
        status, text = await fix(browser, '{"n": oops', ("then", "requeue"))
        assert (status, "not JSON at line 1, column 7" in text, '{"n": oops' in text) == (422, True, True)
        assert await raw.hget(Queue(raw).keys.job(ID), "payload") == b'{"n":1}'
        assert await numbers(raw) == (1, 0)
        await fix(browser, "oops", ("anyway", "yes"))
    assert await raw.hget(Queue(raw).keys.job(ID), "payload") == b"oops"


async def test_a_payload_that_somebody_else_has_changed_is_not_overwritten(url: str, raw: Redis) -> None:
    """Nor that of a job that has got a new life meanwhile."""
    await bury(raw, 1)
    async with browsing(url) as browser:
        status, text = await fix(browser, '{"n":2}', was="0" * 64)
        assert (status, "Somebody has changed the payload" in text) == (409, True)
        await browser.do(f"{DEAD}/requeue", ("id", ID))
        response = await browser.post(f"/q/{QUEUE}/job/{ID}/edit", [("payload", "late"), ("kind", "text")])
        assert response.headers["location"].endswith("said=not-dead")
        assert (await browser.get(f"/q/{QUEUE}/job/{ID}/edit")).headers["location"].endswith("said=not-dead")
    assert await raw.hget(Queue(raw).keys.job(ID), "payload") == b'{"n":1}'


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        ({f"job:{ID}": row(), "pending": {ID: 0}}, f"/q/{QUEUE}?said=removed"),
        ({f"job:{ID}": row("active", 1), "active": {ID: float(FAR_MS)}}, f"/q/{QUEUE}/job/{ID}?said=asked"),
        ({f"job:{ID}": row("dead", 1), "dead": {ID: 0}}, f"/q/{QUEUE}/job/{ID}?said=ended"),
        ({}, f"/q/{QUEUE}?said=gone"),
    ],
)
async def test_a_job_is_cancelled_after_a_question(url: str, raw: Redis, state: dict[str, object], answer: str) -> None:
    """One that waits is removed, one that runs is asked, with the reason that was given."""
    await Queue(raw).put(state)
    where = f"/q/{QUEUE}/job/{ID}/cancel"
    async with browsing(url) as browser:
        assert f"Cancel job {ID}?" in text_of((await browser.post(where)).text)
        assert await raw.exists(*[Queue(raw).keys.base + name for name in state] or ["none"]) == len(state)
        assert await browser.do(where, ("confirmed", "yes"), ("reason", "no longer needed")) == answer
        assert (await browser.get(answer)).status_code == 200
    if "asked" in answer:
        assert await raw.hget(Queue(raw).keys.job(ID), "cancel") == b"no longer needed"


async def test_a_repeat_is_cancelled_after_a_question(url: str) -> None:
    """Whatever its name is."""
    name = "nightly </form> & co"
    async with connect(url) as connector:
        await Repeat(connector).register(QUEUE, name, 1_000, "x", first_in_ms=60_000)
        async with browsing(url) as browser:
            where = f"/q/{QUEUE}/repeats/cancel"
            assert f"Cancel the repeat {name}?" in text_of((await browser.post(where, [("name", name)])).text)
            assert await Repeat(connector).count(QUEUE) == 1
            await browser.do(where, ("name", name), ("confirmed", "yes"))
        assert await Repeat(connector).count(QUEUE) == 0


@pytest.mark.parametrize(
    ("fields", "payload", "place"),
    [
        ({"payload": '{"a": 1}', "kind": "json"}, b'{"a": 1}', "pending"),
        ({"payload": "two\r\nlines", "kind": "text"}, b"two\nlines", "pending"),
        ({"payload": "00 ff", "kind": "hex", "delay": "60"}, b"\x00\xff", "schedule"),
        ({"payload": "[]", "kind": "json", "lane": GROUP}, b"[]", f"g:{GROUP}:pending"),
        ({"payload": "[]", "kind": "json", "lane": "acme"}, b"[]", f"g:{Lanes.group_for('acme')}:pending"),
    ],
)
async def test_a_job_by_hand(url: str, raw: Redis, fields: dict[str, str], payload: bytes, place: str) -> None:
    """Of every kind of payload, at once, later, or in a lane: the page of the job is the answer."""
    async with browsing(url) as browser:
        where = await browser.do(f"/q/{QUEUE}/add", *fields.items())
        page = await browser.read(where)
    id = where.rpartition("/")[2].partition("?")[0]
    assert "The job is enqueued." in page
    assert await raw.hget(Queue(raw).keys.job(id), "payload") == payload
    assert await raw.zscore(Queue(raw).keys.base + place, id) is not None


async def test_a_job_by_hand_that_cannot_be_meant_stays_in_the_form(url: str, raw: Redis) -> None:
    """What is wrong is told, and nothing is enqueued."""
    async with browsing(url) as browser:
        for fields, said in (
            ({"payload": "{", "kind": "json"}, "not JSON"),
            ({"payload": "x", "kind": "text", "delay": "soon"}, "delay: expected an integer"),
        ):
            response = await browser.post(f"/q/{QUEUE}/add", list(fields.items()))
            assert (response.status_code, said in text_of(response.text)) == (422, True)
    assert await Queue(raw).state() == {}


async def test_the_same_form_twice_does_nothing_twice(url: str, raw: Redis) -> None:
    """A second click on requeue finds no dead job, and says so."""
    await bury(raw, 1)
    async with browsing(url) as browser:
        first, second = await asyncio.gather(
            browser.do(f"{DEAD}/requeue", ("id", ID)), browser.do(f"{DEAD}/requeue", ("id", ID))
        )
        assert {first, second} >= {f"{DEAD}?said=requeued"} or "operations" in first + second
    async with connect(url) as connector:
        view = await Jobs(connector).get(QUEUE, ID)
    assert view is not None
    assert view.state == "pending"
    assert await numbers(raw) == (0, 1)
