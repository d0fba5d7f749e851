"""Admin: pause, resume, drain, obliterate and ceilings, as a host calls them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echomq_worker.admin import BUDGET, Admin
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import EchoMQError, InvalidArgument, InvalidQueueName, StateRefused
from echomq_worker.keyspace import Keys
from tests.support.control import CHILD, PARENT, REPEATS, Control, child, waiting
from tests.support.own import flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, QUEUE, Queue, State, job, row
from tests.support.valkey import ValkeyServer

ROW = f"job:{CHILD}"
PAUSED: State = {"meta": {"paused": "1"}}

Told = list[tuple[int, int]]


@pytest.fixture
def admin(wire: Connector) -> Admin:
    """Admin over a connector."""
    return Admin(wire)


def teller() -> tuple[Told, Callable[[int, int], None]]:
    """A list, and the callback that fills it."""
    told: Told = []
    return told, lambda done, total: told.append((done, total))


async def test_pause_and_resume(admin: Admin, control: Control, queue: Queue) -> None:
    """Nothing is claimed in between."""
    await queue.put(flat(1))

    await admin.pause(QUEUE)
    assert (await control.claim_many(1)).why == "paused"
    await admin.resume(QUEUE)

    assert (await control.claim_many(1)).ids == [job(1)]


async def test_drain_takes_flat_jobs_and_every_lane(admin: Admin, queue: Queue) -> None:
    """Served lanes, paused ones, full ones; what is in hand, dead, scheduled and repeating stays."""
    stays = merged(
        {"job:" + job(900): row("active", 1), "active": {job(900): FAR_MS}},
        {"job:" + job(901): row("dead"), "dead": {job(901): 0}},
        {"job:" + job(902): row("scheduled"), "schedule": {job(902): FAR_MS}},
        {"paused": {OTHER_GROUP}, "glimit": {"GRP00000000003": "0"}},
        REPEATS,
    )
    waits = merged(
        flat(*range(600)),
        lane(*range(600, 605)),
        lane(605, group=OTHER_GROUP, on_ring=False),
        lane(606, group="GRP00000000003", on_ring=False),
    )
    await queue.put(merged(waits, stays))
    told, tell = teller()

    assert await admin.drain(QUEUE, progress=tell) == 607
    assert await queue.state() == stays
    assert await admin.drain(QUEUE, schedule=True) == 1

    left = await queue.state()
    assert "schedule" not in left
    assert left["dead"] == {job(901): 0}
    assert told[-1] == (607, 607)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


async def test_drain_takes_parents_that_it_releases(admin: Admin, queue: Queue) -> None:
    """A child that may be ignored dies in its lane, its parent becomes pending, and goes in the same drain."""
    await queue.put(waiting(1) | {ROW: child("id", group=GROUP), f"g:{GROUP}:pending": {CHILD: 0}, "ring": [GROUP]})

    assert await admin.drain(QUEUE) == 2

    assert set(await queue.state()) <= {"ready"}


async def test_obliterate_leaves_no_key(admin: Admin, queue: Queue) -> None:
    """Also of what no set names: waiting parents, lanes that nothing knows, strays, keys of nobody; progress told."""
    stray = "GRP00000000009"
    await queue.put(
        merged(
            PAUSED,
            flat(*range(2 * BUDGET + 1)),
            lane(2_001, 2_002, group=stray, on_ring=False),
            {f"job:{job(2_003)}": row("awaiting_children"), f"job:{job(2_003)}:dependencies": "2"},
            {f"job:{job(2_004)}": row(), f"job:{job(2_005)}:logs": ["line"], "job:what": {"a": "b"}},
            {"de:lost": job(7), "repeat:gone": {"every_ms": "1"}, "something": "x", f"g:{stray}x:pending": {"who": 0}},
            REPEATS,
        )
    )
    await queue.put({"claimed:c": "1 ab"})
    told, tell = teller()

    await admin.obliterate(QUEUE, progress=tell)

    assert await queue.state() == {}
    total = 2 * BUDGET + 1
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {whole for _, whole in told} == {total}
    assert told[-1] == (total, total)


async def test_obliterate_touches_no_other_queue(admin: Admin, queue: Queue) -> None:
    """Also not one whose name begins alike."""
    await queue.put(flat(1) | PAUSED)
    other = Queue(queue.raw, "q2")
    await other.put(flat(2))

    await admin.obliterate(QUEUE)

    assert await other.state() == flat(2)


async def test_obliterate_needs_a_pause_and_no_jobs_in_hand(admin: Admin, queue: Queue) -> None:
    """Refused with nothing changed, unless it is paused, and forced where jobs are in hand."""
    state = merged(flat(1), {f"job:{job(2)}": row("active", 1), "active": {job(2): FAR_MS}})
    await queue.put(state)

    with pytest.raises(StateRefused, match="not paused"):
        await admin.obliterate(QUEUE, force=True)
    await admin.pause(QUEUE)
    with pytest.raises(StateRefused, match="active jobs present"):
        await admin.obliterate(QUEUE)
    assert await queue.state() == state | PAUSED
    await admin.obliterate(QUEUE, force=True)

    assert await queue.state() == {}


async def test_obliterate_reports_to_parents_in_other_queues(admin: Admin, queue: Queue) -> None:
    """Deaths, and what was on its way already, are delivered before the end; a malformed entry goes with the queue."""
    other = Queue(queue.raw, "other")
    await other.put(waiting(2))
    underway = f"other\0{PARENT}\0{job(5)}\0done"
    await queue.put(PAUSED | {ROW: child("id", queue="other"), "pending": {CHILD: 0}})
    await queue.put({"flow:outbox": [underway, "nonsense"]})

    await admin.obliterate(QUEUE)

    assert await other.state() == {
        f"job:{PARENT}": row("pending"),
        f"job:{PARENT}:dependencies": "0",
        f"job:{PARENT}:processed": {job(5): "done"},
        f"job:{PARENT}:unsuccessful": {CHILD: "obliterated"},
        "pending": {PARENT: 0},
        "ready": ["1"],
    }


async def test_obliterate_ends_though_jobs_come_in(admin: Admin, control: Control, queue: Queue) -> None:
    """What is enqueued while it goes on goes too; the queue is clean, or holds what came after the end whole."""
    await queue.put(flat(*range(4 * BUDGET)) | PAUSED)
    numbers = itertools.count(10_000)
    late: list[str] = []

    class Busy:
        """A wire on which another client enqueues before each command."""

        async def call(self, *args: Any) -> Any:
            late.append(job(next(numbers)))
            await control.lane_enqueue(late[-1], GROUP)
            return await control._wire.call(*args)

        async def pipeline(self, commands: Any) -> Any:
            return await control._wire.pipeline(commands)

    await Admin(Busy()).obliterate(QUEUE)

    state = await queue.state()
    assert set(state) <= {f"job:{id}" for id in late} | {f"g:{GROUP}:pending", "ring", "wake"}
    rows = {name.removeprefix("job:") for name in state if name.startswith("job:")}
    assert rows == set(state.get(f"g:{GROUP}:pending", {}))


SEED_200K = """
local p, n = ARGV[1], tonumber(ARGV[2])
local function id(i) return 'JOB' .. string.format('%011d', i) end
local function lane(g) return p .. 'g:' .. g .. ':pending' end
for i = 0, n - 1 do
  local kind, job, f = i % 8, id(i), {'attempts', '0', 'payload', 'payload'}
  local group = 'GRP' .. string.format('%011d', i % 997)
  local function put(state, ...)
    redis.call('HSET', p .. 'job:' .. job, 'state', state, unpack(f))
    if ... then redis.call('ZADD', ...) end
  end
  if kind == 0 then put('pending', p .. 'pending', 0, job)
  elseif kind == 1 then put('scheduled', p .. 'schedule', 4e12 + i, job)
  elseif kind == 2 then
    put('dead', p .. 'dead', 0, job)
    redis.call('RPUSH', p .. 'job:' .. job .. ':logs', 'a', 'b')
  elseif kind == 3 then
    f[5], f[6] = 'group', group
    put('active', p .. 'active', 4e12, job)
    redis.call('HINCRBY', p .. 'gactive', group, 1)
    redis.call('HSET', p .. 'glimit', group, 1)
    redis.call('SET', p .. 'job:' .. job .. ':lock', '1', 'PX', 600000)
  elseif kind == 4 or kind == 5 then
    f[5], f[6] = 'group', group
    put('pending', lane(group), 0, job)
    if kind == 5 then redis.call('SADD', p .. 'paused', group) end
  elseif kind == 6 then
    f[5], f[6], f[7], f[8] = 'dedup', 'key-' .. i, 'expires_at', '4000000000000'
    put('pending', p .. 'pending', 0, job)
    redis.call('SET', p .. 'de:key-' .. i, job)
  else
    put('awaiting_children')
    redis.call('SET', p .. 'job:' .. job .. ':dependencies', 3)
    redis.call('HSET', p .. 'job:' .. job .. ':processed', id(i - 1), 'x')
  end
