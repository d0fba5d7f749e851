"""The operator's commands: what they print and what they change."""

from __future__ import annotations

import io
import json

import pytest

from echomq_worker.identity import encode, group_for
from tests.support.cli import DEAD, ID, IN_HAND, ROW, Cli, Keyspace, cli, keyspace, lines
from tests.support.control import PARENT, REPEATS, child, waiting
from tests.support.own import flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, QUEUE, job, row
from tests.support.valkey import ValkeyServer

__all__ = ["cli", "keyspace"]


# ---------------------------------------------------------------------------------------------- queue


def test_queue_stats(cli: Cli, keyspace: Keyspace) -> None:
    """A line of JSON for each queue, in the order given, with everything that is counted; a table without --json."""
    keyspace.put(merged(flat(2), lane(3), IN_HAND, {"meta": {"paused": "1", "concurrency": "5"}}, REPEATS))
    keyspace.put({"schedule": {job(4): FAR_MS}, "metrics:completed": {"count": "7"}})

    code, out, err = cli("queue", "stats", QUEUE, "other", "--json")
    _, table, _ = cli("queue", "stats", QUEUE, "other")

    first, second = lines(out)
    assert (code, err) == (0, "")
    age = first.pop("oldest_pending_age_ms")
    assert age > 0
    assert first == {
        "queue": QUEUE,
        "ready": 2,
        "pending": 1,
        "active": 1,
        "scheduled": 1,
        "dead": 0,
        "repeats": 3,
        "paused": True,
        "lanes": {GROUP: 1},
        "completed": 7,
        "failed": 0,
        "concurrency": 5,
        "rate": None,
        "window_ms": None,
        "expired_leases": 0,
        "next_due_ms": FAR_MS,
    }
    assert (second["queue"], second["ready"]) == ("other", 0)
    assert "5 at a time" in table
    assert "1 in 1" in table


def test_queue_list(cli: Cli, keyspace: Keyspace, server: ValkeyServer) -> None:
    """Every queue that has a key, whatever key."""
    keyspace.put(flat(1, 2))
    server.admin.hset("emq:{aaa}:meta", "paused", "1")

    _, out, _ = cli("queue", "list", "--json")
    _, table, _ = cli("queue", "list")

    assert [(one["queue"], one["ready"], one["paused"]) for one in lines(out)] == [("aaa", 0, True), (QUEUE, 2, False)]
    assert [line.split()[0] for line in table.splitlines()] == ["queue", "aaa", QUEUE]


def test_queue_pause_and_resume(cli: Cli, keyspace: Keyspace) -> None:
    """The mark comes and goes."""
    assert cli("queue", "pause", QUEUE) == (0, "paused\n", "")
    assert keyspace.hash("meta") == {"paused": "1"}
    assert cli("queue", "resume", QUEUE) == (0, "resumed\n", "")

    assert keyspace.hash("meta") == {}


def test_queue_limit_and_rate(cli: Cli, keyspace: Keyspace) -> None:
    """Written and taken away."""
    assert cli("queue", "limit", QUEUE, "5") == (0, "at most 5 at a time\n", "")
    assert cli("queue", "rate", QUEUE, "10", "1000") == (0, "at most 10 per 1000 ms\n", "")
    assert keyspace.hash("meta") == {"concurrency": "5", "max": "10", "window_ms": "1000"}
    assert cli("queue", "limit", QUEUE, "none")[1] == "no limit\n"
    assert cli("queue", "rate", QUEUE, "none")[1] == "no limit\n"

    assert keyspace.hash("meta") == {}


def test_queue_drain(cli: Cli, keyspace: Keyspace) -> None:
    """Flat jobs and lanes; the scheduled ones on request."""
    keyspace.put(merged(flat(2, 3), lane(4), IN_HAND, {f"job:{job(5)}": row("scheduled"), "schedule": {job(5): 5}}))

    assert cli("queue", "drain", QUEUE, "--yes") == (0, "3 deleted\n", "")
    assert cli("queue", "drain", QUEUE, "--yes", "--schedule")[1] == "1 deleted\n"

    assert (keyspace.members("active"), keyspace.members("schedule")) == ([ID], [])


