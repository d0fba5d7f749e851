"""The dashboard's doors, over ASGI: who is let in, which forms are taken, what every answer says to the browser."""

from __future__ import annotations

import asyncio
import base64
import re
import sys

import httpx
import pytest
import structlog
from fastapi import FastAPI
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.routing import Mount

from echomq_worker.errors import ConfigError
from echomq_worker.web import LOCAL_HOSTS, Access, dashboard
from echomq_worker.web.app import IDLE_MS
from tests.support.clock import ManualClock
from tests.support.plain import QUEUE, Queue, job, row
from tests.support.valkey import OwnServer
from tests.support.waiting import wait_until
from tests.support.web import ANYBODY, TOKEN, browsing, text_of

PAUSE = f"/q/{QUEUE}/pause"
BY_TOKEN = Access.by_token(TOKEN)
BY_PASSWORD = Access.by_password("ada", "lovelace!")
LOGIN = "Basic " + base64.b64encode(b"ada:lovelace!").decode()


async def paused(raw: Redis) -> bool:
    """Whether somebody has got through."""
    return bool(await raw.hexists(Queue(raw).keys.meta, "paused"))


async def test_every_answer_forbids_what_the_pages_do_not_need(url: str) -> None:
    """Scripts and styles of our own files alone, no frame around it, nothing cached; the files may be."""
    async with browsing(url) as browser:
        answers = [await browser.get(where) for where in ("/", f"/q/{QUEUE}", "/nowhere", f"/q/{QUEUE}/job/x")]
        answers.append(await browser.post(PAUSE))
        static = await browser.get("/static/dashboard.js")
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
    assert "immutable" in static.headers["cache-control"]
    assert "set-cookie" not in static.headers


async def test_a_form_that_is_not_ours_is_refused(url: str, raw: Redis) -> None:
    """Without its token, with another session's, from another origin: nothing is changed."""
    async with browsing(url) as browser, browsing(url) as other:
        good = browser.form_token
        for token in ("", other.form_token, good[:-1]):
            browser.form_token = token
            assert (await browser.post(PAUSE)).status_code == 403
        browser.form_token = good
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://localhost:81"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            response = await browser.post(PAUSE, headers=headers)
            assert (response.status_code, "nothing was changed" in response.text) == (403, True)
        assert not await paused(raw)
        for method in ("PUT", "DELETE", "PATCH"):
            assert (await browser.client.request(method, PAUSE)).status_code == 405
        assert (await browser.get(PAUSE)).status_code == 405
        assert not await paused(raw)
        await browser.post(PAUSE, headers={"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"})
    assert await paused(raw)


async def test_a_cookie_of_nobody_is_no_session(url: str, raw: Redis) -> None:
    """A browser without our cookie gets a new one, and its form is refused once."""
    async with browsing(url) as browser:
        browser.client.cookies.clear()
        refused = await browser.post(PAUSE)
        assert refused.status_code == 403
        cookie = refused.headers["set-cookie"]
        assert "set-cookie" not in (await browser.get("/")).headers
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "Secure" not in cookie
    assert not await paused(raw)


async def test_a_cookie_over_tls_stays_there(url: str) -> None:
    """With https it is marked so."""
    async with browsing(url, base="https://localhost") as browser:
        browser.client.cookies.clear()
        assert "; Secure" in (await browser.get("/")).headers["set-cookie"]


async def test_another_host_name_is_not_answered(url: str) -> None:
    """A name that a page elsewhere has pointed at this machine (DNS rebinding) gets nothing, not even the login."""
    async with browsing(url, hosts=LOCAL_HOSTS) as browser:
        for where in ("/", "/login", "/static/dashboard.css", "/live/queues"):
            assert (await browser.get(where, Host="evil.example:8080")).status_code == 421
        assert (await browser.get("/", Host="127.0.0.1:8080")).status_code == 200


async def test_a_token_is_asked_for_on_every_page(url: str, raw: Redis) -> None:
    """The pages lead to the login, streams and forms are refused; the right token lets in, and out again."""
    async with browsing(url, access=BY_TOKEN) as browser:
        for where in ("/", f"/q/{QUEUE}", f"/q/{QUEUE}/job/{job(1)}/payload", "/live/queues", "/operations/x"):
            answer = await browser.get(where)
            assert (answer.status_code, answer.headers.get("location"), answer.text) == (303, "/login", "")
        assert (await browser.get("/live/queues", Accept="text/event-stream")).status_code == 401
        assert (await browser.get("/static/dashboard.css")).status_code == 200
        await browser.get("/login")
        assert (await browser.post(PAUSE)).status_code == 401
        wrong = await browser.post("/login", [("token", "wrong")])
        assert (wrong.status_code, "That is not the token" in wrong.text) == (403, True)
        before = dict(browser.client.cookies)
        assert await browser.do("/login", ("token", TOKEN)) == "/"
        assert dict(browser.client.cookies) != before, "a session that was there before the login must not be one after"
        await browser.read(f"/q/{QUEUE}")
        await browser.do(PAUSE)
        assert await paused(raw)
        await browser.do("/logout")
        assert (await browser.get("/")).status_code == 303


