"""The command line in a test's own process, against the session's server: what it prints, and what it leaves there."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import redis

from echomq_worker.cli import main
from echomq_worker.keyspace import Keys
from tests.support.plain import FAR_MS, GROUP, QUEUE, State, job, row
from tests.support.valkey import ValkeyServer

ID = job(1)
ROW = f"job:{ID}"
DEAD: State = {
    **{f"job:{job(n)}": row("dead", 3, failures=3, last_error=f"Timeout {n}") for n in (1, 2, 3)},
    "dead": {job(n): 0 for n in (1, 2, 3)},
}
IN_HAND: State = {ROW: row("active", 1, group=GROUP), "active": {ID: FAR_MS}, "gactive": {GROUP: "1"}}

Cli = Callable[..., tuple[int, str, str]]
"""Runs a command line: exit code, stdout, stderr."""


@pytest.fixture
def cli(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command line against the session's server: exit code, stdout, stderr."""
    monkeypatch.setenv("ECHOMQ_URL", url)
    # A command may put the current directory on it.
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        written = capsys.readouterr()
        return code, written.out, written.err

    return run


class Keyspace:
    """The queue `q` as another client puts it there and sees it."""

    def __init__(self, admin: redis.Redis) -> None:
        self._admin: Any = admin
        self.base = Keys(QUEUE).base

    def put(self, state: State) -> None:
        """Write keys under their short names."""
        for name, value in state.items():
            key = self.base + name
            if isinstance(value, dict) and all(isinstance(item, int | float) for item in value.values()):
                self._admin.zadd(key, value)
            elif isinstance(value, dict):
                self._admin.hset(key, mapping=value)
            elif isinstance(value, list):
                self._admin.rpush(key, *value)
            elif isinstance(value, set):
                self._admin.sadd(key, *value)
            else:
                self._admin.set(key, value)

    def dump(self) -> dict[str, bytes]:
        """Every key with its serialized value: equal when nothing was changed."""
        return {key.decode(): self._admin.dump(key) for key in sorted(self._admin.keys(f"{self.base}*"))}

    def row(self, id: str) -> dict[str, str]:
        """The fields of a row."""
        return {name.decode(): value.decode() for name, value in self._admin.hgetall(f"{self.base}job:{id}").items()}

    def members(self, name: str) -> list[str]:
        """A sorted set."""
        return [id.decode() for id in self._admin.zrange(self.base + name, 0, -1)]

    def hash(self, name: str) -> dict[str, str]:
        """A hash."""
        return {field.decode(): value.decode() for field, value in self._admin.hgetall(self.base + name).items()}


@pytest.fixture
def keyspace(url: str, server: ValkeyServer) -> Keyspace:
    """The queue `q`."""
    return Keyspace(server.admin)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a person at the terminal, who answers so."""

    def answer(text: str) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.setattr("sys.stdin", Terminal(text))

    return answer


def lines(out: str) -> list[Any]:
    """Lines of JSON."""
    return [json.loads(line) for line in out.splitlines()]
