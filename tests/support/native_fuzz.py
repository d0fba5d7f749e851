"""`python -m tests.support.native_fuzz --calls 200000`: random calls of every command, the module checked.

Source: issue "The native twins". The module is built with AddressSanitizer and UndefinedBehaviorSanitizer, every piece
of memory and every string of a call in a block of its own; the server is the ordinary one. What the server's own
allocator holds for a call is looked at by its size: a second round must not need more than the first.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from echomq_worker.keyspace import SLOTS
from tests.support.native_words import Caller, Words, shapes
from tests.support.valkey import ValkeyServer, find_binary, free_port
from tests.support.waiting import wait_until_sync

PROJECT = Path(__file__).resolve().parents[2]
_BATCH = 200
_ROUNDS = 4
# Of a round's thousands of calls, a few bytes left behind by each would be more.
_GROWTH_BYTES = 262_144
_SERVER = """#!/bin/sh
export LD_PRELOAD='{shim} {asan}'
export ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1
exec {server} "$@"
"""


class Finding(AssertionError):
    """The server has died, or what it keeps has grown."""


@contextmanager
def checked_server(*, cluster: bool = False) -> Iterator[ValkeyServer]:
    """A server with the module that checks itself; alone in a cluster, where derived keys are asked for too."""
    with tempfile.TemporaryDirectory() as folder:
        program, module = _checking_program(Path(folder))
        options = ["--loadmodule", str(module), "--enable-module-command", "yes"]
        options += ["--cluster-enabled", "yes", "--cluster-port", str(free_port())] if cluster else []
        server = ValkeyServer(binary=program, args=options)
        try:
            server.start()
            if cluster:
                _own_all_slots(server)
            yield server
        finally:
            server.close()


def _checking_program(folder: Path) -> tuple[Path, Path]:
    """How the server is started so that the sanitizer is in it, and the module that was built with it."""
    module, shim, start = folder / "emq.so", folder / "deepbind.so", folder / "server"
    _run("make", "-s", "-C", str(PROJECT / "native"), "asan", f"CHECKED={module}")
    _run("cc", "-shared", "-fPIC", "-o", str(shim), str(PROJECT / "tests" / "support" / "deepbind.c"), "-ldl")
    asan = _run("cc", "-print-file-name=libasan.so").strip()
    start.write_text(_SERVER.format(shim=shim, asan=asan, server=find_binary()))
    start.chmod(0o755)
    return start, module


def _own_all_slots(server: ValkeyServer) -> None:
    admin: Any = server.admin
    admin.execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
    wait_until_sync(lambda: admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "the cluster is ok")


def _run(*command: str) -> str:
    program = shutil.which(command[0])
    if program is None:
        raise SystemExit(f"native_fuzz: no {command[0]}, expected make and a compiler with its sanitizers")
    return subprocess.run([program, *command[1:]], check=True, capture_output=True, text=True).stdout


def fuzz(server: ValkeyServer, calls: int, seed: int) -> dict[str, int]:
    """Make so many calls; how many were answered by a value, by an error, and how many of the module's commands ran.

    Raises Finding.
    """
    client: Any = redis.Redis(port=server.port, socket_timeout=60)
    module = str(client.execute_command("MODULE", "LIST"))
    if "emq" not in module:
        raise Finding(f"the module is not there: {module}")
    tally = {"values": 0, "errors": 0}
    sizes = []
    for number in range(_ROUNDS):
        # The same calls each time: what a round leaves behind is not what it has drawn.
        caller = Caller(seed)
        client.flushall()
        for at in range(0, calls // _ROUNDS, _BATCH):
            words = _mixed(caller, min(_BATCH, calls // _ROUNDS - at))
            _send(server, client, words, tally, f"seed {seed}, round {number}, call {at}")
        if number == 1:
            _reload(client)
        client.flushall()
        sizes.append(_held(client))
    _judge(sizes)
    tally["commands"] = sum(f"cmdstat_{one.command}" in client.info("commandstats") for one in shapes())
    client.close()
    return tally


def _mixed(caller: Caller, count: int) -> list[tuple[bool, Words]]:
    found: list[tuple[bool, Words]] = []
    for _ in range(count):
        found += [(False, caller.change()), (True, caller.call())]
    return found


def _send(
    server: ValkeyServer, client: Any, words: Sequence[tuple[bool, Words]], tally: dict[str, int], where: str
) -> None:
    pipe = client.pipeline(transaction=False)
    for _counted, one in words:
        pipe.execute_command(*one)
    try:
        replies = pipe.execute(raise_on_error=False)
    except redis.ConnectionError as error:
        raise Finding(f"{where}: the server is gone\n{_last_words(server)}") from error
    for (counted, _one), reply in zip(words, replies, strict=True):
        if counted:
            tally["errors" if isinstance(reply, Exception) else "values"] += 1


def _last_words(server: ValkeyServer) -> str:
    text = server.log_text()
    found = [at for at in (text.find("ERROR: AddressSanitizer"), text.find("runtime error")) if at >= 0]
    at = min(found, default=len(text) - 6000)
    return text[max(0, at - 200) :][:6000]


def _reload(client: Any) -> None:
    path = next(one for one in client.execute_command("MODULE", "LIST") if one[b"name"] == b"emq")[b"path"]
    client.execute_command("MODULE", "UNLOAD", "emq")
    client.execute_command("MODULE", "LOAD", path)


def _held(client: Any) -> int:
    client.execute_command("MEMORY", "PURGE")
    return int(client.info("memory")["used_memory"])


def _judge(sizes: Sequence[int]) -> None:
    """The first rounds fill the server's own tables and buffers; the last one may add nothing."""
    grown = sizes[-1] - max(sizes[:-1])
    if grown > _GROWTH_BYTES:
        raise Finding(f"the server holds {grown} bytes more than in any round before: {list(sizes)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.native_fuzz", description=__doc__)
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cluster", action="store_true", help="a server that is a cluster of its own")
    chosen = parser.parse_args(argv)
    began = time.monotonic()
    with checked_server(cluster=chosen.cluster) as server:
        tally = fuzz(server, chosen.calls, chosen.seed)
    took = time.monotonic() - began
    sys.stdout.write(
        f"{chosen.calls} calls of {tally.pop('commands')} commands, {tally}, {took:.0f} s: nothing found\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
