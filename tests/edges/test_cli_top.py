"""`top` on a real server: on a terminal, as tables, as JSON lines; keys, signals, an outage."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from tests.support.cli import Cli, cli
from tests.support.plain import GROUP, job, row
from tests.support.proxy import Proxy
from tests.support.terminal import Terminal
from tests.support.valkey import ValkeyServer

__all__ = ["cli"]


@pytest.fixture(autouse=True)
def queues(url: str, server: ValkeyServer) -> None:
    """Two queues: one with a job of each kind, one with a lane."""
    admin: Any = server.admin
    for n, (state, where, score) in enumerate(
        [("pending", "pending", 0), ("active", "active", 4_000_000_000_000), ("dead", "dead", 0)], 1
    ):
        admin.hset(
            f"emq:{{one}}:job:{job(n)}", mapping=row(state, last_error="boom \x1b[31m") if n == 3 else row(state)
        )
        admin.zadd(f"emq:{{one}}:{where}", {job(n): score})
    admin.hset(f"emq:{{two}}:job:{job(9)}", mapping=row(group=GROUP))
    admin.zadd(f"emq:{{two}}:g:{GROUP}:pending", {job(9): 0})
    admin.rpush("emq:{two}:ring", GROUP)
    admin.hset("emq:{one}:metrics:completed", "count", 41)


def test_once_is_a_line_of_json_with_every_number(cli: Cli) -> None:
    """All queues of the server, or those that are named; the rates are of an interval."""
    code, out, err = cli("top", "--once", "--json", "--interval-ms", "100")

    assert (code, err, out.count("\n")) == (0, "", 1)
    facts = json.loads(out)
    one, two = facts["queues"]
    assert {
        key: one[key] for key in ("queue", "ready", "active", "scheduled", "dead", "repeats", "paused", "expired")
    } == {
        "queue": "one",
        "ready": 1,
        "active": 1,
        "scheduled": 0,
        "dead": 1,
        "repeats": 0,
        "paused": False,
        "expired": 0,
    }
    assert (one["completed_per_s"], one["failed_per_s"]) == (0, 0)
    assert (two["queue"], two["ready"]) == ("two", 1)
    assert [lane["group"] for lane in facts["lanes"]] == [GROUP]
    assert [job["id"] for job in facts["active"]] == [job(2)]
    assert [job["last_error"] for job in facts["dead"]] == ["boom \x1b[31m"]

    _, out, _ = cli("top", "two", "--once", "--json", "--interval-ms", "100")
    assert [queue["queue"] for queue in json.loads(out)["queues"]] == ["two"]


def test_once_is_tables_without_json(cli: Cli) -> None:
    """The same as text, nothing of what a server says gets through as a control character."""
    code, out, _ = cli("top", "--once", "--interval-ms", "100")

    assert code == 0
    assert [line for line in out.splitlines() if line in {"queues", "lanes", "active", "dead"}] == [
        "queues",
        "lanes",
        "active",
        "dead",
    ]
    assert "\x1b" not in out


def test_without_a_terminal_it_says_what_to_ask_for(cli: Cli) -> None:
    """Exit code 2, one line that names both."""
    code, out, err = cli("top")

    assert (code, out) == (2, "")
    assert err == "echomq-worker: no terminal to draw on: expected --once or --json\n"


@pytest.mark.parametrize("end", ["q", "SIGTERM"])
def test_live_on_a_terminal(url: str, server: ValkeyServer, end: str) -> None:
    """It draws, draws again when something has changed, and q or a signal ends it with 0 and the terminal as it was."""
    with Terminal("top", "--interval-ms", "100", env={"ECHOMQ_URL": url}) as terminal:
        terminal.saw(job(2))
        terminal.saw("q ends")
        admin: Any = server.admin
        admin.hset(f"emq:{{one}}:job:{job(5)}", mapping=row("dead", last_error="the second death"))
        admin.zadd("emq:{one}:dead", {job(5): 0})
        terminal.saw("the second death")
        if end == "q":
            terminal.press("xyz")
            terminal.press("q")
        else:
            os.kill(terminal.pid, signal.Signals[end])

        assert terminal.ended() == 0
        assert terminal.as_before


async def test_an_outage_is_shown_and_waited_out(server: ValkeyServer) -> None:
    """The picture makes room for the error, and comes back by itself."""
    async with Proxy(server.port) as proxy:
        with Terminal("top", "--interval-ms", "100", env={"ECHOMQ_URL": proxy.url}) as terminal:
            await asyncio.to_thread(terminal.saw, job(2))
            await proxy.refuse()
            proxy.reset()
            await asyncio.to_thread(terminal.saw, "trying again")
            await proxy.accept()
            terminal.forget()
            await asyncio.to_thread(terminal.saw, job(2))
            terminal.press("q")
            assert await asyncio.to_thread(terminal.ended) == 0
