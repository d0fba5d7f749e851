"""ping: cheap, and right about who answers."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from echomq_worker.cli import main
from tests.support.valkey import ValkeyServer

HEAVY = ["asyncio", "pydantic", "pydantic_settings", "redis", "rich", "structlog", "typer"]


def admin_of(server: ValkeyServer) -> Any:
    """The tests' own client, for commands that redis-py has no types for."""
    return server.admin


@contextmanager
def server_that_says(answer: bytes) -> Iterator[int]:
    """A port where whoever connects is told `answer`, and then nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def heavy_imports(*line: str) -> list[str]:
    """What a probe that answers imports and should not, in a process of its own."""
    code = f"import json, sys; from echomq_worker.cli import main; print(main({list(line)!r})); "
    code += f"print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=True)
    _, exit_code, heavy = ended.stdout.splitlines()
    assert exit_code == "0", ended.stderr
    found: list[str] = json.loads(heavy)
    return found


def cpu_s_of(arguments: list[str], env: dict[str, str]) -> float:
    """The processor time that Python takes for these arguments, in a process that has to end with 0."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run([sys.executable, *arguments], env=env, stdout=subprocess.DEVNULL, timeout=60, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.returncode == 0
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def costs_little(*line: str, times: int = 6) -> bool:
    """Whether a probe that answers takes less than 100 ms of processor time, imports and all, as a process of its own;
    on a slow machine, less than so many times what an empty program takes. The least of three: the machine is shared.
    """
    # Measuring what is covered costs more than the probe.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    spent = [cpu_s_of(["-m", "echomq_worker", *line], env) for _ in range(3)]
    return min(spent) < max(0.1, times * cpu_s_of(["-c", "pass"], env))


