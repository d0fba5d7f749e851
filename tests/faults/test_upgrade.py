"""Rolling upgrade: workers of the release before and of this one on the same queues, each with its own scripts.

Source: issue "The five promises", Rolling upgrade. The release before is the wheel in tests/previous.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis.asyncio import Redis

from echomq_worker import Cancel, Flows, Jobs, Lanes, New, Node, Repeat, connect
from echomq_worker.connector import Wire
from tests.support.app import Note, read_notes
from tests.support.process import WorkerProcess
from tests.support.waiting import wait_until

PROJECT = Path(__file__).resolve().parents[2]
QUEUES = ("jobs", "children", "parents", "ticks")
EVERY_MS = 400
BY_COMMAND = 10
SETTINGS = {"BEAT_MS": 200, "LEASE_MS": 5_000, "TICK_MS": 100, "GRACE_MS": 400, "LOG_FORMAT": "json"}


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A folder with the release before."""
    (wheel,) = (PROJECT / "tests" / "previous").glob("*.whl")
    folder = tmp_path / "before"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


class Deployment:
    """Processes of both releases on one server; their notes are in one file."""

    def __init__(self, url: str, before: Path, stack: ExitStack) -> None:
        self._url = url
        self._path = {"before": f"{before}:{PROJECT}", "today": str(PROJECT)}
        self._stack = stack
        self.notes_path = before.parent / "notes"
        asked = [sys.executable, "-c", "import echomq_worker as it; print(it.__file__)"]
        for release, root in (("before", before), ("today", PROJECT)):
            env = {**os.environ, "PYTHONPATH": self._path[release]}
            found = subprocess.run(asked, cwd=before.parent, env=env, capture_output=True, text=True, check=True).stdout
            assert Path(found.strip()).parent.parent == root, f"{release} is what it says"

    def process(self, release: str, *arguments: str) -> WorkerProcess:
        """`python -m echomq_worker …` of a release."""
        env = {f"ECHOMQ_{name}": str(value) for name, value in SETTINGS.items()}
        env |= {"ECHOMQ_URL": self._url, "TEST_NOTES": str(self.notes_path), "PYTHONPATH": self._path[release]}
        return self._stack.enter_context(WorkerProcess(*arguments, env=env))

    def worker(self, release: str) -> WorkerProcess:
        """A worker of a release."""
        return self.process(release, "run", "tests.support.upgrade_app:worker")

    def notes(self, what: str) -> list[Note]:
        """What the handlers have noted so far."""
        return read_notes(self.notes_path, what)


