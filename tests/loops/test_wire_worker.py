"""A worker on wire 6 and on auto: it runs by commands alone, gives back by EMQ.REQUEUE, and does not start where it
could not do its work.

Source: issue "The native twins: a Valkey module, and wire 6".
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from echomq_worker.connector import connect
from echomq_worker.errors import ConfigError, LaneNotServed, NoTwin
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs, New
from echomq_worker.keyspace import Keys
from echomq_worker.lanes import Lanes
from echomq_worker.worker import Worker
from tests.support.native import load, native, own_native
from tests.support.running import quick, running
from tests.support.valkey import ValkeyServer, raw_client
from tests.support.waiting import wait_until

__all__ = ["native", "own_native"]

KEYS = Keys("jobs")
GROUP = "GRP00000000001"


def calls(server: ValkeyServer) -> dict[str, int]:
    """How often each script and each command of the module was called."""
    admin: Any = server.admin
    found = {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in admin.info("commandstats").items()}
    return {name: count for name, count in found.items() if name.startswith("EMQ.") or name in {"eval", "evalsha"}}


class Held:
    """A worker whose handler waits until it is let go."""

    def __init__(self, **options: Any) -> None:
        self.worker = Worker()
        self.began: list[str] = []
        self.go = asyncio.Event()
        self.worker.handler("jobs", concurrency=10, **options)(self.handle)

    async def handle(self, job: Job) -> None:
        """Begin, wait, end."""
        self.began.append(job.id)
        await self.go.wait()


async def test_a_worker_by_commands_alone(native: ValkeyServer) -> None:
    """Jobs are claimed, kept beyond their lease, completed and given back; no script is run. What is spoken is told at
    the start and to a probe.
    """
    held = Held()
    async with connect(native.url, wire="6") as connector:
        ids = [one.id for one in await Jobs(connector).enqueue_many("jobs", [b"x"] * 3)]
        with capture_logs() as lines:
            async with running(held.worker, native.url, wire="6", lease_ms=2_000, grace_ms=1) as run:
                await wait_until(lambda: held.began == ids, "all run")
                # Every lease was extended twice at least, and nobody else had the jobs meanwhile.
                await wait_until(lambda: calls(native).get("EMQ.KEEP", 0) >= 4, "leases are kept")
                assert held.worker.readiness().wire == str(connector.spoken)
        assert (run.report.released, run.report.completed) == (3, 0)
        (started,) = [line for line in lines if line["event"] == "worker started"]
        assert started["wire"] == f"6 ({len(connector.spoken.commands)} commands)"
        assert [line["wire"] for line in lines if line["event"] == "no pump"] == ["6"]
        assert calls(native)["EMQ.REQUEUE"] == 3
        async with raw_client(native.url) as raw:
            assert await raw.zrange(KEYS.pending, 0, -1) == [id.encode() for id in ids]
            assert await raw.hgetall(KEYS.job(ids[0])) == {b"state": b"pending", b"attempts": b"1", b"payload": b"x"}
        held.go.set()
        async with running(held.worker, native.url, wire="6", options={"burst": True}) as run:
            await asyncio.wait({run.task})
    assert run.report.completed == 3
    assert not {"eval", "evalsha"} & set(calls(native))


async def test_the_hand_over_gives_back_jobs_of_lanes_too(native: ValkeyServer) -> None:
    """On auto: by the command, to the lane; the slot is free and the lane on the ring."""
    held = Held()
    async with connect(native.url) as connector:
        (id,) = [one.id for one in await Jobs(connector).enqueue_many("jobs", [New(b"x", group=GROUP)])]
    async with running(held.worker, native.url, wire="auto", grace_ms=1) as run:
        await wait_until(lambda: held.began == [id], "it runs")
    assert run.report.released == 1
    assert calls(native)["EMQ.REQUEUE"] == 1
    async with raw_client(native.url) as raw:
        assert await raw.zrange(KEYS.lane(GROUP), 0, -1) == [id.encode()]
        assert await raw.lrange(KEYS.ring, 0, -1) == [GROUP.encode()]
        assert not await raw.exists(KEYS.gactive)


async def test_the_hand_over_gives_back_by_the_script_where_the_command_has_gone(native: ValkeyServer) -> None:
    """The module is unloaded while a job runs: it is released all the same."""
    admin: Any = native.admin
    held = Held()
    async with connect(native.url) as connector:
        id = (await Jobs(connector).enqueue("jobs", b"x")).id
    async with running(held.worker, native.url, wire="auto", grace_ms=1) as run:
        await wait_until(lambda: held.began == [id], "it runs")
        admin.execute_command("MODULE", "UNLOAD", "emq")
    load(native)
    assert run.report.released == 1
    async with raw_client(native.url) as raw:
        assert await raw.zrange(KEYS.pending, 0, -1) == [id.encode()]


async def test_lanes_are_not_served_by_commands_alone(native: ValkeyServer) -> None:
    """A scheduled job of a lane would stay where it is: the worker does not start, and names auto."""
    async with connect(native.url) as connector:
        await Lanes(connector).limit("jobs", GROUP, 3)
    with pytest.raises(ConfigError, match=r"^wire 6: queue jobs has lanes, .*: expected ECHOMQ_WIRE=auto$"):
        await Held().worker.run(quick(native.url, wire="6"), signals=False)


async def test_a_lane_that_appears_ends_a_worker_of_commands_alone(native: ValkeyServer) -> None:
    """It says at the next promote what serves lanes; the job stays where it is."""
    task = asyncio.create_task(Held().worker.run(quick(native.url, wire="6"), signals=False))
    async with connect(native.url) as connector:
        await wait_until(lambda: calls(native).get("EMQ.CLAIM.MANY"), "it works")
        await Jobs(connector).enqueue_many("jobs", [New(b"x", group=GROUP, at_ms=1)])
    with pytest.raises(ExceptionGroup) as caught:
        await task
    refused, others = caught.value.split(LaneNotServed)
    assert refused is not None
    assert others is None
    admin: Any = native.admin
    assert admin.zcard(KEYS.schedule) == 1


@pytest.mark.parametrize("asked", ["setting", "argument"])
async def test_a_pump_is_not_run_by_commands_alone(native: ValkeyServer, asked: str) -> None:
    """Who asks for one is told that repeats are a script, and the worker does not start."""
    settings = quick(native.url, wire="6", **({"pump": True} if asked == "setting" else {}))
    with pytest.raises(NoTwin, match=r"^wire 6: no command for repeat_fire, a script alone: expected ECHOMQ_WIRE=auto"):
        await Held().worker.run(settings, signals=False, pump=True if asked == "argument" else None)


async def test_without_the_module_wire_6_does_not_start(url: str) -> None:
    """One line that says what is missing; auto starts there, with scripts."""
    with pytest.raises(
        ConfigError, match=r"^wire 6: .*: the server has no module emq: expected ECHOMQ_WIRE=auto, or the"
    ):
        await Held().worker.run(quick(url, wire="6"), signals=False)
    held = Held()
    held.go.set()
    async with connect(url) as connector:
        await Jobs(connector).enqueue("jobs", b"x")
    assert (await held.worker.run(quick(url, wire="auto"), signals=False, burst=True)).completed == 1


async def test_a_batch_handler_by_commands_alone(native: ValkeyServer) -> None:
    """Its window looks by command too."""
    seen: list[str] = []
    worker = Worker()

    @worker.batch_handler("jobs", min_size=2, timeout_ms=50, concurrency=4)
    async def together(jobs: list[Job]) -> None:
        seen.extend(job.id for job in jobs)

    async with connect(native.url, wire="6") as connector:
        ids = [one.id for one in await Jobs(connector).enqueue_many("jobs", [b"x"] * 3)]
    await worker.run(quick(native.url, wire="6"), signals=False, burst=True)

    assert sorted(seen) == ids
    assert not {"eval", "evalsha"} & set(calls(native))
    assert calls(native)["EMQ.LOOK"] > 0
