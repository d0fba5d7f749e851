"""Standard streams that whoever starts the command line has closed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.valkey import ValkeyServer, free_port


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("enqueue emails - <&-", 2),
        ("enqueue emails --from-file - <&-", 2),
        ("queue drain emails <&-", 2),
        ("queue stats emails >&-", 0),
        ("ping >&-", 0),
        ("queue stats emails <&- >&- 2>&-", 0),
        ("flow add - <&-", 2),
        ("queue stats emails > /dev/full", 1),
    ],
)
def test_standard_streams_may_be_closed(url: str, server: ValkeyServer, command: str, code: int) -> None:
    """What needs one says so in a line; nothing empty is enqueued, and nothing else takes its place."""
    shell = f"exec '{sys.executable}' -m echomq_worker {command}"
    environment = {**os.environ, "ECHOMQ_URL": url}
    done = subprocess.run(
        ["/bin/sh", "-c", shell], env=environment, capture_output=True, text=True, timeout=90, check=False
    )

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1 if code else 0)
    assert not server.admin.exists("emq:{emails}:pending")


def test_a_dashboard_that_cannot_say_where_it_is_ends_in_one_line(url: str) -> None:
    """As it would at a signal: what serves it has nothing to trace."""
    shell = f"exec '{sys.executable}' -m echomq_worker web --http 127.0.0.1:{free_port()} > /dev/full"
    environment = {**os.environ, "ECHOMQ_URL": url, "ECHOMQ_LOG_LEVEL": "error"}
    done = subprocess.run(
        ["/bin/sh", "-c", shell], env=environment, capture_output=True, text=True, timeout=90, check=False
    )

    assert (done.returncode, done.stderr) == (1, "echomq-worker: standard output: No space left on device\n")