def test_queue_obliterate(cli: Cli, keyspace: Keyspace) -> None:
    """Refused in one line while it is not paused or has jobs in hand; then no key is left."""
    keyspace.put(merged(flat(2), IN_HAND, REPEATS))
    before = keyspace.dump()

    running = cli("queue", "obliterate", QUEUE, "--yes", "--force")
    assert keyspace.dump() == before
    cli("queue", "pause", QUEUE)
    busy = cli("queue", "obliterate", QUEUE, "--yes")
    assert len(keyspace.dump()) == len(before) + 1
    done = cli("queue", "obliterate", QUEUE, "--yes", "--force")

    assert (running[0], running[1], running[2].count("\n")) == (1, "", 1)
    assert "EMQSTATE not paused: q, expected echomq-worker queue pause q before" in running[2]
    assert (busy[0], "EMQSTATE active jobs present: 1 in q, expected --force" in busy[2]) == (1, True)
    assert done == (0, "obliterated\n", "")
    assert keyspace.dump() == {}


def test_queue_audit(cli: Cli, keyspace: Keyspace) -> None:
    """0 where all agrees, 1 with what was found, 0 once it is mended."""
    keyspace.put(flat(1))
    assert cli("queue", "audit", QUEUE) == (0, "nothing found\n", "")
    keyspace.put({"dead": {job(2): 0}, "gactive": {GROUP: "3"}})
    before = keyspace.dump()

    code, out, _ = cli("queue", "audit", QUEUE)
    _, as_json, _ = cli("queue", "audit", QUEUE, "--json")
    assert keyspace.dump() == before
    mended = cli("queue", "audit", QUEUE, "--repair", "--yes", "--json")

    assert code == 1
    assert "gactive has 3, expected 0" in out
    assert [(one["kind"], one["name"]) for one in lines(as_json)] == [("id_without_row", job(2)), ("gactive", GROUP)]
    assert (mended[0], lines(mended[1]), mended[2]) == (0, lines(as_json), "2 of 2 mended\n")
    assert cli("queue", "audit", QUEUE, "--json") == (0, "", "")


# ----------------------------------------------------------------------------------------------- dead


def test_dead_list_and_show(cli: Cli, keyspace: Keyspace) -> None:
    """The newest first with its reason, and a note where there are more; one whole, with its log; a job that is not
    dead is 1.
    """
    keyspace.put(merged(DEAD, {f"{ROW}:logs": ["a line", "\x1b[2J"]}, flat(7)))

    _, page, more = cli("dead", "list", QUEUE, "--json", "--limit", "2")
    _, table, no_more = cli("dead", "list", QUEUE, "--limit", "3")
    code, out, _ = cli("dead", "show", QUEUE, ID)
    _, as_json, _ = cli("dead", "show", QUEUE, ID, "--json")
    alive = cli("dead", "show", QUEUE, job(7))

    assert [one["id"] for one in lines(page)] == [job(3), job(2)]
    assert (more, no_more) == ("there are more than these 2: --limit and --offset show them\n", "")
    assert "Timeout 3" in table
    assert (code, "last_error  Timeout 1" in out, "a line" in out, "\x1b" in out) == (0, True, True, False)
    assert json.loads(as_json)["log"] == ["a line", "\x1b[2J"]
    assert (alive[0], alive[2].count("\n")) == (1, 1)


def test_dead_requeue(cli: Cli, keyspace: Keyspace) -> None:
    """By id, by a part of the error, all; what was named and is not dead makes it 1."""
    keyspace.put(DEAD)

    assert cli("dead", "requeue", QUEUE, job(2)) == (0, "1 requeued\n", "")
    assert cli("dead", "requeue", QUEUE, "--error", "Timeout 3", "--json") == (
        0,
        '{"requeued": 1, "refused": {}}\n',
        "",
    )
    again = cli("dead", "requeue", QUEUE, job(2))
    assert cli("dead", "requeue", QUEUE, "--all")[1] == "1 requeued\n"

    assert again == (1, "0 requeued\n", "the others are not dead (job show says where they are)\n")
    assert keyspace.members("pending") == [job(1), job(2), job(3)]


def test_dead_requeue_says_what_to_choose_by(cli: Cli, keyspace: Keyspace) -> None:
    """Nothing chosen, and all beside a choice, are told apart."""
    keyspace.put(DEAD)

    nothing, both = cli("dead", "requeue", QUEUE), cli("dead", "requeue", QUEUE, ID, "--all")

    assert "no dead jobs chosen: expected ids, --older-than-ms, --error or --limit, or --all\n" in nothing[2]
    assert "--all: expected neither ids nor --older-than-ms, --error or --limit with it\n" in both[2]


