"""The dashboard's pages: what they show is what the server holds."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.identity import EPOCH_MS, encode
from echomq_worker.jobs import Jobs
from echomq_worker.lanes import Lanes
from echomq_worker.repeat import Repeat
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, QUEUE, Queue, job, row
from tests.support.web import browsing, ids_of, text_of

ID = job(1)


async def test_the_queues_are_those_of_the_server(url: str, raw: Redis) -> None:
    """Each with its numbers as a hand would count them; one that is paused says so."""
    async with connect(url) as connector:
        jobs = Jobs(connector)
        await jobs.enqueue_many("emails", ["a", "b", "c"])
        await jobs.enqueue_in("emails", "later", 60_000)
        await Lanes(connector).enqueue("emails", GROUP, "in a lane")
        await jobs.claim("emails", 60_000)
        await jobs.enqueue("reports", "a")
    await Queue(raw, "reports").put({"meta": {"paused": "1"}, "dead": {job(1): 0, job(2): 0}})

    async with browsing(url) as browser:
        page = await browser.get("/")

    rows = [text_of(one) for one in re.findall(r"<tr data-key.*?</tr>", page.text, re.DOTALL)]
    assert [re.sub(r" (\d+ ms|\d+ s) \S+$", " T", one) for one in rows] == [
        "emails 3 1 1 0 T",
        "reports paused 1 0 0 2 dead jobs of reports T",
    ]


async def test_a_server_without_queues_says_how_one_comes_to_be(url: str) -> None:
    """The first page of all."""
    async with browsing(url) as browser:
        assert "No queue yet" in await browser.read("/")
        assert "No dead jobs" in await browser.read("/q/emails/dead")
        assert (await browser.get("/go?queue=emails")).headers["location"] == "/q/emails"


async def test_a_queue_shows_its_numbers_and_limits(url: str, raw: Redis) -> None:
    """Counts, totals, ceilings, and plots that say in words what they draw."""
    queue = Queue(raw)
    await queue.put(
        {
            f"job:{ID}": row(),
            "pending": {ID: 0},
            "active": {job(2): 1.0},
            "meta": {"concurrency": "7", "max": "100", "window_ms": "1000"},
            "metrics:completed": {"count": "1234"},
            "metrics:failed": {"count": "5"},
        }
    )
    async with browsing(url) as browser:
        page = await browser.get(f"/q/{QUEUE}")
    text = text_of(page.text)

    assert "Ready 1 Active 1 Scheduled 0 Dead 0" in text
    assert "Completed since it began 1,234 Died since it began 5 Leases that are over 1" in text
    assert "At most in hand 7 Rate 100 in 1 s" in text
    assert re.search(r'role="img" aria-label="Throughput, jobs a second, over the last', page.text)


@pytest.mark.parametrize("where", ["waiting", "dead"])
async def test_a_set_is_paged_by_the_last_id(url: str, raw: Redis, where: str) -> None:
    """The newest first; each page goes on where the last one ended, also when jobs have come and gone meanwhile."""
    queue, name = Queue(raw), {"waiting": "pending", "dead": "dead"}[where]
    ids = [job(n) for n in range(1, 121)]
    await queue.put({name: dict.fromkeys(ids, 0), **{f"job:{id}": row() for id in ids}})

    async with browsing(url) as browser:
        first = await browser.get(f"/q/{QUEUE}/{where}")
        await raw.zadd(queue.keys.base + name, {job(500): 0})
        await raw.zrem(queue.keys.base + name, job(100))
        second = await browser.get(_older(first.text))
        third = await browser.get(_older(second.text))

    assert [ids_of(page.text) for page in (first, second, third)] == [ids[:69:-1], ids[69:19:-1], ids[19::-1]]
    assert 'rel="next"' not in third.text


def _older(page: str) -> str:
    found = re.search(r'<a href="([^"]+)" rel="next"', page)
    assert found is not None
    return found[1].replace("&amp;", "&")


async def test_dead_jobs_are_filtered_by_reason_and_age(url: str, raw: Redis) -> None:
    """By a part of the reason, by the age of the id, by both; what no row says matches no reason."""
    now = int((await raw.time())[0]) * 1000
    old, new = (encode("JOB", (now - ago - EPOCH_MS) << 22) for ago in (7_200_000, 60_000))
    other = encode("JOB", (now - 7_200_001 - EPOCH_MS) << 22)
    rows = {
        f"job:{old}": row("dead", last_error="TimeoutError: 10 s"),
        f"job:{new}": row("dead", last_error="TimeoutError: 11 s"),
        f"job:{other}": row("dead", last_error="rejected"),
        "dead": {old: 0, new: 0, other: 0, job(1): 0},
    }
    await Queue(raw).put(rows)

    async with browsing(url) as browser:

        async def found(query: str) -> list[str]:
            return ids_of((await browser.get(f"/q/{QUEUE}/dead?{query}")).text)

        assert await found("") == [new, old, other, job(1)]
        assert await found("error=Timeout") == [new, old]
        assert await found("older=60") == [old, other, job(1)]
        assert await found("error=Timeout&older=60") == [old]
        assert await found("error=nothing") == []
        text = await browser.read(f"/q/{QUEUE}/dead")
        assert "Reasons of the newest 4 TimeoutError 2 rejected 1 without a reason 1" in text


async def test_a_job_shows_reason_payload_and_log(url: str, raw: Redis) -> None:
    """The reason whole, the payload indented, the log in order."""
    rows = {
        f"job:{ID}": row("dead", 3, '{"to":"ada"}', failures=3, last_error="ValueError: no\nsecond line", group=GROUP),
        f"job:{ID}:logs": [f"line {n}" for n in range(150)],
        "dead": {ID: 0},
    }
    await Queue(raw).put(rows)
    async with browsing(url) as browser:
        page = await browser.get(f"/q/{QUEUE}/job/{ID}")
        payload = await browser.get(f"/q/{QUEUE}/job/{ID}/payload")
    text = text_of(page.text)

    assert "dead ValueError: no second line" in text
    assert "Attempts 3 Failures 3 Crashes in a row 0" in text
    assert f"Lane {GROUP}" in text
    assert "{\n  &#34;to&#34;: &#34;ada&#34;\n}" in page.text
    assert "Log 150 lines, the last 100" in text
    assert re.findall(r"line \d+", text) == [f"line {n}" for n in range(50, 150)]
    assert payload.content == b'{"to":"ada"}'
    assert payload.headers["content-type"] == "application/octet-stream"
    assert payload.headers["content-disposition"].startswith("attachment")


async def test_a_job_in_hand_shows_its_owner_lease_and_progress(url: str, raw: Redis) -> None:
    """Whose it is by the fence on its row, how long its lease runs, what the handler said last; one whose lease is over
    first.
    """
    queue = Queue(raw)
    await queue.put(
        {
            f"job:{ID}": row("active", 1, held="1:5d00bb359228-0.17", progress="60 %"),
            f"job:{job(2)}": row("active", 2),
            "active": {ID: float(FAR_MS), job(2): 1.0},
        }
    )
    async with browsing(url) as browser:
        text = await browser.read(f"/q/{QUEUE}/active")
        own = await browser.read(f"/q/{QUEUE}/job/{ID}")

    assert text.index(f"{job(2)} another client over") < text.index(f"{ID} 5d00bb359228-0 ")
    assert "60 %" in text
    assert "Held by 5d00bb359228-0 Lease ends in" in own
    assert "Progress 60 %" in own


async def test_schedule_repeats_and_lanes(url: str, raw: Redis) -> None:
    """When each is due next, and how each lane is served."""
    async with connect(url) as connector:
        jobs, lanes = Jobs(connector), Lanes(connector)
        late = (await jobs.enqueue_at(QUEUE, "late", 1_893_456_000_000)).id
        soon = (await jobs.enqueue_at(QUEUE, "soon", 1_890_000_000_000)).id
        await Repeat(connector).register(QUEUE, "nightly", 86_400_000, {"a": 1}, first_in_ms=1_000, fixed_rate=True)
        await Repeat(connector).register(QUEUE, "by calendar", cron="0 3 * * *", tz="Europe/Berlin", template="x")
        await lanes.enqueue(QUEUE, GROUP, "x")
        await lanes.pause(QUEUE, GROUP)
        await lanes.enqueue(QUEUE, OTHER_GROUP, "y")
        await lanes.limit(QUEUE, OTHER_GROUP, 3)

    async with browsing(url) as browser:
        schedule = await browser.get(f"/q/{QUEUE}/scheduled")
        repeats = await browser.read(f"/q/{QUEUE}/repeats")
        lanes_page = await browser.read(f"/q/{QUEUE}/lanes")
        lane = await browser.get(f"/q/{QUEUE}/waiting?lane={GROUP}")

    assert ids_of(schedule.text) == [soon, late]
    assert "2030-01-01 00:00:00 UTC" in text_of(schedule.text)
    assert re.search(r"nightly \d{4}-.* UTC 1 d fixed grid \{\"a\":1\}", repeats)
    assert "0 3 * * *, Europe/Berlin" in repeats
    assert f"{GROUP} 1 0 – 1 paused Resume {OTHER_GROUP} 1 0 3 1 served Pause" in lanes_page  # noqa: RUF001 - a dash
    assert len(ids_of(lane.text)) == 1


async def test_what_is_not_there_says_so(url: str) -> None:
    """A job that is gone, an id or a queue that is none, a page that is none: 404, with a way back."""
    async with browsing(url) as browser:
        for where, said in (
            (f"/q/{QUEUE}/job/{ID}", "no row any more"),
            (f"/q/{QUEUE}/job/{ID}/edit", "no row any more"),
            (f"/q/{QUEUE}/job/{ID}/payload", "no row any more"),
            (f"/q/{QUEUE}/job/nonsense", "expected three letters"),
            ("/q/bad%20queue", "expected 1..128"),
            (f"/q/{QUEUE}/dead?before=nonsense", "expected an id"),
            ("/operations/none", "not known here"),
            ("/nowhere", "no page of that address"),
            ("/q/q/nowhere", "no page of that address"),
        ):
            response = await browser.get(where)
            assert (response.status_code, said in text_of(response.text)) == (404, True), (where, response.text)
        assert (await browser.get("/static/none")).status_code == 404
        assert (await browser.get(f"/q/{QUEUE}/active?from=x")).status_code == 400


async def test_what_is_no_queue_under_a_queues_keys_is_told_and_hides_nothing(url: str, raw: Redis) -> None:
    """A key of another type, a number that is none: the page says so or counts nothing, and all else is shown."""
    await Queue(raw, "good").put({"pending": {ID: 0}, f"job:{ID}": row()})
    await Queue(raw, "bad").put({"dead": "text", "pending": {ID: 0}})
    await Queue(raw, "odd").put({"metrics:completed": {"count": "many"}, "pending": {ID: 0}})
    await Queue(raw, "old").put({"repeat": {"r": 1}, "repeat:r": {"every_ms": "often", "template": "x"}})
    async with browsing(url) as browser:
        text = await browser.read("/")
        assert "bad cannot be read WRONGTYPE" in text
        assert "good 1 0 0 0" in text
        for where, status in (("/q/bad", 502), ("/q/odd", 200), ("/q/old/repeats", 200), ("/q/good", 200)):
            assert (await browser.get(where)).status_code == status, where
    await raw.delete(Queue(raw, "bad").keys.dead)


async def test_what_others_have_written_is_shown_as_text(url: str, raw: Redis) -> None:
    """Markup, quotes, direction marks and controls in every place that anybody can write to are text on every page."""
    evil = "</pre><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202eabc\x1b[2J"
    queue = Queue(raw)
    fields = {"last_error": evil, "progress": evil, "held": f"1:{evil}.1", "group": evil, "cancel": evil, "dedup": evil}
    await queue.put(
        {
            f"job:{ID}": row("dead", 1, evil, **fields),
            f"job:{ID}:logs": [evil],
            "dead": {ID: 0, evil: 0},
            "pending": {evil: 0},
            "active": {evil: 1.0, job(2): 1.0},
            f"job:{job(2)}": row("active", 1, evil, **fields),
            "schedule": {evil: 1.0, job(3): 1.0},
            f"job:{job(3)}": row("scheduled", 1, evil, **fields),
            "ring": [evil],
            "repeat": {evil: 1},
            f"repeat:{evil}": {"every_ms": "1", "template": evil},
        }
    )
    async with browsing(url) as browser:
        pages = [f"/q/{QUEUE}{end}" for end in ("", "/waiting", "/active", "/scheduled", "/dead", "/repeats", "/lanes")]
        pages += [f"/q/{QUEUE}/job/{job(n)}" for n in (1, 2, 3)] + [f"/q/{QUEUE}/job/{ID}/edit", "/"]
        pages += [f"/q/{QUEUE}/dead?error=" + "%3Cscript%3E%22%27", "/%3Cscript%3E"]
        for where in pages:
            page = (await browser.get(where)).text
            assert foreign(page) == [], where
            # A hidden field carries a name as it is, and shows nothing.
            shown = re.sub(r'<input type="hidden"[^>]*>', "", page)
            assert not {"\u202e", "\x1b"} & set(shown), where


class Tags(HTMLParser):
    """What a browser would make of a page: every tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Part of HTMLParser."""
        self.found.append((tag, dict(attrs)))


def foreign(page: str) -> list[object]:
    """The tags of a page that run something, load something that is not ours, or have a style of their own."""
    tags = Tags()
    tags.feed(page)
    return [
        (tag, attrs)
        for tag, attrs in tags.found
        if any(name.startswith("on") or name == "style" for name in attrs)
        or (
            tag in {"script", "img", "link"}
            and not (attrs.get("src") or attrs.get("href") or "").startswith("/static/")
        )
        or tag in {"style", "iframe", "object", "embed", "base"}
        or (attrs.get("href") or "").lower().startswith("javascript:")
    ]


async def test_a_huge_payload_is_cut_and_never_fetched_for_a_list(url: str, raw: Redis) -> None:
    """Above the limit of a page only its size is known; the download has all of it."""
    await Queue(raw).put({"dead": {ID: 0, job(2): 0}, f"job:{job(2)}": row("dead", 1, "y" * 100_000)})
    await raw.hset(Queue(raw).keys.job(ID), mapping={"state": "dead", "payload": b"x" * (5 << 20)})

    async with browsing(url) as browser:
        before = (await raw.info("stats"))["total_net_output_bytes"]
        listed = await browser.read(f"/q/{QUEUE}/dead")
        page = await browser.get(f"/q/{QUEUE}/job/{ID}")
        sent = (await raw.info("stats"))["total_net_output_bytes"] - before
        cut = await browser.get(f"/q/{QUEUE}/job/{job(2)}")
        edit = await browser.read(f"/q/{QUEUE}/job/{ID}/edit")
        whole = await browser.get(f"/q/{QUEUE}/job/{ID}/payload")

    assert "5.0 MiB" in listed
    assert "too long to be shown here" in text_of(page.text)
    assert sent < 100_000
    assert "Cut here" in text_of(cut.text)
    assert 64_000 < len(cut.text) < 80_000
    assert "too long for a form" in edit
    assert len(whole.content) == 5 << 20
