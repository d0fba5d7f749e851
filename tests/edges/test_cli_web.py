"""`echomq-worker web` as a process: where it listens and for whom, how it ends, what is told where it cannot start."""

from __future__ import annotations

import re
import signal
import socket
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from echomq_worker.acl import rules
from tests.support.cli import Cli, cli
from tests.support.plain import GROUP, QUEUE, Queue, job, row
from tests.support.process import WorkerProcess, run_worker
from tests.support.valkey import OwnServer, ValkeyServer
from tests.support.web import TOKEN, browsing

__all__ = ["cli"]

HERE = "127.0.0.1:0"


def address(web: WorkerProcess) -> str:
    """Where it says that it listens."""
    return web.saw_sync(r"^dashboard on http://").split()[2]


def test_it_serves_until_a_signal_and_does_not_wait_for_open_pages(server: ValkeyServer, url: str) -> None:
    """The address on one line, the pages, a stream that is open: SIGTERM ends it with 0."""
    with WorkerProcess("web", "--http", HERE, env={"ECHOMQ_URL": url}) as web:
        where = address(web)
        with httpx.Client(base_url=where, timeout=60) as client:
            assert client.get("/").status_code == 200
            assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
            assert "server" not in client.get("/").headers
            with client.stream("GET", "/live/queues") as stream:
                lines = stream.iter_lines()
                assert next(lines).startswith("retry:")
                web.send(signal.SIGTERM)
                assert web.ended_sync() == 0
        assert "for this machine" in web.log_text()
        assert "Traceback" not in web.log_text()


def test_with_a_token_it_is_read_only_for_who_has_it(url: str) -> None:
    """From the environment: it is in no line of the log, and nothing warns."""
    with WorkerProcess("web", "--http", HERE, "--read-only", env={"ECHOMQ_URL": url, "ECHOMQ_WEB_TOKEN": TOKEN}) as web:
        where = address(web)
        assert web.lines("for who has the token, read only")
        with httpx.Client(base_url=where, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as client:
            assert client.get("/").status_code == 200
            assert client.post(f"/q/{QUEUE}/pause").status_code == 403
        assert httpx.get(f"{where}live/queues", headers={"Accept": "text/event-stream"}, timeout=60).status_code == 401
        web.send(signal.SIGINT)
        assert web.ended_sync() == 0
        assert TOKEN not in web.log_text()
        assert "warning" not in web.log_text()


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "jobs.example.com"])  # noqa: S104 - it must not
def test_on_an_address_that_others_reach_it_demands_a_secret(cli: Cli, host: str) -> None:
    """Without one it does not start: 2, one line that names both."""
    code, out, err = cli("web", "--http", f"{host}:8080")

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search("ECHOMQ_WEB_TOKEN.*ECHOMQ_WEB_USER", err)


def test_with_a_secret_it_serves_others_too(url: str) -> None:
    """Whatever name they call it by; the flag is warned about."""
    with WorkerProcess("web", "--http", "0.0.0.0:0", "--user", "ada:lovelace!", env={"ECHOMQ_URL": url}) as web:
        where = address(web).replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - nobody is let in without
        assert httpx.get(where, headers={"Host": "jobs.example.com"}, timeout=60).status_code == 401
        assert httpx.get(where, auth=("ada", "wrong-one"), timeout=60).status_code == 401
        assert httpx.get(where, auth=("ada", "lovelace!"), timeout=60).status_code == 200
        assert web.lines("warning: --token and --user are seen")
        web.send(signal.SIGTERM)
        assert web.ended_sync() == 0


def test_a_port_that_is_taken_is_told(cli: Cli) -> None:
    """2, and which one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = cli("web", "--http", f"127.0.0.1:{port}")
    assert (code, out, err.count("\n"), f"127.0.0.1:{port}" in err) == (2, "", 1, True)


def test_without_its_extra_it_names_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """2, and what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = cli("web", "--http", HERE)
    assert (code, out, err) == (
        2,
        "",
        "echomq-worker: the dashboard needs starlette and jinja2: pip install 'echomq-worker[web]'\n",
    )


def test_a_server_that_cannot_be_reached_is_3() -> None:
    """One line, as for every command."""
    code, said = run_worker("web", "--http", HERE, env={"ECHOMQ_URL": "redis://127.0.0.1:1/0"})
    assert (code, said.count("\n")) == (3, 1), said


async def test_an_operator_with_the_rights_of_the_dashboard_sees_and_does_everything(own_server: OwnServer) -> None:
    """`acl operator --also dashboard` is enough for every page and action."""
    server = own_server()
    server.admin.set("{emq}:version", "echomq:3.0.0")
    raw: Any
    async with Redis(host="127.0.0.1", port=server.port) as raw:
        await Queue(raw).put(
            {
                **{f"job:{job(n)}": row(state, payload="{}", held="1:a-0.1") for n, state in enumerate(STATES)},
                **{name: {job(n): float(n)} for n, name in enumerate(("dead", "active", "schedule", "pending"))},
                "dead": {job(0): 0, job(4): 0, job(5): 0},
                f"job:{job(0)}:logs": ["a line"],
                f"g:{GROUP}:pending": {job(9): 0},
                "ring": [GROUP],
                "repeat": {"nightly": 1},
                "repeat:nightly": {"every_ms": "1", "template": "x"},
            }
        )
        await raw.execute_command(
            "ACL", "SETUSER", "board", *rules(["operator"], also=["dashboard"], password="secret-9")
        )
        url = f"redis://board:secret-9@127.0.0.1:{server.port}/0"
        async with browsing(url) as browser:
            assert "emq:" not in browser.dash.label
            assert "secret-9" not in browser.dash.label
            for end in (
                "",
                "/dead?error=x",
                "/dead?older=60",
                "/active",
                "/scheduled",
                "/waiting",
                "/lanes",
                "/repeats",
            ):
                await browser.read(f"/q/{QUEUE}{end}")
            await browser.read("/")
            for n in range(4):
                await browser.read(f"/q/{QUEUE}/job/{job(n)}")
            await browser.do(f"/q/{QUEUE}/pause")
            await browser.do(f"/q/{QUEUE}/resume")
            await browser.do(f"/q/{QUEUE}/lanes/pause", ("lane", GROUP))
            await browser.do(f"/q/{QUEUE}/dead/requeue", ("id", job(4)))
            await browser.do(f"/q/{QUEUE}/dead/delete", ("id", job(5)), ("confirmed", "yes"))
            await browser.do(f"/q/{QUEUE}/job/{job(3)}/cancel", ("confirmed", "yes"))
            await browser.do(f"/q/{QUEUE}/repeats/cancel", ("name", "nightly"), ("confirmed", "yes"))
            await browser.do(f"/q/{QUEUE}/add", ("payload", "{}"), ("kind", "json"))
            await browser.do(f"/q/{QUEUE}/add", ("payload", "{}"), ("kind", "json"), ("lane", "acme"), ("delay", "5"))
        refused = await raw.execute_command("ACL", "LOG")
    assert [dict(zip(one[::2], one[1::2], strict=True))[b"object"] for one in refused] == []


STATES = ("dead", "active", "scheduled", "pending", "dead", "dead")
