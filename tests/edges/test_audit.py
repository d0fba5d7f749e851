"""Audit: what does not agree is found, nothing else is, and the repair mends just that."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from echomq_worker.audit import LANES_LIMIT, Audit, Finding
from echomq_worker.connector import Connector
from echomq_worker.errors import InvalidQueueName
from echomq_worker.jobs import Jobs, New
from echomq_worker.worker import Worker
from tests.support.control import CHILD, PARENT, REPEATS, Control, child, waiting
from tests.support.own import flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, QUEUE, Queue, State, job, row
from tests.support.running import running

HELD = {f"job:{job(8)}": row("active", 1, group=OTHER_GROUP), "active": {job(8): FAR_MS}, "gactive": {OTHER_GROUP: "1"}}
WELL: State = merged(
    flat(1, 2),
    lane(3, 4),
    lane(5, group=OTHER_GROUP, on_ring=False),
    {"paused": {OTHER_GROUP}, "wake": ["1"], "meta": {"concurrency": "5"}, "metrics:failed": {"count": "3"}},
    {f"job:{job(6)}": row("scheduled"), "schedule": {job(6): FAR_MS}},
    {f"job:{job(7)}": row("dead"), "dead": {job(7): 0}, f"job:{job(7)}:logs": ["line"]},
    HELD,
    {f"job:{job(9)}": row("awaiting_children"), f"job:{job(9)}:dependencies": "1"},
    {f"job:{job(10)}": row(dedup="k"), "pending": {job(10): 0}, "de:k": job(10)},
    {"flow:outbox": [f"other\0{PARENT}\0{job(5)}\0done"]},
    REPEATS,
)


@pytest.fixture
def audit(wire: Connector) -> Audit:
    """An audit over a connector."""
    return Audit(wire)


def told(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """What and where."""
    return sorted((one.kind, one.name) for one in findings)


async def test_a_queue_where_all_agrees(audit: Audit, queue: Queue) -> None:
    """Nothing is found in a queue with everything in it, nor in an empty one; nothing is written."""
    assert await audit.audit(QUEUE) == []
    await queue.put(WELL)
    steps: list[tuple[int, int]] = []

    assert await audit.audit(QUEUE, progress=lambda done, total: steps.append((done, total))) == []

    assert await queue.state() == WELL
    assert steps[-1][0] == len(WELL)


# What is there beside the rest, what is found, and what is there when it is mended.
ILL: dict[str, tuple[State, list[tuple[str, str]], State]] = {
    "row in no set": (
        {f"job:{job(20)}": row("active", 1, held="1:ab")},
        [("row_in_no_set", job(20))],
        {f"job:{job(20)}": row("pending", 1, held="1:ab"), "pending": {job(20): 0}, "ready": ["1"]},
    ),
    "id without a row": ({"dead": {job(20): 0}}, [("id_without_row", job(20))], {}),
    "id without a row in a lane": ({f"g:{GROUP}:pending": {job(20): 0}}, [("id_without_row", job(20))], {}),
    "two sets": (
        {f"job:{job(20)}": row("dead"), "dead": {job(20): 0}, "pending": {job(20): 0}},
        [("two_sets", job(20))],
        {f"job:{job(20)}": row("dead"), "dead": {job(20): 0}},
    ),
    "subkeys without a row": ({f"job:{job(20)}:failed": {job(1): "e"}}, [("subkeys_without_row", job(20))], {}),
    "parent that waits for nobody": (
        {f"job:{job(20)}": row("awaiting_children"), f"job:{job(20)}:dependencies": "0"},
        [("nothing_out", job(20))],
        flat(20) | {f"job:{job(20)}:dependencies": "0", "ready": ["1"]},
    ),
    "dedup key": ({"de:lost": job(20)}, [("dedup_without_row", "lost")], {}),
    "counter": ({"gactive": {GROUP: "2"}}, [("gactive", GROUP)], {}),
    "ring": ({"ring": ["GRP00000000003"]}, [("ring", "GRP00000000003")], {}),
    "malformed entries": (
        {"flow:outbox": ["nonsense", "\0fail\0q\0x"]},
        [("malformed_entry", "1"), ("malformed_entry", "2")],
        {"flow:outbox:malformed": ["nonsense", "\0fail\0q\0x"]},
    ),
    "unreported death": (
        merged(waiting(1), {f"job:{CHILD}": child(state="dead", last_error="gone"), "dead": {CHILD: 0}}),
        [("death_not_reported", CHILD)],
        {
            f"job:{PARENT}": row("dead", last_error=f"child {CHILD} died: gone"),
            f"job:{PARENT}:dependencies": "1",
            f"job:{PARENT}:failed": {CHILD: "gone"},
            f"job:{CHILD}": child(state="dead", last_error="gone"),
            "dead": {CHILD: 0, PARENT: 0},
            "metrics:failed": {"count": "4"},
        },
    ),
}
# The child's id is taken by a flat job there.
WITHOUT_CHILD = {name: value for name, value in WELL.items() if name != f"job:{CHILD}"} | {
    "pending": {job(2): 0, job(10): 0}
}


@pytest.mark.parametrize("case", ILL)
async def test_what_is_ill_is_found_and_mended(audit: Audit, queue: Queue, case: str) -> None:
    """Just that, among much that is well; then there is nothing more, and a second repair mends nothing."""
    ill, found, mended = ILL[case]
    well = WITHOUT_CHILD if case == "unreported death" else WELL
    before = merged(well, ill)
    await queue.put(before)

    findings = await audit.audit(QUEUE)

    assert told(findings) == found
    assert await queue.state() == before
    assert told(await audit.repair(QUEUE, findings)) == found
    after = await queue.state()
    expected = merged(well, mended)
    assert {**after, "ready": None} == {**expected, "ready": None}
    assert await audit.audit(QUEUE) == []
    await audit.repair(QUEUE, [one for one in findings if one.kind not in {"malformed_entry", "death_not_reported"}])

    assert await queue.state() == after


async def test_a_death_that_is_underway_or_known_is_no_finding(audit: Audit, queue: Queue) -> None:
    """In the outbox, or in one of the parent's hashes, or of a parent that does not wait."""
    other = Queue(queue.raw, "other")
    await other.put(waiting(2))
    await other.put({f"job:{PARENT}:failed": {job(2): "e"}})
    await other.put({f"job:{job(91)}": row("pending"), "pending": {job(91): 0}})
    for n, parent in ((1, PARENT), (2, PARENT), (3, job(91)), (4, job(92))):
        await queue.put({f"job:{job(n)}": child(state="dead", queue="other") | {"parent": parent}, "dead": {job(n): 0}})
    await queue.put({"flow:outbox": [f"\0fail\0other\0{PARENT}\0{job(1)}\0fp\0boom"]})
    assert await audit.audit(QUEUE) == []
    await queue.raw.delete(queue.keys.outbox)

    (finding,) = await audit.audit(QUEUE)

    assert (finding.kind, finding.name, finding.detail) == ("death_not_reported", job(1), f"parent: {PARENT}")
    assert await audit.repair(QUEUE, [finding]) == [finding]
    assert (await other.state())["dead"] == {PARENT: 0}


