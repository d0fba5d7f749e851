"""Shell completion: what a shell is told, and that a real bash completes with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash") or ""
PROGRAM = (sys.executable, "-m", "echomq_worker")


def complete(words: str, place: int) -> list[str]:
    """What is offered for the word at `place`."""
    environment = {
        **os.environ,
        "_ECHOMQ_WORKER_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(place),
    }
    told = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=True)
    return told.stdout.split()


def test_commands_and_options_are_completed() -> None:
    """Of every level: the root, a group, the options of a command."""
    assert complete("echomq-worker re", 1) == ["repeat"]
    assert complete("echomq-worker queue st", 2) == ["stats", "stalled"]
    assert "--reload" in complete("echomq-worker run --re", 2)


@pytest.mark.skipif(not BASH, reason="there is no bash")
def test_a_real_bash_completes(tmp_path: Path) -> None:
    """`--install-completion bash` writes what a new shell reads; there a word is completed."""
    program = tmp_path / "bin" / "echomq-worker"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m echomq_worker "$@"\n')
    program.chmod(0o755)
    project = str(Path(__file__).resolve().parents[2])
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": project,
    }

    installed = subprocess.run(
        [str(program), "--install-completion", "bash"], env=environment, capture_output=True, text=True, check=False
    )
    assert (installed.returncode, "completion installed" in installed.stdout) == (0, True), installed.stderr
    script = """
        . "$HOME/.bashrc"
        COMP_WORDS=(echomq-worker lane re) COMP_CWORD=2
        $(complete -p echomq-worker | sed 's/.*-F \\([^ ]*\\).*/\\1/') echomq-worker
        echo "${COMPREPLY[@]}"
    """
    told = subprocess.run([BASH, "-c", script], env=environment, capture_output=True, text=True, check=False)

    assert told.stdout.split() == ["resume", "reassign", "reap"], told.stderr
