"""`job cancel`, `queue stalled` and `events` on a real server: what they print, what they write, what they refuse."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.cli import Cli, cli
from tests.support.keyspace import key_facts
from tests.support.plain import FAR_MS, Queue, job, row
from tests.support.process import WorkerProcess
from tests.support.valkey import ValkeyServer
from tests.support.waiting import passes_plainly, wait_until

__all__ = ["cli"]

CHANNEL = "emq:{q}:events"


def put(server: ValkeyServer, id: str, *, member_of: str, score: float = 0, **fields: Any) -> None:
    """A job where a test wants it."""
    mapping: Any = row(**fields)
    server.admin.hset(f"emq:{{q}}:job:{id}", mapping=mapping)
    server.admin.zadd(f"emq:{{q}}:{member_of}", {id: score})


def test_cancel_says_what_became_of_it(cli: Cli, server: ValkeyServer) -> None:
    """Removed where it does not run, asked where it does, with the reason; of what has ended: 1 and a note."""
    put(server, job(1), member_of="pending")
    put(server, job(2), member_of="active", score=FAR_MS, state="active", attempts=1)
    put(server, job(3), member_of="dead", state="dead")

    assert cli("job", "cancel", "q", job(1)) == (0, "removed\n", "")
    assert cli("job", "cancel", "q", job(2), "--reason", "no longer wanted") == (0, "asked\n", "")
    for id, said in ((job(3), "dead already"), (job(4), "no such job")):
        code, out, err = cli("job", "cancel", "q", id)
        assert (code, out) == (1, "")
        assert said in err

    assert server.admin.hget(f"emq:{{q}}:job:{job(2)}", "cancel") == b"no longer wanted"
    assert not server.admin.exists(f"emq:{{q}}:job:{job(1)}")


def test_the_sweep_is_one_pass(cli: Cli, server: ValkeyServer) -> None:
    """A line for each job, as a table or JSON; the limits of it are options."""
    for n in (1, 2):
        put(server, job(n), member_of="active", score=n, state="active", attempts=1, stalled=n - 1)

    code, out, err = cli("queue", "stalled", "q", "--max-stalled", "2", "--json", "--yes")
    assert (code, err) == (0, "")
    assert list(map(json.loads, out.splitlines())) == [
        {"id": job(1), "became": "pending"},
        {"id": job(2), "became": "dead"},
    ]

    put(server, job(3), member_of="active", score=1, state="active", attempts=1)
    put(server, job(4), member_of="active", score=2, state="active", attempts=1)
    code, out, _ = cli("queue", "stalled", "q", "--limit", "1", "--yes")
    assert [line.split() for line in out.splitlines()] == [["id", "became"], [job(3), "dead"]]
    assert server.admin.zcard("emq:{q}:active") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("job", "cancel", "q"),
        ("job", "cancel", "no queue", job(1)),
        ("job", "cancel", "q", "JOB"),
        ("job", "cancel", "q", job(1), "--reason", ""),
        ("job", "cancel", "q", job(1), "--reason", " \n"),
        ("queue", "stalled", "no queue"),
        ("queue", "stalled", "q", "--max-stalled", "0"),
        ("queue", "stalled", "q", "--limit", "some"),
        ("events",),
        ("events", "no queue"),
        ("events", "q", "--limit", "0"),
    ],
)
def test_bad_input_is_refused_in_one_line(cli: Cli, server: ValkeyServer, arguments: tuple[str, ...]) -> None:
    """Code 2, a line on stderr, and nothing is changed."""
    put(server, job(1), member_of="active", score=1, state="active", attempts=1)
    before = key_facts(server.admin)

    code, out, err = cli(*arguments)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert [fact for fact in key_facts(server.admin) if fact.name != "{emq}:version"] == before


def test_events_are_lines_of_json_in_a_pipe(cli: Cli, server: ValkeyServer) -> None:
    """One for each event, from now on, until as many as were asked for; a note says how sure delivery is."""

    def publish() -> None:
        deadline = time.monotonic() + 30
        while server.admin.publish(CHANNEL, '{"event":"completed","job":"JOB1","attempts":"1"}') == 0:
            assert time.monotonic() < deadline
            passes_plainly(5, "nobody listens yet")
        server.admin.publish("emq:{r}:events", '{"event":"paused","queue":"x"}')

    publisher = threading.Thread(target=publish)
    publisher.start()
    code, out, err = cli("events", "q", "r", "--limit", "2")
    publisher.join()

    assert (code, err) == (0, "following q, r; delivery is at most once\n")
    assert list(map(json.loads, out.splitlines())) == [
        {"queue": "q", "event": "completed", "job": "JOB1", "attempts": "1"},
        {"queue": "r", "event": "paused", "job": ""},
    ]


async def test_following_survives_a_lost_connection_and_ends_by_a_signal(url: str, raw: Redis) -> None:
    """Each line is there at once; a gap is told; Ctrl-C ends it without a trace."""
    with WorkerProcess("events", "q", env={"ECHOMQ_URL": url}) as follower:
        await follower.saw("following q")
        for n in range(2):
            await wait_until(lambda: _heard(raw), "it is subscribed")
            await raw.publish(CHANNEL, json.dumps({"event": "one", "job": str(n)}))
            await follower.saw(f'"job": "{n}"')
            await raw.client_kill_filter(_type="pubsub")
        assert follower.lines("made again: events may be missing")
        follower.send(signal.SIGINT)
        assert await follower.ended() == 130
        assert "Traceback" not in follower.log_text()


async def _heard(raw: Redis) -> bool:
    return dict(await raw.pubsub_numsub(CHANNEL)) == {CHANNEL.encode(): 1}


async def test_what_is_asked_from_the_command_line_reaches_a_worker(url: str, raw: Redis) -> None:
    """A process cancels what another one runs."""
    settings = {"ECHOMQ_URL": url, "TEST_NOTES": "/dev/null", "ECHOMQ_LOG_FORMAT": "json"}
    with WorkerProcess("run", "tests.support.app:worker", "--queue", "jobs", env=settings) as worker:
        await worker.saw("worker started")
        id = job(1)
        await Queue(raw, "jobs").put(
            {"pending": {id: 0}, f"job:{id}": row(payload='{"sleep_ms": 60000}')},
        )
        await raw.lpush("emq:{jobs}:ready", "1")

        async def runs() -> bool:
            return bool(await raw.zcard("emq:{jobs}:active"))

        await wait_until(runs, "it runs")
        with WorkerProcess("job", "cancel", "jobs", id, env={"ECHOMQ_URL": url}) as asking:
            assert await asking.ended() == 0
            assert asking.log_text() == "asked\n"
        await worker.saw('job asked to end.*"reason": "by an operator"')
