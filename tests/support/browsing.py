"""A real browser on a dashboard that is served in a test's own event loop.

The browser is Debian's Chromium (`apt-get install chromium`). Where there is none the tests are skipped, unless
EMQ_BROWSER says that there has to be one. With EMQ_PICTURES set they write the pictures of docs/images.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]  # it has no types
from playwright.async_api import Browser, FloatRect, Page, ViewportSize, async_playwright, expect

from echomq_worker.probes.http import bind
from echomq_worker.web import Access, dashboard
from echomq_worker.web.app import Dashboard
from tests.support.waiting import wait_until

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
DESK = ViewportSize(width=1180, height=760)
PHONE = ViewportSize(width=390, height=844)
SERIOUS = {"serious", "critical"}
_LIMIT_MS = 40_000
_END = "Math.ceil(document.getElementById('main').lastElementChild.getBoundingClientRect().bottom)"


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """The browser, for the length of a block."""
    found = shutil.which("chromium")
    if found is None:
        if "EMQ_BROWSER" in os.environ:
            pytest.fail("no chromium: expected apt-get install chromium")
        pytest.skip("no chromium: apt-get install chromium")
    expect.set_options(timeout=_LIMIT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def served(url: str, *, access: Access | None = None, **options: Any) -> AsyncIterator[tuple[Dashboard, str]]:
    """A dashboard, and the address of its first page."""
    listening = bind("127.0.0.1:0")
    dash = dashboard(url, access=access or Access.anybody(), **options)
    config = uvicorn.Config(
        dash, log_config=None, access_log=False, ws="none", lifespan="on", timeout_graceful_shutdown=2
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listening])
    task = asyncio.create_task(server.main_loop())
    try:
        yield dash, f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        dash.end_streams()
        await server.shutdown(sockets=[listening])


@asynccontextmanager
async def opened(browser: Browser, base: str, **options: Any) -> AsyncIterator[Page]:
    """A window of its own, on the first page. At the end the console has to be empty, but for pages with an error."""
    context = await browser.new_context(base_url=base, **{"viewport": DESK, **options})
    context.set_default_timeout(_LIMIT_MS)
    page = await context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    try:
        await page.goto("/")
        yield page
    finally:
        await context.close()
    said = [line for line in said if "Failed to load resource" not in line and "verbose:" not in line]
    assert said == [], said


async def is_live(page: Page) -> None:
    """Wait until the page hears of changes."""
    await page.locator("#state.on").wait_for()


async def findings(page: Page) -> list[str]:
    """What an accessibility check calls serious or critical."""
    result = await Axe().run(page)
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:200]}"
        for one in result.response["violations"]
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


async def too_wide(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    over: int = await page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    return max(0, over)


async def picture(page: Page, name: str, *, whole: bool = False) -> None:
    """Write docs/images/<name>.png, where that is wanted: what the window shows, or the whole page."""
    if "EMQ_PICTURES" not in os.environ:
        return
    if await page.locator("main[data-live]").count():
        await is_live(page)
    await page.evaluate("document.activeElement && document.activeElement.blur()")
    await page.mouse.move(0, 0)
    await asyncio.to_thread(IMAGES.mkdir, exist_ok=True)
    size = page.viewport_size or DESK
    end: int = await page.evaluate(_END)
    height = end + 32 if whole else min(end + 32, size["height"])
    clip = FloatRect(x=0, y=0, width=size["width"], height=height)
    await page.screenshot(path=IMAGES / f"{name}.png", animations="disabled", full_page=True, clip=clip)


async def until_url(page: Page, part: str) -> None:
    """Wait until the address has it."""
    await wait_until(lambda: part in page.url, f"the browser is at {part}")
