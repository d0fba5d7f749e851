"""The command line in a test's own process, against the session's server."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from echomq_worker.cli import main

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
