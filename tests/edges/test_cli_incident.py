"""An incident, from the terminal alone: jobs have died. Find them, read why, mend one, give all a new life.

Source: issue "Made for the people who run it" ("the same incident from the terminal alone").
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.cli import Cli, cli
from tests.support.process import run_worker

__all__ = ["cli"]

APP = """
from pydantic import BaseModel
from echomq_worker import Job, Worker

class Email(BaseModel):
    to: str

worker = Worker()

@worker.handler("emails", max_attempts=1)
async def send(job: Job, email: Email) -> None:
    if email.to.endswith("@down.example"):
        raise ConnectionError(f"no route to {email.to.partition('@')[2]}")
"""


def rows(out: str) -> list[dict[str, Any]]:
    """Lines of JSON."""
    return [json.loads(line) for line in out.splitlines()]


def test_an_incident_from_the_terminal_alone(cli: Cli, url: str, tmp_path: Path) -> None:
    """Every step is one command, and what each prints is what the next one takes."""
    (tmp_path / "incident_app.py").write_text(APP)
    for payload in ('{"to": "ada@example.com"}', '{"to": "bob@down.example"}', '{"too": "cy@example.com"}'):
        assert cli("enqueue", "emails", payload)[0] == 0
    worker = ("run", "incident_app:worker", "--burst")
    assert run_worker(*worker, cwd=tmp_path, env={"ECHOMQ_URL": url})[0] == 0

    # What is wrong, and where.
    _, out, _ = cli("top", "--once", "--json", "--interval-ms", "100")
    (queue,) = json.loads(out)["queues"]
    assert (queue["queue"], queue["dead"], queue["ready"]) == ("emails", 2, 0)

    # Who, and why.
    _, out, _ = cli("dead", "list", "emails", "--json")
    by_error = {row["last_error"].split(":")[0]: row["id"] for row in rows(out)}
    _, out, _ = cli("dead", "show", "emails", by_error["ConnectionError"])
    assert "no route to down.example" in out
    assert "bob@down.example" in out

    # One is mended by hand, the other by whoever repaired the route; both get a new life.
    unreadable = next(id for error, id in by_error.items() if error != "ConnectionError")
    assert cli("job", "update", "emails", unreadable, '{"to": "cy@example.com"}') == (0, "updated\n", "")
    (tmp_path / "incident_app.py").write_text(APP.replace("@down.example", "@nowhere.example"))
    assert cli("dead", "requeue", "emails", "--all") == (0, "2 requeued\n", "")
    assert run_worker(*worker, cwd=tmp_path, env={"ECHOMQ_URL": url})[0] == 0

    # And it is over.
    _, out, _ = cli("queue", "stats", "emails", "--json")
    (stats,) = rows(out)
    assert (stats["dead"], stats["ready"], stats["completed"]) == (0, 0, 3)
    assert cli("job", "show", "emails", unreadable)[0] == 1
