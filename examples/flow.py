"""A flow over three queues: a report waits for its pages, a page for its figures; what each returns, its parent reads.

export ECHOMQ_URL=redis://localhost:6379/0
python examples/flow.py                     # adds a report and prints its id
echomq-worker flow show reports ID          # the tree: everybody waits
echomq-worker run examples.flow:worker      # figures, then pages, then the report
"""

from __future__ import annotations

import asyncio
import logging
import os

from pydantic import BaseModel

from echomq_worker import Flows, Job, Node, Reject, Worker, connect

log = logging.getLogger("flow")
worker = Worker()


class Figure(BaseModel):
    """The payload of `figures`."""

    numbers: list[int]


@worker.handler("figures", concurrency=10)
async def figure(figure: Figure) -> int:
    """A leaf. What it returns, as JSON, is kept for its parent."""
    if not figure.numbers:
        raise Reject("no numbers")
    return sum(figure.numbers)


@worker.handler("pages", concurrency=10)
async def page(job: Job, payload: dict[str, str]) -> dict[str, object]:
    """Runs once all of its figures are done, or dead but ignored."""
    sums = await job.children_values()
    missing = await job.ignored_failures()
    return {"title": payload["title"], "total": sum(map(int, map(str, sums.values()))), "missing": len(missing)}


@worker.handler("reports")
async def report(job: Job) -> None:
    """The root: the last to run."""
    for content in (await job.children_values()).values():
        log.info("page %s", content)


def a_report() -> Node:
    """Two pages; a figure that fails is ignored, a page that fails is the end of the report."""

    def drawn(*numbers: int) -> Node:
        return Node("figures", {"numbers": numbers}, policy="id")

    return Node(
        "reports",
        {"month": "May"},
        [
            Node("pages", {"title": "Sales"}, [drawn(1, 2, 3), drawn(4, 5)]),
            Node("pages", {"title": "Returns"}, [drawn(7), drawn()]),
        ],
    )


async def main() -> None:
    """Add one report."""
    async with connect(os.environ["ECHOMQ_URL"]) as connector:
        added = await Flows(connector).add(a_report())
    print(added.id)


if __name__ == "__main__":
    asyncio.run(main())