async def test_a_program_uses_the_token_as_a_header(url: str, raw: Redis) -> None:
    """Without cookies and forms: no page elsewhere can make a browser send it."""
    async with browsing(url, access=BY_TOKEN) as browser:
        browser.client.cookies.clear()
        browser.form_token = ""
        wrong, right = {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {TOKEN}"}
        assert (await browser.post(PAUSE, headers=wrong)).status_code == 401
        assert not await paused(raw)
        assert (await browser.get("/", **right)).status_code == 200
        assert (await browser.post(PAUSE, headers=right)).status_code == 303
    assert await paused(raw)


async def test_a_login_of_the_browser_needs_the_form_token_too(url: str, raw: Redis) -> None:
    """A browser sends it by itself, also with a form from elsewhere."""
    async with browsing(url, access=BY_PASSWORD) as browser:
        refused = await browser.get("/")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic ")
        right = {"Authorization": LOGIN}
        await browser.get(f"/q/{QUEUE}", **right)
        browser.form_token, kept = "", browser.form_token
        assert (await browser.post(PAUSE, headers=right)).status_code == 403
        assert not await paused(raw)
        browser.form_token = kept
        assert (await browser.post(PAUSE, headers=right)).status_code == 303
        assert (await browser.get("/login", **right)).headers["location"] == "/"
    assert await paused(raw)


async def test_read_only_changes_nothing_and_offers_nothing(url: str, raw: Redis) -> None:
    """No button but that of the login, and no form is taken, whoever sends it."""
    await Queue(raw).put(
        {f"job:{job(1)}": row("dead"), "dead": {job(1): 0}, f"job:{job(2)}": row(), "pending": {job(2): 0}}
    )
    async with browsing(url, read_only=True, access=BY_TOKEN) as browser:
        await browser.get("/login")
        await browser.do("/login", ("token", TOKEN))
        pages = ["", "/dead", "/waiting", "/lanes", "/repeats", f"/job/{job(1)}", f"/job/{job(2)}", "/add"]
        for end in pages:
            page = (await browser.get(f"/q/{QUEUE}{end}")).text
            assert set(re.findall(r'<form[^>]*method="post"[^>]*action="([^"]+)"', page)) <= {
                "/logout",
                f"/q/{QUEUE}/dead/requeue",
            }
            assert set(re.findall(r"<button[^>]*>([^<]+)", page)) <= {"Log out", "Filter"}, end
        for where in (PAUSE, f"/q/{QUEUE}/add", f"/q/{QUEUE}/dead/requeue", f"/q/{QUEUE}/job/{job(1)}/edit"):
            response = await browser.post(where, [("id", job(1)), ("payload", "{}"), ("kind", "json")])
            assert (response.status_code, "only reads" in response.text) == (403, True)
    assert not await paused(raw)
    assert (await raw.zcard(Queue(raw).keys.dead), await raw.zcard(Queue(raw).keys.pending)) == (1, 1)


async def test_a_form_without_end_is_refused(url: str, raw: Redis) -> None:
    """Too long, too many fields, not a form at all: told, and nothing is changed."""
    async with browsing(url) as browser:
        assert (await browser.post(PAUSE, [("x", "y" * (2 << 20))])).status_code == 413
        assert (await browser.post(PAUSE, [("x", "y")] * 2_000)).status_code == 400
        assert (await browser.client.post(PAUSE, content=b"\xff\xfe")).status_code == 400
    assert not await paused(raw)


@pytest.mark.parametrize("kind", ["Starlette", "FastAPI"])
async def test_mounted_below_a_path_every_address_has_it(url: str, kind: str) -> None:
    """Links, forms, redirects, the cookie, the live parts; the application around it is left alone."""
    dash = dashboard(url, access=ANYBODY)
    if kind == "Starlette":
        app = Starlette(routes=[Mount("/admin/jobs", app=dash)])
    else:
        app = FastAPI()
        app.mount("/admin/jobs", dash)
    async with dash, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        page = await client.get(f"/admin/jobs/q/{QUEUE}")
        token = re.findall(r'name="form_token" value="(\w+)"', page.text)[0]
        links = re.findall(r'(?:href|src|action|data-live)="(/[^"]*)"', page.text)
        assert links
        assert [link for link in links if not link.startswith("/admin/jobs/")] == []
        assert "Path=/admin/jobs;" in page.headers["set-cookie"]
        moved = await client.post(f"/admin/jobs{PAUSE}", data={"form_token": token})
        assert (moved.status_code, moved.headers["location"]) == (303, f"/admin/jobs/q/{QUEUE}?said=paused")
        assert (await client.get("/admin/jobs/static/dashboard.css")).status_code == 200
        assert (await client.get("/elsewhere")).headers.get("content-security-policy") is None


async def test_mounted_it_looks_no_longer_than_somebody_does(url: str) -> None:
    """Without `async with` it begins with the first page, and ends when nobody has asked for a while."""
    dash = dashboard(url, access=ANYBODY)
    clock = dash.clock = dash.sampler._clock = ManualClock()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(dash), base_url="http://localhost") as client:
        assert dash._looking is None
        await client.get("/")
        task = dash._looking
        assert task is not None
        await wait_until(lambda: clock.sleepers, "the sampler rests")
        assert not task.done()
        clock.advance(IDLE_MS + 10_000)
        await wait_until(task.done, "the sampler has ended")
        await client.get("/")
        assert dash._looking is not task
    await dash.aclose()


