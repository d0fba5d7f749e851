"""Marked secrets go through real processes and come out nowhere; what users write drives no terminal.

Source: issue "The five promises", Security; user-needs 90, 91.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from echomq_worker.cli import main
from tests.support.process import WorkerProcess, run_worker
from tests.support.roles import RoleServer
from tests.support.valkey import ROLE_PASSWORD
from tests.support.waiting import wait_until_sync

PAYLOAD = "card-4111111111111111"
WRONG_PASSWORD = "wrong-pa55word"
# What a text may try: a line of its own, a forged record, the terminal's title, its colours, to be read from the right.
ATTACK = '\nforged\r\n{"event":"job completed","level":"info"}\x1b]0;owned\x07\x1b[31m\u202e\u2028'
APP = f"""
from pydantic import BaseModel
from echomq_worker import Job, Worker

worker = Worker()

class Card(BaseModel):
    number: int

@worker.handler("typed", max_attempts=1)
async def typed(job: Job, card: Card) -> None: ...

@worker.handler("ours", max_attempts=1)
async def ours(job: Job, payload: dict[str, object]) -> None:
    await job.log({ATTACK!r})
    raise ValueError({ATTACK!r})

@worker.handler("fine")
async def fine(job: Job, payload: dict[str, object]) -> None: ...
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A folder with handlers."""
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def locked() -> Iterator[RoleServer]:
    """A server that asks for a password, with a user who may do everything here."""
    server = RoleServer("worker", "producer", "operator")
    try:
        yield server.start()
    finally:
        server.close()


Said = Callable[[tuple[str, ...], Mapping[str, str]], tuple[int, str]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs a command line in this process, with an environment: exit code, and all that it printed."""

    def run(arguments: tuple[str, ...], env: Mapping[str, str]) -> tuple[int, str]:
        with monkeypatch.context() as patched:
            for name, value in env.items():
                patched.setenv(name, value)
            code = main(arguments)
        return code, "".join(capsys.readouterr())

    return run


def _env(server: RoleServer, log_format: str) -> dict[str, str]:
    return {
        "ECHOMQ_URL": server.url,
        "ECHOMQ_LOG_FORMAT": log_format,
        "ECHOMQ_LOG_LEVEL": "debug",
        "ECHOMQ_BEAT_MS": "100",
    }


def _secrets(server: RoleServer) -> list[str]:
    """What must not be seen: the payload, the password as it is and as the URL spells it."""
    return [PAYLOAD, PAYLOAD.removeprefix("card-"), ROLE_PASSWORD, server.url.split(":")[2].split("@")[0]]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_secret_reaches_a_log(log_format: str, app: Path, locked: RoleServer, here: Said) -> None:
    """Jobs that are done, that cannot be read, and that fail, at level debug, with the server's connections killed
    meanwhile: neither payloads nor the password are in the log, the settings in force included. An error text makes no
    line of its own and reaches no terminal.

    Report 91 (celery/celery#2143).
    """
    env = _env(locked, log_format)
    for queue in ("fine", "typed", "ours"):
        code, said = here(("enqueue", queue, json.dumps({"number": PAYLOAD})), env)
        assert code == 0, said
    with WorkerProcess("run", "app:worker", env=env, cwd=app) as worker:
        dead = r"job dead"
        wait_until_sync(lambda: len(worker.lines(dead)) == 2, "both jobs are dead")
        wait_until_sync(lambda: worker.lines("job completed.*fine|fine.*job completed"), "the third is done")
        locked.admin.client_kill_filter(_type="normal", skipme=True)
        worker.send(signal.SIGTERM)
        assert worker.ended_sync() == 0
        log = worker.log_text()

    assert [secret for secret in _secrets(locked) if secret in log] == []
    assert "worker started" in log
    assert not [line for line in log.splitlines() if line.startswith(("forged", '{"event"'))]
    assert not set(log) & set("\x1b\x07\r\u202e\u2028")


def test_no_secret_reaches_the_command_line(app: Path, locked: RoleServer, here: Said) -> None:
    """What `check`, `dead show`, `dead list` and `job logs` print of a job with such an error is mere text,
    on one line where it was one; no password is in it.
    """
    env = _env(locked, "json")
    here(("enqueue", "ours", json.dumps({"number": PAYLOAD})), env)
    code, log = run_worker("run", "app:worker", "--burst", env=env, cwd=app)
    assert code == 0, log
    id = json.loads(here(("dead", "list", "ours", "--json"), env)[1].splitlines()[0])["id"]
    for command in (
        ("check", "app:worker"),
        ("dead", "list", "ours"),
        ("dead", "show", "ours", id),
        ("job", "logs", "ours", id),
    ):
        code, said = run_worker(*command, env=env, cwd=app) if command[0] == "check" else here(command, env)
        assert code == 0, said
        assert ROLE_PASSWORD not in said
        assert not set(said) & set("\x1b\x07\r\u202e\u2028"), command
        assert not [line for line in said.splitlines() if line.startswith(("forged", '{"event"'))], command


@pytest.mark.parametrize("command", [("run", "app:worker"), ("enqueue", "fine", "{}"), ("ping",)])
def test_a_password_that_is_refused_is_not_repeated(
    command: tuple[str, ...], app: Path, locked: RoleServer, here: Said
) -> None:
    """The one line about it names the server, not the password; nor does a URL that cannot be read."""
    for url in (
        locked.url.replace(locked.url.split(":")[2].split("@")[0], WRONG_PASSWORD),
        f"redis://u:{WRONG_PASSWORD}@[::1",
    ):
        env = {"ECHOMQ_URL": url}
        code, said = run_worker(*command, env=env, cwd=app) if command[0] == "run" else here(command, env)
        assert code in {2, 3}, said
        assert WRONG_PASSWORD not in said
        assert len([line for line in said.splitlines() if not line.startswith("{")]) == 1, said


def test_a_password_in_an_argument_is_warned_about(app: Path, locked: RoleServer, here: Said) -> None:
    """`ps` shows arguments and not the environment: a URL with a password on the command line is a line on stderr. The
    processes that a supervisor starts get theirs as it got it.
    """
    code, said = here(("queue", "list", "--url", locked.url), {})
    assert code == 0, said
    assert "warning: --url shows its password" in said
    assert ROLE_PASSWORD not in said
    code, said = here(("queue", "list"), {"ECHOMQ_URL": locked.url})
    assert (code, "warning" in said) == (0, False)
    with WorkerProcess("run", "app:worker", "--processes", "2", env=_env(locked, "json"), cwd=app) as worker:
        wait_until_sync(lambda: len(worker.lines("worker started")) == 2, "both run")
        arguments = "".join(
            path.read_text(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
        )
        assert "app:worker" in arguments
        assert [secret for secret in _secrets(locked) if secret in arguments] == []