async def test_many_of_a_kind(audit: Audit, queue: Queue) -> None:
    """More than a page of each: every one is found and mended."""
    await queue.put({f"job:{job(n)}": row() for n in range(1_200)})
    await queue.put({"schedule": {job(n): n for n in range(2_000, 3_200)}})
    await queue.put({f"de:k{n}": job(5_000) for n in range(600)})

    findings = await audit.audit(QUEUE)

    assert len(findings) == 3_000
    assert len(await audit.repair(QUEUE, findings)) == 3_000
    state = await queue.state()
    assert len(state["pending"]) == 1_200
    assert "schedule" not in state


async def test_a_lane_that_nothing_names(audit: Audit, queue: Queue) -> None:
    """Members, but no ring entry, counter, limit or pause: it is found by its key, and served again."""
    await queue.put(lane(1, on_ring=False))

    findings = await audit.audit(QUEUE)

    assert told(findings) == [("ring", GROUP)]
    await audit.repair(QUEUE, findings)
    assert await queue.state() == lane(1) | {"wake": ["1"]}


async def test_lanes_of_a_queue_with_too_many_in_hand(audit: Audit, queue: Queue, monkeypatch: Any) -> None:
    """They are not counted in one call; that is said, and no repair tries."""
    monkeypatch.setattr("echomq_worker.audit.LANES_LIMIT", 1)
    await queue.put({f"job:{job(n)}": row("active", 1) for n in (1, 2)})
    await queue.put({"active": {job(1): FAR_MS, job(2): FAR_MS}})

    findings = await audit.audit(QUEUE)

    assert told(findings) == [("lanes_not_checked", QUEUE)]
    assert await audit.repair(QUEUE, findings) == []
    assert LANES_LIMIT == 10_000


