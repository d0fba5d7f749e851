"""The dashboard in a test's own process: asked as a browser would, with cookies and the tokens of forms."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from echomq_worker.web import Access, dashboard
from echomq_worker.web.app import Dashboard
from tests.support.waiting import PATIENCE_S

HOST = "http://localhost"
ANYBODY = Access.anybody()
TOKEN = "a token of the tests"

Field = tuple[str, str]


class Browser:
    """Keeps cookies, and the form token of the last page. `dash` is what it asks."""

    def __init__(self, dash: Dashboard, client: httpx.AsyncClient) -> None:
        self.dash = dash
        self.client = client
        self.form_token = ""

    async def get(self, path: str, **headers: str) -> httpx.Response:
        """One page; redirects are not followed."""
        response = await self.client.get(path, headers=headers)
        found = re.search(r'name="form_token" value="([^"]+)"', response.text)
        if found is not None:
            self.form_token = found[1]
        return response

    async def read(self, path: str) -> str:
        """The text of a page, without its tags, blanks folded; the status has to be 200."""
        response = await self.get(path)
        assert response.status_code == 200, (path, response.status_code, response.text)
        return text_of(response.text)

    async def post(
        self, path: str, fields: Sequence[Field] = (), headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """A form, with the token of the last page that had one."""
        pairs = [("form_token", self.form_token), *fields]
        body = urlencode(pairs)
        sent = {"Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
        return await self.client.post(path, content=body, headers=sent)

    async def do(self, path: str, *fields: Field) -> str:
        """A form that has to be taken, and where it leads."""
        response = await self.post(path, fields)
        assert response.status_code == 303, (path, response.status_code, text_of(response.text))
        return str(response.headers["location"])


@pytest.fixture(autouse=True)
def all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a module of tests: what is done behind a page may take its time to be over at once, as it may on a machine
    that stands still.
    """
    monkeypatch.setattr("echomq_worker.web.actions._AT_ONCE_S", PATIENCE_S)


@asynccontextmanager
async def browsing(url: str, *, access: Access = ANYBODY, base: str = HOST, **options: Any) -> AsyncIterator[Browser]:
    """A dashboard and somebody who has loaded its first page."""
    async with (
        dashboard(url, access=access, **options) as dash,
        httpx.AsyncClient(transport=httpx.ASGITransport(dash), base_url=base) as client,
    ):
        browser = Browser(dash, client)
        await browser.get("/q/nothing/add")
        yield browser


def text_of(page: str) -> str:
    """What a person reads of a page."""
    page = re.sub(r"<title>.*?</title>|<svg.*?</svg>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def ids_of(page: str) -> list[str]:
    """The jobs that a page lists, in order."""
    return re.findall(r'<th scope="row">\s*<a class="mono" href="[^"]*/job/(\w+)"', page)
