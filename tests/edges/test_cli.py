"""The commands on a real server: what they print, what they write, how they end."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from echomq_worker.cli import main
from echomq_worker.errors import ConnectionLost
from echomq_worker.identity import group_for, is_branded
from echomq_worker.jobs import Jobs, New
from echomq_worker.rows import Receipt
from tests.support.cli import Cli, cli
from tests.support.valkey import ValkeyServer

__all__ = ["cli"]


def the_row(server: ValkeyServer, queue: str, id: str) -> dict[str, bytes]:
    """A row as another client sees it."""
    fields: Any = server.admin.hgetall(f"emq:{{{queue}}}:job:{id}")
    return {name.decode(): value for name, value in fields.items()}


def test_enqueue_prints_the_id_of_what_it_admitted(cli: Cli, server: ValkeyServer) -> None:
    """One line, the branded id; the row has the payload byte for byte."""
    code, out, err = cli("enqueue", "emails", '{"to":  "zoë"}')

    id = out.strip()
    assert (code, err, is_branded(id)) == (0, "", True)
    assert the_row(server, "emails", id)["payload"] == '{"to":  "zoë"}'.encode()
    assert server.admin.zrange("emq:{emails}:pending", 0, -1) == [id.encode()]


def test_enqueue_reads_standard_input_as_bytes(cli: Cli, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` is standard input to its end, all 256 byte values of it.

    Report 79 (rq/rq#1188).
    """
    payload = bytes(range(256))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(payload)))

    _, out, _ = cli("enqueue", "emails", "-")

    assert the_row(server, "emails", out.strip())["payload"] == payload


def test_enqueue_in_a_lane_and_later(cli: Cli, server: ValkeyServer) -> None:
    """--group, --in-ms and --at say where and when, alone and together."""
    _, grouped, _ = cli("enqueue", "emails", "x", "--group", "tenant-7")
    _, later, _ = cli("enqueue", "emails", "x", "--in-ms", "60000")
    _, at, _ = cli("enqueue", "emails", "x", "--at", "2030-01-01T00:00:00Z", "--group", "USR0KHTOWnGLuC")
    _, past, _ = cli("enqueue", "emails", "x", "--at", "-5")

    lane = f"emq:{{emails}}:g:{group_for('tenant-7')}:pending"
    assert server.admin.zrange(lane, 0, -1) == [grouped.strip().encode()]
    scored: Any = server.admin.zrange("emq:{emails}:schedule", 0, -1, withscores=True)
    schedule = dict(scored)
    assert set(schedule) == {later.strip().encode(), at.strip().encode(), past.strip().encode()}
    assert schedule[at.strip().encode()] == 1_893_456_000_000
    assert schedule[past.strip().encode()] == -5
    assert the_row(server, "emails", at.strip())["group"] == b"USR0KHTOWnGLuC"


def test_the_same_id_again_is_a_duplicate_and_no_failure(cli: Cli) -> None:
    """A script may enqueue again: the id is printed, stderr says that it was there, the code is 0."""
    id = "JOB0KHTOWnGLuC"
    first = cli("enqueue", "emails", "x", "--id", id)
    second = cli("enqueue", "emails", "y", "--id", id)
    third = cli("enqueue", "emails", "y", "--id", id, "--json")

    assert first == (0, f"{id}\n", "")
    assert second[:2] == (0, f"{id}\n")
    assert second[2].startswith("duplicate: ")
    assert (third[0], json.loads(third[1])) == (0, {"id": id, "outcome": "duplicate"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("emails",), "no payload: expected PAYLOAD, - for standard input, or --from-file"),
        (("bad queue", "x"), "queue 'bad queue'"),
        (("emq", "x"), "queue 'emq'"),
        (("emails", "x", "--in-ms", "-1"), "in_ms -1: expected 0 or more"),
        (("emails", "x", "--in-ms", "1", "--at", "1"), "--in-ms and --at: expected one of them"),
        (("emails", "x", "--at", "tomorrow"), "--at='tomorrow': expected"),
        (("emails", "x", "--id", "JOB1"), "id 'JOB1': expected"),
        (("emails", "x", "--id", "USR0KHTOWnGLuC"), "EMQKIND job id must be JOB-namespaced"),
        (("emails", "x", "--envelopes"), "--envelopes: expected --from-file"),
        (("emails", "x", "--from-file", "f"), "--from-file: expected neither"),
        (("emails", "--from-file", "f", "--envelopes", "--in-ms", "5"), "on the lines, not as options"),
        (("emails", "--from-file", "missing.jsonl"), "--from-file='missing.jsonl': No such file"),
    ],
)
def test_what_enqueue_refuses_writes_nothing(
    cli: Cli, server: ValkeyServer, arguments: tuple[str, ...], said: str
) -> None:
    """One line that names what and what was expected, 2, and not a key is written."""
    code, out, err = cli("enqueue", *arguments)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert server.admin.keys("emq:*") == []


