"""Around the port of a worker: what is missing, taken, refused or there already."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from echomq_worker.connector import connect
from echomq_worker.errors import ConfigError
from echomq_worker.jobs import Jobs
from tests.loops.test_probes import a_worker, answering
from tests.support.http import green, page, scrape, scraped
from tests.support.running import running
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until


async def test_without_http_nothing_listens_and_nothing_is_counted(url: str) -> None:
    """No observer, so no time stamps; nothing of it is even imported."""
    worker = a_worker()
    async with running(worker, url):
        await wait_until(lambda: worker.readiness().ready, "it is ready")
        assert worker._running is not None
        assert worker._running.probe is None
        assert all(station.journal._observers is None for station in worker._running._stations)
        assert not [task for task in asyncio.all_tasks() if task.get_name() in {"http", "lag", "depths"}]


async def test_an_address_that_is_taken_is_told(url: str) -> None:
    """Before anything is connected or claimed: a wrong setting."""
    async with answering(a_worker(), url) as port:
        for at, said in ((f"127.0.0.1:{port}", "in use"), ("192.0.2.1:80", "assign"), ("no.such.host.invalid:1", "")):
            with pytest.raises(ConfigError, match=rf"--http {at}: .*{said}.*expected"):
                async with running(a_worker(), url, http=at):
                    pass


@pytest.mark.parametrize("missing", ["uvicorn", "starlette.applications"])
async def test_an_extra_that_is_missing_is_named(url: str, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """The port needs one, and the line says how to install it."""
    monkeypatch.setitem(__import__("sys").modules, missing, None)
    with pytest.raises(
        ConfigError, match=r"extra web, .* is not installed: pip install 'echomq-worker\[web,metrics\]'"
    ):
        async with running(a_worker(), url, http="127.0.0.1:0"):
            pass


async def test_probes_need_no_prometheus(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the extra there are no metrics; the page and one line at the start say which it is."""
    modules = __import__("sys").modules
    monkeypatch.setitem(modules, "prometheus_client", None)
    monkeypatch.delitem(modules, "echomq_worker.probes.exposition", raising=False)
    with caplog.at_level(logging.WARNING, "echomq_worker.probes.http"):
        async with answering(a_worker(), url) as port:
            await wait_until(lambda: green(port), "it is ready")
            found = await page(port, "/metrics")
            assert found is not None
            assert (found.status, "echomq-worker[web,metrics]" in found.text) == (501, True)
    assert [record for record in caplog.records if "no metrics" in record.message]


async def test_observers_of_the_user_hear_the_same(url: str) -> None:
    """Metrics beside them: every function is told as without."""
    worker, told = a_worker(), list[str]()
    worker.observe(lambda event: told.append(type(event).__name__))
    async with connect(url) as connector, answering(worker, url) as port:
        await Jobs(connector).enqueue("q", b"done")
        await wait_until(lambda: told == ["Started", "Completed"], "they are told")
        await wait_until(
            lambda: scraped(port, "echomq_jobs_total", 1, queue="q", outcome="completed"), "and it is counted"
        )


async def test_the_registry_is_our_own(url: str) -> None:
    """What an application keeps in the library's global one is not shown, and none of ours is put there."""
    import prometheus_client

    mine = prometheus_client.Counter("of_the_application", "Its own.")
    try:
        async with answering(a_worker(), url) as port:
            found = await page(port, "/metrics")
            assert found is not None
            assert "of_the_application" not in found.text
            assert b"echomq_" not in prometheus_client.generate_latest()
    finally:
        prometheus_client.REGISTRY.unregister(mine)


async def test_a_server_that_permits_too_little_is_told_once(
    own_server: Callable[..., ValkeyServer], caplog: pytest.LogCaptureFixture
) -> None:
    """A worker's user needs two more commands for it: `acl worker --also metrics`."""
    from echomq_worker import acl

    server = own_server()
    admin: Any = server.admin
    admin.set("{emq}:version", "echomq:3.0.0")
    for user, also in (("without", ()), ("with", ("metrics",))):
        admin.execute_command("ACL", "SETUSER", user, *acl.rules(["worker"], ["q"], also=also), ">pass")
    for user, up in (("without", 0), ("with", 1)):
        url = f"redis://{user}:pass@127.0.0.1:{server.port}/0"
        with caplog.at_level(logging.WARNING, "echomq_worker"):
            async with answering(a_worker(), url, log_level="warning") as port:
                await wait_until(lambda up=up, port=port: scraped(port, "echomq_server_up", up), f"{user}: {up}")  # type: ignore[misc]  # of this round
                await scrape(port)
    assert len([record for record in caplog.records if "queue cannot be read" in record.message]) == 1
