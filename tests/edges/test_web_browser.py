"""The dashboard in a real browser: a person's way through an incident, on a desk, a phone, by keyboard, in the dark."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect
from pydantic import BaseModel, field_validator
from redis.asyncio import Redis

from echomq_worker import Worker
from echomq_worker.web import Access
from tests.support import scene
from tests.support.browsing import PHONE, chromium, findings, is_live, opened, picture, served, too_wide, until_url
from tests.support.plain import FAR_MS, QUEUE, Queue, job, row
from tests.support.running import running
from tests.support.waiting import wait_until
from tests.support.web import TOKEN, all_at_once

__all__ = ["all_at_once"]

pytestmark = pytest.mark.timeout(400)

ID = job(1)
LABEL = "redis://queues.example.com:6379/0"


class Email(BaseModel):
    """What the handler of the incident takes."""

    to: str
    subject: str
    invoice: str

    @field_validator("to")
    @classmethod
    def has_an_at(cls, value: str) -> str:
        """An address has one."""
        if "@" not in value:
            raise ValueError("no @")
        return value


def mailer(sent: list[str]) -> Worker:
    """The worker that runs beside: it notes whom it has written to."""
    worker = Worker()

    @worker.handler(scene.MAILS)
    async def send(email: Email) -> None:
        sent.append(email.to)

    return worker


async def test_a_way_through_an_incident(url: str, raw: Redis) -> None:
    """Somebody sees that jobs have died, finds one, reads why, corrects its payload, requeues it, and sees that it is
    done by the worker that runs: every page shows the change without being loaded again.
    """
    id, sent = await scene.emails(raw), list[str]()
    async with (
        chromium() as browser,
        served(url, label=LABEL) as (dash, base),
        running(mailer(sent), url),
        opened(browser, base) as page,
    ):
        await dash.sampler.beat()
        await page.reload()
        await page.get_by_role("link", name="41 dead jobs of emails").click()
        await expect(page.get_by_role("heading", name="Dead jobs")).to_be_visible()
        await expect(page.get_by_role("region", name="Reasons")).to_contain_text("ValueError 1")
        await picture(page, "incident-1-dead")
        await page.get_by_role("link", name="ValueError").click()
        await page.get_by_role("link", name=id).click()
        await expect(page.locator("#job")).to_contain_text("has no @: it is no address of a person")
        await expect(page.locator(".log")).to_contain_text("attempt 3: rendering invoice")
        await picture(page, "incident-2-reason")

        await page.get_by_role("link", name="Edit the payload").click()
        box = page.get_by_label("Payload, as JSON")
        await box.fill((await box.input_value()).replace("hopper.example", "hopper@example").replace('"to"', "to"))
        await page.get_by_role("button", name="Save and requeue").click()
        await expect(page.get_by_role("alert").filter(has_text="not JSON at line 2")).to_be_visible()
        await box.fill((await box.input_value()).replace("  to:", '  "to":'))
        await picture(page, "incident-3-edit")
        await page.get_by_role("button", name="Save and requeue").click()

        await expect(page.get_by_role("status").filter(has_text="requeued")).to_be_visible()
        await expect(page.get_by_role("heading", name="no row any more")).to_be_visible()
        await expect(page.get_by_role("link", name="Dead 40")).to_be_visible()
        await picture(page, "incident-4-done")
        assert sent == ["grace.hopper@example.com"]

        await page.get_by_role("link", name="Dead 40").click()
        await page.get_by_role("link", name="TimeoutError").click()
        await page.get_by_role("button", name="Requeue all that match").click()
        await expect(page.get_by_role("heading", name="Requeue all dead jobs with")).to_be_visible()
        await picture(page, "incident-5-all")
        await page.get_by_role("button", name="Requeue them").click()
        await expect(page.get_by_role("heading", name="No dead job matches")).to_be_visible()
        await wait_until(lambda: len(sent) > 10, "the requeued ones are done")
        await page.get_by_role("link", name="Overview").click()
        await is_live(page)
        await expect(page.locator("#tiles")).to_contain_text("Completed since it began")


async def test_by_keyboard_alone(url: str, raw: Redis) -> None:
    """Every step has a place that Tab comes to and that is seen to have the focus; live parts do not take it away."""
    await Queue(raw).put({f"job:{ID}": row("dead", 3, "{}", last_error="why"), "dead": {ID: 0}})
    async with chromium() as browser, served(url) as (dash, base), opened(browser, base) as page:
        await dash.sampler.beat()
        await page.reload()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await page.keyboard.press("Enter")
        await tab_to(page, "1 dead jobs of q")
        assert await outline(page) != "none"
        await is_live(page)
        await Queue(raw).put({"pending": {job(5): 0}, f"job:{job(5)}": row()})
        await dash.sampler.beat()
        await expect(page.locator("tr[data-key=q] td[data-label=Ready]")).to_have_text("1")
        assert "dead jobs of q" in await focused(page)
        await page.keyboard.press("Enter")
        await until_url(page, "/dead")
        await tab_to(page, f"Mark {ID}")
        await page.keyboard.press("Space")
        await page.keyboard.press("Shift+Tab")
        await tab_to(page, "Delete marked", back=True)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Delete 1 dead job?")).to_be_visible()
        await tab_to(page, "Delete it")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").filter(has_text="Deleted.")).to_be_visible()
        assert await raw.zcard(Queue(raw).keys.dead) == 0


_WORDS = """(e => ["BODY", "MAIN"].includes(e.tagName) ? "" :
  (e.getAttribute("aria-label") || (e.labels && e.labels[0] || e).textContent).trim())(document.activeElement)"""


async def focused(page: Page) -> str:
    """The words of what has the focus."""
    words: str = await page.evaluate(_WORDS)
    return words


async def outline(page: Page) -> str:
    """How the focus is shown."""
    style: str = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    return style


async def tab_to(page: Page, words: str, *, back: bool = False) -> None:
    """Press Tab until what has these words has the focus."""
    for _ in range(40):
        if words in await focused(page):
            return
        await page.keyboard.press("Shift+Tab" if back else "Tab")
    raise AssertionError(f"Tab does not come to {words!r}")


async def test_every_page_is_accessible_in_light_and_dark_on_a_desk_and_a_phone(
    url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No serious finding of axe, nothing wider than the window; the pictures of the docs are made here."""
    # One look, so that the past on the pictures is the scene's.
    monkeypatch.setattr("echomq_worker.web.sampler.LOOK_MS", 3_600_000)
    id = await scene.emails(raw)
    await scene.reports(raw)
    await scene.busy(raw)
    mails, reports = f"/q/{scene.MAILS}", f"/q/{scene.REPORTS}"
    pages = {
        "queues": "/",
        "queue": mails,
        "dead": f"{mails}/dead",
        "job": f"{mails}/job/{id}",
        "edit": f"{mails}/job/{id}/edit",
        "scheduled": f"{mails}/scheduled",
        "active": f"{reports}/active",
        "lanes": f"{reports}/lanes",
        "repeats": f"{reports}/repeats",
        "add": f"{reports}/add",
    }
    found: dict[str, Any] = {}
    async with chromium() as browser, served(url, label=LABEL) as (dash, base):
        await dash.sampler.beat()
        for kind, options in KINDS.items():
            async with opened(browser, base, **options) as page:
                for name, where in pages.items():
                    scene.remembered(dash)
                    await page.goto(where)
                    if over := await too_wide(page):
                        found[f"{name} {kind}"] = f"{over} pixels too wide"
                    if name in CHECKED.get(kind, pages) and (said := await findings(page)):
                        found[f"{name} {kind}"] = said
                    if kind in SHOWN.get(name, ()):
                        await picture(page, name if kind == "desk" else f"{name}-{kind}", whole=name == "queue")
    assert found == {}


