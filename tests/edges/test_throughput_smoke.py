"""The throughput benchmark itself: it runs, and says what a job costs on the wire. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def test_the_throughput_benchmark_reports_few_calls_per_job() -> None:
    """5,000 no-op jobs in one worker process: all completed (exit 0), with 0.2 EVALSHA calls per job or less."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.throughput", "--jobs", "5000", "--runs", "1"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["jobs"] == 5_000
    assert report["jobs_per_s"]["median"] > 0
    assert 0 < report["evalsha_per_job"]["max"] <= 0.2
