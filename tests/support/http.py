"""Asking the port of a worker under test: one page at a time, over a socket, no client library."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True, slots=True)
class Page:
    """One answer."""

    status: int
    text: str
    kind: str = ""

    @property
    def json(self) -> dict[str, Any]:
        """The body of a probe."""
        found: dict[str, Any] = json.loads(self.text)
        return found


async def page(port: int, path: str) -> Page | None:
    """One page; None where nobody listens."""
    return await asyncio.to_thread(page_sync, port, path)


def page_sync(port: int, path: str, limit_s: float = 10.0) -> Page | None:
    """The same for a test without an event loop; blocks."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=limit_s) as answer:
            return Page(answer.status, answer.read().decode(), answer.headers.get("content-type", ""))
    except urllib.error.HTTPError as error:
        with error:
            return Page(error.code, error.read().decode(), error.headers.get("content-type", ""))
    except OSError:
        return None


def samples(text: str) -> Samples:
    """The numbers of a page of metrics, by name and labels."""
    found: Samples = {}
    for line in text.splitlines():
        if (match := _SAMPLE.match(line)) is not None:
            found[match[1], frozenset(_LABEL.findall(match[2] or ""))] = float(match[3])
    return found


async def green(port: int) -> Page | None:
    """/readyz where it is green; None where it is not, as it may be for a moment where a process stands still."""
    found = await page(port, "/readyz")
    return found if found is not None and found.status == 200 else None


async def scrape(port: int) -> Samples:
    """The numbers of /metrics, none where nobody answers."""
    found = await page(port, "/metrics")
    return samples(found.text) if found is not None and found.status == 200 else {}


def one(found: Samples, name: str, **labels: str) -> float:
    """One number; of a histogram its `_count` or `_sum` by name. KeyError where it is not there."""
    return found[name, frozenset(labels.items())]


async def scraped(port: int, name: str, value: float, **labels: str) -> bool:
    """Whether a number has this value now."""
    return (await scrape(port)).get((name, frozenset(labels.items()))) == value
