"""Every key is touched before the first write: a script that cannot reach one of its keys has written nothing.

Source: protocol section 4 ("Touch every key before the first write"). In a cluster a key of a migrating slot raises in
mid-script. Here the server refuses one key at a time by ACL, which strikes at the same place: the command that uses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from echomq_worker.connector import connect
from echomq_worker.errors import EchoMQError
from echomq_worker.keyspace import FENCE_KEY
from tests.scripts import flow_cases
from tests.support.control import PARENT, Control, child, waiting
from tests.support.flows import FlowVerbs
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, Plain, Queue, State, job, row
from tests.support.valkey import ValkeyServer, raw_client

ROW, OTHER_ROW, LANE = f"job:{job(1)}", f"job:{job(2)}", f"g:{GROUP}:pending"
UP, OTHER_LANE = f"job:{PARENT}", f"g:{OTHER_GROUP}:pending"
HELD = {"group": GROUP, "held": "3:ab", "crashes": "1:3"}

# Everything that any verb may use, under its short name.
NAMES = [
    *(ROW, f"{ROW}:logs", f"{ROW}:lock", f"{ROW}:dependencies", f"{ROW}:processed", f"{ROW}:failed"),
    *(f"{ROW}:unsuccessful", OTHER_ROW, f"{OTHER_ROW}:lock", LANE),
    *("pending", "active", "schedule", "dead", "ring", "wake", "ready", "paused", "glimit", "gactive", "gweight"),
    *(
        "meta",
        "limiter",
        "metrics:completed",
        "metrics:failed",
        "repeat",
        "repeat:daily",
        "repeat:no",
        "cron",
        "claimed:c",
    ),
    *(UP, f"{UP}:dependencies", f"{UP}:processed", f"{UP}:failed", f"{UP}:unsuccessful", OTHER_LANE),
    *("de:k", "flow:outbox", "flow:outbox:malformed", *flow_cases.NAMES),
]
# Declared as keys, but no keys that anything could be written to.
BASES = ["", "de:"]

LANES = {LANE: {job(2): 0}, OTHER_ROW: row(group=GROUP), "gactive": {GROUP: "1"}, "glimit": {GROUP: "1"}}
IN_HAND = {ROW: row("active", 3, **HELD), "active": {job(1): FAR_MS}, "meta": {"concurrency": "1"}} | LANES
EXPIRED = {ROW: row("active", 3, **HELD), "active": {job(1): 1}} | LANES
# One of each kind, so that the pass is not over after the first.
DUE = {
    ROW: row("scheduled", 3, group=GROUP),
    OTHER_ROW: row("scheduled", 3),
    "schedule": {job(1): 1, job(2): 2},
    "active": {job(1): 1},
    "gactive": {GROUP: "1"},
}
PENDING = {ROW: row(), OTHER_ROW: row(), "pending": {job(1): 0, job(2): 0}}
REPEAT = {"repeat": {"daily": 5}, "repeat:daily": {"every_ms": "1000", "template": "report"}}

CALENDAR = {"cron": {"daily": 5}, "repeat:daily": {"cron": "0 3 * * *", "tz": "UTC", "template": "report"}}

Verb = Callable[[FlowVerbs], Awaitable[Any]]
CASES: dict[str, tuple[State, Verb]] = {
    "enqueue": ({}, lambda plain: plain.enqueue(job(1))),
    "schedule": ({}, lambda plain: plain.schedule(job(1))),
    "claim": (PENDING, lambda plain: plain.claim()),
    "claim_batch": (PENDING, lambda plain: plain.claim_batch(2)),
    "complete": (IN_HAND, lambda plain: plain.complete(job(1), "3:ab")),
    "complete flat below a ceiling": (
        {ROW: row("active", 3), "active": {job(1): FAR_MS}, "meta": {"concurrency": "1"}},
        lambda plain: plain.complete(job(1), 3),
    ),
    "complete dead": ({ROW: row("dead", 3), "dead": {job(1): 0}}, lambda plain: plain.complete(job(1), 3)),
    "complete gone": ({"active": {job(1): 1}}, lambda plain: plain.complete(job(1), 3)),
    "retry": (IN_HAND, lambda plain: plain.retry(job(1), "3:ab")),
    "retry to death": (IN_HAND, lambda plain: plain.retry(job(1), "3:ab", max_attempts=1)),
    "delay": (IN_HAND, lambda plain: plain.delay(job(1), "3:ab")),
    "promote": (DUE, lambda plain: plain.promote()),
    "reap": (EXPIRED, lambda plain: plain.reap()),
    "stalled_check": (EXPIRED, lambda plain: plain.stalled_check(2)),
    "stalled_check to death": (EXPIRED, lambda plain: plain.stalled_check(1)),
    "extend_lock": (IN_HAND, lambda plain: plain.extend_lock(job(1), 3)),
    "extend_locks": (IN_HAND, lambda plain: plain.extend_locks(job(1), 3, job(2), 1)),
    "lane_enqueue": ({}, lambda plain: plain.lane_enqueue(job(1))),
    "lane_claim": (LANES | {"ring": [GROUP], "glimit": {GROUP: "9"}}, lambda plain: plain.lane_claim()),
    "enqueue_many": ({}, lambda plain: plain.enqueue_many(job(1), "x", job(2), "y")),
    "admit_many": (
        {},
        lambda plain: plain.admit_many(job(1), "x", GROUP, "", "", job(2), "y", "", "at", 1),
    ),
    "admit_traced": (
        {},
        lambda plain: plain.run(
            "admit_traced",
            (plain.keys.pending, plain.keys.schedule),
            *(plain.keys.base, "{}", job(1), "x", GROUP, "", "", "k", "", "", job(2), "y", "", "at", 1, "", "", ""),
        ),
    ),
    "repeat_register": ({}, lambda plain: plain.repeat_register("daily", 1, "t", 2)),
    "repeat_register update": (REPEAT, lambda plain: plain.repeat_register("daily", 1, "t", 2, "update")),
    "repeat_register over a calendar": (CALENDAR, lambda plain: plain.repeat_register("daily", 1, "t", 2, "update")),
    "cron_register": ({}, lambda plain: plain.cron_register("daily", "0 4 * * *", "UTC", "t", 2)),
    "cron_register update": (REPEAT, lambda plain: plain.cron_register("daily", "0 4 * * *", "UTC", "t", 2, "update")),
    "repeat_cancel of a calendar": (CALENDAR, lambda plain: plain.repeat_cancel("daily")),
    "repeat_cancel": (REPEAT, lambda plain: plain.repeat_cancel("daily")),
    "repeat_advance": (REPEAT, lambda plain: plain.repeat_advance("daily", 9)),
}


def settle(plain: Control, *verdicts: Any) -> Awaitable[Any]:
    """Our own verb of many verdicts."""
    keys = plain.keys
    return plain.run("settle", (keys.active, keys.pending, keys.schedule, keys.dead), keys.base, *verdicts)


def claim_many(plain: Control) -> Awaitable[Any]:
    """Our own claim: ten slots, max_crashes 3."""
    keys = plain.keys
    names = (keys.pending, keys.active, keys.ring, keys.meta, keys.receipt("c"))
    return plain.run("claim_many", names, keys.base, 30_000, 10, 0, "ab", 3, 1)


def cancel(plain: Plain) -> Awaitable[Any]:
    """A request for the end of job 1."""
    keys = plain.keys
    return plain.run("cancel", (keys.job(job(1)), keys.pending, keys.active, keys.schedule), job(1), "why", keys.base)


LITTER = {f"{ROW}:logs": ["a line"], f"{ROW}:lock": "3", f"{ROW}:failed": {job(3): "x"}}
LANED = {ROW: row(group=GROUP), LANE: {job(1): 0}, "ring": [GROUP], "dead": {job(3): 0}}
LIMITS = {"meta": {"concurrency": "9", "max": "9", "window_ms": "1000"}}
POISON = {ROW: row(group=GROUP, attempts=3, held="3:ab", crashes="2:3"), LANE: {job(1): 0}, "ring": [GROUP]}
STRAY = {ROW: row(group=GROUP), "pending": {job(1): 0}}
FLAT = {ROW: row("active", 3), "active": {job(1): FAR_MS}, "meta": {"concurrency": "1"}}
CASES |= {
    "claim_many": (PENDING | LIMITS, claim_many),
    "claim_many of a lane": (LANES | {"ring": [GROUP], "glimit": {GROUP: "9"}} | LIMITS, claim_many),
    "claim_many that buries": (POISON, claim_many),
    "claim_many that moves": (STRAY, claim_many),
    "settle c": (IN_HAND, lambda plain: settle(plain, "c", job(1), "3:ab", GROUP)),
    "settle c flat": (FLAT, lambda plain: settle(plain, "c", job(1), 3, "")),
    "settle c gone": ({"active": {job(1): 1}}, lambda plain: settle(plain, "c", job(1), 3, GROUP)),
    "settle r": (IN_HAND, lambda plain: settle(plain, "r", job(1), "3:ab", GROUP, 5, 3, "e")),
    "settle r to death": (IN_HAND, lambda plain: settle(plain, "r", job(1), "3:ab", GROUP, 5, 1, "e")),
    "settle d": (IN_HAND, lambda plain: settle(plain, "d", job(1), "3:ab", GROUP, "in", 5)),
    "release": (
        IN_HAND,
        lambda plain: plain.run(
            "release", (plain.keys.active, plain.keys.pending), plain.keys.base, job(1), "3:ab", job(2), 1
        ),
    ),
    "disown": (
        IN_HAND,
        lambda plain: plain.run("disown", (plain.keys.active,), plain.keys.base, job(1), "3:ab", job(2), 1),
    ),
    "keep": (
        IN_HAND,
        lambda plain: plain.run("keep", (plain.keys.active,), plain.keys.base, 30_000, job(1), "3:ab", job(2), 1),
    ),
    "look": (
        LANED | LIMITS,
        lambda plain: plain.run(
            "look", (plain.keys.pending, plain.keys.active, plain.keys.ring, plain.keys.meta), plain.keys.base, 9
        ),
    ),
    "cancel": (PENDING | LITTER, cancel),
    "cancel in a lane": (LANED, cancel),
    "cancel in hand": (IN_HAND, cancel),
    "repeat_fire": (
        REPEAT,
        lambda plain: plain.run(
            "repeat_fire", (plain.keys.repeat, plain.keys.pending), plain.keys.base, 9, "daily", job(1), "no", job(2)
        ),
    ),
    "cron_fire": (
        CALENDAR,
        lambda plain: plain.run(
            "cron_fire",
            (plain.keys.cron, plain.keys.pending),
            *(plain.keys.base, 9, "daily", job(1), 5, 99, "0 3 * * *", "UTC", "no", job(2), 0, 0, "", ""),
        ),
    ),
    "recount": (
        LANES | {"ring": [GROUP]},
        lambda plain: plain.run("recount", (plain.keys.active,), plain.keys.base, 100),
    ),
}


# Children whose death climbs two levels, their dedup key, and the outbox of the last.
FLOW = waiting(1, parent=job(91), parent_queue="other", parent_policy="fp", group=OTHER_GROUP, dedup="k")
KIN = FLOW | {ROW: child(group=GROUP, dedup="k"), "de:k": job(1), OTHER_ROW: child("id"), f"{OTHER_ROW}:logs": ["line"]}
WAITING_KIN = KIN | {"pending": {job(2): 0}, LANE: {job(1): 0}, "ring": [GROUP], "schedule": {job(1): 5}}
DEAD_KIN = KIN | {ROW: child(group=GROUP, state="dead"), "dead": {job(1): 0}}
HELD_KIN = KIN | {"active": {job(1): 1}, "gactive": {GROUP: "1"}, "glimit": {GROUP: "1"}, LANE: {job(3): 0}}
SETS = {"pending": {job(1): 0}, "active": {job(1): 1}, "schedule": {job(1): 5}, LANE: {job(1): 0}, "ring": [GROUP]}
NAMED = {"paused": {OTHER_GROUP}, "glimit": {GROUP: "1"}, "gweight": {OTHER_GROUP: "2"}}
CASES |= {
    "queue_pause": ({}, lambda control: control.queue_pause()),
    "queue_resume": (PENDING | {"meta": {"paused": "1"}}, lambda control: control.queue_resume()),
    "drain": (WAITING_KIN, lambda control: control.drain(schedule=True)),
    "lane_drain": (WAITING_KIN, lambda control: control.lane_drain()),
    "remove_job": (WAITING_KIN, lambda control: control.remove_job(job(1), "force", dedup="k")),
    "remove_job in hand": (HELD_KIN, lambda control: control.remove_job(job(1), "force")),
    "remove_job dead": (DEAD_KIN, lambda control: control.remove_job(job(1), "dead")),
    "reprocess": (DEAD_KIN, lambda control: control.reprocess(job(1))),
    "reprocess flat": ({ROW: row("dead"), "dead": {job(1): 0}}, lambda control: control.reprocess(job(1))),
    "update_data": (PENDING, lambda control: control.update_data(job(1), "y")),
    "obliterate": (
        WAITING_KIN
        | DEAD_KIN
        | REPEAT
        | NAMED
        | {"cron": {"no": 5}, "repeat:no": {"cron": "0 3 * * *"}}
        | {"active": {job(1): 1}, "meta": {"paused": "1"}},
        lambda control: control.obliterate(force=True),
    ),
    "obliterate the rest": ({"meta": {"paused": "1"}, "ring": [GROUP]}, lambda control: control.obliterate()),
    "obliterate at its end": (
        {"meta": {"paused": "1"}, "metrics:failed": {"count": "1"}},
        lambda control: control.obliterate(),
    ),
    "obliterate what nothing names": (
        KIN | {LANE: {job(1): 0}, "meta": {"paused": "1"}},
        lambda control: control.obliterate("keep", job(1), PARENT),
    ),
    "lane_pause": (LANES | {"ring": [GROUP]}, lambda control: control.lane_pause()),
    "lane_resume": ({LANE: {job(1): 0}, "paused": {GROUP}}, lambda control: control.lane_resume()),
    "lane_limit": ({LANE: {job(1): 0}}, lambda control: control.lane_limit(5)),
    "lane_limit full": (LANES | {"ring": [GROUP]}, lambda control: control.lane_limit(1)),
    "lane_weight": ({}, lambda control: control.lane_weight(3)),
    "lane_reassign": ({ROW: row(group=GROUP), LANE: {job(1): 0}}, lambda control: control.lane_reassign(job(1))),
    "lane_reassign flat": (PENDING, lambda control: control.lane_reassign(job(1))),
    "lane_reap": (EXPIRED, lambda control: control.lane_reap()),
    "lane_claim_weighted": (
        LANES | {"ring": [OTHER_GROUP, GROUP], "glimit": {GROUP: "9"}},
        lambda control: control.lane_claim_weighted(),
    ),
    "where": ({ROW: row()}, lambda control: control.where(job(1), GROUP)),
    "mend in no set": ({ROW: row(group=GROUP)}, lambda control: control.mend(job(1))),
    "mend flat in no set": ({ROW: row()}, lambda control: control.mend(job(1))),
    "mend dead in no set": ({ROW: row("dead")}, lambda control: control.mend(job(1))),
    "mend two sets": ({ROW: row(group=GROUP)} | SETS, lambda control: control.mend(job(1))),
    "mend without a row": (
        SETS | {f"{ROW}:logs": ["line"], "de:k": job(1)},
        lambda control: control.mend(job(1), GROUP, "k"),
    ),
    "recount look": (
        LANES | {"ring": [GROUP]},
        lambda control: control.run("recount", (control.keys.active,), control.keys.base, 100, "look", OTHER_GROUP),
    ),
}


CASES |= flow_cases.CASES


@pytest.fixture(scope="module")
def alone() -> Iterator[ValkeyServer]:
    """A server whose user `probe` each case gives the rights that it needs."""
    server = ValkeyServer().start()
    yield server
    server.close()


@pytest.mark.parametrize("case", CASES)
async def test_a_key_that_cannot_be_reached_leaves_everything_as_it_was(case: str, alone: ValkeyServer) -> None:
    """Each key in turn: the verb does not use it and succeeds, or it fails and the whole keyspace is unchanged.

    Report 102 (Bogdanp/dramatiq#754).
    """
    state, verb = CASES[case]
    admin, refused = alone.admin, set[str]()

    admin.flushall()
    admin.acl_setuser("probe", enabled=True, nopass=True, keys=["*"], categories=["+@all"], reset=True)
    url = f"redis://probe:any@127.0.0.1:{alone.port}/0"
    async with raw_client(alone.url) as raw, connect(url) as wire:
        queue, plain = Queue(raw), FlowVerbs(wire)
        await queue.put(state)
        before = await queue.state()
        for denied in NAMES:
            reachable = [FENCE_KEY, *(f"{queue.keys.base}{name}" for name in [*BASES, *NAMES] if name != denied)]
            admin.flushall()
            await queue.put(state)
            admin.acl_setuser("probe", enabled=True, nopass=True, keys=reachable, categories=["+@all"], reset=True)
            try:
                await verb(plain)
            except EchoMQError:
                refused.add(denied)
                assert await queue.state() == before, f"{case}: written although {denied} is out of reach"

    assert refused, f"{case}: no key was ever refused, the test is blind"