@pytest.mark.leaves_keys("ids that are no branded ids")
async def test_names_that_are_none_of_ours(audit: Audit, queue: Queue) -> None:
    """Ids and keys that the key builder would refuse are audited like any other."""
    await queue.raw.zadd(queue.keys.pending, {b"\xff\xfe": 0, b"job 7": 0})
    await queue.raw.hset(f"{queue.keys.base}job:other", "state", "pending")

    findings = await audit.audit(QUEUE)

    assert [one.kind for one in findings].count("id_without_row") == 2
    assert await audit.repair(QUEUE, findings) == findings
    assert await audit.audit(QUEUE) == []


async def test_a_queue_at_work_has_no_findings(url: str, audit: Audit, wire: Connector) -> None:
    """Jobs that move while it looks, flat and in lanes, retried and scheduled, are found nowhere twice nor nowhere."""
    worker = Worker()

    @worker.handler(QUEUE, concurrency=20, max_attempts=2)
    async def handle(payload: bytes) -> None:
        await asyncio.sleep(0)
        if payload == b"fail":
            raise ValueError

    jobs, groups = Jobs(wire), [None, GROUP, OTHER_GROUP]
    async with running(worker, url, retry_delay_ms=20):
        for round_number in range(8):
            payload = b"fail" if round_number % 2 else b"x"
            await jobs.enqueue_many(QUEUE, [New(payload, group=groups[n % 3]) for n in range(300)])
            assert await audit.audit(QUEUE) == []


async def test_another_queue_is_left_alone(audit: Audit, queue: Queue, control: Control) -> None:
    """Its faults are not told here; a wrong name is refused."""
    await Queue(queue.raw, "q2").put({f"job:{job(1)}": row()})

    assert await audit.audit(QUEUE) == []
    with pytest.raises(InvalidQueueName):
        await audit.audit("emq")


@pytest.mark.parametrize("seed", range(20))
async def test_a_repair_converges_on_any_wreck(audit: Audit, queue: Queue, seed: int) -> None:
    """Ids in any sets, rows that say anything, counters and rings of chance: after three rounds all agrees."""
    await queue.put(_wreck(random.Random(seed)))

    for _ in range(3):
        await audit.repair(QUEUE, await audit.audit(QUEUE))

    assert await audit.audit(QUEUE) == []


def _wreck(dice: random.Random) -> State:
    parts: list[State] = []
    places = ["pending", "active", "schedule", "dead", f"g:{GROUP}:pending", f"g:{OTHER_GROUP}:pending"]
    states = ["pending", "active", "dead", "scheduled", "awaiting_children", "junk"]
    for n in range(25):
        some = dice.sample(places, dice.choice([0, 0, 1, 1, 1, 2, 3]))
        parts += [{place: {job(n): dice.choice([0, 1, FAR_MS])}} for place in some]
        kin = {"parent": job(dice.randrange(25)), "parent_policy": dice.choice(["fp", "id"])}
        fields = dice.choice([{}, {"group": GROUP}, {"group": OTHER_GROUP}, kin, kin | {"parent_queue": "other"}])
        if dice.random() < 0.8:
            parts.append({f"job:{job(n)}": row(dice.choice(states)) | fields})
        if dice.random() < 0.2:
            parts.append({f"job:{job(n)}:dependencies": str(dice.randint(-1, 3)), f"de:k{n}": job(n)})
        if dice.random() < 0.1:
            parts.append({f"job:{job(n)}:failed": {job(dice.randrange(25)): "e"}})
    for group in (GROUP, OTHER_GROUP, "GRP00000000003"):
        parts.append({"ring": [group] * dice.randint(1, 2)})
        parts.append({"gactive": {group: str(dice.randint(-1, 5))}, "glimit": {group: str(dice.randint(0, 5))}})
        parts.append(dice.choice([{}, {"paused": {group}}]))
    return merged(*parts, {"flow:outbox": ["junk", f"other\0{job(1)}\0{job(2)}\0x"]})
