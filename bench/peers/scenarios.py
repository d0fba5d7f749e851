"""What is measured of a peer: no-op jobs drained, jobs enqueued, how long a job waits in an idle worker, and sleeps.

The same as `throughput`, `enqueue`, `latency` and `io` measure of ours, on a server of its own each time, with the
worker on its core and the server on the other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import pinned_to_server, server

ADAPTERS = Path(__file__).with_name("adapters.py")
# Jobs of a no-op drain: some seconds each.
NOOP_JOBS = {"ardiq": 40_000, "repid": 30_000, "taskiq": 20_000}
_WAIT_S = 120.0
# Until an idle worker has connected and looks for jobs.
_SETTLE_S = 4.0


class Peer:
    """One peer: its interpreter, and the concurrency at which it is fastest."""

    def __init__(self, name: str, python: Path, concurrency: int) -> None:
        self.name = name
        self._python = python
        self._concurrency = concurrency

    def noop(self) -> float:
        """Jobs per second, from the first handler call to the last."""
        jobs = NOOP_JOBS.get(self.name, 10_000)
        with self._place() as (url, marks):
            self._enqueue(url, "bulk", "noop", jobs)
            with self._worker(url, marks, jobs, self._concurrency):
                first, last = self._lines(marks, 2)[:2]
        return jobs / (float(last[2]) - float(first[2]))

    def enqueue(self, way: str) -> float:
        """Jobs per second: `one`, `concurrent` or `bulk`."""
        with self._place() as (url, _):
            done = self._enqueue(url, way, "noop", 3_000 if way == "one" else 10_000)
        return float(done["jobs"]) / float(done["seconds"])

    def latency(self, jobs: int = 200) -> tuple[float, float]:
        """The median and the 99th percentile, in ms."""
        with self._place() as (url, marks), self._worker(url, marks, 0, self._concurrency):
            time.sleep(_SETTLE_S)
            with pinned_to_server():
                self._enqueue(url, "paced", "stamp", jobs)
            lines = [line for line in self._lines(marks, jobs + 1) if line[0] == "stamp"]
        waits = sorted((float(arrived) - float(sent)) * 1000 for _, sent, arrived in lines)
        return waits[len(waits) // 2], waits[int(len(waits) * 0.99)]

    def sleeps(self, jobs: int = 1_000) -> float:
        """Jobs per second of sleeps of 100 ms, at concurrency 100."""
        with self._place() as (url, marks):
            self._enqueue(url, "bulk", "sleep", jobs)
            with self._worker(url, marks, jobs, 100):
                lines = self._lines(marks, 2 * jobs)
        begun = min(float(line[2]) for line in lines if line[0] == "begin")
        ended = max(float(line[2]) for line in lines if line[0] == "end")
        return jobs / (ended - begun)

    @contextmanager
    def _place(self) -> Iterator[tuple[str, Path]]:
        with tempfile.TemporaryDirectory(prefix="echomq-bench-") as folder, server() as url:
            marks = Path(folder) / "marks"
            marks.touch()
            yield url, marks

    def _environment(self, url: str, marks: Path, jobs: int, concurrency: int) -> dict[str, str]:
        return {
            **os.environ,
            "PEER": self.name,
            "PEER_URL": url,
            "PEER_JOBS": str(jobs),
            "PEER_MARKS": str(marks),
            "PEER_CONCURRENCY": str(concurrency),
            "PYTHONPATH": str(ADAPTERS.parent),
        }

    def _enqueue(self, url: str, way: str, kind: str, count: int) -> dict[str, Any]:
        command = [str(self._python), str(ADAPTERS), "enqueue", way, kind, str(count)]
        environment = self._environment(url, Path(os.devnull), 0, self._concurrency)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=_WAIT_S)
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}: enqueue {way} failed: {done.stderr.strip()[-500:]}")
        counted: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return counted

    def _command(self, concurrency: int) -> Sequence[str]:
        bin_ = self._python.parent
        if self.name == "taskiq":
            options = ("-w", "1", "--max-async-tasks", str(concurrency), "--log-level", "WARNING")
            return [str(bin_ / "taskiq"), "worker", "adapters:broker", *options]
        if self.name == "dramatiq":
            return [str(bin_ / "dramatiq"), "adapters", "-p", "1", "-t", str(concurrency), "--skip-logging"]
        if self.name == "celery":
            options = ("-P", "threads", "-c", str(concurrency), "-l", "WARNING")
            return [str(bin_ / "celery"), "-A", "adapters:app", "worker", *options]
        return [str(self._python), str(ADAPTERS), "worker"]

    @contextmanager
    def _worker(self, url: str, marks: Path, jobs: int, concurrency: int) -> Iterator[None]:
        with tempfile.TemporaryFile() as out:
            process = subprocess.Popen(
                self._command(concurrency),
                env=self._environment(url, marks, jobs, concurrency),
                cwd=marks.parent,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            try:
                yield
            except RuntimeError as error:
                out.seek(0)
                raise RuntimeError(f"{error}: {out.read()[-500:].decode(errors='replace')}") from None
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _lines(self, marks: Path, count: int) -> list[list[str]]:
        deadline = time.monotonic() + _WAIT_S
        lines: list[list[str]] = []
        while time.monotonic() < deadline:
            lines = [line.split() for line in marks.read_text().splitlines()]
            if len(lines) >= count:
                return lines
            time.sleep(0.05)
        raise RuntimeError(f"{self.name}: {len(lines)} of {count} marks within {_WAIT_S:.0f} s")