KINDS: dict[str, dict[str, Any]] = {
    "desk": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {
        "color_scheme": "light",
        "viewport": PHONE,
        "has_touch": True,
        "is_mobile": True,
        "device_scale_factor": 2,
    },
}
# On a desk all of them; of the others those in which colours and cards differ.
CHECKED = {"dark": {"queue", "dead", "job", "edit"}, "phone": {"queue", "dead"}}
SHOWN = {
    "queues": ("desk",),
    "queue": ("desk", "dark", "phone"),
    "dead": ("phone",),
    "active": ("desk",),
    "lanes": ("desk",),
}


async def test_hostile_payloads_run_nothing_and_break_nothing(url: str, raw: Redis) -> None:
    """Markup, controls, direction marks, bytes and a payload without end: the page is whole, and nothing of it runs."""
    evil = "</pre></textarea><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    kinds = {
        1: evil.encode(),
        2: bytes(range(256)) * 8,
        3: "שלום \u202eevil\u202c עולם".encode(),
        4: b'{"a":"' + evil.replace('"', '\\"').encode() + b'"}',
        5: b"[" * 60_000,
        6: b"x" * 3_000_000,
    }
    keys = Queue(raw).keys
    for n, payload in kinds.items():
        fields: dict[Any, Any] = {"state": "dead", "payload": payload, "last_error": evil, "progress": evil}
        await raw.hset(keys.job(job(n)), mapping=fields)
        await raw.zadd(keys.dead, {job(n): 0})
        await raw.rpush(keys.logs(job(n)), evil)
    async with chromium() as browser, served(url) as (_, base), opened(browser, base, viewport=PHONE) as page:
        for where in [f"/q/{QUEUE}/dead", *(f"/q/{QUEUE}/job/{job(n)}{end}" for n in kinds for end in ("", "/edit"))]:
            await page.goto(where)
            if not where.endswith("/edit"):
                await is_live(page)
            assert "owned" not in await page.title(), where
            assert await page.locator("main script, main img").count() == 0, where
            assert await too_wide(page) == 0, where
            assert await page.locator("body > *").count() == 3, where
        await page.goto(f"/q/{QUEUE}/job/{job(1)}/edit")
        assert (await page.get_by_label("Payload").input_value()) == evil
        await page.get_by_role("button", name="Save", exact=True).click()
        await until_url(page, "said=saved")
    assert await raw.hget(keys.job(job(1)), "payload") == evil.encode()