async def test_its_lifespan_begins_and_ends_it(url: str) -> None:
    """A server that speaks the lifespan protocol needs nothing else."""
    dash = dashboard(url, access=ANYBODY)
    asked = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    said = []

    async def receive() -> dict[str, str]:
        return next(asked)

    async def send(message: object) -> None:
        said.append(message)

    await dash({"type": "lifespan"}, receive, send)

    assert said == [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}]
    assert dash._looking is not None
    assert dash._looking.done()


async def test_no_websocket_is_taken(url: str) -> None:
    """There is none to speak to."""
    said = []

    async def send(message: object) -> None:
        said.append(message)

    async with browsing(url) as browser:
        await browser.dash({"type": "websocket"}, None, send)  # type: ignore[arg-type]  # it is not asked
    assert said == [{"type": "websocket.close", "code": 1000}]


def test_a_dashboard_that_cannot_be_made_says_why() -> None:
    """A URL, a secret or a queue that is none: before anything is asked."""
    with pytest.raises(ConfigError):
        dashboard("http://localhost", access=ANYBODY)
    with pytest.raises(ConfigError, match="secret"):
        dashboard("redis://localhost", access=ANYBODY, secret=b"short")


def test_without_the_extra_a_dashboard_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """For who mounts it, as for the command."""
    monkeypatch.delitem(sys.modules, "echomq_worker.web.app")
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'echomq-worker[web]'")):
        dashboard("redis://localhost", access=ANYBODY)


async def test_an_outage_is_a_page_and_ends_by_itself(own_server: OwnServer) -> None:
    """What cannot be read is said, with a status that a program understands; when the server is back, the pages are."""
    server = own_server(append_only=True)
    async with browsing(server.url) as browser:
        await browser.read(f"/q/{QUEUE}")
        await asyncio.to_thread(server.stop)
        page = await browser.get(f"/q/{QUEUE}")
        assert (page.status_code, "cannot be reached" in text_of(page.text)) == (503, True)
        await asyncio.to_thread(server.start)
        await browser.read(f"/q/{QUEUE}")


async def test_nothing_of_a_payload_is_logged(url: str, raw: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """Nor a token: whatever was asked, edited, refused."""
    await Queue(raw).put({f"job:{job(1)}": row("dead", 1, "SECRET-IN-PAYLOAD"), "dead": {job(1): 0}})
    with structlog.testing.capture_logs() as logs, caplog.at_level("DEBUG"):
        async with browsing(url, access=BY_TOKEN) as browser:
            await browser.get("/login")
            await browser.do("/login", ("token", TOKEN))
            for end in ("/dead", f"/job/{job(1)}", f"/job/{job(1)}/edit", f"/job/{job(1)}/payload"):
                await browser.get(f"/q/{QUEUE}{end}")
            await browser.post(f"/q/{QUEUE}/add", [("payload", "SECRET-IN-FORM{"), ("kind", "json")])
            await browser.do(f"/q/{QUEUE}/dead/requeue", ("id", job(1)))
    text = f"{logs} {caplog.text}"
    assert [word for word in ("SECRET", TOKEN) if word in text] == []
