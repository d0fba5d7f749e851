"""Tenants that share a queue fairly: a lane for each, one of them with twice the share, one with a ceiling.

export ECHOMQ_URL=redis://localhost:6379/0
python examples/tenants.py                        # a thousand jobs of one tenant, then a few of two others
echomq-worker lane list reports                   # which lane has how many, its limit and weight
echomq-worker run examples.tenants:worker         # the few do not wait for the thousand
"""

from __future__ import annotations

import asyncio
import logging
import os

from pydantic import BaseModel

from echomq_worker import Job, Jobs, Lanes, New, Wire, Worker, connect

log = logging.getLogger("tenants")
worker = Worker()


class Report(BaseModel):
    """The payload of `reports`."""

    tenant: str
    number: int


@worker.handler("reports", concurrency=10)
async def report(job: Job, report: Report) -> None:
    """Workers serve lanes in turn; the handler need not know of it."""
    log.info("%s %d of lane %s", report.tenant, report.number, job.group)


async def admit(wire: Wire, tenant: str, how_many: int) -> None:
    """Enqueue reports of one tenant, in its lane; thousands are one round trip."""
    group = Lanes.group_for(tenant)
    reports = (Report(tenant=tenant, number=number) for number in range(how_many))
    await Jobs(wire).enqueue_many("reports", [New(one, group=group) for one in reports])


async def arrange(wire: Wire) -> None:
    """Shares and ceilings stand on the server: every worker keeps to them, and they may change at any time."""
    lanes = Lanes(wire)
    await lanes.weight("reports", Lanes.group_for("gold"), 2)
    await lanes.limit("reports", Lanes.group_for("big"), 3)


async def main() -> None:
    """The big tenant comes first."""
    async with connect(os.environ["ECHOMQ_URL"]) as connector:
        await arrange(connector)
        for tenant, how_many in (("big", 1_000), ("gold", 6), ("small", 3)):
            await admit(connector, tenant, how_many)


if __name__ == "__main__":
    asyncio.run(main())
