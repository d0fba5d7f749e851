"""`enqueue` with dedup keys and expiries: from the options, from the lines of a file, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import Cli, Keyspace, cli, keyspace
from tests.support.plain import QUEUE
from tests.support.valkey import ValkeyServer

__all__ = ["cli", "keyspace"]


def test_a_second_job_of_a_key_is_told_and_no_failure(cli: Cli, keyspace: Keyspace) -> None:
    """The first one's id on stdout, a note on stderr, code 0, nothing more in the queue."""
    options = ("--dedup", "report", "--dedup-ttl-ms", "60000", "--expires-at", "2030-01-01T00:00:00Z")
    _, first, err = cli("enqueue", QUEUE, "x", *options)
    before = keyspace.dump()

    code, second, told = cli("enqueue", QUEUE, "y", *options)
    _, as_json, _ = cli("enqueue", QUEUE, "y", "--dedup", "report", "--json")

    assert (code, second, err) == (0, first, "")
    assert told == "deduplicated: that job has the key, nothing was enqueued\n"
    assert json.loads(as_json) == {"id": first.strip(), "outcome": "deduplicated"}
    assert keyspace.dump() == before
    assert keyspace.row(first.strip())["expires_at"] == "1893456000000"


def test_expiry_holds_for_every_line_and_keys_stand_on_them(cli: Cli, keyspace: Keyspace, tmp_path: Path) -> None:
    """--expires-at with a plain file; dedup and expiries on the lines of envelopes, counted apart from duplicates."""
    path = tmp_path / "jobs.jsonl"
    path.write_text("1\n2\n")
    assert cli("enqueue", QUEUE, "--from-file", str(path), "--expires-at", "77")[:2] == (0, "2 enqueued\n")
    assert [keyspace.row(id)["expires_at"] for id in keyspace.members("pending")] == ["77", "77"]
    path.write_text(
        '{"payload": 1, "dedup": "a", "expires_at": 78, "id": "JOB0KHTOWnGLuC"}\n'
        '{"payload": 2, "dedup": "a"}\n'
        '{"payload": 3, "dedup": "b", "dedup_ttl_ms": 60000}\n'
    )

    told = cli("enqueue", QUEUE, "--from-file", str(path), "--envelopes")

    assert told == (0, "2 enqueued, 1 have a key that another job has\n", "")
    assert keyspace.row("JOB0KHTOWnGLuC")["expires_at"] == "78"
    _, as_json, _ = cli("enqueue", QUEUE, "--from-file", str(path), "--envelopes", "--json")
    assert json.loads(as_json) == {"admitted": 0, "duplicates": 1, "deduplicated": 2}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x", "--dedup", ""), "dedup key is empty"),
        (("x", "--dedup-ttl-ms", "5"), "dedup_ttl_ms: expected dedup with it"),
        (("x", "--dedup", "a", "--dedup-ttl-ms", "0"), "dedup_ttl_ms 0: expected 1 or more"),
        (("x", "--dedup", "a", "--dedup-ttl-ms", "99999999999999999999"), "expected 9007199254740992 or less"),
        (("x", "--dedup", "a", "--dedup-ttl-ms", "soon"), "'--dedup-ttl-ms'"),
        (("x", "--expires-in-ms", "-1"), "expires_in_ms -1: expected 0 or more"),
        (("x", "--expires-in-ms", "1", "--expires-at", "1"), "--expires-in-ms and --expires-at: expected one"),
        (("x", "--expires-at", "never"), "--expires-at='never': expected"),
        (("--from-file", "FILE", "--dedup", "a"), "--dedup: of a file one line would be admitted"),
        (("--from-file", "FILE", "--in-ms", "-1"), "in_ms -1: expected 0 or more"),
        (("--from-file", "FILE", "--envelopes", "--expires-in-ms", "5"), "on the lines, not as options"),
    ],
)
def test_what_is_refused_writes_nothing(
    cli: Cli, server: ValkeyServer, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """One line that names what and what was expected, 2, and not a key is written."""
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"payload": 1}\n')

    code, out, err = cli("enqueue", QUEUE, *(str(path) if word == "FILE" else word for word in arguments))

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert "enqueued before" not in err
    assert server.admin.keys("emq:*") == []
