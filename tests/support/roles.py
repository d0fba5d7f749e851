"""The suites as a user of a role: `EMQ_TESTS_AS=worker pytest …` gives every test a server where the code under test
logs in as that user, and writes what it sent, and what it was refused, to `EMQ_TESTS_RECORD`.

Source: issue "The five promises", Topologies ("the suites run as those users").
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from echomq_worker.acl import rules
from echomq_worker.keyspace import FENCE_KEY
from tests.support.native import WIRE, load_options
from tests.support.valkey import ROLE, ROLE_PASSWORD, ROLE_USER, ValkeyServer

RECORD = "EMQ_TESTS_RECORD"
_WIRE_VERSION = "echomq:3.0.0"
_ADMIN = "tests"
_ADMIN_PASSWORD = "of-the-tests"
# What the conformance run looks at and plants besides, in queues of its own.
CONFORMANCE = ("client|id", "hpexpire", "hpttl", "hset", "pttl", "pubsub|numsub", "type")
_LINE = re.compile(rb'^\+[\d.]+ \[\d+ ([^\]]+)\] "((?:[^"\\]|\\.)*)"(?: "((?:[^"\\]|\\.)*)")?(?: "((?:[^"\\]|\\.)*)")?')
_CONTAINERS = frozenset({"client", "script", "config", "cluster", "acl", "command"})

# A login needs no permission.
_LOGIN = frozenset({"auth", "hello"})


class RoleServer(ValkeyServer):
    """A server that nobody enters but the tests' own user, and one with the rules that we publish for `roles`.

    `queues` narrows the keys, `also` permits more commands.
    """

    def __init__(self, *roles: str, queues: tuple[str, ...] = (), also: tuple[str, ...] = ()) -> None:
        own = ("--user", _ADMIN, "on", f">{_ADMIN_PASSWORD}", "~*", "&*", "+@all")
        super().__init__(args=("--user", "default", "off", *own))
        self._rules = [*rules(roles, queues, password=ROLE_PASSWORD), *(f"+{command}" for command in also)]

    @property
    def url(self) -> str:
        """Where the role logs in."""
        return f"redis://{ROLE_USER}:{quote(ROLE_PASSWORD)}@127.0.0.1:{self.port}/0"

    @property
    def raw_url(self) -> str:
        """Where the tests' own user logs in."""
        return f"redis://{_ADMIN}:{_ADMIN_PASSWORD}@127.0.0.1:{self.port}/0"

    @property
    def admin(self) -> redis.Redis:
        """The tests' own user."""
        if self._admin is None:
            self._admin = redis.Redis(
                host="127.0.0.1",
                port=self.port,
                username=_ADMIN,
                password=_ADMIN_PASSWORD,
                socket_timeout=30,
                retry=Retry(NoBackoff(), 0),
                client_name="tests-admin",
            )
        return self._admin

    def start(self) -> RoleServer:
        """Start it and make the user."""
        super().start()
        admin: Any = self.admin
        admin.execute_command("ACL", "SETUSER", ROLE_USER, *self._rules)
        admin.execute_command("ACL", "LOG", "RESET")
        return self

    def claim_fence(self) -> None:
        """As an operator has left it: those who can only read the fence find it."""
        self.admin.set(FENCE_KEY, _WIRE_VERSION)

    def refused(self) -> list[str]:
        """What the role was refused since the start: reason and object."""
        admin: Any = self.admin
        entries = admin.execute_command("ACL", "LOG", 128)
        return sorted(
            {f"{one['reason']} {one['object']}" for one in map(_entry, entries) if one["username"] == ROLE_USER}
        )


class Recorder:
    """Everything that the server runs for others than the tests themselves, by MONITOR: names of commands."""

    def __init__(self, server: RoleServer) -> None:
        self.seen: set[str] = set()
        clients: list[dict[str, str]] = server.admin.client_list()
        self._own = {one["addr"].encode() for one in clients}
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.sendall(f"AUTH {_ADMIN} {_ADMIN_PASSWORD}\r\nMONITOR\r\n".encode())
        self._lines = self._socket.makefile("rb")
        assert [self._lines.readline() for _ in range(2)] == [b"+OK\r\n"] * 2, "MONITOR is permitted to the tests' user"
        self._thread = threading.Thread(target=self._read, daemon=True, name="recorder")
        self._thread.start()

    def close(self) -> set[str]:
        """End it; what was seen."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._socket.close()
        return self.seen

    def _read(self) -> None:
        for line in self._lines:
            match = _LINE.match(line)
            if match is None:
                continue
            address, name, first, second = match.groups()
            command = name.decode().lower()
            if command == "client" and (first or b"").lower() == b"setname" and (second or b"").startswith(b"tests-"):
                self._own.add(address)
            if address not in self._own and command not in _LOGIN:
                self.seen.add(f"{command}|{(first or b'').decode().lower()}" if command in _CONTAINERS else command)


def server_of_the_run() -> ValkeyServer:
    """The session's server, not started: of a role where this run of the suites has one."""
    named = os.environ.get(ROLE, "").split()
    if os.environ.get(WIRE):
        return ValkeyServer(args=load_options())
    if not named:
        return ValkeyServer()
    roles = [name for name in named if name != "conformance"]
    return RoleServer(*roles, also=CONFORMANCE if len(roles) < len(named) else ())


def write_record(server: RoleServer, recorder: Recorder) -> None:
    """What the run showed, where the variable says."""
    seen = recorder.close()
    # MONITOR does not show what the server takes for administration.
    admin: Any = server.admin
    if "cmdstat_client|unblock" in admin.info("commandstats"):
        seen.add("client|unblock")
    found = {"refused": server.refused(), "seen": sorted(seen)}
    Path(os.environ.get(RECORD, os.devnull)).write_text(json.dumps(found))


def _entry(flat: Any) -> dict[str, str]:
    pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
    return {key.decode(): value.decode() if isinstance(value, bytes) else str(value) for key, value in pairs}
