"""Pump: what ended in one queue reaches its parents in others within a tick; delivered, then removed, counted once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from echomq_worker import outbox
from echomq_worker.clock import Clock
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import ConnectionLost, ServerError
from echomq_worker.identity import Mint
from echomq_worker.keyspace import Keys
from echomq_worker.outbox import BATCH, Delivered, Delivery, deliver, parse_entry
from echomq_worker.pump import Pump, Tick
from tests.support.clock import ManualClock
from tests.support.flows import UP, completion, death
from tests.support.plain import QUEUE, Queue, State, job, row
from tests.support.proxy import Proxy
from tests.support.stations import Lines, degraded
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until

PARENT = job(90)
TICK_MS = 1_000


class Counted(Pump):
    """A pump that counts its ticks."""

    looks = 0

    async def beat(self) -> Tick:
        """As it is, and counted."""
        self.looks += 1
        return await super().beat()


def pump(connector: Connector, clock: Clock, *, lines: Lines | None = None) -> Counted:
    """Of the tests' queue, with a tick of 1 s."""
    return Counted(
        connector,
        Keys(QUEUE),
        clock=clock,
        mint=Mint(clock, 1),
        tick_ms=TICK_MS,
        promote_batch=100,
        degraded=degraded("pump", clock=clock, beat_ms=TICK_MS, lines=lines),
        log=lines,
    )