def test_a_file_is_enqueued_line_by_line(cli: Cli, server: ValkeyServer, tmp_path: Path) -> None:
    """Every line is a job, in the order of the file; how many is printed."""
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(7_000)))

    assert cli("enqueue", "emails", "--from-file", str(path)) == (0, "7000 enqueued\n", "")

    members: Any = server.admin.zrange("emq:{emails}:pending", 0, 0)
    assert server.admin.zcard("emq:{emails}:pending") == 7_000
    assert the_row(server, "emails", members[0].decode())["payload"] == b'{"n": 0}'


def test_a_file_of_envelopes(cli: Cli, server: ValkeyServer, tmp_path: Path) -> None:
    """Each line says its id, lane and due time; an id that is there already is counted, not enqueued."""
    path = tmp_path / "jobs.jsonl"
    path.write_text(
        '{"payload": 1, "id": "JOB0KHTOWnGLuC"}\n'
        '{"payload": 2, "id": "JOB0KHTOWnGLuC"}\n'
        '{"payload": 3, "group": "tenant-7"}\n'
        '{"payload": 4, "in_ms": 60000}\n'
    )

    code, out, _ = cli("enqueue", "emails", "--from-file", str(path), "--envelopes", "--json")

    assert (code, json.loads(out)) == (0, {"admitted": 3, "duplicates": 1, "deduplicated": 0})
    assert the_row(server, "emails", "JOB0KHTOWnGLuC")["payload"] == b"1"
    _, stats, _ = cli("queue", "stats", "emails", "--json")
    counts = json.loads(stats)
    assert (counts["pending"], counts["scheduled"], counts["lanes"]) == (1, 1, {group_for("tenant-7"): 1})


def test_a_bad_line_leaves_the_whole_file_out(cli: Cli, server: ValkeyServer, tmp_path: Path) -> None:
    """File and line number are named, and nothing of the file is enqueued."""
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"n": 1}\n' * 5_000 + "{oops\n")

    code, _, err = cli("enqueue", "emails", "--from-file", str(path))

    assert code == 2
    assert f"{path}:5001: " in err
    assert server.admin.keys("emq:*") == []