async def test_without_a_script_everything_can_be_read_and_done(url: str, raw: Redis) -> None:
    """The same pages with JavaScript switched off: read, filter, mark, confirm."""
    await Queue(raw).put(
        {
            "dead": {job(n): 0 for n in (1, 2)},
            **{f"job:{job(n)}": row("dead", 1, "{}", last_error="why") for n in (1, 2)},
        }
    )
    async with (
        chromium() as browser,
        served(url) as (_, base),
        opened(browser, base, java_script_enabled=False) as page,
    ):
        await page.goto(f"/q/{QUEUE}/dead")
        await page.get_by_label("Reason contains").fill("wh")
        await page.get_by_role("button", name="Filter").click()
        assert await page.get_by_role("checkbox").count() == 2
        await page.get_by_label(f"Mark {job(2)}").check()
        await page.get_by_role("button", name="Delete marked").click()
        await page.get_by_role("button", name="Delete it").click()
        await expect(page.get_by_text("Deleted.")).to_be_visible()
        assert await page.locator("#state").is_hidden()
    assert await raw.zrange(Queue(raw).keys.dead, 0, -1) == [job(1).encode()]


async def test_a_login_with_a_token(url: str) -> None:
    """A wrong one is told, the right one leads to the queues, and out again."""
    access = Access.by_token(TOKEN)
    async with chromium() as browser, served(url, access=access) as (_, base), opened(browser, base) as page:
        await until_url(page, "/login")
        await page.get_by_label("Token").fill("not the token at all")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert").filter(has_text="That is not the token.")).to_be_visible()
        assert await findings(page) == []
        await page.get_by_label("Token").fill(TOKEN)
        await page.keyboard.press("Enter")
        await is_live(page)
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("heading", name="Log in")).to_be_visible()


async def test_what_changes_is_seen_without_loading_the_page(url: str, raw: Redis) -> None:
    """Progress and lease of a job in hand move; a server that has gone is told, and that it is back."""
    await Queue(raw).put(
        {"active": {ID: float(FAR_MS)}, f"job:{ID}": row("active", 1, held="1:a-0.1", progress="10 %")}
    )
    async with chromium() as browser, served(url) as (_, base), opened(browser, base) as page:
        await page.goto(f"/q/{QUEUE}/active")
        await expect(page.locator("#active")).to_contain_text("10 %")
        await is_live(page)
        mark = await page.evaluate("document.querySelector('tr[data-key]').dataset.kept = 'yes'")
        await raw.hset(Queue(raw).keys.job(ID), "progress", "90 %")
        await expect(page.locator("#active")).to_contain_text("90 %")
        await Queue(raw).put({"active": {job(2): 1.0}, f"job:{job(2)}": row("active", 1)})
        await expect(page.locator("tr[data-key]")).to_have_count(2)
        await expect(page.locator("tr[data-key]").first).to_contain_text(job(2))
        assert mark == "yes"
        await raw.zrem(Queue(raw).keys.active, ID, job(2))
        await expect(page.get_by_role("heading", name="No job is in hand")).to_be_visible()
        await expect(page.get_by_role("link", name="Active 0")).to_be_visible()