def test_dead_requeue_names_what_is_refused(cli: Cli, keyspace: Keyspace) -> None:
    """A parent whose children are out: 1 and a line for it; --force takes it."""
    keyspace.put(DEAD | {f"{ROW}:dependencies": "1"})

    code, out, err = cli("dead", "requeue", QUEUE, "--all")

    assert (code, out) == (1, "2 requeued\n")
    assert err.startswith(f"{ID}: EMQSTATE children still out (flow show says which; ")
    assert cli("dead", "requeue", QUEUE, ID, "--force")[1] == "1 requeued\n"


def test_dead_delete(cli: Cli, keyspace: Keyspace) -> None:
    """By count, the oldest first, then the rest."""
    keyspace.put(DEAD)

    assert cli("dead", "delete", QUEUE, "--limit", "1", "--yes") == (0, "1 deleted\n", "")
    assert keyspace.members("dead") == [job(2), job(3)]
    assert cli("dead", "delete", QUEUE, "--older-than-ms", "1000", "--yes")[1] == "2 deleted\n"

    assert keyspace.dump() == {}


def test_dead_trim(cli: Cli, keyspace: Keyspace) -> None:
    """By count, by age."""
    young = encode("JOB", 2**62)
    keyspace.put(merged(DEAD, {f"job:{young}": row("dead"), "dead": {young: 0}}))

    assert cli("dead", "trim", QUEUE, "--max-count", "3", "--yes") == (0, "1 deleted\n", "")
    assert cli("dead", "trim", QUEUE, "--max-age-ms", "1000", "--yes")[1] == "2 deleted\n"

    assert keyspace.members("dead") == [young]


# ------------------------------------------------------------------------------------------------ job


