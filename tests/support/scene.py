"""Queues as a person finds them in an incident, for the browser's tests and the pictures of the docs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.identity import EPOCH_MS, encode
from echomq_worker.jobs import Jobs
from echomq_worker.lanes import Lanes
from echomq_worker.repeat import Repeat
from echomq_worker.web.app import Dashboard
from echomq_worker.web.plots import History, Sample
from tests.support.plain import Queue, row

MAILS = "emails"
REPORTS = "reports"
BROKEN = '{"to":"grace.hopper.example.com","subject":"Your invoice for November","invoice":"2026-11-0417"}'


def minted(now_ms: int, ago_ms: int, number: int = 0) -> str:
    """The id of a job that was enqueued so long ago."""
    return encode("JOB", ((now_ms - ago_ms - EPOCH_MS) << 22) + number)


async def emails(raw: Redis) -> str:
    """Forty dead e-mails of three reasons; the id of the newest, whose address has lost its @."""
    queue, now = Queue(raw, MAILS), int((await raw.time())[0]) * 1000
    reasons = [
        ("TimeoutError: mx2.example.net did not answer in 10 s", 3),
        ("SMTPResponseException: 451 greylisted, try again later", 5),
        ("Unreadable: payload: expected Email; to: value_error", 1),
    ]
    state: dict[str, Any] = {"dead": {}}
    for n in range(40):
        reason, attempts = reasons[(n * 7 // 5) % 3]
        id = minted(now, 240_000 + n * 71_000, n)
        payload = {
            "to": f"user{417 + n * 31}@example.com",
            "subject": "Your invoice for November",
            "invoice": f"2026-11-{n:04}",
        }
        state[f"job:{id}"] = row(
            "dead", attempts, json.dumps(payload, separators=(",", ":")), failures=attempts, last_error=reason
        )
        state["dead"][id] = 0
    id = minted(now, 95_000)
    said = 'ValueError: "grace.hopper.example.com" has no @: it is no address of a person'
    state[f"job:{id}"] = row("dead", 3, BROKEN, failures=3, last_error=said)
    state[f"job:{id}:logs"] = [f"attempt {n}: rendering invoice 2026-11-0417" for n in (1, 2, 3)]
    state["dead"][id] = 0
    state["metrics:completed"] = {"count": "184213"}
    state["metrics:failed"] = {"count": "41"}
    await queue.put(state)
    async with connect(_address(raw)) as connector:
        for n in range(12):
            await Jobs(connector).enqueue_in(
                MAILS, {"to": f"user{n}@example.com", "subject": "Reminder"}, 300_000 + n * 60_000
            )
    return id


async def reports(raw: Redis) -> None:
    """Reports of three tenants in lanes, four of them in hand, two that recur."""
    queue, now = Queue(raw, REPORTS), int((await raw.time())[0]) * 1000
    held = {minted(now, 40_000 + n * 900, n): n for n in range(4)}
    await queue.put(
        {
            "active": {id: float(now + 19_000 + n * 2_300) for id, n in held.items()},
            **{
                f"job:{id}": row(
                    "active",
                    1,
                    f'{{"tenant":"acme","month":{n + 3}}}',
                    held=f"1:5d00bb359228-0.{n}",
                    progress=f"{80 - n * 15} %",
                )
                for id, n in held.items()
            },
            "metrics:completed": {"count": "5120"},
        }
    )
    async with connect(_address(raw)) as connector:
        lanes, repeats = Lanes(connector), Repeat(connector)
        for tenant, count in (("acme", 9), ("globex", 23), ("initech", 4)):
            for month in range(count):
                await lanes.enqueue(REPORTS, Lanes.group_for(tenant), {"tenant": tenant, "month": month % 12 + 1})
        await lanes.limit(REPORTS, Lanes.group_for("acme"), 4)
        await lanes.weight(REPORTS, Lanes.group_for("initech"), 3)
        await lanes.pause(REPORTS, Lanes.group_for("globex"))
        day = 86_400_000
        await repeats.register(
            REPORTS, "weekly digest", 7 * day, {"kind": "digest"}, first_in_ms=2 * day, fixed_rate=True
        )
        await repeats.register(REPORTS, "usage", 3_600_000, {"kind": "usage"}, first_in_ms=1_300_000)


async def busy(raw: Redis) -> None:
    """What a worker of e-mails has in hand and before it, at a moment when none runs."""
    queue, now = Queue(raw, MAILS), int((await raw.time())[0]) * 1000
    ids = [minted(now, 300 + n * 17, n) for n in range(23)]
    payload = '{"to":"user9@example.com","subject":"Your invoice for November"}'
    await queue.put(
        {
            "active": {id: float(now + 29_000) for id in ids[:9]},
            "pending": dict.fromkeys(ids[9:], 0),
            **{f"job:{id}": row("active", 1, payload, held="1:5d00bb359228-1.4") for id in ids[:9]},
            **{f"job:{id}": row("pending", 0, payload) for id in ids[9:]},
        }
    )


def remembered(dash: Dashboard) -> None:
    """Ten minutes of a past, so that plots have something to draw."""
    now = int(dash.clock.monotonic_ms())
    for name, rate, wait in ((MAILS, 46.0, 900), (REPORTS, 14.0, 4_000)):
        known = dash.sampler.queues[name]
        if known.history.samples:
            known.history = _history(now, rate, wait, known.history.samples[-1])


def _history(now: int, rate: float, wait: int, last: Sample) -> History:
    """Up to the last look. For a minute and a half of it somebody's server was slow, and some jobs died."""
    history, done, died = History(), 0.0, 0
    looks = []
    for n in range(299, 0, -1):
        late = math.exp(-(((n - 90) / 16) ** 2))
        done += 2 * rate * _wave(n) * (1 - 0.6 * late)
        died += int(late > 0.4 and n % 3 == 0 and last.dead > 0)
        looks.append((n, late, int(done), died))
    for n, late, completed, dead in looks:
        history.add(
            Sample(
                at_ms=now - n * 2_000,
                ready=int(last.ready * _wave(n) + 340 * late),
                active=int(last.active * _wave(n + 9)),
                scheduled=last.scheduled,
                dead=last.dead - died + dead,
                completed=last.completed - int(done + 2 * rate) + completed,
                failed=last.failed - died + dead,
                wait_ms=int(wait * _wave(n + 4) * (1 + 5 * late)),
            )
        )
    history.add(replace(last, at_ms=now, wait_ms=wait))
    return history


def _wave(n: int) -> float:
    return 1 + 0.22 * math.sin(n / 31) + 0.1 * math.sin(n / 7.3) + 0.03 * math.sin(n * 1.9) + 0.02 * math.sin(n * 5.3)


def _address(raw: Redis) -> str:
    options = raw.connection_pool.connection_kwargs
    return f"redis://{options['host']}:{options['port']}/0"