def test_a_connection_that_fails_on_the_way_says_how_far_it_came(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything before the named line is enqueued, of the batch in hand it is not known."""
    path = tmp_path / "jobs.jsonl"
    sent = Jobs.enqueue_many

    async def failing(self: Jobs, queue: str, items: Sequence[object]) -> list[Receipt]:
        if isinstance(items[0], New) and items[0].payload == b"2":
            raise ConnectionLost("redis://db: closed")
        return await sent(self, queue, items)

    path.write_text("1\n" * 40 + "2\n" * 40)
    monkeypatch.setattr(Jobs, "enqueue_many", failing)
    monkeypatch.setattr("echomq_worker.cli.enqueue._BATCH", 10)

    code, _, err = cli("enqueue", "emails", "--from-file", str(path))

    assert code == 3
    assert f"redis://db: closed; 40 enqueued before line 41 of {path}, of the next 40 unknown" in err


def test_stats_count_what_is_there(cli: Cli) -> None:
    """A row per queue; ready is flat pending and lanes together."""
    cli("enqueue", "emails", "1")
    cli("enqueue", "emails", "2", "--group", "tenant-7")
    cli("enqueue", "emails", "3", "--in-ms", "60000")

    code, out, _ = cli("queue", "stats", "emails", "thumbnails")

    header, emails, thumbnails = (line.split() for line in out.splitlines())
    assert code == 0
    assert dict(zip(header[:3], emails[:3], strict=True)) == {"queue": "emails", "ready": "2", "pending": "1"}
    assert thumbnails[:3] == ["thumbnails", "0", "0"]
    assert "1 in 1" in out


def test_show_tells_a_row(cli: Cli) -> None:
    """Everything that stands on the row, as text and as JSON; what is not there is exit code 1."""
    _, id, _ = cli("enqueue", "emails", "\x1b[2J", "--group", "tenant-7")

    code, out, _ = cli("job", "show", "emails", id.strip())
    _, as_json, _ = cli("job", "show", "emails", id.strip(), "--json")
    missing = cli("job", "show", "emails", "JOB0KHTOWnGLuC")

    assert code == 0
    assert "state       pending" in out
    assert "\x1b" not in out
    assert json.loads(as_json)["payload"] == "\x1b[2J"
    assert json.loads(as_json)["group"] == group_for("tenant-7")
    assert missing == (
        1,
        "",
        "JOB0KHTOWnGLuC: no such job in emails; a completed job has no row (job list shows those that there are)\n",
    )


def test_list_shows_the_newest_first(cli: Cli) -> None:
    """Flat pending from its end, page by page; another state by name, and a wrong one is refused."""
    ids = [cli("enqueue", "emails", str(number))[1].strip() for number in range(3)]
    _, due, _ = cli("enqueue", "emails", "x", "--at", "1893456000000")

    _, page, _ = cli("job", "list", "emails", "--limit", "2", "--json")
    _, rest, _ = cli("job", "list", "emails", "--offset", "2")
    _, scheduled, _ = cli("job", "list", "emails", "--state", "scheduled")
    wrong = cli("job", "list", "emails", "--state", "lost")

    assert [json.loads(line)["id"] for line in page.splitlines()] == [ids[2], ids[1]]
    assert ids[0] in rest
    assert due.strip() in scheduled
    assert "2030-01-01T00:00:00.000+00:00" in scheduled
    assert (wrong[0], wrong[2].count("\n")) == (2, 1)


def test_a_score_beyond_any_calendar_is_shown_as_it_is(cli: Cli) -> None:
    """The seeds admit any integer as a run-at; a listing must not fail over one."""
    cli("enqueue", "emails", "x", "--at", "9007199254740991")

    code, out, _ = cli("job", "list", "emails", "--state", "scheduled")

    assert code == 0
    assert "9007199254740991" in out


def test_check_says_what_it_would_run(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, server, handlers with the numbers in force, and what is worth a look; nothing is run."""
    monkeypatch.setenv("ECHOMQ_MAX_ATTEMPTS", "7")
    monkeypatch.setenv("ECHOMQ_BEATMS", "7")
    cli("enqueue", "emails", "x")

    code, out, err = cli("check", "examples.two_queues:worker")
    _, as_json, _ = cli("check", "examples.two_queues:worker", "--json")

    assert code == 0
    assert "fence        echomq:3.0.0" in out
    assert "did you mean ECHOMQ_BEAT_MS?" in err
    found = json.loads(as_json)
    assert found["settings"]["url"] == url
    assert [row["queue"] for row in found["handlers"]] == ["emails", "thumbnails"]
    assert [row["max_attempts"] for row in found["handlers"]] == [5, 7]
    assert [row["kind"] for row in found["handlers"]] == ["async", "thread"]
    assert found["server"]["policy"] == "noeviction"
    assert found["server"]["wire"] == "4 (scripts)"
    _, stats, _ = cli("queue", "stats", "emails", "--json")
    assert json.loads(stats)["pending"] == 1


def test_check_says_which_wire_is_spoken(cli: Cli) -> None:
    """By the flag, and what came of it on this server; a worker that could do nothing there would not start."""
    code, out, _ = cli("check", "examples.two_queues:worker", "--wire", "auto", "--json")
    assert (code, json.loads(out)["server"]["wire"]) == (0, "auto (scripts: the server has no module emq)")
    code, _, err = cli("check", "examples.two_queues:worker", "--wire", "6")
    assert code == 2
    assert "the server has no module emq: expected ECHOMQ_WIRE=auto" in err


def test_check_refuses_what_run_would_refuse(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of a handler that is shorter than two beats is told before it is tried."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short_lease_app.py").write_text(
        "from echomq_worker import Worker\nworker = Worker()\n"
        "@worker.handler('emails', lease_ms=1999)\nasync def one() -> None: ...\n"
    )

    code, _, err = cli("check", "short_lease_app:worker")

    assert code == 2
    assert "handler of emails: lease_ms=1999: expected at least two beats (2 x 1000 ms)" in err

    (tmp_path / "stateless_app.py").write_text(
        "from echomq_worker import Worker\nworker = Worker()\n"
        "@worker.handler('emails')\nasync def one(payload: bytes, state) -> None: ...\n"
    )
    for command in (("check",), ("run", "--burst")):
        code, _, err = cli(*command, "stateless_app:worker")
        assert (code, "parameter state: it is what the lifespan yields, and there is none" in err) == (2, True)


@pytest.mark.parametrize(("refused", "policy"), [("-info -config", None), ("-info", "noeviction")])
def test_check_works_where_the_server_tells_little(
    own_server: Callable[..., ValkeyServer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refused: str,
    policy: str | None,
) -> None:
    """A managed server refuses INFO, maybe CONFIG too: what is not told is unknown, and that is no failure."""
    server = own_server()
    admin: Any = server.admin
    admin.execute_command("ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all", *refused.split())
    monkeypatch.setenv("ECHOMQ_URL", f"redis://worker:pw@127.0.0.1:{server.port}/0")

    code = main(["check", "examples.two_queues:worker", "--json"])

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (found["server"]["version"], found["server"]["policy"]) == ("unknown", policy)
    assert found["settings"]["url"] == f"redis://worker:***@127.0.0.1:{server.port}/0"


def test_another_wire_version_is_4(cli: Cli, server: ValkeyServer) -> None:
    """A deployment on another rung is refused with both versions, and nothing is written."""
    server.admin.set("{emq}:version", "echomq:2.4.2")

    for arguments in (("ping",), ("enqueue", "emails", "x"), ("check", "examples.two_queues:worker")):
        code, _, err = cli(*arguments)
        assert (code, err.count("\n")) == (4, 1)
        assert "echomq:2.4.2" in err
        assert "echomq:3.0.0" in err
    assert server.admin.keys("emq:*") == []


@pytest.mark.parametrize(
    "arguments",
    [("ping",), ("queue", "stats", "emails"), ("enqueue", "emails", "x"), ("check", "examples.two_queues:worker")],
)
def test_a_server_that_is_not_there_is_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """One line with the address."""
    monkeypatch.setenv("ECHOMQ_URL", "redis://127.0.0.1:1/0")

    assert main(arguments) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "redis://127.0.0.1:1/0" in err


@pytest.mark.parametrize("arguments", [("ping",), ("queue", "stats", "emails"), ("enqueue", "emails", "x")])
def test_no_url_is_2_and_names_the_variable(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    """Never a silent localhost."""
    assert main(arguments) == 2
    assert "ECHOMQ_URL is not set" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_trace(server: ValkeyServer, url: str) -> None:
    """`… | head -1` must not end in a trace of ours."""
    command = f"{sys.executable} -m echomq_worker queue stats {' '.join(['q'] * 3000)} --url {url} | head -1"

    ended = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=90, check=False)

    assert ended.stdout.startswith("queue")
    assert ended.stderr == ""