end
for i = 1, 50 do redis.call('SET', p .. 'claimed:consumer-' .. i, '1 ab ' .. id(i) .. ' 1', 'PX', 600000) end
for i = 1, 200 do
  redis.call('HSET', p .. 'repeat:r' .. i, 'every_ms', 1000, 'template', 'x')
  redis.call('ZADD', p .. 'repeat', i, 'r' .. i)
end
redis.call('HSET', p .. 'meta', 'paused', '1', 'concurrency', '5')
redis.call('HSET', p .. 'metrics:completed', 'count', 12345)
"""


class Metered:
    """A wire that notes the processor time, in ms, which the server's main thread spent on each call of a script.

    By the server's own count of it: a wall clock, that of SLOWLOG too, goes on while a busy machine runs somebody else.
    """

    def __init__(self, wire: Connector) -> None:
        self.spent_ms: list[float] = []
        self._wire = wire
        self._last = 0.0

    async def _count(self) -> float:
        info: bytes = await self._wire.call("INFO", "cpu")
        fields = dict(line.split(":") for line in info.decode().splitlines() if ":" in line)
        return 1_000 * sum(float(fields[f"used_cpu_{kind}_main_thread"]) for kind in ("user", "sys"))

    async def call(self, *args: Any) -> Any:
        """One command, with the count before and after it where it is a script."""
        if args[0] not in {"EVALSHA", "EVAL"}:
            return await self._wire.call(*args)
        before = await self._count()
        try:
            return await self._wire.call(*args)
        finally:
            self.spent_ms.append(await self._count() - before)

    async def pipeline(self, commands: Any) -> list[Any]:
        """As it is."""
        return await self._wire.pipeline(commands)


@pytest.mark.timeout(300)
async def test_two_hundred_thousand_jobs_in_every_state(own_server: Callable[..., ValkeyServer]) -> None:
    """Every state, lanes at their limit and paused, logs, locks, waiting parents, dedup keys, receipts, repeats: no
    key of the queue is left, and by the server's own count no call took 50 ms of it.
    """
    server = own_server()
    base = Keys(QUEUE).base
    server.admin.eval(SEED_200K, 0, base, 200_000)
    assert server.admin.dbsize() > 300_000

    async with connect(server.url, command_timeout_ms=30_000) as connector:
        metered = Metered(connector)
        await Admin(metered).obliterate(QUEUE, force=True)

    assert [key for key in server.admin.scan_iter(count=10_000) if key.startswith(base.encode())] == []
    assert len(metered.spent_ms) >= 175_000 / BUDGET
    assert max(metered.spent_ms) < 50


async def test_ceilings(admin: Admin, control: Control, queue: Queue) -> None:
    """Written where the claim reads them, taken away by None; the rest of meta stays."""
    await queue.put(flat(*range(9)) | {"meta": {"flat_turn": "1"}})

    await admin.set_concurrency(QUEUE, 3)
    await admin.set_rate(QUEUE, 2, 60_000)
    assert (await queue.state())["meta"] == {
        "flat_turn": "1",
        "concurrency": "3",
        "max": "2",
        "window_ms": "60000",
    }
    assert [len((await control.claim_many(9)).ids) for _ in range(2)] == [2, 0]
    await admin.set_rate(QUEUE, None)
    assert [len((await control.claim_many(9)).ids) for _ in range(2)] == [1, 0]
    await admin.set_concurrency(QUEUE, None)

    assert len((await control.claim_many(9)).ids) == 6
    assert (await queue.state())["meta"] == {"flat_turn": "1"}


async def test_a_new_rate_begins_a_new_window(admin: Admin, control: Control, queue: Queue) -> None:
    """An hour's window that is spent does not hold up a second's."""
    await queue.put(flat(1, 2))
    await admin.set_rate(QUEUE, 1, 3_600_000)
    assert (await control.claim_many(9)).ids == [job(1)]
    assert (await control.claim_many(9)).ids == []

    await admin.set_rate(QUEUE, 1, 1_000)

    assert (await control.claim_many(9)).ids == [job(2)]


BAD: dict[str, tuple[Any, type[EchoMQError]]] = {
    "queue": (lambda admin: admin.pause("emq"), InvalidQueueName),
    "drain": (lambda admin: admin.drain("a b"), InvalidQueueName),
    "obliterate": (lambda admin: admin.obliterate(""), InvalidQueueName),
    "concurrency 0": (lambda admin: admin.set_concurrency(QUEUE, 0), InvalidArgument),
    "concurrency true": (lambda admin: admin.set_concurrency(QUEUE, True), InvalidArgument),
    "rate 0": (lambda admin: admin.set_rate(QUEUE, 0, 1_000), InvalidArgument),
    "rate without a window": (lambda admin: admin.set_rate(QUEUE, 5), InvalidArgument),
    "window 0": (lambda admin: admin.set_rate(QUEUE, 5, 0), InvalidArgument),
}


@pytest.mark.parametrize("case", BAD)
async def test_guards(admin: Admin, queue: Queue, case: str) -> None:
    """Each with its class; nothing is written."""
    call, refused = BAD[case]

    with pytest.raises(refused):
        await call(admin)

    assert await queue.state() == {}


async def test_the_program_of_the_page_runs(url: str, queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/operating.md: one job ready, nothing found, a limit on a lane, and the queue is served again."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "operating.md").read_text()
    source = page.partition("```python\n")[2].partition("```")[0].replace("redis://localhost:6379/0", url)
    program: dict[str, Any] = {}
    exec(compile(source, "operating.md", "exec", dont_inherit=True), program)  # noqa: S102 - the page is ours

    await program["main"]()

    assert capsys.readouterr().out == "1\n[]\n"
    emails = Queue(queue.raw, "emails")
    assert set(await emails.state()) >= {"pending", "glimit"}
    assert "meta" not in await emails.state()
