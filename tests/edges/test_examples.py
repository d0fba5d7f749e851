"""The examples do what they say: each is run as its first lines tell, on a real server, as cheaply as can be."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from echomq_worker import sync
from echomq_worker.cli.load import load_worker
from echomq_worker.connector import connect
from echomq_worker.identity import default_mint, group_for
from echomq_worker.jobs import Jobs
from echomq_worker.testing import run_until_idle
from tests.support.foreign import Foreign
from tests.support.waiting import wait_until

PROJECT = Path(__file__).resolve().parents[2]
MAIL = {"to": "ada@example.com", "subject": "Hello"}


def example(name: str) -> Any:
    """An example, imported by its name: type checkers would find the file under two of them."""
    return importlib.import_module(f"examples.{name}")


def logged(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """What an example has said."""
    return [record.getMessage() for record in caplog.records if record.name == name]


def test_the_build_checks_the_examples_with_both_type_checkers() -> None:
    """In strict mode, all of them.

    Report 112 (taskiq-python/taskiq#288).
    """
    build = (PROJECT / ".ci" / "run").read_text()
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["pyright"]

    assert re.search(r"^mypy --strict .* examples$", build, re.MULTILINE)
    assert re.search(r"^pyright( |$)", build, re.MULTILINE)
    assert (settings["include"], settings["typeCheckingMode"]) == (["examples"], "strict")


def test_the_list_of_examples_is_whole_and_its_lines_lead_somewhere() -> None:
    """Each example has its line; what the lines run is there: a worker with handlers, a file, an application."""
    folder = PROJECT / "examples"
    text = (folder / "README.md").read_text()
    there = {path.name for path in folder.glob("*.py")} | {
        path.name + "/" for path in folder.iterdir() if (path / "README.md").exists()
    }

    assert set(re.findall(r"^\| \[(\S+)\]", text, re.MULTILINE)) == there
    workers = re.findall(r"run (examples[\w.]+:worker)", text)
    assert len(workers) >= 5
    assert [target for target in workers if not list(load_worker(target).handlers)] == []
    assert [path for path in re.findall(r"python (\S+)", text) if not (PROJECT / path).exists()] == []
    assert all(hasattr(example(name), "app") for name in re.findall(r"uvicorn examples\.(\w+):app", text))


@pytest.mark.blocks("FastAPI reads its own files when it is first asked")
async def test_fastapi(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mail is admitted once, its state can be asked for, nonsense is 422, and the connection goes with the app."""
    monkeypatch.setenv("ECHOMQ_URL", url)
    app = example("fastapi_producer").app
    async with app.router.lifespan_context(app) as shared:
        transport = httpx.ASGITransport(app)
        # What a server would have put there.
        app.add_middleware(_with_state, shared=shared)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            first, again = [(await client.post("/emails", json=MAIL)).json() for _ in range(2)]
            state = (await client.get(f"/emails/{first['id']}")).json()
            refused = await client.post("/emails", json={"to": 1})

    assert (first["new"], again["new"], first["id"] == again["id"]) == (True, False, True)
    assert state == {"state": "pending"}
    assert refused.status_code == 422


class _with_state:  # noqa: N801 - a function to its user
    def __init__(self, app: Any, shared: dict[str, Any]) -> None:
        self.app, self.shared = app, shared

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await self.app({**scope, "state": self.shared}, receive, send)


DJANGO = """
import json, sys
from examples.django_producer import configured
configured()
from django.test import Client
client = Client()
sent = client.post("/emails", sys.argv[1], content_type="application/json")
refused = client.get("/emails")
print(json.dumps([sent.status_code, sent.json(), refused.status_code]))
"""


def test_django(url: str) -> None:
    """The view admits the mail once the transaction is over; in a process of its own, as Django is set up once."""
    command = [sys.executable, "-c", DJANGO, json.dumps(MAIL)]
    env = {**os.environ, "ECHOMQ_URL": url}

    said = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=150, check=False)

    assert json.loads(said.stdout) == [202, {"waiting": 1}, 405], said.stderr
    with sync.connect(url) as connector:
        (row,) = sync.Jobs(connector).browse("emails")
    assert json.loads(row.payload or b"") == MAIL


@pytest.mark.blocks("making processes does")
@pytest.mark.leaves_tasks("the pool's own thread ends when its processes have")
async def test_cpu_work_in_processes(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two jobs are computed elsewhere; a process that dies fails its job, and the next one gets another pool."""
    module, before = example("cpu_processes"), threading.active_count()
    monkeypatch.setattr(module, "CORES", 1)
    with caplog.at_level("INFO", logger="cpu_processes"):
        async with connect(url) as connector:
            await Jobs(connector).enqueue_many("primes", [b"100", b"1000"])
        report = await run_until_idle(module.worker, url=url, timeout_ms=100_000)

    assert report.completed == 2
    assert sorted(logged(caplog, "cpu_processes")) == ["168 primes below 1000", "25 primes below 100"]

    processes = module.Processes(1)
    with pytest.raises(BrokenProcessPool):
        await processes.run(signal.raise_signal, signal.SIGKILL)
    assert await processes.run(abs, -1) == 1
    processes.close()
    await wait_until(lambda: threading.active_count() <= before, "the pools' threads have ended")


async def test_tenants(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The few jobs of the small tenants are through long before the thousand that came first."""
    module = example("tenants")
    with caplog.at_level("INFO", logger="tenants"):
        async with connect(url) as connector:
            await module.arrange(connector)
            for tenant, how_many in (("big", 200), ("gold", 6), ("small", 3)):
                await module.admit(connector, tenant, how_many)
        report = await run_until_idle(module.worker, url=url, timeout_ms=60_000)

    order = [line.split()[0] for line in logged(caplog, "tenants")]
    assert report.completed == len(order) == 209
    assert {tenant: order[:50].count(tenant) for tenant in ("gold", "small")} == {"gold": 6, "small": 3}


async def test_neighbours(
    url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that shares no code with us enqueues as Elixir would, and claims from its lane what Python enqueued."""
    monkeypatch.setenv("ECHOMQ_URL", url)
    module = example("neighbours.worker")
    await raw.ping()
    await Foreign(raw, "thumbnails").enqueue(default_mint().next(), b'{"path": "cat.jpg", "owner": "ada"}')

    with caplog.at_level("INFO", logger="neighbours"):
        await run_until_idle(module.worker, timeout_ms=60_000)

    assert logged(caplog, "neighbours") == ["thumbnail of cat.jpg, attempt 1"]
    claimed = await Foreign(raw, "notifications").gclaim(1_000)
    assert claimed is not None
    assert (claimed.payload, claimed.group) == (b'{"path":"cat.jpg"}', group_for("ada"))


def test_the_text_for_elixir_fits_the_models() -> None:
    """It is not run here: what it enqueues has the fields that Python reads, and what it gets is what Python writes."""
    text = (PROJECT / "examples" / "neighbours" / "README.md").read_text()
    module = example("neighbours.worker")
    (fields,) = re.findall(r"Jason\.encode!\(%\{(.*)\}\)", text)

    assert dict(re.findall(r'(\w+): "([^"]*)"', fields)).keys() == module.Upload.model_fields.keys()
    assert f"`{module.Made(path='cat.jpg').model_dump_json()}`" in text