class Load:
    """Jobs of every kind, by the producers of both releases, and what must have become of each."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.plain: set[str] = set()
        self.retried: set[str] = set()
        self.flows: set[str] = set()

    async def enqueue(self) -> None:
        """A round of flat, due, retried and grouped jobs, and of flows over two queues."""
        lanes = [Lanes.group_for(f"tenant {n}") for n in range(3)]
        items: list[object] = [{"sleep_ms": n % 7} for n in range(60)]
        items += [New({"sleep_ms": 5}, in_ms=100 * n) for n in range(12)]
        items += [New({"sleep_ms": 5}, group=lanes[n % 3]) for n in range(30)]
        jobs = Jobs(self.wire)
        self.plain |= {one.id for one in await jobs.enqueue_many("jobs", items)}
        retried: list[object] = [{"fails": 1}] * 6
        retried += [New({"fails": 1}, group=lanes[0])] * 3
        self.retried |= {one.id for one in await jobs.enqueue_many("jobs", retried)}
        for _ in range(4):
            children = [Node("children", {"n": n}) for n in range(3)]
            added = await Flows(self.wire).add(Node("parents", {}, children))
            self.flows |= {added.id, *(child.id for child in added.children)}

    @property
    def all(self) -> set[str]:
        """Every id that has to complete."""
        return self.plain | self.retried | self.flows


async def _enqueue_as(deployment: Deployment, release: str, folder: Path) -> None:
    """The command line of a release enqueues ten jobs more."""
    file = folder / f"{release}.jsonl"
    file.write_text("".join(json.dumps({"sleep_ms": n}) + "\n" for n in range(BY_COMMAND)))
    producer = deployment.process(release, "enqueue", "jobs", "--from-file", str(file))
    assert await producer.ended() == 0, producer.log_text()


async def _drained(jobs: Jobs) -> bool:
    counts = [await jobs.counts(queue) for queue in QUEUES]
    return not any(one.pending or one.active or one.scheduled or one.lanes for one in counts)


def _account(deployment: Deployment, load: Load, moved: set[str], stopped: set[int]) -> None:
    """Every id ended once; each run ended the job, was cut by a stop or a cancel, or failed as asked."""
    starts = Counter(note.id for note in deployment.notes("start"))
    ends = Counter(note.id for note in deployment.notes("end"))
    assert {id: n for id, n in ends.items() if n != 1} == {}
    assert load.all - set(ends) == set()
    assert len(set(ends) - load.all) == 2 * BY_COMMAND
    # More than once, where the process that a job was handed over to is the next to be stopped.
    cuts = Counter(note.id for note in deployment.notes("cancelled"))
    assert moved <= set(starts)
    by = {note.pid for note in deployment.notes("cancelled") if note.id not in moved}
    assert by <= stopped, "a short job is cut where its process was stopped, and that only if it had no time to run"
    for id, runs in starts.items():
        assert runs == cuts[id] + (id in load.retried) + (id in ends), id


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("first", "second"), [("before", "today"), ("today", "before")])
async def test_both_releases_serve_the_same_queues(
    first: str, second: str, url: str, raw: Redis, before: Path, tmp_path: Path
) -> None:
    """One release at work, the other joins; then each process of the first is replaced by one of the second, by
    SIGTERM. Everything that was enqueued has completed once, what failed as asked took one attempt more, a long job was
    handed over without a failure or a crash, a cancelled one is dead, a repeat fired once a period.

    Report 75 (chrisguidry/docket#438).
    """
    with ExitStack() as stack:
        deployment = Deployment(url, before, stack)
        async with connect(url) as wire:
            load, jobs = Load(wire), Jobs(wire)
            old = [deployment.worker(first) for _ in range(2)]
            begun = time.time()
            assert await Repeat(wire).register("ticks", "tick", EVERY_MS, "x", fixed_rate=True) == "registered"
            await load.enqueue()
            long = {one.id for one in await jobs.enqueue_many("jobs", [{"sleep_ms": 1_500}] * 4)}
            doomed = (await jobs.enqueue("jobs", {"sleep_ms": 60_000})).id
            await wait_until(lambda: {*long, doomed} <= {note.id for note in deployment.notes("start")}, "they run")
            new = [deployment.worker(second)]
            await new[0].saw("worker started")
            await load.enqueue()
            assert await Cancel(wire).request("jobs", doomed, "not wanted") == "asked"
            for process in old:
                process.send(signal.SIGTERM)
                assert await process.ended() == 0, process.log_text()
                new.append(deployment.worker(second))
                await load.enqueue()
            load.plain |= long
            for release in (first, second):
                await _enqueue_as(deployment, release, tmp_path)
            await wait_until(lambda: load.all <= {note.id for note in deployment.notes("end")}, "all have ended", 100)
            assert await Repeat(wire).cancel("ticks", "tick")
            took_ms = (time.time() - begun) * 1000
            await wait_until(lambda: _drained(jobs), "nothing is left to do")
            dead = {queue: (await jobs.counts(queue)).dead for queue in QUEUES}
            row = await raw.hgetall(f"emq:{{jobs}}:job:{doomed}")
            completed = sum([(await jobs.metrics(queue)).completed for queue in QUEUES])
    ticks = [note.id for note in deployment.notes("tick")]

    _account(deployment, load, moved={*long, doomed}, stopped={process.pid for process in old})
    assert completed == len(load.all) + 2 * BY_COMMAND + len(ticks)
    assert dead == {"jobs": 1, "children": 0, "parents": 0, "ticks": 0}
    assert (row[b"state"], row[b"last_error"]) == (b"dead", b"cancelled: not wanted")
    assert b"crashes" not in row
    assert 3 <= len(ticks) == len(set(ticks)) <= took_ms / EVERY_MS + 1