@asynccontextmanager
async def pumping(made: Pump) -> AsyncIterator[None]:
    """The pump runs."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        yield
        tasks.cancel_scope.cancel()


def waiting(out: int) -> State:
    """The parent, in its own queue."""
    return {f"job:{PARENT}": row("awaiting_children"), f"job:{PARENT}:dependencies": str(out)}


def reports(*numbers: int) -> list[str]:
    """Completions of so many children."""
    return [completion(job(n), PARENT, str(n)) for n in numbers]


async def listed(raw: Redis, key: str) -> list[bytes]:
    """All of a list."""
    found: Any = await raw.lrange(key, 0, -1)
    return list(found)


async def test_a_tick_delivers_and_removes(url: str, raw: Redis) -> None:
    """Completions and deaths, to whichever queue the parent is in, in order; the outbox is empty afterwards."""
    up, here = Queue(raw, UP), Queue(raw)
    await up.put(waiting(3))
    entries = [completion(job(1), PARENT, "1"), death(job(2), PARENT, "boom", policy="id")]
    await here.put({"flow:outbox": [*entries, completion(job(3), job(91), "gone"), completion(job(4), PARENT, "4")]})

    async with connect(url) as connector:
        made = pump(connector, ManualClock())
        assert await made.beat() == Tick(0, 0, None, delivered=4)
        assert await made.beat() == Tick(0, 0, None)

    assert await here.state() == {
        f"emq:{{{UP}}}:{name}": value
        for name, value in {
            f"job:{PARENT}": row("pending"),
            f"job:{PARENT}:dependencies": "0",
            f"job:{PARENT}:processed": {job(1): "1", job(4): "4"},
            f"job:{PARENT}:unsuccessful": {job(2): "boom"},
            "pending": {PARENT: 0},
            "ready": ["1"],
        }.items()
    }


async def test_a_death_goes_on_over_queues(url: str, raw: Redis) -> None:
    """A parent that dies of it tells its own parent, by the outbox of its queue, from where the next Pump takes it."""
    up = Queue(raw, UP)
    kin: dict[str, Any] = {"parent": job(99), "parent_queue": "top", "parent_policy": "fp"}
    await up.put({f"job:{PARENT}": row("awaiting_children", **kin), f"job:{PARENT}:dependencies": "1"})
    await Queue(raw, "top").put({f"job:{job(99)}": row("awaiting_children"), f"job:{job(99)}:dependencies": "1"})
    await Queue(raw).put({"flow:outbox": [death(job(1), PARENT, "boom")]})

    async with connect(url) as connector:
        assert (await pump(connector, ManualClock()).beat()).delivered == 1
        said = f"child {job(1)} died: boom"
        entries = await listed(raw, f"emq:{{{UP}}}:flow:outbox")
        assert entries == [death(PARENT, job(99), said, queue="top").encode()]
        assert await deliver(connector, Keys(UP), entries) == Delivered(told=1)

    top = await Queue(raw, "top").state()
    assert top[f"job:{job(99)}"] == row("dead", last_error=f"child {PARENT} died: {said}")


async def test_two_pumps_deliver_the_same_ones(url: str, raw: Redis) -> None:
    """Both read all of it before either has removed any: each child counts once, and nothing but these is removed."""
    count = 60
    await Queue(raw, UP).put(waiting(count + 1))
    here = Queue(raw)
    await here.put({"flow:outbox": reports(*range(count))})
    async with connect(url) as one, connect(url) as other:
        entries = await one.call("LRANGE", here.keys.outbox, 0, -1)
        await raw.rpush(here.keys.outbox, *reports(count + 7))
        await asyncio.gather(*(deliver(wire, here.keys, entries) for wire in (one, other, one, other)))

    state = await Queue(raw, UP).state()
    assert state[f"job:{PARENT}:dependencies"] == "1"
    assert state["emq:{q}:flow:outbox"] == reports(count + 7)
    assert "pending" not in state


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        (completion(job(1), PARENT, "1"), "processed"),
        (death(job(1), PARENT, "boom"), "failed"),
        (death(job(1), PARENT, "boom", policy="id"), "unsuccessful"),
    ],
    ids=["done", "dead", "ignored"],
)
async def test_a_slow_pump_takes_no_report_from_a_flow_that_was_added_again(
    url: str, raw: Redis, entry: str, where: str
) -> None:
    """It has told a parent that is gone. When it takes the entry out, that is word for word the report to a new one."""
    here = Queue(raw)
    await here.put({"flow:outbox": [entry]})
    async with connect(url) as connector:

        class Slow:
            async def call(self, *args: Any) -> Any:
                return await connector.call(*args)

            async def pipeline(self, commands: Any) -> list[Any]:
                if commands[0][0] == "LREM":
                    # Another Pump has taken it out; the flow was added again, and the child has ended as it had before.
                    assert await raw.lrem(here.keys.outbox, 1, entry) == 1
                    await Queue(raw, UP).put(waiting(2))
                    await raw.rpush(here.keys.outbox, entry)
                return await connector.pipeline(commands)

        assert await deliver(Slow(), here.keys, [entry.encode()]) == Delivered(told=1)

    state = await Queue(raw, UP).state()
    assert list(state[f"job:{PARENT}:{where}"]) == [job(1)]
    assert "emq:{q}:flow:outbox" not in state


@pytest.mark.parametrize("lost", [b"EVALSHA", b"LREM"], ids=["delivery", "removal"])
async def test_a_crash_in_between_delivers_again_harmlessly(
    url: str, server: ValkeyServer, raw: Redis, lost: bytes
) -> None:
    """Whichever reply is lost, of the delivery or of the removal: the next tick ends it, each child counted once."""
    await Queue(raw, UP).put(waiting(4))
    here = Queue(raw)
    await here.put({"flow:outbox": reports(1, 2, 3)})
    async with connect(url) as warm:
        await deliver(warm, here.keys, [completion(job(3), PARENT, "3").encode(), death(job(9), job(8), "x").encode()])
    await here.raw.rpush(here.keys.outbox, *reports(3))

    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        proxy.swallow_reply(lost)
        entries = [entry.encode() for entry in reports(1, 2, 3)]
        with pytest.raises(ConnectionLost):
            await deliver(connector, here.keys, entries)
        assert await deliver(connector, here.keys, entries) == Delivered(told=3)

    state = await Queue(raw, UP).state()
    assert (state[f"job:{PARENT}:dependencies"], len(state[f"job:{PARENT}:processed"])) == ("1", 3)
    assert not await raw.exists(here.keys.outbox)


async def test_it_delivers_by_batches_within_the_tick_and_says_when_there_is_more(url: str, raw: Redis) -> None:
    """Hundreds are delivered in one tick; what is over the time budget follows at once."""
    count = 3 * BATCH + 20
    await Queue(raw, UP).put(waiting(count))
    here = Queue(raw)
    await here.put({"flow:outbox": reports(*range(count))})

    class Slow(ManualClock):
        def monotonic_ms(self) -> float:
            self.advance(300)
            return super().monotonic_ms()

    async with connect(url) as connector:
        tick = await pump(connector, Slow()).beat()
        assert (tick.delivered, tick.more) == (2 * BATCH, True)
        clock = ManualClock()
        async with pumping(pump(connector, clock)):
            await wait_until(lambda: clock.sleepers == 1, "it waits for the next tick")
    assert await raw.zcard(f"emq:{{{UP}}}:pending") == 1
    assert not await raw.exists(here.keys.outbox)


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"up",
        b"up\0JOB00000000090",
        b"up\0JOB00000000090\0JOB00000000001",
        b"bad queue\0JOB00000000090\0JOB00000000001\0r",
        b"\0JOB00000000090\0JOB00000000001\0r",
        b"emq\0JOB00000000090\0JOB00000000001\0r",
        b"up\0JOB9\0JOB00000000001\0r",
        b"up\0JOB00000000090\0x\0r",
        b"up\0\xff\xff\0JOB00000000001\0r",
        b"\0fail\0up\0JOB00000000090\0JOB00000000001\0fp",
        b"\0fail\0up\0JOB00000000090\0JOB00000000001\0no\0boom",
        b"\0fail\0\0JOB00000000090\0JOB00000000001\0fp\0boom",
        b"\0fail",
    ],
)
async def test_a_malformed_entry_is_set_aside_and_holds_up_nobody(url: str, raw: Redis, entry: bytes) -> None:
    """In a list of its own, once, with a line; those around it are delivered."""
    await Queue(raw, UP).put(waiting(3))
    here, lines = Queue(raw), Lines()
    await raw.rpush(here.keys.outbox, reports(1)[0], entry, reports(2)[0])
    async with connect(url) as one, connect(url) as other:
        ticks = await asyncio.gather(*(pump(wire, ManualClock(), lines=lines).beat() for wire in (one, other)))

    assert parse_entry(entry) is None
    assert sum(tick.delivered for tick in ticks) >= 2
    state = await Queue(raw, UP).state()
    assert state[f"job:{PARENT}:dependencies"] == "1"
    assert await listed(raw, here.keys.malformed) == [entry]
    assert not await raw.exists(here.keys.outbox)
    assert {fields["key"] for fields in lines.of("flow reports set aside")} == {here.keys.malformed}


async def test_what_another_client_left_under_a_parents_key_does_not_end_the_pump(url: str, raw: Redis) -> None:
    """No repetition makes a list a hash: the report is set aside, the others go on."""
    await Queue(raw, UP).put(waiting(3) | {f"job:{PARENT}:processed": ["a list"]})
    await Queue(raw, UP).put({f"job:{job(91)}": row("awaiting_children"), f"job:{job(91)}:dependencies": "1"})
    here = Queue(raw)
    bad, good = completion(job(1), PARENT, "1"), completion(job(2), job(91), "2")
    await here.put({"flow:outbox": [bad, good]})

    async with connect(url) as connector:
        assert (await pump(connector, ManualClock()).beat()).delivered == 1

    assert await listed(raw, here.keys.malformed) == [bad.encode()]
    assert await raw.zcard(f"emq:{{{UP}}}:pending") == 1
    await raw.delete(f"emq:{{{UP}}}:job:{PARENT}:processed")


async def test_what_cannot_be_delivered_now_stays(url: str, server: ValkeyServer, raw: Redis) -> None:
    """Another error of the server is raised, for the degraded curve; what was delivered is gone, the rest is there."""
    await Queue(raw, UP).put(waiting(3))
    here = Queue(raw)
    await here.put({"flow:outbox": reports(1, 2)})
    async with connect(url) as warm:
        await deliver(warm, here.keys, [completion(job(9), job(8), "x").encode()])

    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        proxy.answer("NOPERM no such key for you", b"EVALSHA", 2)
        with pytest.raises(ServerError, match="NOPERM"):
            await deliver(connector, here.keys, [entry.encode() for entry in reports(1, 2)])

    assert await listed(raw, here.keys.outbox) == [reports(2)[0].encode()]


async def test_a_poke_does_not_wait_for_the_tick_and_many_are_one(url: str, raw: Redis) -> None:
    """At once when the last look is a while ago, else as soon as it is; a hundred pokes are one look."""
    await Queue(raw, UP).put(waiting(2))
    here, clock = Queue(raw), ManualClock()
    async with connect(url) as connector:
        made = pump(connector, clock)
        async with pumping(made):
            await wait_until(lambda: clock.sleepers == 1, "it waits for the next tick")
            clock.advance(TICK_MS // 2)
            await here.put({"flow:outbox": reports(1)})
            made.poke()
            await wait_until(lambda: made.looks == 2, "it looks at once")
            await wait_until(lambda: clock.sleepers == 1, "it waits again")
            await here.put({"flow:outbox": reports(2)})
            for _ in range(100):
                made.poke()
            await asyncio.sleep(0)
            assert made.looks == 2
            await wait_until(lambda: clock.sleepers == 1, "it waits a little")
            clock.advance(TICK_MS // 20)
            await wait_until(lambda: made.looks == 3, "it looks once for all of them")
            await wait_until(lambda: clock.sleepers == 1, "it waits for the next tick")
    assert await raw.zcard(f"emq:{{{UP}}}:pending") == 1
    assert made.looks == 3


def test_entries_are_read_to_the_last_byte() -> None:
    """The text may hold the separator."""
    assert parse_entry(b"up\0JOB00000000090\0JOB00000000001\0a\0b\0") == Delivery(UP, PARENT, job(1), b"a\0b\0")
    assert parse_entry(b"\0fail\0up\0JOB00000000090\0JOB00000000001\0id\0a\0b") == Delivery(
        UP, PARENT, job(1), b"a\0b", "id"
    )
    assert outbox.BATCH == 100
