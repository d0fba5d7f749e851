"""A primary, its replicas and the sentinels that watch them, for tests: failed over by a kill, a freeze or a command.

Source: issue "The five promises", Topologies. The sentinels are the same binary as the servers, with `--sentinel`.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.valkey import ValkeyServer, find_binary, free_port
from tests.support.waiting import wait_until, wait_until_sync

SERVICE = "main"
DOWN_AFTER_MS = 1_000
# A primary waits for more replicas that want the same, five seconds unless told so.
FAST_SYNC = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
_READY_S = 60.0
_FAILOVER_S = 60.0


class Sentinel:
    """One sentinel process. `tls` are the lines of its configuration for TLS, with which it serves no plain port."""

    def __init__(self, *, binary: Path | None = None, tls: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="emq-sentinel-"))
        self._binary = binary or find_binary()
        self._tls = tuple(tls)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def start(self, lines: Sequence[str]) -> None:
        """Start it with `lines` of configuration beside its own; does not wait."""
        ports = ["port 0", f"tls-port {self.port}", *self._tls] if self._tls else [f"port {self.port}"]
        path = self.directory / "sentinel.conf"
        path.write_text("\n".join([*ports, "bind 127.0.0.1", f"dir {self.directory}", *lines, ""]))
        self._log = (self.directory / "log").open("ab")
        self._process = subprocess.Popen(
            [str(self._binary), str(path), "--sentinel"],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _does_listen(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    async def listens(self) -> None:
        """Wait until it takes connections."""
        await wait_until(self._does_listen, "the sentinel listens", _READY_S)

    def listens_sync(self) -> None:
        """The same for a fixture; blocks."""
        wait_until_sync(self._does_listen, "the sentinel listens", _READY_S)

    def ask(self, *command: str | int) -> Any:
        """What it answers a client of the tests' own; blocks."""
        with redis.Redis("127.0.0.1", self.port, socket_timeout=20, retry=Retry(NoBackoff(), 0)) as client:
            # As it says it: the client library's own reading of these replies has changed over time.
            client.response_callbacks.clear()
            told: Any = client
            return told.execute_command(*command)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal: SIGSTOP freezes it."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL it and wait."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def close(self) -> None:
        """Kill it and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class Watched:
    """`servers`, the first of which begins as the primary, and `sentinels`. Every method blocks until it is true.

    `args` are more arguments of every server, `lines` more lines of every sentinel's configuration.
    """

    def __init__(
        self,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        args: Sequence[str] = (),
        lines: Sequence[str] = (),
    ) -> None:
        self._lines = tuple(lines)
        self.servers = [ValkeyServer(args=(*FAST_SYNC, *args)) for _ in range(1 + replicas)]
        self.sentinels = [Sentinel() for _ in range(sentinels)]

    @property
    def hosts(self) -> str:
        """The sentinels, as a URL lists them."""
        return ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)

    @property
    def url(self) -> str:
        """`redis+sentinel://…/main`."""
        return f"redis+sentinel://{self.hosts}/{SERVICE}"

    def start(self) -> Watched:
        """Start all and wait until every sentinel knows the replicas and the other sentinels."""
        first, *others = self.servers
        first.start()
        for server in others:
            server.start()
            server.admin.replicaof("127.0.0.1", str(first.port))
        self._wait(lambda: first.admin.info("replication")["connected_slaves"] == len(others), "the replicas follow")
        for sentinel in self.sentinels:
            sentinel.start(
                [
                    f"sentinel monitor {SERVICE} 127.0.0.1 {first.port} {len(self.sentinels) // 2 + 1}",
                    f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
                    f"sentinel failover-timeout {SERVICE} 5000",
                    f"sentinel parallel-syncs {SERVICE} 2",
                    *self._lines,
                ]
            )
        self._wait(lambda: all(map(self._is_settled, self.sentinels)), "the sentinels know one another")
        return self

    def server_at(self, port: int) -> ValkeyServer:
        """The server with that port."""
        return next(server for server in self.servers if server.port == port)

    def primary(self) -> ValkeyServer:
        """The server that the first living sentinel names."""
        for sentinel in self.sentinels:
            with contextlib.suppress(redis.RedisError):
                return self.server_at(int(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1]))
        raise LookupError("no sentinel answers")

    def failovers(self) -> int:
        """How many there have been: sentinels see a failure of their own where a machine stands still for a second."""
        told = self.sentinels[0].ask("SENTINEL", "MASTER", SERVICE)
        state = told if isinstance(told, dict) else dict(zip(told[::2], told[1::2], strict=True))
        return max(int(str(_plain(value))) for name, value in state.items() if _plain(name) == "config-epoch")

    def wait_failover(self, old: ValkeyServer) -> ValkeyServer:
        """Wait until all sentinels name another server than `old`, and that is a primary; answers it."""

        def moved() -> ValkeyServer | None:
            try:
                new = self.primary()
                named = {int(one.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1]) for one in self.sentinels}
            except (redis.RedisError, LookupError):
                return None
            return new if new is not old and named == {new.port} and is_primary(new) else None

        found = wait_until_sync(moved, "the sentinels name another primary", _FAILOVER_S)
        assert found is not None
        return found

    def wait_demoted(self, old: ValkeyServer) -> None:
        """Wait until a server that was the primary is a replica."""
        wait_until_sync(lambda: not is_primary(old), "the old primary is a replica", _FAILOVER_S)

    def close(self) -> None:
        """Kill everything."""
        for sentinel in self.sentinels:
            sentinel.close()
        for server in self.servers:
            server.close()

    def _is_settled(self, sentinel: Sentinel) -> bool:
        try:
            told = sentinel.ask("SENTINEL", "MASTER", SERVICE)
        except redis.RedisError:
            return False
        state = told if isinstance(told, dict) else dict(zip(told[::2], told[1::2], strict=True))
        known = {str(_plain(name)): str(_plain(value)) for name, value in state.items()}
        seen = (known["num-slaves"], known["num-other-sentinels"])
        return seen == (str(len(self.servers) - 1), str(len(self.sentinels) - 1)) and known["flags"] == "master"

    @staticmethod
    def _wait(predicate: Any, sentence: str) -> None:
        wait_until_sync(predicate, sentence, _READY_S)


def is_primary(server: ValkeyServer) -> bool:
    """Whether a server says of itself that it is one."""
    admin: Any = server.admin
    try:
        return bool(admin.execute_command("ROLE")[0] == b"master")
    except redis.RedisError:
        return False


def _plain(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


@contextmanager
def watched(**options: Any) -> Iterator[Watched]:
    """Servers and sentinels with the arguments of Watched, started; ended at the end."""
    made = Watched(**options)
    try:
        yield made.start()
    finally:
        made.close()
