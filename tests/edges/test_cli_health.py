"""health: 0 or 1, cheap, and without a line of the application."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from echomq_worker.cli import main
from tests.edges.test_cli_ping import costs_little, heavy_imports, server_that_says
from tests.support.process import WorkerProcess, run_worker
from tests.support.valkey import ValkeyServer, free_port
from tests.support.waiting import wait_until

PROJECT = Path(__file__).resolve().parents[2]
APP = """
from echomq_worker import Job, Worker

worker = Worker()

@worker.handler("q")
async def nothing(job: Job) -> None:
    pass
"""


def http(status: str, body: object) -> bytes:
    """An answer of a worker's port."""
    text = body if isinstance(body, str) else json.dumps(body)
    return f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n\r\n{text}".encode()


@contextmanager
def worker_that_says(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A port where each who asks is told `answer`, and what they asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    if not (said := connection.recv(10_000)):
                        return
                    asked.append(said)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield port, asked
        finally:
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


def test_a_worker_that_works_is_0(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting of the worker serves here too, an address that means every one included; --live asks for less."""
    with worker_that_says(http("200 OK", {"ready": True})) as (port, asked):
        assert main(["health", "--http", f"127.0.0.1:{port}"]) == 0
        monkeypatch.setenv("ECHOMQ_HTTP", f"0.0.0.0:{port}")
        assert main(["health"]) == 0
        assert main(["health", "--live", "--timeout-ms", "20000"]) == 0

    assert [line.split()[1] for line in asked] == [b"/readyz", b"/readyz", b"/livez"]
    assert capsys.readouterr().out.splitlines()[0] == f"ready: http://127.0.0.1:{port}/readyz"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (http("503 Service Unavailable", {"ready": False, "why": "draining"}), "draining"),
        (http("503 Service Unavailable", {"alive": False, "silent": [1]}), "processes [1] do not answer"),
        (http("404 Not Found", "Not Found"), "answers 404, expected 200"),
        (http("503 Service Unavailable", "[]"), "answers 503"),
        (b"", "no HTTP"),
        (b"+PONG\r\n", "no HTTP"),
        (b"HTTP/1.1 OK\r\n\r\n", "no HTTP"),
    ],
)
def test_one_that_does_not_is_1_and_says_why(capsys: pytest.CaptureFixture[str], answer: bytes, said: str) -> None:
    """In one line: its own reason, or what is there instead."""
    with server_that_says(answer) as port:
        assert main(["health", "--http", f"127.0.0.1:{port}"]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_nobody_there_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    """A port where nobody listens, one that never answers, a name that is none."""
    assert main(["health", "--http", f"127.0.0.1:{free_port()}"]) == 1
    with socket.create_server(("127.0.0.1", 0)) as listener:
        at = f"127.0.0.1:{listener.getsockname()[1]}"
        assert main(["health", "--http", at, "--timeout-ms", "50"]) == 1
    assert main(["health", "--http", "a..b:1"]) == 1
    refused, silent, unknown = capsys.readouterr().err.splitlines()
    assert ("refused" in refused, "timed out" in silent, "no such host" in unknown) == (True, True, True)


def test_without_a_port_the_server_is_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose worker has no port is as healthy as its server is reachable: 0 or 1, as for the other."""
    assert main(["health", "--url", url]) == 0
    assert main(["health", "--url", f"{url}?db=0"]) == 0
    monkeypatch.setenv("ECHOMQ_URL", url)
    assert main(["health"]) == 0
    assert main(["health", "--url", "redis://127.0.0.1:1"]) == 1
    monkeypatch.setenv("ECHOMQ_HTTP", f"127.0.0.1:{free_port()}")
    assert main(["health"]) == 1
    assert main(["health", "--url", url]) == 0


def test_another_wire_version_is_1(
    url: str, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What ping says with codes of its own is one for a probe."""
    monkeypatch.setenv("ECHOMQ_WIRE_VERSION", "echomq:9")
    server.admin.set("{emq}:version", "echomq:3.0.0")
    assert main(["health", "--url", url]) == 1
    assert "echomq:9" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--http", "9000"],
        ["--http", "127.0.0.1:0"],
        ["--http"],
        ["--timeout-ms", "0", "--http", "127.0.0.1:1"],
        ["--url", "http://h"],
        ["--what"],
    ],
)
def test_what_it_cannot_read_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A probe that is set up wrongly does not pass for a sick worker."""
    assert main(["health", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_it_imports_next_to_nothing_and_costs_less_than_100_ms_of_cpu() -> None:
    """No client library, no settings model, no command parser, no application. On a slow machine it is six times what
    Python takes to do nothing.

    Report 100 (celery/celery#4079).
    """
    with worker_that_says(http("200 OK", {"ready": True})) as (port, _):
        line = ("health", "--http", f"127.0.0.1:{port}")
        assert heavy_imports(*line) == []
        assert costs_little(*line)


async def test_the_probe_of_the_image_asks_the_worker_that_runs(url: str, tmp_path: Path) -> None:
    """As HEALTHCHECK has it, with the address that the compose file gives to the worker: 0 while it works, 1 when it
    has ended.
    """
    found = re.search(r"^HEALTHCHECK .*CMD (\[.*\])$", (PROJECT / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    program, *arguments = json.loads(found[1])
    assert program == "echomq-worker"
    (tmp_path / "handlers.py").write_text(APP)
    env = {"ECHOMQ_URL": url, "ECHOMQ_HTTP": f"0.0.0.0:{free_port()}"}

    async def code() -> int:
        return (await asyncio.to_thread(run_worker, *arguments, env=env))[0]

    with WorkerProcess("run", "handlers:worker", env=env, cwd=tmp_path) as worker:
        await worker.saw("worker started")
        await wait_until(lambda: _is(code, 0), "it is healthy")
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
    assert await code() == 1


async def _is(code: Callable[[], Awaitable[int]], wanted: int) -> bool:
    return await code() == wanted