def test_job_update_progress_and_log(cli: Cli, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payload from the argument or standard input, progress, lines; each on the server."""
    keyspace.put(flat(1))

    assert cli("job", "update", QUEUE, ID, '{"a": 1}') == (0, "updated\n", "")
    assert keyspace.row(ID)["payload"] == '{"a": 1}'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"piped")))
    assert cli("job", "update", QUEUE, ID, "-")[0] == 0
    assert cli("job", "progress", QUEUE, ID, "50") == (0, "written\n", "")
    assert cli("job", "log", QUEUE, ID, "one") == (0, "1\n", "")
    assert cli("job", "log", QUEUE, ID, "two", "--keep", "1")[1] == "1\n"
    assert cli("job", "logs", QUEUE, ID) == (0, "two\n", "")
    assert cli("job", "logs", QUEUE, ID, "--json")[1] == '"two"\n'

    assert keyspace.row(ID) == row(payload="piped", progress="50")


def test_job_logs_has_pages(cli: Cli, keyspace: Keyspace) -> None:
    """From an offset, so many."""
    keyspace.put(flat(1) | {f"{ROW}:logs": ["a", "b", "c"]})

    assert cli("job", "logs", QUEUE, ID, "--limit", "1", "--offset", "1")[1] == "b\n"


def test_job_remove_and_reprocess(cli: Cli, keyspace: Keyspace) -> None:
    """What is in hand and what is not dead is refused with 1; a flow's child too, unless forced."""
    keyspace.put(merged(DEAD, waiting(1), {f"job:{job(5)}": child(), "pending": {job(5): 0}}))
    keyspace.put({f"job:{job(6)}": row("active", 1), "active": {job(6): FAR_MS}})

    assert cli("job", "reprocess", QUEUE, job(2)) == (0, "pending\n", "")
    alive = cli("job", "reprocess", QUEUE, job(2))
    assert cli("job", "remove", QUEUE, ID, "--yes") == (0, "removed\n", "")
    held = cli("job", "remove", QUEUE, job(6), "--yes")
    kin = cli("job", "remove", QUEUE, job(5), "--yes")
    assert cli("job", "remove", QUEUE, job(5), "--yes", "--force")[0] == 0

    assert (alive[0], "EMQSTATE not dead" in alive[2]) == (1, True)
    assert (held[0], "EMQLOCK job is locked" in held[2]) == (1, True)
    assert (kin[0], "EMQSTATE job is a child of a flow" in kin[2]) == (1, True)
    assert keyspace.members("dead") == [job(3), PARENT]


def test_job_list_of_a_lane(cli: Cli, keyspace: Keyspace) -> None:
    """Named by any text."""
    keyspace.put(lane(1, 2, group=group_for("tenant-7")))

    _, out, _ = cli("job", "list", QUEUE, "--group", "tenant-7", "--json")

    assert [one["id"] for one in lines(out)] == [job(2), job(1)]


@pytest.mark.parametrize(
    "verb",
    [
        ("show",),
        ("remove", "--yes"),
        ("reprocess",),
        ("update", "x"),
        ("progress", "x"),
        ("logs",),
        ("log", "x"),
    ],
    ids=lambda verb: verb[0],
)
def test_a_job_that_is_gone_is_1(cli: Cli, keyspace: Keyspace, verb: tuple[str, ...]) -> None:
    """One line that names it, and no row is made."""
    code, out, err = cli("job", verb[0], QUEUE, ID, *verb[1:])

    assert (code, out, err) == (
        1,
        "",
        f"{ID}: no such job in q; a completed job has no row (job list shows those that there are)\n",
    )
    assert keyspace.dump() == {}


# ----------------------------------------------------------------------------------------------- lane


def test_lanes_in_the_operators_hand(cli: Cli, keyspace: Keyspace) -> None:
    """Pause, resume, limit, weight; listed with what was set. A lane is named by any text."""
    tenant = group_for("tenant-7")
    keyspace.put(lane(1, group=tenant))

    assert cli("lane", "id", "tenant-7") == cli("lane", "id", tenant) == (0, f"{tenant}\n", "")
    assert cli("lane", "pause", QUEUE, "tenant-7") == (0, "paused\n", "")
    assert cli("lane", "limit", QUEUE, "tenant-7", "2")[1] == "at most 2 at a time\n"
    assert cli("lane", "weight", QUEUE, tenant, "3")[1] == "3 per turn\n"
    _, out, _ = cli("lane", "list", QUEUE, "--json")
    _, table, _ = cli("lane", "list", QUEUE)
    assert cli("lane", "resume", QUEUE, "tenant-7")[1] == "resumed\n"
    assert cli("lane", "limit", QUEUE, "tenant-7", "none")[1] == "no limit\n"
    _, after, _ = cli("lane", "list", QUEUE, "--json")

    (view,) = lines(out)
    assert view == {"group": tenant, "depth": 1, "active": 0, "limit": 2, "weight": 3, "paused": True, "on_ring": False}
    assert table.split()[-7:] == [tenant, "1", "0", "2", "3", "yes", "no"]
    assert lines(after) == [view | {"limit": None, "paused": False, "on_ring": True}]


def test_lane_reassign(cli: Cli, keyspace: Keyspace) -> None:
    """Moved, there already, gone, not pending."""
    keyspace.put(merged(lane(2), IN_HAND))

    assert cli("lane", "reassign", QUEUE, job(2), OTHER_GROUP) == (0, "reassigned\n", "")
    assert cli("lane", "reassign", QUEUE, job(2), OTHER_GROUP) == (0, "it is there already\n", "")
    code, out, err = cli("lane", "reassign", QUEUE, job(7), GROUP)
    assert (code, out, err.startswith(f"{job(7)}: no such job in q (")) == (1, "", True)

    code, out, err = cli("lane", "reassign", QUEUE, ID, OTHER_GROUP)
    assert (code, out, err.startswith(f"{ID}: not pending in q (")) == (1, "", True)


def test_lane_drain_and_reap(cli: Cli, keyspace: Keyspace) -> None:
    """The waiting jobs of one lane; its expired leases."""
    keyspace.put(merged(lane(2, 3), lane(4, group=OTHER_GROUP), IN_HAND, {"active": {ID: 1}}))

    assert cli("lane", "drain", QUEUE, GROUP, "--yes") == (0, "2 deleted\n", "")
    assert cli("lane", "reap", QUEUE, GROUP) == (0, "1 put back\n", "")

    assert keyspace.members(f"g:{GROUP}:pending") == [ID]
    assert keyspace.members(f"g:{OTHER_GROUP}:pending") == [job(4)]