def test_a_server_that_is_there_is_a_pong(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 and one line with the address and the time it took."""
    assert main(["ping", "--url", url]) == 0
    assert capsys.readouterr().out.startswith(f"pong from {url} in ")


def test_it_claims_no_fence(url: str, server: ValkeyServer) -> None:
    """A probe of a plain URL on a fresh store writes nothing."""
    main(["ping", "--url", url])

    assert server.admin.keys("*") == []


def test_it_imports_next_to_nothing(url: str) -> None:
    """A probe runs in every container every few seconds: no client library, no settings model, no command parser.

    Report 100 (celery/celery#4079).
    """
    assert heavy_imports("ping", "--url", url) == []


def test_a_probe_costs_less_than_100_ms_of_cpu_and_says_no_without_a_server(url: str) -> None:
    """As a process of its own, imports and all; of three, since the machine is shared. On a slow one it is six times
    what Python takes to do nothing.

    Report 100 (celery/celery#4079).
    """
    assert costs_little("ping", "--url", url)
    assert main(["ping", "--url", "redis://127.0.0.1:1"]) == 3


@pytest.mark.parametrize("user", ["", "worker"])
def test_it_logs_in(own_server: Callable[..., ValkeyServer], capsys: pytest.CaptureFixture[str], user: str) -> None:
    """With a password, or a user and one, escaped as in any URL; a wrong one is 3 and never shown."""
    server = own_server()
    admin_of(server).execute_command("ACL", "SETUSER", "worker", "on", ">p@ss/", "~*", "&*", "+@all")
    server.admin.config_set("requirepass", "p@ss/")
    address = f"127.0.0.1:{server.port}/1"

    good = main(["ping", "--url", f"redis://{user}:p%40ss%2F@{address}"])
    wrong = main(["ping", "--url", f"redis://{user}:s3cret@{address}"])
    without = main(["ping", "--url", f"redis://{address}"])

    written = capsys.readouterr()
    assert (good, wrong, without) == (0, 3, 3)
    assert written.out.startswith(f"pong from redis://{address}")
    assert "WRONGPASS" in written.err
    assert "NOAUTH" in written.err
    assert "s3cret" not in written.err


def test_it_asks_over_a_unix_socket(
    own_server: Callable[..., ValkeyServer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The URL of the environment serves, and an absent socket is 3."""
    server = own_server(unix_socket=True)
    monkeypatch.setenv("ECHOMQ_URL", server.unix_url)

    assert main(["ping"]) == 0
    assert main(["ping", "--url", "unix:///nowhere/valkey.sock"]) == 3
    assert "No such file" in capsys.readouterr().err


def test_another_database_has_a_fence_of_its_own(own_server: Callable[..., ValkeyServer]) -> None:
    """The URL's database is asked: its fence is what counts."""
    server = own_server()
    admin_of(server).execute_command("SELECT", 2)
    server.admin.set("{emq}:version", "echomq:2.4.2")
    admin_of(server).execute_command("SELECT", 0)

    found = [main(["ping", "--url", f"redis://127.0.0.1:{server.port}/{database}"]) for database in (0, 2)]

    assert found == [0, 4]


def test_the_expected_version_is_a_setting(url: str, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment on an older rung is pinged with that rung."""
    server.admin.set("{emq}:version", "echomq:2.4.2")
    monkeypatch.setenv("ECHOMQ_WIRE_VERSION", "echomq:2.4.2")

    assert main(["ping", "--url", url]) == 0


def test_a_version_that_is_no_text_is_another_one(
    url: str, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte of the environment that is not UTF-8."""
    server.admin.set("{emq}:version", "echomq:3.0.0")
    monkeypatch.setenv("ECHOMQ_WIRE_VERSION", "\udcff")
    assert main(["ping", "--url", url]) == 4


def test_options_of_the_url_are_read(
    own_server: Callable[..., ValkeyServer], capsys: pytest.CaptureFixture[str]
) -> None:
    """The login and the database may be options, of which no password is shown, and it is no dearer."""
    server = own_server()
    server.admin.config_set("requirepass", "p@ss")
    redis.Redis(port=server.port, password="p@ss", db=3).set("{emq}:version", "other")
    options = "password=p%40ss"
    assert main(["ping", "--url", f"redis://127.0.0.1:{server.port}?{options}", "--timeout-ms", "20000"]) == 0
    assert main(["ping", "--url", f"redis://127.0.0.1:{server.port}?db=3&{options}"]) == 4
    assert main(["ping", "--url", f"redis://127.0.0.1:{server.port}?password=wrong"]) == 3
    written = capsys.readouterr()
    assert written.out.startswith("pong from redis://")
    assert "p@ss" not in written.out + written.err
    assert "p%40ss" not in written.out + written.err
    assert heavy_imports("ping", "--url", f"redis://127.0.0.1:{server.port}?{options}") == []
    server.admin.config_set("requirepass", "")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"-LOADING Valkey is loading the dataset in memory\r\n", "LOADING"),
        (b"HTTP/1.1 400 Bad Request\r\n", "no Valkey"),
        (b"", "no Valkey"),
        (b"+PO", "no Valkey"),
        (b"+PONG\r\n$12\r\nechomq", "no Valkey"),
    ],
)
def test_a_server_that_answers_otherwise_is_3(capsys: pytest.CaptureFixture[str], answer: bytes, said: str) -> None:
    """Loading, closing, or no Valkey at all: not healthy, in one line."""
    with server_that_says(answer) as port:
        assert main(["ping", "--url", f"redis://127.0.0.1:{port}"]) == 3
    assert said in capsys.readouterr().err


def test_a_server_that_says_nothing_is_3_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    """A probe has a limit of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        assert main(["ping", "--url", url, "--timeout-ms", "50"]) == 3
    assert "timed out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--url", "http://h"], 2),
        (["--url", "redis://"], 2),
        (["--url", "redis://h:99999"], 2),
        (["--url", "redis://127.0.0.1:1/²"], 2),
        (["--url", f"redis://127.0.0.1:1/{'9' * 5_000}"], 2),
        (["--url", "redis://127.0.0.1:1", "--timeout-ms", "0"], 2),
        (["--url", "redis://127.0.0.1:1", "--timeout-ms", "x"], 2),
        (["--url", "redis://127.0.0.1:1", "--timeout-ms", "9" * 30], 2),
        (["--url", "redis://a..b:1"], 3),
        (["--url", f"redis://{'a' * 300}:1"], 3),
        (["--url"], 2),
        (["--help"], 0),
    ],
)
def test_what_it_cannot_read_is_told(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int) -> None:
    """A wrong URL or limit is the usual one line."""
    assert main(["ping", *arguments]) == code
    assert capsys.readouterr().err.count("\n") == (0 if code == 0 else 1)
    assert "ECHOMQ_URL" not in os.environ
